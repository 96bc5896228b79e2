"""Reads and writes traces as files, line by line: JSON Lines or CSV.

The first line of JSON Lines is the header; then come rows, each an object whose ``row`` is ``join``, ``leave`` or
``job``. A CSV file has jobs, perhaps recorded by another program; before them, comments can contain the header, joins
and leaves as JSON, and ``set NAME=VALUE`` for a setting.

Without these comments, the fleet is derived from the jobs: each worker, the types that it ran, and as many slots as it
held claims at the same time. The trace then begins with its first time if that is above 0, and ends with its last.
"""

import csv
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from ..errors import OptionError, TraceError
from ..log_limit import limited_logger
from ..settings.wire import complete_settings
from .changes import read_setting_word
from .scenario import max_at_once
from .trace import (
    COLUMNS,
    MAX_SLOTS,
    OLDER_SCHEMA,
    SCHEMA,
    Trace,
    TracedJob,
    TracedWorker,
    check_columns,
    is_utf8,
    job_of,
    number_column,
    read_value,
    relative_times,
    row_of_job,
    text_column,
)

#: Prefix of a comment line.
COMMENT = "#"


def read_csv(lines: Iterable[str], warn: Callable[[str], object]) -> tuple[list[tuple[int, str]], list[TracedJob]]:
    """Return the comments in *lines*, each with its line number, and the jobs. An empty cell is a missing value.

    *warn* is called if the last line is truncated. Raises TraceError.
    """
    comments: list[tuple[int, str]] = []
    rest = iter(lines)
    while (line := next(rest, "")).startswith(COMMENT):
        comments.append((len(comments) + 1, line.removeprefix(COMMENT).strip()))
    rows = csv.reader(chain([line] if line else [], rest), strict=True)
    try:
        return comments, list(_parse_jobs(rows, len(comments), warn))
    except csv.Error as exc:
        raise TraceError(f"line {len(comments) + rows.line_num}: it is no row of a CSV file: {exc}") from None


def _parse_jobs(rows: Any, before: int, warn: Callable[[str], object]) -> Iterator[TracedJob]:
    """Yield the jobs in *rows*, which follow *before* lines."""
    columns = [name.strip() for name in next(rows, ())]
    if not columns:
        raise TraceError(f"line {before + 1}: the columns of a CSV file must come here, got: an empty line")
    check_columns(columns, before + rows.line_num)
    cut: tuple[int, int] | None = None
    for row in rows:
        if cut is not None:
            line, count = cut
            raise TraceError(f"line {line}: a row must have {len(columns)} cells, got: {count}")
        if len(row) > len(columns):
            raise TraceError(f"line {before + rows.line_num}: a row must have {len(columns)} cells, got: {len(row)}")
        if 0 < len(row) < len(columns):
            cut = before + rows.line_num, len(row)
        elif row:
            cells_by_column = {name: cell.strip() or None for name, cell in zip(columns, row, strict=True)}
            yield job_of(cells_by_column, before + rows.line_num)
    if cut is not None:
        warn(f"line {cut[0]}, the last one, is cut, and left out")


def csv_fleet(jobs: Iterable[TracedJob]) -> Iterable[TracedWorker]:
    """Yield the workers that appear in *jobs*, sorted by name."""
    types: dict[str, dict[str, None]] = {}
    changes: dict[str, list[tuple[int, int]]] = {}
    for job in jobs:
        if job.worker is None:
            continue
        types.setdefault(job.worker, {})[job.type] = None
        changes_of_worker = changes.setdefault(job.worker, [])
        if job.claimed_us is not None:
            changes_of_worker.append((job.claimed_us, 1))
            if job.ended_us is not None:
                changes_of_worker.append((job.ended_us, -1))
    for name in sorted(types):
        yield TracedWorker(name, tuple(sorted(types[name])), max(1, max_at_once(changes[name])))


logger = limited_logger(__name__)
#: Receives warnings that do not make a file invalid.
Warn = Callable[[str], object]
#: Maximum number of types in a warning.
_MAX_NAMED = 5
#: Fields of a header, in addition to its schema and its workers.
_HEADER = ("length_us", "settings", "paused", "versions", "recorded_at", "lost")
#: File name suffix of CSV files.
CSV = ".csv"
#: Prefix of a comment with a setting.
_SET_PREFIX = "set "
#: Time, 1 for a join or 0 for a leave, name, and the worker that joined.
_Move = tuple[int, int, str, TracedWorker | None]


def write_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write *trace* into the file *path* atomically, as CSV if its name ends with ``.csv``."""
    target = Path(path)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.writelines(csv_lines(trace) if target.suffix.lower() == CSV else trace_lines(trace))
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)  # temporary files are readable only by their owner
        Path(name).replace(target)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def trace_lines(trace: Trace) -> Iterator[str]:
    yield from _lines_before_jobs(trace)
    for job in trace.jobs:
        yield _line({"row": "job", **row_of_job(job)})


def csv_lines(trace: Trace) -> Iterator[str]:
    for comment in _lines_before_jobs(trace):
        yield f"{COMMENT} {comment}"
    line = io.StringIO()
    rows = csv.DictWriter(line, list(COLUMNS), lineterminator="\n")
    rows.writeheader()
    for job in trace.jobs:
        yield line.getvalue()
        line.seek(0)
        line.truncate()
        rows.writerow(row_of_job(job))
    yield line.getvalue()


def _lines_before_jobs(trace: Trace) -> Iterator[str]:
    """Yield the header, and the rows of joins and leaves."""
    first: list[dict[str, object]] = []
    moves: list[tuple[int, int, dict[str, object]]] = []
    for worker in trace.workers:
        name, facts = worker.name, {"types": worker.types, "slots": worker.slots}
        if worker.joined_us <= 0:
            first.append({"name": name, **facts})
        else:
            moves.append((worker.joined_us, 1, {"row": "join", "worker": name, "at_us": worker.joined_us, **facts}))
        if worker.left_us is not None:
            moves.append((worker.left_us, 0, {"row": "leave", "worker": name, "at_us": worker.left_us}))
    header: dict[str, object] = {"row": "header", "schema": SCHEMA}
    header |= {name: getattr(trace, name) for name in _HEADER}
    yield _line({**header, "settings": dict(trace.settings), "versions": dict(trace.versions), "workers": first})
    for *_, row in sorted(moves, key=lambda move: move[:2]):
        yield _line(row)


def _line(row: dict[str, object]) -> str:
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False) + "\n"


def read_trace(path: str | os.PathLike[str], *, warn: Warn = logger.warning) -> Trace:
    """Return the trace in the file *path*. Raises TraceError, with the line, for an invalid trace.

    *warn* is called for a truncated last line, which is left out, for types without a worker, and for invalid settings.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:  # spreadsheets can write a byte order mark
            trace = _parse_trace(file, warn)
    except UnicodeDecodeError as exc:
        raise TraceError(f"{path}: it is not UTF-8 text: {exc}") from None
    except OSError as exc:
        raise TraceError(f"{path} cannot be read: {exc.strerror}") from None
    except TraceError as exc:
        raise TraceError(f"{path}: {exc}") from None
    if not trace.jobs:
        raise TraceError(f"{path}: the trace has no jobs")
    _warn_of_contents(trace, warn)
    return trace


def _parse_trace(file: TextIO, warn: Warn) -> Trace:
    first = next(file, "")
    if not first.strip():
        raise TraceError("line 1: a header in JSON, or the columns of a CSV file, must come first, got: an empty line")
    if not first.lstrip().startswith("{"):
        return _trace_of_csv(*read_csv(chain([first], file), warn))
    rows = _parse_lines(chain([first], file), warn)
    header = next(rows, None)
    if header is None:
        raise TraceError("line 1: the header is cut")
    return _trace_of_rows(header[1], rows)


def _parse_lines(lines: Iterable[str], warn: Warn) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield number and content of each line. A truncated last line is left out."""
    broken: int | None = None
    for number, line in enumerate(lines, 1):
        if broken is not None:
            raise TraceError(f"line {broken}: a row must be an object in JSON; the line is broken, and others follow")
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            broken = number
            continue
        if not isinstance(row, dict):
            raise TraceError(f"line {number}: a row must be an object in JSON, got: {line.strip()[:80]!r}")
        yield number, row
    if broken is not None:
        warn(f"line {broken}, the last one, is cut, and left out: what was written after it is not in the trace")


def _trace_of_rows(header: dict[str, Any], rows: Iterator[tuple[int, dict[str, Any]]]) -> Trace:
    _check_schema(header)
    facts = _parse_header(header)
    moves: list[_Move] = []
    jobs: list[TracedJob] = []
    for line, row in rows:
        kind = row.pop("row", None)
        if kind == "job":
            jobs.append(job_of(row, line))
        elif kind in ("join", "leave"):
            moves.append(_parse_move(kind, row, line))
        else:
            raise TraceError(f"line {line}: row must be job, join or leave, got: {kind!r}")
    return Trace(workers=_replay_moves(_first_workers(header), moves), jobs=tuple(jobs), **facts)


def _trace_of_csv(comments: list[tuple[int, str]], jobs: Sequence[TracedJob]) -> Trace:
    header: dict[str, Any] = {}
    moves: list[_Move] = []
    assignments: dict[int, str] = {}
    for line, comment in comments:
        if comment.startswith(_SET_PREFIX):
            assignments[line] = comment.removeprefix(_SET_PREFIX).strip()
            continue
        row: Any = {}
        with suppress(ValueError, RecursionError):
            row = json.loads(comment)
        kind = row.pop("row", None) if isinstance(row, dict) else None
        if kind == "header" and line == 1:
            header = row
            _check_schema(header)
        elif kind in ("join", "leave"):
            moves.append(_parse_move(kind, row, line))
        else:
            raise TraceError(
                f"line {line}: a comment must be set NAME=VALUE, or a row join or leave in JSON, or on line 1 a row "
                f"header, got: {comment:.80}"
            )
    first_us = min((job.enqueued_us for job in jobs), default=0)
    if first_us > 0 and "length_us" not in header and not moves:  # otherwise times are relative to the trace
        jobs = [replace(job, **relative_times(job, first_us)) for job in jobs]
    times_us = (at_us for job in jobs for at_us in (job.since_us, job.claimed_us, job.ended_us, job.freed_us))
    last_us = max((at_us for at_us in times_us if at_us is not None), default=0)
    facts = _parse_header({"length_us": last_us, **header})
    facts["settings"] = _apply_assignments(facts["settings"], assignments)
    has_workers = "workers" in header or any(joins for *_, joins in moves)
    first = _first_workers(header) if has_workers else list(csv_fleet(jobs))
    return Trace(workers=_replay_moves(first, moves), jobs=tuple(jobs), **facts)


def _apply_assignments(settings: Mapping[str, str], assignments: Mapping[int, str]) -> dict[str, str]:
    result = dict(settings)
    for line, assignment in assignments.items():
        try:
            result |= read_setting_word(result, [assignment])
        except OptionError as exc:
            raise TraceError(f"line {line}: {exc}") from None
    return result


def _check_schema(header: dict[str, Any]) -> None:
    if header.get("schema") not in (SCHEMA, OLDER_SCHEMA):
        raise TraceError(f"line 1: the schema must be {SCHEMA!r}, got: {header.get('schema')!r}")


def _parse_header(header: dict[str, Any]) -> dict[str, Any]:
    for name in header:
        if name not in (*_HEADER, "row", "schema", "workers"):
            raise TraceError(f"line 1: unknown field {name!r} of a header; fields are {', '.join(_HEADER)}, workers")
    length_us, lost = read_value(
        lambda length: (number_column(length), number_column(header.get("lost", 0))),
        header.get("length_us"),
        "length_us and lost",
        1,
    )
    if length_us < 0:
        raise TraceError(f"line 1: length_us must be 0 or more, got: {length_us}")
    return {
        "length_us": length_us,
        "lost": lost,
        "settings": _string_dict(header, "settings"),
        "versions": _string_dict(header, "versions"),
        "paused": tuple(_string_list(header, "paused", 1)),
        "recorded_at": str(header.get("recorded_at", "")),
    }


def _string_dict(header: dict[str, Any], name: str) -> dict[str, str]:
    texts = header.get(name, {})
    if not isinstance(texts, dict) or not all(isinstance(text, str) and is_utf8(text) for text in texts.values()):
        raise TraceError(f"line 1: {name} must be an object of texts in UTF-8, got: {texts!r:.80}")
    return texts


def _string_list(row: dict[str, Any], name: str, line: int) -> list[str]:
    texts = row.get(name, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) and text and is_utf8(text) for text in texts):
        raise TraceError(f"line {line}: {name} must be a list of texts in UTF-8, got: {texts!r:.80}")
    return texts


def _first_workers(header: dict[str, Any]) -> list[TracedWorker]:
    rows = header.get("workers", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TraceError(f"line 1: workers must be a list of objects, got: {rows!r:.80}")
    return [_parse_worker(row, row.get("name"), 0, 1) for row in rows]


def _parse_worker(row: dict[str, Any], name: object, joined_us: int, line: int) -> TracedWorker:
    slots = read_value(_slots, row.get("slots"), "slots", line)
    types = _string_list(row, "types", line)
    return TracedWorker(
        read_value(text_column, name, "the name of a worker", line), tuple(map(sys.intern, types)), slots, joined_us
    )


def _slots(value: object) -> int:
    with suppress(ValueError):
        if 0 <= (slots := number_column(value)) <= MAX_SLOTS:
            return slots
    raise ValueError(f"a whole number from 0 to {MAX_SLOTS:,}")


def _parse_move(kind: str, row: dict[str, Any], line: int) -> _Move:
    columns = ("worker", "at_us", "types", "slots") if kind == "join" else ("worker", "at_us")
    for name in row:
        if name not in columns:
            raise TraceError(f"line {line}: unknown column {name!r} of a {kind}; columns are {', '.join(columns)}")
    at_us = read_value(number_column, row.get("at_us"), "at_us", line)
    if kind == "leave":
        return at_us, 0, str(row.get("worker")), None
    worker = _parse_worker(row, row.get("worker"), at_us, line)
    return at_us, 1, worker.name, worker


def _replay_moves(first: list[TracedWorker], moves: list[_Move]) -> tuple[TracedWorker, ...]:
    """Return the workers in the order of their joins. A worker that rejoins is listed again."""
    workers = list(first)
    present = {worker.name: index for index, worker in enumerate(workers)}
    for at_us, _, name, joined in sorted(moves, key=lambda move: move[:3]):
        index = present.pop(name, None)
        if index is not None:
            workers[index] = replace(workers[index], left_us=at_us)
        if joined is not None:
            present[name] = len(workers)
            workers.append(joined)
    return tuple(workers)


def _warn_of_contents(trace: Trace, warn: Warn) -> None:
    served = {type_ for worker in trace.workers for type_ in worker.types}
    if unserved := sorted({job.type for job in trace.jobs} - served):
        warn(f"no worker of the trace serves the type(s) {_some(unserved)}: their jobs are never claimed")
    in_force = complete_settings(trace.settings)
    if bad := [f"{name}={value}" for name, value in trace.settings.items() if in_force.get(name) != value]:
        names = _some(bad)[:200]
        warn(f"the trace has settings that this version cannot read, and replaces by their defaults: {names}")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_NAMED]) + (" and others" if len(names) > _MAX_NAMED else "")
