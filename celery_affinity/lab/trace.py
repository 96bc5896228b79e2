"""A trace: an anonymized record of a fleet's activity, and the columns of its jobs in a file.

It has hashes instead of keys, and no arguments. Times are in µs since the beginning of the trace. A job that was
pending before that has a negative time.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from ..errors import TraceError
from ..schema.constants import MAX_PRIORITY

#: The format of a trace, in its header.
SCHEMA = "celery-affinity-trace/1"
#: Outcomes of a claim, as reported by the worker. `REVOKED` and `EXPIRED` also apply to waiting jobs without a claim.
#: `RETURNED`: the job was requeued. `RUNNING`, `PENDING`: the job still ran, or waited, at the end of the trace.
OUTCOMES = ("done", "failed", "revoked", "expired", "rejected", "returned", "running", "pending")
DONE, FAILED, REVOKED, EXPIRED, REJECTED, RETURNED, RUNNING, PENDING = OUTCOMES


@dataclass(frozen=True, slots=True)
class TracedWorker:
    """A worker. After a rejoin, or a change of types or slots, it is listed again with the same name."""

    name: str
    types: tuple[str, ...]
    slots: int
    joined_us: int = 0  #: time of its join, or 0 if it joined before the trace
    left_us: int | None = None  #: None if it did not leave


@dataclass(frozen=True, slots=True)
class TracedJob:
    """One stay of a job in the queue with the claim that ended it. A requeued job is listed again."""

    type: str
    enqueued_us: int  #: start of the job's age
    since_us: int  #: earliest claim time: for a requeued job the time of the requeue
    on_demand: bool = False
    priority: int = 5
    fence: int | None = None  #: orders claims; None without a claim
    claimed_us: int | None = None  #: like the next two, None if it did not happen during the trace
    started_us: int | None = None
    ended_us: int | None = None
    #: Time at which the server received the end, or the worker received the confirmation; None if not recorded.
    freed_us: int | None = None
    outcome: str = PENDING
    worker: str | None = None
    exclusive: str | None = None  #: a hash, like rate, merge and tenant
    exclusive_limit: str | None = None  #: the limit of the task (`"3"`), or of `affinity_limits`
    rate: str | None = None
    rate_limit: str | None = None  #: the limit of the task (`"10/m"`), or of `affinity_limits`
    merge: str | None = None
    tenant: str | None = None

    @property
    def took_us(self) -> int | None:
        """Return the job's time in the slot; None if its end or its start is not in the trace."""
        begun_us = self.claimed_us if self.started_us is None else self.started_us
        return None if begun_us is None or self.ended_us is None else max(0, self.ended_us - begun_us)


@dataclass(frozen=True, slots=True)
class Trace:
    """A record of *length_us*."""

    length_us: int
    workers: tuple[TracedWorker, ...]
    jobs: tuple[TracedJob, ...]
    settings: Mapping[str, str] = field(default_factory=dict)  #: settings in force: Redis name -> string
    paused: tuple[str, ...] = ()  #: types that were paused at the beginning; ``*``: all types
    recorded_at: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)  #: versions of this package and of the server, by name
    lost: int = 0  #: number of claims that workers could not record


#: Values of the column ``mode`` -> True for on-demand jobs.
_MODES = {"queued": False, "demand": True}
#: Times of a claim in chronological order.
_IN_ORDER = ("enqueued_us", "since_us", "claimed_us", "started_us", "ended_us", "freed_us")
#: Maximum absolute value of a number: 100,000 years in µs.
_MAX_NUMBER = 4 * 10**18
#: Maximum number of slots per worker: an engine stores each slot.
MOST_SLOTS = 999_999


def number_column(value: object) -> int:
    """Return an integer, which can be text from a CSV file. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("a whole number")
    try:
        number = int(value)
    except ValueError:
        raise ValueError("a whole number") from None
    if abs(number) > _MAX_NUMBER:
        raise ValueError(f"a whole number of {_MAX_NUMBER:,} at most")
    return number


def text_column(value: object) -> str:
    """Return a non-empty string. Equal strings of many rows are stored once. Raises ValueError."""
    if not isinstance(value, str) or not value:
        raise ValueError("a text that is not empty")
    if not is_utf8(value):
        raise ValueError("a text in UTF-8")
    return sys.intern(value)


def is_utf8(value: str) -> bool:
    """True if *value* can be encoded in UTF-8: JSON strings can contain lone surrogates."""
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


def _limit_column(value: object) -> str:
    return text_column(str(value) if isinstance(value, int) and not isinstance(value, bool) else value)


def _mode_column(value: object) -> bool:
    if not isinstance(value, str) or value not in _MODES:
        raise ValueError("queued or demand")
    return _MODES[value]


def _priority_column(value: object) -> int:
    priority = number_column(value)
    if not 0 <= priority <= MAX_PRIORITY:
        raise ValueError(f"a whole number from 0 to {MAX_PRIORITY}")
    return priority


def _outcome_column(value: object) -> str:
    if value not in OUTCOMES:
        raise ValueError(" or ".join(OUTCOMES))
    return text_column(value)


#: Column -> field of `TracedJob`, and function that parses a value. Missing columns have the field's default.
COLUMNS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "fence": ("fence", number_column),
    "type": ("type", text_column),
    "mode": ("on_demand", _mode_column),
    "priority": ("priority", _priority_column),
    "enqueued_us": ("enqueued_us", number_column),
    "since_us": ("since_us", number_column),
    "claimed_us": ("claimed_us", number_column),
    "started_us": ("started_us", number_column),
    "ended_us": ("ended_us", number_column),
    "freed_us": ("freed_us", number_column),
    "outcome": ("outcome", _outcome_column),
    "worker": ("worker", text_column),
    "exclusive#": ("exclusive", text_column),
    "exclusive_limit": ("exclusive_limit", _limit_column),
    "rate#": ("rate", text_column),
    "rate_limit": ("rate_limit", _limit_column),
    "merge#": ("merge", text_column),
    "tenant#": ("tenant", text_column),
}
#: Other names of columns, for traces from other sources.
_ALIASES = {
    **{name.removesuffix("_us"): name for name in COLUMNS if name.endswith("_us")},
    **{name.removesuffix("#"): name for name in COLUMNS if name.endswith("#")},
}

_READERS = {**COLUMNS, **{alias: COLUMNS[name] for alias, name in _ALIASES.items()}}


def check_columns(names: object, line: int) -> None:
    """Raise TraceError if one of *names* is not a column, or if two of them name the same column."""
    seen: set[str] = set()
    for name in names if isinstance(names, list | tuple | dict) else ():
        if name not in _READERS:
            close = get_close_matches(str(name), _READERS, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; columns are {', '.join(COLUMNS)}"
            raise TraceError(f"line {line}: unknown column {str(name)[:40]!r}{hint}")
        column = _ALIASES.get(str(name), str(name))
        if column in seen:
            raise TraceError(f"line {line}: the column {column} stands twice")
        seen.add(column)


def row_of_job(job: TracedJob) -> dict[str, object]:
    """Return the columns of *job* in a file, without empty columns."""
    row = {column: getattr(job, name) for column, (name, _) in COLUMNS.items()}
    row["mode"] = "demand" if job.on_demand else "queued"
    return {column: value for column, value in row.items() if value is not None}


def job_of(row: Mapping[str, object], line: int) -> TracedJob:
    """Return the job in a *row* of a file, whose values can be strings. Raises TraceError, which names the *line*."""
    fields: dict[str, Any] = {}
    for column, value in row.items():
        reader = _READERS.get(column)
        if reader is None:
            check_columns((column,), line)
        elif value is not None:
            name, read = reader
            try:
                fields[name] = read(value)
            except ValueError as exc:
                raise TraceError(f"line {line}: {column} must be {exc}, got: {value!r:.80}") from None
    for name in ("type", "enqueued_us"):
        if name not in fields:
            raise TraceError(f"line {line}: a job needs the column {name}")
    fields.setdefault("since_us", fields["enqueued_us"])
    fields.setdefault("priority", 0)
    _check_times(fields, line)
    shared: dict[int, int] = {}  # equal numbers share one object, because there can be a million jobs
    for name in _IN_ORDER:
        if name in fields:
            fields[name] = shared.setdefault(fields[name], fields[name])
    if "outcome" not in fields:
        fields["outcome"] = PENDING if "claimed_us" not in fields else "running" if "ended_us" not in fields else "done"
    return TracedJob(**fields)


def _check_times(fields: Mapping[str, Any], line: int) -> None:
    before = ""
    for name in _IN_ORDER:
        if name not in fields:
            continue
        if before and fields[name] < fields[before]:
            later = f"{before} ({fields[before]}) or later"
            raise TraceError(f"line {line}: the clock steps: {name} must be {later}, got: {fields[name]}")
        before = name
