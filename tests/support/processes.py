"""Real processes for tests: Celery workers, and whatever else a test starts, each with its log.

Everything started here ends with its test: `tests/conftest.py` sees to it, by process id.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any, TypeVar

import psutil
import redis
from kombu.exceptions import OperationalError

from .template import TEMPLATE, Forked, may_fork

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
POLL_S = 0.02

#: Name of an environment variable that every process of a test inherits, whoever the parent is by now.
MARK = "CELERY_AFFINITY_TEST_RUN"

_numbers = count(1)
_running: "list[Process]" = []


def wait_until(predicate: Callable[[], T], timeout: float, message: str) -> T:
    """Return the first true value of *predicate*; fail with *message* when there is none within *timeout* seconds.

    A server that starts, ends, or is promoted closes connections: a predicate that fails so is asked again. So is one
    once more after the time is over: this process may have stood still meanwhile.
    """
    deadline = monotonic() + timeout
    while True:
        away, is_over = None, monotonic() >= deadline
        try:
            if value := predicate():
                return value
        except (redis.ConnectionError, redis.TimeoutError, OperationalError) as exc:
            away = exc
        if is_over:
            raise AssertionError(f"not within {timeout} s: {message}") from away
        sleep(POLL_S)


def wait_until_it_listens(app: Any, name: str) -> None:
    """Wait until a worker hears commands: a worker subscribes a moment after its "ready", on stock Celery as well."""
    wait_until(
        lambda: any(each.startswith(f"{name}@") for reply in app.control.ping(timeout=0.5, limit=9) for each in reply),
        20,
        f"{name} listens",
    )


def session_of(pid: int) -> list[int]:
    """Return the live processes of the session that *pid* began."""
    found = []
    for each in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getsid(each.pid) == pid and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each.pid)
    return found


def start(
    command: Sequence[str], env: Mapping[str, str], cwd: Path, *, stdout: IO[bytes], stderr: IO[bytes]
) -> "Forked | subprocess.Popen[bytes]":
    """Start *command* in a session of its own; one of Celery's as a fork of a process that has loaded it."""
    if may_fork(command, env):
        return TEMPLATE.start(command, env, cwd, stdout=stdout.fileno(), stderr=stderr.fileno())
    return subprocess.Popen(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
    )


@contextmanager
def of_no_test() -> Iterator[None]:
    """Leave out the mark by which a process counts as one of a test: a server may outlive the test that started it."""
    mark = os.environ.pop(MARK, None)
    try:
        yield
    finally:
        if mark is not None:
            os.environ[MARK] = mark


def run_celery(
    *words: str, env: Mapping[str, str], cwd: Path = ROOT, timeout: float = 60
) -> "subprocess.CompletedProcess[str]":
    """Run ``celery`` with *words*; return its output and its exit code."""
    command = [sys.executable, "-m", "celery", *words]
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = start(command, env, cwd, stdout=stdout, stderr=stderr)
        try:
            code = process.wait(timeout)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        texts = []
        for each in (stdout, stderr):
            each.seek(0)
            texts.append(each.read().decode())
    return subprocess.CompletedProcess(command, code, *texts)


class Process:
    """A program in a session of its own, so that its child processes can be ended with it."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], cwd: Path = ROOT) -> None:
        self.name = name
        self.command = tuple(command)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `end`
        self._popen = start(self.command, {**os.environ, **env}, cwd, stdout=self._log, stderr=self._log)
        _running.append(self)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        return self._popen.poll() is None

    def log(self) -> str:
        # The process writes at this file's own position: reading must not move it.
        return os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size, 0).decode(errors="replace")

    def wait_for(self, text: str, timeout: float) -> None:
        """Wait until *text* is in the log; fail at once if the process ends before."""

        def said_or_ended() -> bool:
            ended = not self.is_running  # asked before the log is read: the last words come before the end
            return text in self.log() or ended

        wait_until(said_or_ended, timeout, f"{self.name} says {text!r}. Its log:\n{self.log()}")
        assert text in self.log(), f"{self.name} ended with {self._popen.returncode}. Its log:\n{self.log()}"

    def signal(self, number: int) -> None:
        """Send a signal to the process itself, not to its children."""
        self._popen.send_signal(number)

    def term(self) -> None:
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process itself as a crash would (SIGKILL); its children stay behind until the end of the test."""
        self.signal(signal.SIGKILL)
        self._popen.wait()

    def wait(self, timeout: float) -> int:
        """Return the exit code. Raises subprocess.TimeoutExpired."""
        return self._popen.wait(timeout)

    def end(self) -> None:
        """End the process and its children, at once and for good. Repeatable."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()
        self._log.close()
        if self in _running:
            _running.remove(self)


class WorkerProcess(Process):
    """A `celery worker`."""

    def wait_ready(self, timeout: float) -> None:
        """Wait until the worker consumes."""
        self.wait_for(" ready.", timeout)


def start_worker(
    app_module: str,
    url: str,
    queues: Sequence[str],
    *,
    concurrency: int = 1,
    pool: str = "prefork",
    name: str | None = None,
    extra: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> WorkerProcess:
    """Start a worker of the app that *app_module* builds from ``$BROKER_URL``; no *queues*: without ``-Q``."""
    name = name or f"worker-{next(_numbers)}"
    command = [sys.executable, "-m", "celery", "-A", app_module, "worker", "--loglevel", "INFO"]
    command += ["--hostname", f"{name}@%h", "--pool", pool, "--concurrency", str(concurrency)]
    if queues:
        command += ["--queues", ",".join(queues)]
    return WorkerProcess(name, [*command, *extra], {"BROKER_URL": url, **(env or {})})


def running_processes() -> tuple[Process, ...]:
    """Return the processes that the current test has started and not yet ended."""
    return tuple(_running)
