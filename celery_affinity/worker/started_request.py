"""The start of a task: it is given to the pool, and begins, only while no other worker can have its job.

A worker may lose a job between its claim and its start: the server took the worker for dead. Then the task is not
begun; if it has begun already, it is stopped where the pool can do that.
"""

import signal
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from billiard.common import TERM_SIGNAME
from celery.concurrency.base import BasePool
from celery.exceptions import Reject, TaskRevokedError, WorkerTerminate
from celery.worker import state
from celery.worker.state import active_requests, task_ready

from ..callers.failure import words
from ..log_limit import limited_logger
from ..server.passing import traceback_of
from ..server.received import LOST
from . import runs
from .buffers import take_back
from .cancelled_request import CancelledRequest
from .pools import forks

logger = limited_logger(__name__)


class NotBegunError(Reject):
    """Raised in place of a task's body, which cannot begin now: the job waits again, and this counts as no delivery."""

    def __init__(self, reason: str, requeue: bool = True) -> None:
        super().__init__(reason, requeue)

    def __str__(self) -> str:
        return str(self.reason)


class StartedRequest(CancelledRequest):
    """A mixin for ``celery.worker.request.Request``."""

    _is_fenced = False

    #: Whether the body must not begin: another worker may have got the job since the pool was given the task.
    is_called_off = False

    #: Function that says whether the pool still runs the task, or will; None before the task is given to the pool.
    is_in_the_pool: Callable[[], bool] | None = None

    def _end(self, failure: Any = None) -> None:
        """Free the slot, as `EndOfTask` does. *failure*: an exception; None if the task ended well."""
        raise NotImplementedError

    def execute_using_pool(self, pool: BasePool, **kwargs: Any) -> Any:
        return self._give_to(pool, super().execute_using_pool, **kwargs)

    def on_accepted(self, pid: int, time_accepted: float) -> Any:
        self._call_off_unless_it_may_start()  # the task may have waited for a thread, or a greenlet
        if self.is_called_off:
            return
        try:
            self._accept(pid, time_accepted)
        except Exception as exc:
            logger.error(
                "Task %s[%s] starts, but this could not be announced: %s",
                *(self.name, self.id, words(exc)),
                exc_info=traceback_of(exc),
            )
        except BaseException as exc:
            if not forks(self._pool):
                self._end(exc)  # the task does not run
            raise

    def _accept(self, pid: int, time_accepted: float) -> None:
        try:
            super().on_accepted(pid, time_accepted)
        finally:
            if self._reporting is not None:
                self._reporting.started(self._tag)
                self._call_off_unless_it_may_start()  # the event may have waited for a broker that was down
                if self._reporting.claims.is_void(self._tag):
                    self.fence()
                elif state.should_terminate and forks(self._pool):
                    # Celery cancels the tasks that it knows to run, and would wait for the end of this one.
                    self.cancel(self._pool, emit_retry=not self.task.acks_late)

    def _call_off_unless_it_may_start(self) -> None:
        """Call the task off if it may not start any more, in pools where the body begins after this.

        `runs` leaves out a body that is called off.
        """
        if self._reporting is None or forks(self._pool):
            return
        if state.should_terminate:
            self.is_called_off = True
            logger.info("Task %s[%s] is not started: the worker stops", self.name, self.id)
        elif not self._reporting.may_start(self._tag):
            self.is_called_off = True
            logger.info("Task %s[%s] is not started: another worker may run it by now", self.name, self.id)

    def fence(self) -> None:
        """Stop the task, where the pool can, and tell nothing of it: another worker has the job by now.

        A task that has ended meanwhile is left alone.
        """
        if self not in active_requests:
            return
        self._is_fenced = True
        try:
            self._pool.terminate_job(self.worker_pid, getattr(signal, TERM_SIGNAME))
        except NotImplementedError:
            return  # threads and the solo pool run the task to its end
        logger.warning("Task %s[%s] is stopped: another worker runs it by now", self.name, self.id)

    def _give_to(self, pool: BasePool, give: Callable[..., Any], **kwargs: Any) -> Any:
        """Give the task to *pool* with *give*. A task that the pool does not take is rejected."""
        self._pool = pool
        take_back(self)
        self._give_up_unless_it_may_start()
        self.is_in_the_pool = runs.while_given
        try:
            given = give(pool, **kwargs)
        except TaskRevokedError:
            raise
        except WorkerTerminate:
            if self._is_cancelled:
                self.end_cut_short()
            raise
        except LOST:
            self._end()  # the task never starts
            raise
        except Exception as exc:
            logger.exception("Task %s[%s] cannot be given to the pool: it is rejected", self.name, self.id)
            self.reject(requeue=False)
            self._end(exc)
            raise TaskRevokedError(self.id) from exc  # Celery goes on without the task
        self.is_in_the_pool = runs.after_given(pool, given)
        return given

    def _give_up_unless_it_may_start(self) -> None:
        if self._reporting is not None and not self._reporting.may_start(self._tag):
            logger.info("Task %s[%s] is not started: another worker may run it by now", self.name, self.id)
            task_ready(self)
            raise TaskRevokedError(self.id)  # Celery goes on without the task


def starting_if_it_may(generated: Any) -> Any:
    @wraps(generated)
    def execute_using_pool(self: Any, pool: BasePool, **kwargs: Any) -> Any:
        return self._give_to(pool, partial(generated, self), **kwargs)

    return execute_using_pool
