"""The recording that is on, or was the last one: there is one at a time.

Its id and its end are in one key, what workers hand over is in another. A recording ends by itself, and its keys are
forgotten by themselves: whoever began it may have died.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from redis.exceptions import ResponseError, WatchError

from ..clock import SECOND_US
from ..schema.values import decode_text
from .scheduler import Scheduler

_WORDS = re.compile(r"([!-~]+) (\d{1,18}) (\d{1,18}) (\d{1,18})")

#: Pages of a recording that are read together.
_TOGETHER = 200

#: Largest number of attempts while others begin a recording.
_TRIES = 5


class Recording(NamedTuple):
    """Times of the server's clock. *kept_ms*: the time until which its keys are kept."""

    id: str
    since_us: int
    until_us: int
    kept_ms: int

    @property
    def words(self) -> str:
        return f"{self.id} {self.since_us} {self.until_us} {self.kept_ms}"

    @property
    def is_leased(self) -> bool:
        """Whether the recording ends soon unless its reader prolongs it, as `lab record --for` does at each fetch."""
        return self.kept_ms * 1000 <= self.until_us + SECOND_US


class Page(NamedTuple):
    """What a worker handed over. *worker*: facts in JSON; *claims*: a text that `recorded_claims` reads.

    *told*: what the server told of jobs that were asked for: two lines of each plain one first, in the order of their
    rows, then one line of each other one.
    """

    number: str
    worker: str
    claims: str = ""
    told: Sequence[str] = ()


def current_recording(scheduler: Scheduler) -> Recording | None:
    """Return the recording that is on, or was the last one; None if there is none, or nobody can read it."""
    with suppress(ResponseError):  # a key of another type
        return _parsed(scheduler.client.get(scheduler.keys.key("recording")))
    return None


def _parsed(found: bytes | None) -> Recording | None:
    said = _WORDS.fullmatch(decode_text(found))
    return Recording(said[1], int(said[2]), int(said[3]), int(said[4])) if said else None


def begin_recording(scheduler: Scheduler, id: str, *, for_s: float, kept_s: float, instead: bool = False) -> Recording:
    """Begin the recording *id*, or have it go on, for *for_s* from now; its keys are kept *kept_s* longer.

    Returns the recording that is on then: another one that is on stays, and without *instead* one that has ended.
    """
    key = scheduler.keys.key("recording")
    for _ in range(_TRIES):
        with scheduler.client.pipeline() as pipe:
            pipe.watch(key)
            found = _parsed(pipe.get(key))
            now_us = scheduler.reader.now_us()
            is_other = found is not None and found.id != id
            if found is not None and is_other and (found.until_us > now_us or not instead):
                return found
            since_us = now_us if found is None or is_other else found.since_us
            until_us = now_us + round(for_s * SECOND_US)
            begun = Recording(id, since_us, until_us, until_us // 1000 + round(kept_s * 1000))
            pipe.multi()
            pipe.set(key, begun.words, px=max(1, begun.kept_ms - now_us // 1000))
            if found is not None and is_other:
                pipe.unlink(scheduler.keys.key("recorded", found.id))
            with suppress(WatchError):
                pipe.execute()
                return begun
    raise WatchError("others begin recordings all the time")


def end_recording(scheduler: Scheduler, id: str) -> None:
    """End the recording *id*, and forget what was written. Another recording goes on."""
    key = scheduler.keys.key("recording")
    with scheduler.client.pipeline() as pipe:
        pipe.watch(key)
        found = _parsed(pipe.get(key))
        pipe.multi()
        if found is not None and found.id == id:
            pipe.unlink(key)
        pipe.unlink(scheduler.keys.key("recorded", id))
        with suppress(WatchError):
            pipe.execute()


def recording_pages(scheduler: Scheduler, id: str, after: str = "-") -> Iterator[Page]:
    """Yield what workers have handed over after the page of the number *after*."""
    key, client = scheduler.keys.key("recorded", id), scheduler.client
    while True:
        found = client.xrange(key, min=after if after == "-" else f"({after}", max="+", count=_TOGETHER)
        for number, fields in found:
            after = decode_text(number)
            worker, claims, told = (decode_text(fields.get(name)) for name in (b"worker", b"claims", b"told"))
            yield Page(after, worker, claims, told.split("\n"))
        if len(found) < _TOGETHER:
            return


def forget_pages(scheduler: Scheduler, id: str, up_to: str) -> None:
    """Drop the pages up to that of the number *up_to*."""
    scheduler.client.xtrim(scheduler.keys.key("recorded", id), minid=_next(up_to), approximate=False)


def _next(number: str) -> str:
    ms, _, nth = number.partition("-")
    return f"{ms}-{int(nth) + 1}"
