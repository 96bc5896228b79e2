"""A trace: what a fleet did for a while, as a record that can be given away.

It has hashes in place of keys, and no arguments. Times are µs since the beginning of the trace. A job that was pending
before the trace began has a time below 0.

The columns of a job in a file: their names, what each accepts, and the checks of a whole row.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from ..errors import TraceError
from ..schema.constants import MAX_PRIORITY

#: The form of a trace, in its header.
SCHEMA = "celery-affinity-trace/1"

#: How a claim ended, as the worker told it. `REVOKED`, `EXPIRED`: also of a job that ended so while it waited, without
#: a claim. `RETURNED`: the job waited again. `RUNNING`: the claim had not ended as the trace did. `PENDING`: the job
#: still waited then.
DONE, FAILED, REVOKED, EXPIRED, REJECTED, RETURNED, RUNNING, PENDING = (
    "done",
    "failed",
    "revoked",
    "expired",
    "rejected",
    "returned",
    "running",
    "pending",
)

OUTCOMES = (DONE, FAILED, REVOKED, EXPIRED, REJECTED, RETURNED, RUNNING, PENDING)


@dataclass(frozen=True, slots=True)
class TracedWorker:
    """A worker, from its join, or the beginning of the trace, until it left (None: it did not).

    One that came back, or got other types or slots, is a further one of the same name.
    """

    name: str
    types: tuple[str, ...]
    slots: int
    joined_us: int = 0
    left_us: int | None = None


@dataclass(frozen=True, slots=True)
class TracedJob:
    """One stay of a job in the queue, and the claim that ended it. A job that came back has a further one.

    *enqueued_us*: the time from which its age counts. *since_us*: the time from which it could be claimed: of a job
    that came back, when it came back. *claimed_us*, *started_us*, *ended_us*: None if that did not happen within the
    trace. *freed_us*: when the server heard of the end, or when the worker knew that it had; None if nobody wrote it
    down. *fence*: orders claims; None without a claim. *exclusive*, *rate*, *merge*, *tenant*: hashes; the limits of
    the first two as the task says them (`"3"`, `"10/m"`), or as `affinity_limits` overrides them.
    """

    type: str
    enqueued_us: int
    since_us: int
    on_demand: bool = False
    priority: int = 5
    fence: int | None = None
    claimed_us: int | None = None
    started_us: int | None = None
    ended_us: int | None = None
    freed_us: int | None = None
    outcome: str = PENDING
    worker: str | None = None
    exclusive: str | None = None
    exclusive_limit: str | None = None
    rate: str | None = None
    rate_limit: str | None = None
    merge: str | None = None
    tenant: str | None = None

    @property
    def took_us(self) -> int | None:
        """Return how long it had the slot; None if its end, or its start, is not in the trace."""
        begun_us = self.claimed_us if self.started_us is None else self.started_us
        return None if begun_us is None or self.ended_us is None else max(0, self.ended_us - begun_us)


@dataclass(frozen=True, slots=True)
class Trace:
    """A record of *length_us*. *settings*: those in force, by their name in Redis (`rules.shared_settings`), as text.

    *paused*: types that were paused as it began; ``*``: all types. *versions*: of this package and of the server, by
    name. *lost*: number of claims that workers could not write down.
    """

    length_us: int
    workers: tuple[TracedWorker, ...]
    jobs: tuple[TracedJob, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    paused: tuple[str, ...] = ()
    recorded_at: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    lost: int = 0


#: Values of the column ``mode``: whether the job is on demand.
_MODES = {"queued": False, "demand": True}

#: Times of a claim, in the order in which they pass.
_IN_ORDER = ("enqueued_us", "since_us", "claimed_us", "started_us", "ended_us", "freed_us")


#: Largest number: that of µs in 100,000 years.
_LARGEST = 4 * 10**18

#: Most slots of a worker: an engine keeps each one.
MOST_SLOTS = 999_999


def number_column(value: object) -> int:
    """Return a whole number, which a CSV file has as text. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("a whole number")
    try:
        found = int(value)
    except ValueError:
        raise ValueError("a whole number") from None
    if abs(found) > _LARGEST:
        raise ValueError(f"a whole number of {_LARGEST:,} at most")
    return found


def text_column(value: object) -> str:
    """Return a text that is not empty. A text that many rows have is kept once. Raises ValueError."""
    if not isinstance(value, str) or not value:
        raise ValueError("a text that is not empty")
    if not is_utf8(value):
        raise ValueError("a text in UTF-8")
    return sys.intern(value)


def is_utf8(value: str) -> bool:
    """Return whether *value* can be written in UTF-8: one in JSON may have half a character."""
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


def _limit(value: object) -> str:
    return text_column(str(value) if isinstance(value, int) and not isinstance(value, bool) else value)


def _mode(value: object) -> bool:
    if not isinstance(value, str) or value not in _MODES:
        raise ValueError("queued or demand")
    return _MODES[value]


def _priority(value: object) -> int:
    found = number_column(value)
    if not 0 <= found <= MAX_PRIORITY:
        raise ValueError(f"a whole number from 0 to {MAX_PRIORITY}")
    return found


def _outcome(value: object) -> str:
    if value not in OUTCOMES:
        raise ValueError(" or ".join(OUTCOMES))
    return text_column(value)


#: Column -> field of `TracedJob`, and what reads a value. Columns that a row leaves out have the field's default.
COLUMNS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "fence": ("fence", number_column),
    "type": ("type", text_column),
    "mode": ("on_demand", _mode),
    "priority": ("priority", _priority),
    "enqueued_us": ("enqueued_us", number_column),
    "since_us": ("since_us", number_column),
    "claimed_us": ("claimed_us", number_column),
    "started_us": ("started_us", number_column),
    "ended_us": ("ended_us", number_column),
    "freed_us": ("freed_us", number_column),
    "outcome": ("outcome", _outcome),
    "worker": ("worker", text_column),
    "exclusive#": ("exclusive", text_column),
    "exclusive_limit": ("exclusive_limit", _limit),
    "rate#": ("rate", text_column),
    "rate_limit": ("rate_limit", _limit),
    "merge#": ("merge", text_column),
    "tenant#": ("tenant", text_column),
}

#: Other spellings, of traces from elsewhere.
_ALSO = {
    **{name.removesuffix("_us"): name for name in COLUMNS if name.endswith("_us")},
    **{name.removesuffix("#"): name for name in COLUMNS if name.endswith("#")},
}

_READERS = {**COLUMNS, **{also: COLUMNS[name] for also, name in _ALSO.items()}}


def check_columns(names: object, line: int) -> None:
    """Raise TraceError if one of *names* is no column, or names the column of another one."""
    seen: set[str] = set()
    for name in names if isinstance(names, list | tuple | dict) else ():
        if name not in _READERS:
            close = get_close_matches(str(name), _READERS, n=1)
            meant = f"; did you mean {close[0]!r}?" if close else f"; columns are {', '.join(COLUMNS)}"
            raise TraceError(f"line {line}: unknown column {str(name)[:40]!r}{meant}")
        column = _ALSO.get(str(name), str(name))
        if column in seen:
            raise TraceError(f"line {line}: the column {column} stands twice")
        seen.add(column)


def row_of_job(job: TracedJob) -> dict[str, object]:
    """Return the columns of *job* as a file has them: those alone that have a value."""
    row = {column: getattr(job, name) for column, (name, _) in COLUMNS.items()}
    row["mode"] = "demand" if job.on_demand else "queued"
    return {column: value for column, value in row.items() if value is not None}


def job_of(row: Mapping[str, object], line: int) -> TracedJob:
    """Return the job in a *row* of a file, whose values may be texts. Raises TraceError, which names the *line*."""
    found: dict[str, Any] = {}
    for column, value in row.items():
        reader = _READERS.get(column)
        if reader is None:
            check_columns((column,), line)
        elif value is not None:
            name, read = reader
            try:
                found[name] = read(value)
            except ValueError as exc:
                raise TraceError(f"line {line}: {column} must be {exc}, got: {value!r:.80}") from None
    for name in ("type", "enqueued_us"):
        if name not in found:
            raise TraceError(f"line {line}: a job needs the column {name}")
    found.setdefault("since_us", found["enqueued_us"])
    found.setdefault("priority", 0)
    _check_times(found, line)
    same: dict[int, int] = {}  # a number that is there twice takes room once: there may be a million jobs
    for name in _IN_ORDER:
        if name in found:
            found[name] = same.setdefault(found[name], found[name])
    if "outcome" not in found:
        found["outcome"] = PENDING if "claimed_us" not in found else "running" if "ended_us" not in found else "done"
    return TracedJob(**found)


def _check_times(found: Mapping[str, Any], line: int) -> None:
    before = ""
    for name in _IN_ORDER:
        if name not in found:
            continue
        if before and found[name] < found[before]:
            raise TraceError(
                f"line {line}: the clock steps: {name} must be {before} ({found[before]}) or later, got: {found[name]}"
            )
        before = name
