"""A trace in CSV: the jobs of a fleet, perhaps one that something else recorded, under the columns of `trace_columns`.

Lines that begin with ``#`` come before the columns, and say what else is known of the fleet (`trace_file`). Of what
they do not say, the fleet is what the jobs show: each worker, the types that it ran, and as many slots as it held
claims at once. The trace begins with its first time if that is above 0, and ends with its last.
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from ..errors import TraceError
from .trace import TracedJob, TracedWorker
from .trace_columns import COLUMNS, as_row, check_columns, job_of

#: Begins a line that is no row.
COMMENT = "#"


def lines(comments: Iterable[str], jobs: Iterable[TracedJob]) -> Iterator[str]:
    """Yield the lines of a file with these *comments* and *jobs*."""
    for each in comments:
        yield f"{COMMENT} {each}"
    line = io.StringIO()
    rows = csv.DictWriter(line, list(COLUMNS), lineterminator="\n")
    rows.writeheader()
    for job in jobs:
        yield line.getvalue()
        line.seek(0)
        line.truncate()
        rows.writerow(as_row(job))
    yield line.getvalue()


def read(found: Iterable[str], warn: Callable[[str], object]) -> tuple[list[tuple[int, str]], list[TracedJob]]:
    """Return the comments in the lines *found*, each with its number, and the jobs. An empty cell is a missing value.

    *warn* hears that the last line is cut. Raises TraceError.
    """
    comments: list[tuple[int, str]] = []
    rest = iter(found)
    for line in rest:
        if not line.startswith(COMMENT):
            rest = chain([line], rest)
            break
        comments.append((len(comments) + 1, line.removeprefix(COMMENT).strip()))
    rows = csv.reader(rest, strict=True)
    try:
        return comments, list(_jobs(rows, len(comments), warn))
    except csv.Error as exc:
        raise TraceError(f"line {len(comments) + rows.line_num}: it is no row of a CSV file: {exc}") from None


def _jobs(rows: Any, before: int, warn: Callable[[str], object]) -> Iterator[TracedJob]:
    """Yield the jobs in *rows*, which have so many lines *before* them."""
    columns = [name.strip() for name in next(rows, ())]
    if not columns:
        raise TraceError(f"line {before + 1}: the columns of a CSV file must come here, got: an empty line")
    check_columns(columns, before + rows.line_num)
    cut: tuple[int, int] | None = None
    for row in rows:
        if cut is not None:
            line, cells = cut
            raise TraceError(f"line {line}: a row must have {len(columns)} cells, got: {cells}")
        if len(row) > len(columns):
            raise TraceError(f"line {before + rows.line_num}: a row must have {len(columns)} cells, got: {len(row)}")
        if 0 < len(row) < len(columns):
            cut = before + rows.line_num, len(row)
        elif row:
            found = {name: cell.strip() or None for name, cell in zip(columns, row, strict=True)}
            yield job_of(found, before + rows.line_num)
    if cut is not None:
        warn(f"line {cut[0]}, the last one, is cut, and left out")


def begun_at_0(jobs: Sequence[TracedJob]) -> Sequence[TracedJob]:
    """Return *jobs* with times from the first one on, if all are above 0."""
    first_us = min((job.enqueued_us for job in jobs), default=0)
    return [_earlier(job, first_us) for job in jobs] if first_us > 0 else jobs


def length_us(jobs: Iterable[TracedJob]) -> int:
    """Return the last time of *jobs*."""
    return max(map(_last_us, jobs), default=0)


def _last_us(job: TracedJob) -> int:
    return max(each for each in (job.since_us, job.claimed_us, job.ended_us, job.freed_us) if each is not None)


def _earlier(job: TracedJob, by_us: int) -> TracedJob:
    """Return *job* with all times *by_us* earlier."""
    names = ("enqueued_us", "since_us", "claimed_us", "started_us", "ended_us", "freed_us")
    times = {name: getattr(job, name) for name in names}
    return replace(job, **{name: at_us - by_us for name, at_us in times.items() if at_us is not None})


def fleet(jobs: Iterable[TracedJob]) -> Iterable[TracedWorker]:
    """Yield the workers that *jobs* show, by name."""
    types: dict[str, dict[str, None]] = {}
    changes: dict[str, list[tuple[int, int]]] = {}
    for job in jobs:
        if job.worker is None:
            continue
        types.setdefault(job.worker, {})[job.type] = None
        its = changes.setdefault(job.worker, [])
        if job.claimed_us is not None:
            its.append((job.claimed_us, 1))
            if job.ended_us is not None:
                its.append((job.ended_us, -1))
    for name in sorted(types):
        yield TracedWorker(name, tuple(sorted(types[name])), max(1, _most_at_once(changes[name])))


def _most_at_once(changes: list[tuple[int, int]]) -> int:
    """Return the largest sum of *changes*, by time. A claim that ends as another begins leaves its slot to that one."""
    most = held = 0
    for _, change in sorted(changes):
        held += change
        most = max(most, held)
    return most
