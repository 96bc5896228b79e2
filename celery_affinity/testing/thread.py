"""A worker in a thread of the tests' process: its tasks see what a test has patched."""

import socket
import threading
from time import monotonic
from typing import Any

from celery import Celery, _state
from celery.worker import WorkController, state

from ..embedded.in_with import RunsInWith
from .app import TestingError, check_concurrency, check_types

#: Longest wait, s, until a worker has joined, and for the tasks of a worker that stops.
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0

#: Interval, s, at which `start` looks whether the worker's thread has ended.
_POLL_S = 0.05

#: Interval, s, at which the worker's idle loop iterates: `stop` waits for the next iteration.
_TURN_S = 0.05

#: Lock that the one worker of this process holds: Celery keeps a worker's state in module variables.
_one_at_a_time = threading.Lock()


class WorkerThread(RunsInWith):
    """A worker of *app* that serves *types*; without types, the default queue.

    The pool is solo or, with a *concurrency* above 1, threads. The worker logs through the loggers of the process, and
    has no guard, since it cannot die alone.
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
            controller = self._controller()
        except BaseException as exc:
            self._clean_up()
            if isinstance(exc, SystemExit):  # a worker that refuses its settings
                raise TestingError(str(exc)) from exc
            raise
        self._thread = threading.Thread(target=self._run, args=(controller,), name=self.name, daemon=True)
        self._thread.start()
        self._wait_until_ready()

    def stop(self) -> None:
        """Stop the worker: it ends its running tasks, gives back other jobs. Raises TestingError if a task hangs."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        state.should_stop = 0
        thread.join(STOP_TIMEOUT_S)
        if thread.is_alive():
            raise TestingError(f"{self!r} runs a task that did not end within {STOP_TIMEOUT_S:.0f} s")
        self._clean_up()

    # -- the pieces

    def _controller(self) -> Any:
        controller = WorkController(
            app=self._app,
            hostname=self.name,
            # Never none: Celery 5.5 would then also serve every queue that this process has published to.
            queues=list(self.types or self._app.amqp.Queues(self._app.conf.task_queues)),
            pool="solo" if self._concurrency == 1 else "threads",
            concurrency=self._concurrency,
            ready_callback=self._on_ready,
            without_heartbeat=True,
            without_gossip=True,
            without_mingle=True,
        )
        controller.affinity_kin = None  # no guard
        # The pool has set this flag for the whole process, in which the test waits for results.
        _state._set_task_join_will_block(False)
        return controller

    def _on_ready(self, consumer: Any) -> None:
        consumer.timer.call_repeatedly(_TURN_S, lambda: None)
        self._ready.set()

    def _run(self, controller: Any) -> None:
        self._app.set_current()
        controller.start()

    def _wait_until_ready(self) -> None:
        assert self._thread is not None
        deadline = monotonic() + START_TIMEOUT_S
        while not self._ready.wait(_POLL_S):
            if not self._thread.is_alive() or monotonic() > deadline:
                self.stop()
                raise TestingError(f"{self!r} did not start; its log says why")

    def _clean_up(self) -> None:
        state.should_stop = None
        self._app.amqp.queues._consume_from = self._selected
        _one_at_a_time.release()
