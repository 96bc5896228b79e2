"""The directory of traces for the lab's routes. Clients name its files as listed, never by a path.

One thread reads and schedules one trace at a time, since this takes seconds of CPU time.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TypeVar

from ..errors import SettingError, TraceError
from ..lab import trace_file
from ..lab.scenario import Scenario, scenario_of
from ..lab.trace import Trace
from .broker import BusyError, RequestThreads
from .replies import RefusedError

T = TypeVar("T")

#: Maximum job count of a trace, including jobs that a rate adds. A reply schedules twice as many.
MAX_JOBS = 200_000

#: Maximum seconds of a request, including its wait for earlier requests, and for the end of a computation that is cut
#: off.
MAX_ANSWER_S, _END_S = 60.0, 5.0

#: Maximum seconds for listing the directory.
_LIST_S = 10.0

#: Maximum number of listed files, and maximum bytes of a header that a list reads.
_MAX_FILES, _HEADER_BYTES = 200, 65_536

_SUFFIXES = (".jsonl", ".csv")

HOW = "celery affinity lab record --for 10m --output DIR/trace.jsonl"

_NO_DIRECTORY = f"no directory of traces is given: record with {HOW}, and start celery affinity web --traces DIR"


@dataclass(frozen=True)
class TraceFile:
    """A trace in the directory. *modified_at* is in UTC. *recorded_at* is the header's value, or "" if it has none."""

    name: str
    size_bytes: int
    modified_at: str
    recorded_at: str


@dataclass(frozen=True)
class Loaded:
    """The trace in a file with this *version*, and its scenario."""

    version: tuple[str, int, int]
    trace: Trace
    scenario: Scenario


class Traces:
    """The traces in *directory*, or None, which rejects each request. Raises SettingError."""

    def __init__(self, directory: str | os.PathLike[str] | None) -> None:
        self._directory = None if directory is None else Path(directory)
        if self._directory is not None and not self._directory.is_dir():
            raise SettingError(f"--traces must be a directory, got: {str(directory)!r}")
        self._thread = RequestThreads("affinity-web-lab", 1, MAX_ANSWER_S + _END_S)
        self._list_thread = RequestThreads(
            "affinity-web-lab-files", 1, _LIST_S
        )  # reads that do not wait for a computation
        self._last: Loaded | None = None

    async def newest(self) -> list[TraceFile]:
        """Return the files, the newest first. Raises RefusedError."""
        self._given()
        return await self._list_thread.run(lambda: [_about(file) for file in self._files()[:_MAX_FILES]])

    async def ask(self, name: str, function: Callable[[Loaded, Iterator[object]], T]) -> T:
        """Return the result of *function* for the trace *name*. Its second argument, steps, ends it after too long.

        Raises RefusedError, BusyError, or the errors of *function*.
        """
        self._given()
        steps = _steps_until(time.monotonic() + MAX_ANSWER_S)
        return await self._thread.run(lambda: function(self._load(name), steps))

    def _given(self) -> Path:
        if self._directory is None:
            raise RefusedError(404, _NO_DIRECTORY)
        return self._directory

    def _files(self) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self._given()) as entries:
                files = [
                    (file.stat().st_mtime_ns, file.name, file)
                    for file in entries
                    if file.name.endswith(_SUFFIXES) and not file.name.startswith(".") and file.is_file()
                ]
        except OSError as exc:
            raise RefusedError(503, f"the directory of traces cannot be read: {exc.strerror}") from exc
        return [file for *_, file in sorted(files, key=lambda item: item[:2], reverse=True)]

    def _load(self, name: str) -> Loaded:
        file = next((candidate for candidate in self._files() if candidate.name == name), None)
        if file is None:
            raise RefusedError(404, f"there is no trace {name[:300]!r}: GET /api/lab/traces lists them")
        version = (name, file.stat().st_mtime_ns, file.stat().st_size)
        if self._last is None or self._last.version != version:
            self._last = None  # two large traces would need twice the memory
            try:
                _check_length(file)
                trace = trace_file.read_trace(file.path)
            except TraceError as exc:
                raise RefusedError(409, str(exc).replace(file.path, name)) from exc
            except OSError as exc:
                raise RefusedError(409, f"{name} cannot be read: {exc.strerror}") from exc
            self._last = Loaded(version, trace, scenario_of(trace))
        return self._last


def check_jobs(count: float, name: str) -> None:
    """Raise RefusedError for more jobs than a request may schedule."""
    if count > MAX_JOBS:
        raise RefusedError(
            409, f"{name} has more than {MAX_JOBS:,} jobs, the maximum of the web UI: use celery affinity lab"
        )


def _check_length(file: os.DirEntry[str]) -> None:
    """Reject a file with too many jobs before it is loaded into memory."""
    with open(file.path, "rb") as lines:
        next(lines, None)  # the header
        jobs = (1 for line in lines if b'"job"' in line or file.name.endswith(".csv"))
        check_jobs(sum(islice(jobs, MAX_JOBS + 1)), file.name)


def _about(file: os.DirEntry[str]) -> TraceFile:
    facts = file.stat()
    moment = datetime.fromtimestamp(int(facts.st_mtime), UTC).isoformat()
    return TraceFile(file.name, facts.st_size, moment, _recorded_at(file))


def _recorded_at(file: os.DirEntry[str]) -> str:
    try:
        with open(file.path, "rb") as lines:
            header = json.loads(lines.readline(_HEADER_BYTES))
    except (OSError, ValueError, RecursionError):
        return ""  # a CSV file, or not a trace: requests for it return the reason
    return str(header.get("recorded_at", "")) if isinstance(header, dict) else ""


def _steps_until(end_s: float) -> Iterator[None]:
    while time.monotonic() < end_s:
        yield
    raise BusyError(f"no answer within {MAX_ANSWER_S:g} s: ask celery affinity lab, or record for a shorter time")
