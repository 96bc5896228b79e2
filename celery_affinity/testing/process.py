"""A real worker in a process of its own, for tests of fleets, of prefork, of a crash: a thread cannot show these."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from itertools import count
from time import monotonic, sleep

from celery import Celery

from ..embedded import children
from ..embedded.in_with import RunsInWith
from ..errors import refuse
from ..observe.status import Report
from ..transport.reach import scheduler_on
from .app import TestingError, check_concurrency, check_types, import_path, load

#: Longest wait, s, until a worker has joined, and for the tasks of a worker that stops.
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0

#: Pause, s, between two questions whether the worker has joined.
_POLL_S = 0.05

_numbers = count(1)


class WorkerProcess(RunsInWith):
    """A process ``celery -A app worker -Q types``, ended at the latest with the tests' process, even by kill -9.

    *app*: the text that stands after ``-A``. Without *types*, the worker serves the default queue. The worker has the
    environment of the tests and their import path, but none of a test's patches.
    """

    def __init__(self, app: Celery | str, *types: str, concurrency: int = 1, pool: str = "prefork") -> None:
        if not isinstance(app, str):
            accepted = "what stands after `celery -A`, such as 'proj' or 'proj.celery:app', for a worker process"
            raise refuse("affinity_app", accepted, app)
        self.types = check_types(types)
        self.name = f"process-{next(_numbers)}@{socket.gethostname()}"
        self._app = load(app)
        self._command = [sys.executable, "-m", "celery", "-A", app, "worker", "--loglevel", "INFO"]
        self._command += ["--hostname", self.name, "--pool", pool, "--concurrency", str(check_concurrency(concurrency))]
        self._command += ["--queues", ",".join(types)] if types else []
        self._command += ["--without-mingle"]  # mingle waits a second for other workers' revoked tasks
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed with this object: pytest may ask for the log later
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {', '.join(self.types) or 'the default queue'}>"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise TestingError(f"{self!r} is not running")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """Return the log of the worker so far."""
        # The worker writes at the position of this file, which reading must not move.
        return os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size, 0).decode(errors="replace")

    # -- its life

    def start(self) -> None:
        """Start the worker, and wait until it has joined. Raises TestingError with the end of its log."""
        if self._process is not None:
            raise TestingError(f"{self!r} is running already")
        self._process = children.start(self._command, log=self._log, env={**os.environ, "PYTHONPATH": import_path()})
        deadline = monotonic() + START_TIMEOUT_S
        while not self._has_joined():
            if not self.is_running or monotonic() > deadline:
                self.kill()
                last_lines = "\n".join(self.log().splitlines()[-10:])
                raise TestingError(f"the worker did not start: {' '.join(self._command)}\n{last_lines}")
            sleep(_POLL_S)

    def terminate(self) -> None:
        """Have the worker stop (SIGTERM) without waiting: it ends its running tasks and gives back the other jobs."""
        if self._process is not None:
            self._process.terminate()

    def stop(self) -> None:
        """Stop the worker, and end what it leaves behind; after 10 s, with the tasks that it still runs."""
        if self._process is None:
            return
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """End the worker and its pool at once, as a crash of its container would (SIGKILL)."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            children.reap(self._process)
            self._process = None

    def _has_joined(self) -> bool:
        with self._app.connection_for_write() as connection:
            report = Report(scheduler_on(connection, self._app.conf.broker_transport).reader)
            return any(worker.name == self.name for worker in report.status().workers)
