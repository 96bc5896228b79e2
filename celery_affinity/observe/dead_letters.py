"""The dead letters: jobs that will not run again, and why. Reading them; `Scheduler` replays and drops them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from redis.exceptions import NoPermissionError

from ..rules.keys import decode
from ..rules.rows import number_of, text_of, why_of
from ..server.reader import Reader, as_text

#: Why a job is a dead letter.
REASONS = ("rejected", "max_deliveries", "lost", "unreadable")

_PAGE = 500

#: What of a message's headers explains what it was; the arguments as their sender wrote them for people.
_SHOWN_HEADERS = ("argsrepr", "kwargsrepr", "retries", "eta", "expires", "root_id", "parent_id", "origin")


@dataclass(frozen=True)
class DeadLetter:
    """A job that will not run again. *reason*: one of `REASONS`. Not *replayable*: its message is gone.

    *why*: the type of the exception and the first 200 characters of what it says, if a worker said so.
    """

    job_id: str
    task_id: str
    task: str
    type: str
    reason: str
    ended_s: float
    deliveries: int
    replayable: bool
    why: str | None = None


@dataclass(frozen=True)
class Shown:
    """A dead letter with what its message says of the call. *message_bytes*: the length of the message, 0 if gone."""

    letter: DeadLetter
    enqueued_s: float
    message_bytes: int
    headers: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Filter:
    """Which letters: all that have the given fields. *task* may be a pattern; *ids*: of jobs or of tasks."""

    ids: Sequence[str] = ()
    reason: str | None = None
    type: str | None = None
    task: str | None = None
    older_than_s: float | None = None

    @property
    def is_empty(self) -> bool:
        return not self.ids and not any((self.reason, self.type, self.task, self.older_than_s))

    def admits(self, letter: DeadLetter, now_s: float) -> bool:
        return (
            (not self.ids or letter.job_id in self.ids or letter.task_id in self.ids)
            and self.reason in (None, letter.reason)
            and self.type in (None, letter.type)
            and (self.task is None or fnmatchcase(letter.task, self.task))
            and (self.older_than_s is None or now_s - letter.ended_s >= self.older_than_s)
        )


def find(reader: Reader, which: Filter, limit: int | None = None) -> list[DeadLetter]:
    """Return the letters that *which* admits, the newest first, *limit* at most."""
    found, now_s = [], reader.now_us() / 1e6
    for letter in _of_ids(reader, which.ids) if which.ids else _all(reader):
        if which.admits(letter, now_s):
            found.append(letter)
            if len(found) == limit:
                break
    return found


def show(reader: Reader, letter: DeadLetter) -> Shown:
    """Return all that is known of a letter."""
    row = reader.hash("job", letter.job_id)
    message_bytes = number_of(reader.ask_one("strlen", reader.key("message", letter.job_id)))
    enqueued_s = number_of(row.get("enqueued")) / 1e6
    return Shown(letter, enqueued_s, message_bytes, _headers(reader, letter.job_id))


def _headers(reader: Reader, job_id: str) -> dict[str, object]:
    try:
        message = reader.ask_one("get", reader.key("message", job_id)) or b""
    except NoPermissionError:
        return {"arguments": "not for this user: it has no right to read messages"}
    try:
        headers = json.loads(message)["headers"]
        return {name: headers[name] for name in _SHOWN_HEADERS if headers.get(name) is not None}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}  # gone, or what made it a dead letter


def _all(reader: Reader) -> Iterator[DeadLetter]:
    first = 0
    while ids := reader.ask_one("zrange", reader.key("dead"), first, first + _PAGE - 1, True):
        yield from _read(reader, [text_of(job_id) for job_id in ids])
        first += _PAGE


def _of_ids(reader: Reader, ids: Sequence[str]) -> list[DeadLetter]:
    of_tasks = [job_id for jobs in reader.jobs_of(ids) for job_id in jobs]
    return _read(reader, list(dict.fromkeys([*ids, *of_tasks])))


def _read(reader: Reader, ids: Sequence[str]) -> list[DeadLetter]:
    """Return those of the jobs that are dead letters."""
    rows = reader.ask([("hgetall", reader.key("job", job_id)) for job_id in ids])
    there = reader.ask([("exists", reader.key("message", job_id)) for job_id in ids])
    letters = []
    for job_id, raw, replayable in zip(ids, rows, there, strict=True):
        row = as_text(raw)
        if row.get("state") == "dead":
            letters.append(
                DeadLetter(
                    job_id=job_id,
                    task_id=decode(row.get("task", "")),
                    task=row.get("name", ""),
                    type=decode(row.get("type", "")),
                    reason=row.get("reason", ""),
                    ended_s=number_of(row.get("ended")) / 1e6,
                    deliveries=number_of(row.get("deliveries")),
                    replayable=bool(replayable),
                    why=why_of(row),
                )
            )
    return letters
