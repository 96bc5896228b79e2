"""The columns of a job in a file: their names, what each accepts, and the checks of a whole row."""

import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from ..errors import TraceError
from ..rules.protocol import MAX_PRIORITY
from .trace import OUTCOMES, PENDING, TracedJob

#: Values of the column ``mode``: whether the job is on demand.
_MODES = {"queued": False, "demand": True}

#: Times of a claim, in the order in which they pass.
_IN_ORDER = ("enqueued_us", "since_us", "claimed_us", "started_us", "ended_us", "freed_us")


#: Largest number: that of µs in 100,000 years.
_LARGEST = 4 * 10**18

#: Most slots of a worker: an engine keeps each one.
MOST_SLOTS = 999_999


def number(value: object) -> int:
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


def text(value: object) -> str:
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
    return text(str(value) if isinstance(value, int) and not isinstance(value, bool) else value)


def _mode(value: object) -> bool:
    if not isinstance(value, str) or value not in _MODES:
        raise ValueError("queued or demand")
    return _MODES[value]


def _priority(value: object) -> int:
    found = number(value)
    if not 0 <= found <= MAX_PRIORITY:
        raise ValueError(f"a whole number from 0 to {MAX_PRIORITY}")
    return found


def _outcome(value: object) -> str:
    if value not in OUTCOMES:
        raise ValueError(" or ".join(OUTCOMES))
    return text(value)


#: Column -> field of `TracedJob`, and what reads a value. Columns that a row leaves out have the field's default.
COLUMNS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "fence": ("fence", number),
    "type": ("type", text),
    "mode": ("on_demand", _mode),
    "priority": ("priority", _priority),
    "enqueued_us": ("enqueued_us", number),
    "since_us": ("since_us", number),
    "claimed_us": ("claimed_us", number),
    "started_us": ("started_us", number),
    "ended_us": ("ended_us", number),
    "freed_us": ("freed_us", number),
    "outcome": ("outcome", _outcome),
    "worker": ("worker", text),
    "exclusive#": ("exclusive", text),
    "exclusive_limit": ("exclusive_limit", _limit),
    "rate#": ("rate", text),
    "rate_limit": ("rate_limit", _limit),
    "merge#": ("merge", text),
    "tenant#": ("tenant", text),
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


def as_row(job: TracedJob) -> dict[str, object]:
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
