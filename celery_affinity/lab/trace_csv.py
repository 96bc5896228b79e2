"""A trace in CSV: the jobs of a fleet that something else recorded, under the columns of `trace_columns`.

There is no header of a trace, so the fleet is what the jobs show: each worker, the types that it ran, and as many slots
as it held claims at once. The trace begins with its first time if that is above 0, and ends with its last.
"""

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from ..errors import TraceError
from .trace import Trace, TracedJob, TracedWorker
from .trace_columns import check_columns, job_of


def trace_in(lines: Iterable[str], warn: Callable[[str], object]) -> Trace:
    """Return the trace in *lines*, of which the first has the columns. An empty cell is a missing value.

    *warn* hears that the last line is cut. Raises TraceError.
    """
    rows = csv.reader(lines, strict=True)
    try:
        return _begun_at_0(list(_jobs(rows, warn)))
    except csv.Error as exc:
        raise TraceError(f"line {rows.line_num}: it is no row of a CSV file: {exc}") from None


def _jobs(rows: Any, warn: Callable[[str], object]) -> Iterator[TracedJob]:
    columns = [name.strip() for name in next(rows)]
    check_columns(columns, 1)
    cut: tuple[int, int] | None = None
    for row in rows:
        if cut is not None:
            line, cells = cut
            raise TraceError(f"line {line}: a row must have {len(columns)} cells, got: {cells}")
        if len(row) > len(columns):
            raise TraceError(f"line {rows.line_num}: a row must have {len(columns)} cells, got: {len(row)}")
        if 0 < len(row) < len(columns):
            cut = rows.line_num, len(row)
        elif row:
            found = {name: cell.strip() or None for name, cell in zip(columns, row, strict=True)}
            yield job_of(found, rows.line_num)
    if cut is not None:
        warn(f"line {cut[0]}, the last one, is cut, and left out")


def _begun_at_0(jobs: list[TracedJob]) -> Trace:
    first_us = min((job.enqueued_us for job in jobs), default=0)
    if first_us > 0:
        jobs = [_earlier(job, first_us) for job in jobs]
    last_us = max((_last_us(job) for job in jobs), default=0)
    return Trace(length_us=last_us, workers=tuple(_fleet(jobs)), jobs=tuple(jobs))


def _last_us(job: TracedJob) -> int:
    return max(each for each in (job.since_us, job.claimed_us, job.ended_us, job.freed_us) if each is not None)


def _earlier(job: TracedJob, by_us: int) -> TracedJob:
    """Return *job* with all times *by_us* earlier."""
    names = ("enqueued_us", "since_us", "claimed_us", "started_us", "ended_us", "freed_us")
    times = {name: getattr(job, name) for name in names}
    return replace(job, **{name: at_us - by_us for name, at_us in times.items() if at_us is not None})


def _fleet(jobs: Iterable[TracedJob]) -> Iterable[TracedWorker]:
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
