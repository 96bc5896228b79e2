"""The workers that hold the hint of a job: who would be near to it, and what the others do not know of."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..clock import SECOND_US
from ..rules import overtaking
from ..rules.encoding import decode, encode
from ..rules.rows import number_of, text_of
from ..server.reader import Reader

#: Holders of a hint that are shown, and hints of a worker: those of the last jobs.
_SHOWN = 10


@dataclass(frozen=True)
class NearWorker:
    """A worker that holds the hint of a job. *used_s*: time since it ended such a job last."""

    name: str
    used_s: float
    free: int


@dataclass(frozen=True)
class Near:
    """*workers*: those that hold the hint, the last one first. *bonus*: points that the job gets there; 0: none."""

    workers: list[NearWorker]
    bonus: float


def near(reader: Reader, hint: str, now_us: int, settings: Mapping[str, str]) -> Near:
    """Return who holds *hint*. *settings*: complete. Two round trips."""
    found = reader.ask_one("zrevrange", reader.key("holders", encode(hint)), 0, _SHOWN - 1, "WITHSCORES")
    holders = _pairs(found)
    rows = [("hmget", reader.key("worker", each), ["name", "free"]) for each, _ in holders]
    times = [("zscore", reader.key("hints", each), encode(hint)) for each, _ in holders]
    replies = reader.ask([*rows, *times]) if holders else []
    workers = [
        NearWorker(
            decode(text_of(name or b"")), max(0.0, now_us - float(at_us or since_us)) / SECOND_US, number_of(free)
        )
        for (_, since_us), (name, free), at_us in zip(holders, replies, replies[len(holders) :], strict=False)
    ]
    workers.sort(key=lambda each: each.used_s)
    return Near(workers, overtaking.bonus_in(settings))


def hints_of(reader: Reader, worker: str) -> dict[str, float]:
    """Return the hints that *worker* holds -> when it ended such a job last, Unix time; the last one first."""
    found = reader.ask_one("zrevrange", reader.key("hints", worker), 0, _SHOWN - 1, "WITHSCORES")
    return {decode(hint): at_us / SECOND_US for hint, at_us in _pairs(found)}


def _pairs(found: object) -> list[tuple[str, int]]:
    """Return members and scores of a reply, in whichever form the client has it."""
    flat = list(found) if isinstance(found, list) else []
    pairs = flat if flat and isinstance(flat[0], list | tuple) else zip(flat[::2], flat[1::2], strict=True)
    return [(text_of(member), round(float(score))) for member, score in pairs]
