"""A trace: an anonymized record of a fleet's activity, and the columns of its jobs in a file.

It has hashes instead of keys, and no arguments. Times are in µs since the beginning of the trace. A job that was
pending before that has a negative time.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, TypeVar

from ..errors import TraceError
from ..schema.constants import MAX_DUE_DIGITS, MAX_PRIORITY, MAX_SIZE

T = TypeVar("T")

#: The format of a trace, in its header, and an older format: without tasks, sizes, due times and head starts.
SCHEMA, OLDER_SCHEMA = "celery-affinity-trace/2", "celery-affinity-trace/1"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The options of a job in a trace. *exclusive*, *rate*, *merge* and *tenant* are hashes of keys."""

    on_demand: bool = False
    priority: int = 5
    exclusive: str | None = None
    exclusive_limit: str | None = None  #: the limit of the task (`"3"`), or of `affinity_limits`
    rate: str | None = None
    rate_limit: str | None = None  #: the limit of the task (`"10/m"`), or of `affinity_limits`
    merge: str | None = None
    tenant: str | None = None
    task: str | None = None  #: name of the task
    size: float | None = None
    start_within_us: int | None = None  #: time from `enqueued_us` to the due time
    deadline_us: int | None = None  #: time from `enqueued_us` to the deadline; below 0 if that is earlier
    head_us: int | None = None  #: the head start that it had; None if unknown


_OPTIONS = tuple(option.name for option in fields(JobOptions))


def options_of(job: JobOptions) -> dict[str, Any]:
    return {name: getattr(job, name) for name in _OPTIONS}


@dataclass(frozen=True, slots=True)
class TracedJob(JobOptions):
    """One stay of a job in the queue with the claim that ended it. A requeued job is listed again."""

    type: str
    enqueued_us: int  #: start of the job's age
    since_us: int  #: earliest claim time: for a requeued job the time of the requeue
    fence: int | None = None  #: orders claims; None without a claim
    claimed_us: int | None = None  #: like the next two, None if it did not happen during the trace
    started_us: int | None = None
    ended_us: int | None = None
    #: Time at which the server received the end, or the worker received the confirmation; None if not recorded.
    freed_us: int | None = None
    outcome: str = PENDING
    worker: str | None = None

    @property
    def took_us(self) -> int | None:
        """Return the job's time in the slot; None if its end or its start is not in the trace."""
        begun_us = self.claimed_us if self.started_us is None else self.started_us
        return None if begun_us is None or self.ended_us is None else max(0, self.ended_us - begun_us)


@dataclass(frozen=True, slots=True)
class Trace:
    length_us: int
    workers: tuple[TracedWorker, ...]
    jobs: tuple[TracedJob, ...]
    settings: Mapping[str, str] = field(default_factory=dict)  #: settings in force: Redis name -> string
    paused: tuple[str, ...] = ()  #: types that were paused at the beginning; ``*``: all types
    recorded_at: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)  #: versions of this package and of the server, by name
    lost: int = 0  #: number of claims that workers could not record


#: Times of a job in chronological order.
TIMES = ("enqueued_us", "since_us", "claimed_us", "started_us", "ended_us", "freed_us")
#: Maximum absolute value of a number: 100,000 years in µs.
_MAX_NUMBER = 4 * 10**18
#: Maximum of a due time in µs, and of a size in millionths, as the server accepts them.
MAX_DUE_NUMBER = int("9" * MAX_DUE_DIGITS)
#: Maximum number of slots per worker: an engine stores each slot.
MAX_SLOTS = 999_999


def relative_times(job: TracedJob, begin_us: int, end_us: int = sys.maxsize) -> dict[str, Any]:
    """Return the times of *job* relative to *begin_us*, by field. A time after *end_us* is None."""
    times_us = {name: getattr(job, name) for name in TIMES}
    return {name: None if at_us is None or at_us > end_us else at_us - begin_us for name, at_us in times_us.items()}


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


def read_value(read: Callable[[object], T], value: object, name: str, line: int) -> T:
    """Return the result of *read* for *value*. Raises TraceError with *name* and *line* instead of ValueError."""
    try:
        return read(value)
    except ValueError as exc:
        raise TraceError(f"line {line}: {name} must be {exc}, got: {value!r:.80}") from None


def _limit_column(value: object) -> str:
    return text_column(str(value) if isinstance(value, int) and not isinstance(value, bool) else value)


def _mode_column(value: object) -> bool:
    if value not in ("queued", "demand"):
        raise ValueError("queued or demand")
    return value == "demand"


def _priority_column(value: object) -> int:
    priority = number_column(value)
    if not 0 <= priority <= MAX_PRIORITY:
        raise ValueError(f"a whole number from 0 to {MAX_PRIORITY}")
    return priority


def _size_column(value: object) -> float:
    if not isinstance(value, bool) and isinstance(value, int | float | str):
        with suppress(ValueError, OverflowError):
            if 0 <= (size := float(value)) <= MAX_SIZE:
                return size
    raise ValueError(f"a number from 0 to {MAX_SIZE:.0e}")


def _due_column(value: object) -> int:
    if abs(time_us := number_column(value)) <= MAX_DUE_NUMBER:
        return time_us
    raise ValueError(f"a whole number of {MAX_DUE_DIGITS} digits at most")


def _positive_due_column(value: object) -> int:
    if (time_us := _due_column(value)) < 0:
        raise ValueError("a whole number, 0 or more")
    return time_us


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
    **{name: (name, number_column) for name in TIMES},
    "outcome": ("outcome", _outcome_column),
    "worker": ("worker", text_column),
    "exclusive#": ("exclusive", text_column),
    "exclusive_limit": ("exclusive_limit", _limit_column),
    "rate#": ("rate", text_column),
    "rate_limit": ("rate_limit", _limit_column),
    "merge#": ("merge", text_column),
    "tenant#": ("tenant", text_column),
    "task": ("task", text_column),
    "size": ("size", _size_column),
    "start_within_us": ("start_within_us", _positive_due_column),
    "deadline_us": ("deadline_us", _due_column),
    "head_us": ("head_us", _positive_due_column),
}
#: Other names of columns, for traces from other sources.
_ALIASES = {name.removesuffix("_us").removesuffix("#"): name for name in COLUMNS if name.endswith(("_us", "#"))}
_READERS = {**COLUMNS, **{alias: COLUMNS[name] for alias, name in _ALIASES.items()}}


def check_columns(names: Iterable[str], line: int) -> None:
    """Raise TraceError if one of *names* is not a column, or if two of them name the same column."""
    seen: set[str] = set()
    for name in names:
        if name not in _READERS:
            close = get_close_matches(name, _READERS, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; columns are {', '.join(COLUMNS)}"
            raise TraceError(f"line {line}: unknown column {name[:40]!r}{hint}")
        column = _ALIASES.get(name, name)
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
    values: dict[str, Any] = {}
    for column, value in row.items():
        reader = _READERS.get(column)
        if reader is None:
            check_columns((column,), line)
        elif value is not None:
            name, read = reader
            values[name] = read_value(read, value, column, line)
    for name in ("type", "enqueued_us"):
        if name not in values:
            raise TraceError(f"line {line}: a job needs the column {name}")
    values.setdefault("since_us", values["enqueued_us"])
    values.setdefault("priority", 0)
    _check_times(values, line)
    if "outcome" not in values:
        values["outcome"] = PENDING if "claimed_us" not in values else RUNNING if "ended_us" not in values else DONE
    return TracedJob(**values)


def _check_times(values: dict[str, Any], line: int) -> None:
    before = ""
    for name in TIMES:
        if name not in values:
            continue
        if before and values[name] < values[before]:
            later = f"{before} ({values[before]}) or later"
            raise TraceError(f"line {line}: the clock steps: {name} must be {later}, got: {values[name]}")
        if before and values[name] == values[before]:
            values[name] = values[before]  # equal numbers share one object, because there can be a million jobs
        before = name
