"""A trace in CSV: the jobs of a fleet, perhaps one that something else recorded, under the columns of `trace_columns`.

Lines that begin with ``#`` come before the columns, and say what else is known of the fleet (`trace_file`). Of what
they do not say, the fleet is what the jobs show: each worker, the types that it ran, and as many slots as it held
claims at once. The trace begins with its first time if that is above 0, and ends with its last.

A trace in a file: JSON Lines or CSV, read line by line.

The first line of JSON Lines is the header; then come rows, each an object whose ``row`` says what it is: ``join``,
``leave`` or ``job``. A CSV file has jobs (`trace_csv`); comments before them have the header, joins and leaves as JSON,
and ``set NAME=VALUE`` for a setting. It may leave out each of these.
"""

import csv
import io
import json
import os
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
from .trace import (
    COLUMNS,
    MOST_SLOTS,
    SCHEMA,
    Trace,
    TracedJob,
    TracedWorker,
    check_columns,
    is_utf8,
    job_of,
    number_column,
    row_of_job,
    text_column,
)

#: Begins a line that is no row.
COMMENT = "#"


def csv_rows(comments: Iterable[str], jobs: Iterable[TracedJob]) -> Iterator[str]:
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
        rows.writerow(row_of_job(job))
    yield line.getvalue()


def read_csv(found: Iterable[str], warn: Callable[[str], object]) -> tuple[list[tuple[int, str]], list[TracedJob]]:
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


def shift_to_zero(jobs: Sequence[TracedJob]) -> Sequence[TracedJob]:
    """Return *jobs* with times from the first one on, if all are above 0."""
    first_us = min((job.enqueued_us for job in jobs), default=0)
    return [_earlier(job, first_us) for job in jobs] if first_us > 0 else jobs


def trace_length_us(jobs: Iterable[TracedJob]) -> int:
    """Return the last time of *jobs*."""
    return max(map(_last_us, jobs), default=0)


def _last_us(job: TracedJob) -> int:
    return max(each for each in (job.since_us, job.claimed_us, job.ended_us, job.freed_us) if each is not None)


def _earlier(job: TracedJob, by_us: int) -> TracedJob:
    """Return *job* with all times *by_us* earlier."""
    names = ("enqueued_us", "since_us", "claimed_us", "started_us", "ended_us", "freed_us")
    times = {name: getattr(job, name) for name in names}
    return replace(job, **{name: at_us - by_us for name, at_us in times.items() if at_us is not None})


def csv_fleet(jobs: Iterable[TracedJob]) -> Iterable[TracedWorker]:
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


logger = limited_logger(__name__)

#: Hears of what a reader should know, and what is no reason to refuse the file.
Warn = Callable[[str], object]

#: Most types that a warning names.
_MOST_NAMED = 5

#: Fields of a header, beside its schema and its workers.
_HEADER = ("length_us", "settings", "paused", "versions", "recorded_at", "lost")


#: End of the name of a file that is written as CSV.
CSV = ".csv"

#: Begins a comment with a setting.
_SET = "set "

#: When a worker moved, whether it joined, its name, and what joined.
_Move = tuple[int, int, str, TracedWorker | None]


# -- writing


def write_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write *trace* into the file *path*, all of it or nothing: an older file stays until the new one is whole.

    It is written as CSV if its name ends so.
    """
    target = Path(path)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.writelines(csv_lines(trace) if target.suffix.lower() == CSV else trace_lines(trace))
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)  # the one of a temporary file is for its owner alone
        Path(name).replace(target)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def trace_lines(trace: Trace) -> Iterator[str]:
    """Yield the lines of *trace* as JSON Lines."""
    yield from _before_jobs(trace)
    for job in trace.jobs:
        yield _line({"row": "job", **row_of_job(job)})


def csv_lines(trace: Trace) -> Iterator[str]:
    """Yield the lines of *trace* as CSV."""
    return csv_rows(_before_jobs(trace), trace.jobs)


def _before_jobs(trace: Trace) -> Iterator[str]:
    """Yield the header, and who joined and left."""
    first = [worker for worker in trace.workers if worker.joined_us <= 0]
    header: dict[str, object] = {"row": "header", "schema": SCHEMA}
    header |= {name: getattr(trace, name) for name in _HEADER}
    header["settings"], header["versions"] = dict(trace.settings), dict(trace.versions)
    header["workers"] = [{"name": each.name, "types": each.types, "slots": each.slots} for each in first]
    yield _line(header)
    moves = [(each.joined_us, 1, each) for each in trace.workers if each.joined_us > 0]
    moves += [(each.left_us, 0, each) for each in trace.workers if each.left_us is not None]
    for at_us, joins, worker in sorted(moves, key=lambda move: move[:2]):
        if joins:
            facts = {"types": worker.types, "slots": worker.slots}
            yield _line({"row": "join", "worker": worker.name, "at_us": at_us, **facts})
        else:
            yield _line({"row": "leave", "worker": worker.name, "at_us": at_us})


def _line(row: dict[str, object]) -> str:
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False) + "\n"


# -- reading


def read_trace(path: str | os.PathLike[str], *, warn: Warn = logger.warning) -> Trace:
    """Return the trace in the file *path*. Raises TraceError, with the line, for what is no trace.

    *warn* hears that the last line is cut, which is then left out, of types that no worker serves, and of settings that
    cannot be read.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:  # a table program may write a mark of order first
            trace = _trace_in(file, warn)
    except UnicodeDecodeError as exc:
        raise TraceError(f"{path}: it is no text in UTF-8: {exc}") from None
    except OSError as exc:
        raise TraceError(f"{path} cannot be read: {exc.strerror}") from None
    except TraceError as exc:
        raise TraceError(f"{path}: {exc}") from None
    if not trace.jobs:
        raise TraceError(f"{path}: the trace has no jobs")
    _warn_of_unserved(trace, warn)
    _warn_of_settings(trace, warn)
    return trace


def _trace_in(file: TextIO, warn: Warn) -> Trace:
    first = next(file, "")
    if not first.strip():
        raise TraceError("line 1: a header in JSON, or the columns of a CSV file, must come first, got: an empty line")
    if not first.lstrip().startswith("{"):
        return _of_csv(*read_csv(chain([first], file), warn))
    rows = _objects(chain([first], file), warn)
    header = next(rows, None)
    if header is None:
        raise TraceError("line 1: the header is cut")
    return _whole(header[1], rows)


def _objects(found: Iterable[str], warn: Warn) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield number and content of each line. A last line that is cut is left out."""
    broken: int | None = None
    for at, line in enumerate(found, 1):
        if broken is not None:
            raise TraceError(f"line {broken}: a row must be an object in JSON; the line is broken, and others follow")
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            broken = at
            continue
        if not isinstance(row, dict):
            raise TraceError(f"line {at}: a row must be an object in JSON, got: {line.strip()[:80]!r}")
        yield at, row
    if broken is not None:
        warn(f"line {broken}, the last one, is cut, and left out: what was written after it is not in the trace")


def _whole(header: dict[str, Any], rows: Iterator[tuple[int, dict[str, Any]]]) -> Trace:
    _check_schema(header)
    facts = _facts(header)
    moves: list[_Move] = []
    jobs: list[TracedJob] = []
    for line, row in rows:
        kind = row.pop("row", None)
        if kind == "job":
            jobs.append(job_of(row, line))
        elif kind in ("join", "leave"):
            moves.append(_move(kind, row, line))
        else:
            raise TraceError(f"line {line}: row must be job, join or leave, got: {kind!r}")
    workers = _workers(_first_workers(header), moves)
    return Trace(workers=tuple(workers), jobs=tuple(jobs), **facts)


def _of_csv(comments: list[tuple[int, str]], jobs: Sequence[TracedJob]) -> Trace:
    header: dict[str, Any] = {}
    moves: list[_Move] = []
    words: dict[int, str] = {}
    for line, comment in comments:
        if comment.startswith(_SET):
            words[line] = comment.removeprefix(_SET).strip()
            continue
        row = _row_in(comment)
        kind = row.pop("row", None)
        if kind == "header" and line == 1:
            header = row
            _check_schema(header)
        elif kind in ("join", "leave"):
            moves.append(_move(kind, row, line))
        else:
            raise TraceError(
                f"line {line}: a comment must be set NAME=VALUE, or a row join or leave in JSON, or on line 1 a row "
                f"header, got: {comment:.80}"
            )
    if "length_us" not in header and not moves:  # else times are those of the trace
        jobs = shift_to_zero(jobs)
    facts = _facts({"length_us": trace_length_us(jobs), **header})
    facts["settings"] = _with_words(facts["settings"], words)
    is_told = "workers" in header or any(joins for *_, joins in moves)
    workers = _workers(_first_workers(header) if is_told else list(csv_fleet(jobs)), moves)
    return Trace(workers=tuple(workers), jobs=tuple(jobs), **facts)


def _row_in(comment: str) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        row = json.loads(comment)
        if isinstance(row, dict):
            return row
    return {}


def _with_words(settings: Mapping[str, str], words: Mapping[int, str]) -> dict[str, str]:
    found = dict(settings)
    for line, word in words.items():
        try:
            found |= read_setting_word(found, [word])
        except OptionError as exc:
            raise TraceError(f"line {line}: {exc}") from None
    return found


def _check_schema(header: dict[str, Any]) -> None:
    if header.get("schema") != SCHEMA:
        raise TraceError(f"line 1: the schema must be {SCHEMA!r}, got: {header.get('schema')!r}")


def _facts(header: dict[str, Any]) -> dict[str, Any]:
    for name in header:
        if name not in (*_HEADER, "row", "schema", "workers"):
            raise TraceError(f"line 1: unknown field {name!r} of a header; fields are {', '.join(_HEADER)}, workers")
    try:
        length_us, lost = number_column(header.get("length_us")), number_column(header.get("lost", 0))
    except ValueError as exc:
        raise TraceError(f"line 1: length_us and lost must be {exc}, got: {header.get('length_us')!r:.80}") from None
    if length_us < 0:
        raise TraceError(f"line 1: length_us must be 0 or more, got: {length_us}")
    return {
        "length_us": length_us,
        "lost": lost,
        "settings": _texts(header, "settings"),
        "versions": _texts(header, "versions"),
        "paused": tuple(_list(header, "paused", 1)),
        "recorded_at": str(header.get("recorded_at", "")),
    }


def _texts(header: dict[str, Any], name: str) -> dict[str, str]:
    found = header.get(name, {})
    if not isinstance(found, dict) or not all(isinstance(each, str) and is_utf8(each) for each in found.values()):
        raise TraceError(f"line 1: {name} must be an object of texts in UTF-8, got: {found!r:.80}")
    return found


def _list(row: dict[str, Any], name: str, line: int) -> list[str]:
    found = row.get(name, [])
    if not isinstance(found, list) or not all(isinstance(each, str) and each and is_utf8(each) for each in found):
        raise TraceError(f"line {line}: {name} must be a list of texts in UTF-8, got: {found!r:.80}")
    return found


def _first_workers(header: dict[str, Any]) -> list[TracedWorker]:
    found = header.get("workers", [])
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise TraceError(f"line 1: workers must be a list of objects, got: {found!r:.80}")
    return [_worker(each, each.get("name"), 0, 1) for each in found]


def _worker(row: dict[str, Any], name: object, joined_us: int, line: int) -> TracedWorker:
    try:
        slots = number_column(row.get("slots"))
    except ValueError:
        slots = -1
    if not 0 <= slots <= MOST_SLOTS:
        raise TraceError(
            f"line {line}: slots must be a whole number from 0 to {MOST_SLOTS:,}, got: {row.get('slots')!r:.80}"
        )
    try:
        return TracedWorker(text_column(name), tuple(map(text_column, _list(row, "types", line))), slots, joined_us)
    except ValueError as exc:
        raise TraceError(f"line {line}: the name of a worker must be {exc}, got: {name!r}") from None


def _move(kind: str, row: dict[str, Any], line: int) -> _Move:
    known = ("worker", "at_us", "types", "slots") if kind == "join" else ("worker", "at_us")
    for name in row:
        if name not in known:
            raise TraceError(f"line {line}: unknown column {name!r} of a {kind}; columns are {', '.join(known)}")
    try:
        at_us = number_column(row.get("at_us"))
    except ValueError as exc:
        raise TraceError(f"line {line}: at_us must be {exc}, got: {row.get('at_us')!r}") from None
    if kind == "leave":
        return at_us, 0, str(row.get("worker")), None
    worker = _worker(row, row.get("worker"), at_us, line)
    return at_us, 1, worker.name, worker


def _workers(first: list[TracedWorker], moves: list[_Move]) -> Iterator[TracedWorker]:
    """Yield the workers in the order in which they joined; one that came back is a further one."""
    there = {each.name: each for each in first}
    found = list(first)
    for at_us, _, name, joins in sorted(moves, key=lambda move: move[:3]):
        gone = there.pop(name, None)
        if gone is not None:
            found[found.index(gone)] = TracedWorker(gone.name, gone.types, gone.slots, gone.joined_us, at_us)
        if joins is not None:
            there[name] = joins
            found.append(joins)
    return iter(found)


def _warn_of_unserved(trace: Trace, warn: Warn) -> None:
    served = {type_ for worker in trace.workers for type_ in worker.types}
    unserved = sorted({job.type for job in trace.jobs} - served)
    if unserved:
        names = ", ".join(unserved[:_MOST_NAMED]) + (" and others" if len(unserved) > _MOST_NAMED else "")
        warn(f"no worker of the trace serves the type(s) {names}: their jobs are never claimed")


def _warn_of_settings(trace: Trace, warn: Warn) -> None:
    in_force = complete_settings(trace.settings)
    bad = [f"{name}={value}" for name, value in trace.settings.items() if in_force.get(name) != value]
    if bad:
        names = ", ".join(bad[:_MOST_NAMED]) + (" and others" if len(bad) > _MOST_NAMED else "")
        warn(f"the trace has settings that this version cannot read, and replaces by their defaults: {names:.200}")
