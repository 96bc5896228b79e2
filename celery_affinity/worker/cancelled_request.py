"""A request whose task Celery cancels, in a cold shutdown or after a lost connection: an end neither good nor bad.

Celery tells the caller of an early-acked task that the task is retried, which it is not, and takes the end of a
greenlet that it kills for a good one. Here a cold shutdown is to jobs what the death of their worker is: a late-acked
job is pending again, and an early-acked one is lost when the worker leaves, of which a dispatcher tells the caller.
"""

import inspect
from typing import Any

from billiard.exceptions import Terminated, WorkerLostError
from celery.concurrency.solo import TaskPool as SoloPool
from celery.exceptions import WorkerTerminate
from celery.platforms import EX_FAILURE
from celery.worker.request import Request
from celery.worker.state import active_requests, task_ready

from ..log_limit import limited_logger
from ..membership.held import RETURNED
from ..rules.protocol import PREEMPTED
from . import pools
from .claimed_request import ClaimedRequest

logger = limited_logger(__name__)

#: Whether a cancel may announce no retry: not in Celery 5.5.
_MAY_BE_SILENT = "emit_retry" in inspect.signature(Request.cancel).parameters

#: What the pools gevent and eventlet say of a greenlet that they have killed.
_KILLED = (False, None, None)

#: Errors by which prefork says that a process ended before its task did.
_PROCESS_ENDED = (Terminated, WorkerLostError, SystemExit, KeyboardInterrupt)


class CancelledRequest(ClaimedRequest):
    """A mixin for ``celery.worker.request.Request``. For an unclaimed message all is as Celery does it."""

    _is_cancelled = False

    #: The pool that the task was given to.
    _pool: Any

    #: Whether the worker stops, so that there is nothing to announce: the fleet sees what becomes of the job.
    _is_left_behind = False

    #: The outcome of a job that is to run again after this end of its task, even if it was acked: `RETURNED` or
    #: `PREEMPTED`; "" for another end.
    _given_back_as = ""

    def cancel(self, pool: Any, signal: Any = None, *, emit_retry: bool = True) -> None:
        """End the task where the pool can. In the threads pool the task goes on, and the worker waits for its end.

        Raises WorkerTerminate in the solo pool: the shutdown interrupts the task, and so ends it.
        """
        stops = not (self.task.acks_late and emit_retry)  # else the connection was lost
        self._is_cancelled = self._reporting is not None
        self._is_left_behind = stops and self._is_cancelled
        try:
            super().cancel(pool, signal, **({"emit_retry": emit_retry} if _MAY_BE_SILENT else {}))
        except NotImplementedError:
            if stops and isinstance(pool, SoloPool):
                raise WorkerTerminate(EX_FAILURE) from None
            self._is_cancelled = self._is_left_behind = False
            logger.warning("Task %s[%s] goes on: its pool cannot stop it", self.name, self.id)

    def give_run_back(self, pool: Any, signal: Any) -> None:
        """End a run of merged calls, one of which is revoked: the others, and the first call, are run again.

        Raises NotImplementedError for a pool that cannot end a task, as a revoke of the first call does.
        """
        self._give_back(RETURNED, pool, signal)
        logger.info("Task %s[%s] is ended for a call that is merged with it: the others run again", self.name, self.id)

    def _give_back(self, outcome: str, pool: Any, signal: Any = None) -> None:
        self._is_cancelled = self._is_left_behind = True
        self._given_back_as = outcome
        try:
            super().cancel(pool, signal)
        except NotImplementedError:
            self._is_cancelled = self._is_left_behind = False
            self._given_back_as = ""
            raise

    def preempt(self) -> bool:
        """End a task that has not stopped though it was asked to. Return whether it ran still."""
        pools.read_results(self._pool)  # a process may have ended its task
        if self not in active_requests:
            return False
        self._give_back(PREEMPTED, self._pool)
        logger.warning(
            "Task %s[%s] is stopped: it was asked to stop for another tenant, and did not", self.name, self.id
        )
        return True

    def _announce_cancelled(self, *args: Any, **kwargs: Any) -> None:
        if self._is_left_behind:
            self._already_cancelled = True
            task_ready(self)
        else:
            super()._announce_cancelled(*args, **kwargs)

    def was_cut_short(self, end: Any) -> bool:
        """Return whether the task was cancelled before it ended. *end*: an error, or what a pool returned."""
        return self._is_cancelled and (isinstance(end, _PROCESS_ENDED) or (type(end) is tuple and end == _KILLED))

    def end_cut_short(self) -> None:
        """Have the job be pending again, whose task was cut short. An acked job stays claimed until the worker ends."""
        task_ready(self)
        if self._reporting is not None and self._given_back_as:
            self._reporting.settle(self._tag, self._given_back_as)
            self._reporting.end(self._tag, self._given_back_as)
        elif self._reporting is not None and not self.acknowledged:
            self._reporting.end(self._tag)
