"""The directory of traces that the lab's routes read: its files are named by its own list, never by a path.

A trace is read, and scheduled, in one thread, one at a time: that takes seconds of a processor.
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

#: Most jobs of a trace, with those that a rate adds: twice as many are scheduled for an answer.
MOST_JOBS = 200_000

#: Longest time, s, of a request, with its wait for those before it; and for the end of a computation that it cuts off.
LONGEST_S, _END_S = 60.0, 5.0

#: Longest time, s, of a look at the directory.
_LOOK_S = 10.0

#: Most files of a list, and the longest header, bytes, that a list reads.
_MOST_FILES, _HEADER_BYTES = 200, 65_536

_SUFFIXES = (".jsonl", ".csv")

HOW = "celery affinity lab record --for 10m --output DIR/trace.jsonl"

_NO_DIRECTORY = f"no directory of traces is given: record with {HOW}, and start celery affinity web --traces DIR"


@dataclass(frozen=True)
class TraceFile:
    """A trace in the directory. *modified_at*: UTC; *recorded_at*: as its header says, "" if it says none."""

    name: str
    size_bytes: int
    modified_at: str
    recorded_at: str


@dataclass(frozen=True)
class Loaded:
    """The trace in a file, as it was when it had this *version*, and its scenario."""

    version: tuple[str, int, int]
    trace: Trace
    scenario: Scenario


class Traces:
    """The traces in *directory*; None: there is none, and each question is refused. Raises SettingError."""

    def __init__(self, directory: str | os.PathLike[str] | None) -> None:
        self._directory = None if directory is None else Path(directory)
        if self._directory is not None and not self._directory.is_dir():
            raise SettingError(f"--traces must be a directory, got: {str(directory)!r}")
        self._thread = RequestThreads("affinity-web-lab", 1, LONGEST_S + _END_S)
        self._looks = RequestThreads("affinity-web-lab-files", 1, _LOOK_S)  # which do not wait for a computation
        self._last: Loaded | None = None

    async def newest(self) -> list[TraceFile]:
        """Return the files, the newest first. Raises RefusedError."""
        self._given()
        return await self._looks.run(lambda: [_about(each) for each in self._files()[:_MOST_FILES]])

    async def ask(self, name: str, function: Callable[[Loaded, Iterator[object]], T]) -> T:
        """Return what *function* makes of the trace *name*, and of steps that end it when it takes too long.

        Raises RefusedError, BusyError, or what it raises.
        """
        self._given()
        steps = _steps_until(time.monotonic() + LONGEST_S)
        return await self._thread.run(lambda: function(self._load(name), steps))

    def _given(self) -> Path:
        if self._directory is None:
            raise RefusedError(404, _NO_DIRECTORY)
        return self._directory

    def _files(self) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self._given()) as found:
                files = [
                    (each.stat().st_mtime_ns, each.name, each)
                    for each in found
                    if each.name.endswith(_SUFFIXES) and not each.name.startswith(".") and each.is_file()
                ]
        except OSError as exc:
            raise RefusedError(503, f"the directory of traces cannot be read: {exc.strerror}") from exc
        return [each for *_, each in sorted(files, key=lambda file: file[:2], reverse=True)]

    def _load(self, name: str) -> Loaded:
        file = next((each for each in self._files() if each.name == name), None)
        if file is None:
            raise RefusedError(404, f"there is no trace {name[:300]!r}: GET /api/lab/traces lists them")
        version = (name, file.stat().st_mtime_ns, file.stat().st_size)
        if self._last is None or self._last.version != version:
            self._last = None  # two large ones would need twice the memory
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
    """Raise RefusedError for too many jobs to be scheduled for a request."""
    if count > MOST_JOBS:
        raise RefusedError(
            409, f"{name} has more than {MOST_JOBS:,} jobs, the most that are scheduled here: ask celery affinity lab"
        )


def _check_length(file: os.DirEntry[str]) -> None:
    """Refuse a file with too many jobs before it is read into memory."""
    with open(file.path, "rb") as lines:
        next(lines, None)  # the header
        jobs = (1 for line in lines if b'"job"' in line or file.name.endswith(".csv"))
        check_jobs(sum(islice(jobs, MOST_JOBS + 1)), file.name)


def _about(file: os.DirEntry[str]) -> TraceFile:
    facts = file.stat()
    moment = datetime.fromtimestamp(int(facts.st_mtime), UTC).isoformat()
    return TraceFile(file.name, facts.st_size, moment, _recorded_at(file))


def _recorded_at(file: os.DirEntry[str]) -> str:
    try:
        with open(file.path, "rb") as lines:
            header = json.loads(lines.readline(_HEADER_BYTES))
    except (OSError, ValueError, RecursionError):
        return ""  # a CSV file, or no trace: who asks for it hears why
    return str(header.get("recorded_at", "")) if isinstance(header, dict) else ""


def _steps_until(end_s: float) -> Iterator[None]:
    while time.monotonic() < end_s:
        yield
    raise BusyError(f"no answer within {LONGEST_S:g} s: ask celery affinity lab, or record for a shorter time")
