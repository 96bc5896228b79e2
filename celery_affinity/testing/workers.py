"""Real workers for tests: in a separate process, or in a thread of the tests' process.

Only a process can show behaviour of fleets, of prefork or in a crash. Only tasks of a thread see a test's patches.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from itertools import count
from time import monotonic, sleep
from typing import Any

from celery import Celery, _state
from celery.worker import WorkController, state

from ..embedded import server
from ..embedded.server import ContextManaged
from ..errors import refuse
from ..reports.status import Report
from ..transport.app_api import scheduler_on
from .app import TestingError, check_concurrency, check_types, import_path, load_app

#: Maximum seconds until a worker process has joined, and for the running tasks of a stopping worker process.
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
#: Seconds between two checks whether the worker has joined.
_POLL_S = 0.05

_numbers = count(1)


class WorkerProcess(ContextManaged):
    """A process ``celery -A app worker -Q types``. It never outlives the tests' process, even after kill -9.

    *app*: the argument of ``-A``, as a string. Without *types*, the worker serves the default queue. The worker has the
    tests' environment and import path, but none of a test's patches.
    """

    def __init__(self, app: Celery | str, *types: str, concurrency: int = 1, pool: str = "prefork") -> None:
        if not isinstance(app, str):
            accepted = "what stands after `celery -A`, such as 'proj' or 'proj.celery:app', for a worker process"
            raise refuse("affinity_app", accepted, app)
        self.types = check_types(types)
        self.name = f"process-{next(_numbers)}@{socket.gethostname()}"
        self._app = load_app(app)
        self._command = [sys.executable, "-m", "celery", "-A", app, "worker", "--loglevel", "INFO"]
        self._command += ["--hostname", self.name, "--pool", pool, "--concurrency", str(check_concurrency(concurrency))]
        self._command += ["--queues", ",".join(types)] if types else []
        self._command += ["--without-mingle"]  # mingle waits a second for other workers' revoked tasks
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed with this object: pytest may need the log later
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
        """Return the worker's log so far."""
        # The worker writes at this file's position, which reading must not change.
        return os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size, 0).decode(errors="replace")

    def start(self) -> None:
        """Start the worker, and wait until it has joined. Raises TestingError with the last lines of its log."""
        if self._process is not None:
            raise TestingError(f"{self!r} is running already")
        environment = {**os.environ, "PYTHONPATH": import_path()}
        self._process = server.start_child(self._command, log=self._log, env=environment)
        deadline = monotonic() + START_TIMEOUT_S
        while not self._has_joined():
            if not self.is_running or monotonic() > deadline:
                self.kill()
                last_lines = "\n".join(self.log().splitlines()[-10:])
                raise TestingError(f"the worker did not start: {' '.join(self._command)}\n{last_lines}")
            sleep(_POLL_S)

    def terminate(self) -> None:
        """Send SIGTERM without waiting: the worker ends its running tasks and returns the other jobs."""
        if self._process is not None:
            self._process.terminate()

    def stop(self) -> None:
        """Stop the worker and its remaining child processes. After 10 s, running tasks are killed."""
        if self._process is None:
            return
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """Kill the worker and its pool with SIGKILL, like a crash of its container."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            server.reap_child(self._process)
            self._process = None

    def _has_joined(self) -> bool:
        with self._app.connection_for_write() as connection:
            report = Report(scheduler_on(connection, self._app.conf.broker_transport).reader)
            return any(worker.name == self.name for worker in report.status().workers)


#: Maximum seconds until a worker thread has joined, and for the running tasks of a stopping worker thread.
THREAD_START_TIMEOUT_S = 30.0
THREAD_STOP_TIMEOUT_S = 30.0
#: Seconds between two iterations of the worker's idle loop: `stop` waits for the next iteration.
_IDLE_INTERVAL_S = 0.05
#: Lock that the single worker of this process holds, because Celery keeps a worker's state in module variables.
_one_at_a_time = threading.Lock()


class WorkerThread(ContextManaged):
    """A worker of *app* that serves *types*, or the default queue without types. It runs in the tests' process.

    The pool is solo or, with a *concurrency* above 1, threads. The worker logs through the loggers of the process, and
    has no guard, because it cannot die without the process.
    """

    def __init__(self, app: Celery, *types: str, concurrency: int = 1) -> None:
        self.types = check_types(types)
        self.name = f"thread@{socket.gethostname()}"
        self._app = app
        self._concurrency = check_concurrency(concurrency)
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None
        self._selected: Any = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(self.types) or 'of the default queue'}>"

    def start(self) -> None:
        """Start the worker, and wait until it has joined. Raises TestingError."""
        if not _one_at_a_time.acquire(blocking=False):
            raise TestingError(
                "a process has room for one worker in a thread, and has one: give it all the types at once, "
                "or take affinity_worker_process for more workers"
            )
        self._selected = self._app.amqp.queues._consume_from
        try:
            controller = self._create_controller()
        except BaseException as exc:
            self._clean_up()
            if isinstance(exc, SystemExit):  # a worker that refuses its settings
                raise TestingError(str(exc)) from exc
            raise
        self._thread = threading.Thread(target=self._run, args=(controller,), name=self.name, daemon=True)
        self._thread.start()
        self._wait_until_ready()

    def stop(self) -> None:
        """Stop the worker: it ends its running tasks and returns other jobs. Raises TestingError if a task hangs."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        state.should_stop = 0
        thread.join(THREAD_STOP_TIMEOUT_S)
        if thread.is_alive():
            raise TestingError(f"{self!r} runs a task that did not end within {THREAD_STOP_TIMEOUT_S:.0f} s")
        self._clean_up()

    def _create_controller(self) -> Any:
        controller = WorkController(
            app=self._app,
            hostname=self.name,
            # Never None: Celery 5.5 would then also serve all queues that this process has published to.
            queues=list(self.types or self._app.amqp.Queues(self._app.conf.task_queues)),
            pool="solo" if self._concurrency == 1 else "threads",
            concurrency=self._concurrency,
            ready_callback=self._on_ready,
            without_heartbeat=True,
            without_gossip=True,
            without_mingle=True,
        )
        controller.affinity_kin = None  # no guard
        # The pool has set this flag for the whole process, where the test waits for results.
        _state._set_task_join_will_block(False)
        return controller

    def _on_ready(self, consumer: Any) -> None:
        consumer.timer.call_repeatedly(_IDLE_INTERVAL_S, lambda: None)
        self._ready.set()

    def _run(self, controller: Any) -> None:
        self._app.set_current()
        controller.start()

    def _wait_until_ready(self) -> None:
        assert self._thread is not None
        deadline = monotonic() + THREAD_START_TIMEOUT_S
        while not self._ready.wait(_POLL_S):
            if not self._thread.is_alive() or monotonic() > deadline:
                self.stop()
                raise TestingError(f"{self!r} did not start; its log says why")

    def _clean_up(self) -> None:
        state.should_stop = None
        self._app.amqp.queues._consume_from = self._selected
        _one_at_a_time.release()
