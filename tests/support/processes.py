"""Real processes for tests: Celery workers and other programs, each with its log.

`tests/conftest.py` ends all processes started here with their test, by process id.
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

#: Environment variable that every process of a test inherits, even if its parent has ended.
MARK = "CELERY_AFFINITY_TEST_RUN"

_numbers = count(1)
_running: "list[Process]" = []


def wait_until(predicate: Callable[[], T], timeout: float, message: str) -> T:
    """Return the first true value of *predicate*; fail with *message* if there is none within *timeout* seconds.

    A server that starts, ends or is promoted closes connections, so the predicate is called again after such an error.
    It is also called once after the timeout, since this process may have stalled.
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
    """Wait until a worker receives commands: it subscribes shortly after its "ready", on stock Celery as well."""
    wait_until(
        lambda: any(each.startswith(f"{name}@") for reply in app.control.ping(timeout=0.5, limit=9) for each in reply),
        20,
        f"{name} listens",
    )


def session_of(pid: int) -> list[int]:
    """Return the live processes of the session that *pid* started."""
    pids = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == pid and process.status() != psutil.STATUS_ZOMBIE:
                pids.append(process.pid)
    return pids


def start(
    command: Sequence[str], env: Mapping[str, str], cwd: Path, *, stdout: IO[bytes], stderr: IO[bytes]
) -> "Forked | subprocess.Popen[bytes]":
    """Start *command* in a new session; a Celery command is forked from a process that has loaded Celery."""
    if may_fork(command, env):
        return TEMPLATE.start(command, env, cwd, stdout=stdout.fileno(), stderr=stderr.fileno())
    return subprocess.Popen(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
    )


@contextmanager
def of_no_test() -> Iterator[None]:
    """Remove the mark of a test's processes, for a server that outlives the test that started it."""
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


def run_module(
    module: str, *words: object, timeout: float, may_fail: bool = False
) -> "subprocess.CompletedProcess[str]":
    """Run ``python -m module words…``; return its output.

    It is terminated on a timeout, not killed, so that it can end the processes that it has started.
    """
    command = [sys.executable, "-m", module, *map(str, words)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        output, errors = process.communicate(timeout=timeout)
    except BaseException:
        process.terminate()
        process.communicate(timeout=15)
        raise
    assert may_fail or process.returncode == 0, output + errors
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


class Process:
    """A program in its own session, so its child processes can be ended with it."""

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
        """Wait until *text* is in the log; fail immediately if the process ends before."""

        def logged_or_ended() -> bool:
            ended = not self.is_running  # checked before the log is read: the last lines are written before the end
            return text in self.log() or ended

        wait_until(logged_or_ended, timeout, f"{self.name} logs {text!r}. Its log:\n{self.log()}")
        assert text in self.log(), f"{self.name} ended with {self._popen.returncode}. Its log:\n{self.log()}"

    def signal(self, number: int) -> None:
        """Send a signal to the process itself, not to its children."""
        self._popen.send_signal(number)

    def term(self) -> None:
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process itself like a crash (SIGKILL); its children remain until the end of the test."""
        self.signal(signal.SIGKILL)
        self._popen.wait()

    def wait(self, timeout: float) -> int:
        """Return the exit code. Raises subprocess.TimeoutExpired."""
        return self._popen.wait(timeout)

    def end(self) -> None:
        """Kill the process and its children. Can be called repeatedly."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()
        self._log.close()
        if self in _running:
            _running.remove(self)


class WorkerProcess(Process):
    """A `celery worker`."""

    def wait_ready(self, timeout: float) -> None:
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
    """Start a worker of the app that *app_module* builds from ``$BROKER_URL``; omit ``-Q`` if *queues* is empty."""
    name = name or f"worker-{next(_numbers)}"
    command = [sys.executable, "-m", "celery", "-A", app_module, "worker", "--loglevel", "INFO"]
    command += ["--hostname", f"{name}@%h", "--pool", pool, "--concurrency", str(concurrency)]
    if queues:
        command += ["--queues", ",".join(queues)]
    return WorkerProcess(name, [*command, *extra], {"BROKER_URL": url, **(env or {})})


def running_processes() -> tuple[Process, ...]:
    """Return the processes that the current test has started and not yet ended."""
    return tuple(_running)
