"""The once-only end of a task: whatever happens to the task, its slot is freed once.

No hook of Celery fires exactly once at the end of a task, for every pool and every outcome; `EndOfTask` joins those
that do fire. The slot is freed by the end after which the pool can run another task: a terminated task ends when its
process does, not when the revoke is announced.

The hooks store results and send events and signals besides, any of which may fail. Such an error is logged here, as
billiard does in a prefork pool: the other pools would drop the error, and the solo pool take it for a lost connection.
"""

from functools import cache, wraps
from typing import Any

import celery
from billiard.einfo import ExceptionInfo
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.app.task import Task
from celery.concurrency.base import BasePool
from celery.exceptions import Reject, WorkerShutdown, WorkerTerminate
from celery.utils.imports import symbol_by_name
from celery.worker import state
from celery.worker.state import active_requests, reserved_requests, task_ready
from redis.exceptions import RedisError

from ..callers.chord_parts import ChordIsClaimedError, count_what_is_stored
from ..callers.failure import error_of, is_ignored, words
from ..client.accepted_work import tells_an_end
from ..log_limit import limited_logger
from ..membership.held import ABORTED, ACKED, EXPIRED, FAILED, IGNORED, REQUEUED, RETURNED, REVOKED, job_in
from ..membership.reporting import Reporting
from ..rules.marks import is_batch
from ..rules.protocol import PREEMPTED
from ..server.passing import traceback_of
from ..server.received import LOST
from .preempted import Preempted
from .started_request import NotBegunError, StartedRequest, starting_if_it_may

logger = limited_logger(__name__)

#: Whether this Celery leaves the result of a task that rejected its message pending for ever (celery#4222).
_LEAVES_REJECTED_PENDING = celery.VERSION[:2] < (5, 7)


class EndOfTask(StartedRequest):
    """A mixin for ``celery.worker.request.Request`` and for what users derive from it."""

    #: The kind of revoke that was announced: `REVOKED` or `EXPIRED`; "" before that.
    _revoked_as = ""

    #: Whether the loss of the pool process is no failure: the task runs again, or had succeeded.
    _is_spared = False

    #: Whether the ack is told with the end only.
    _is_acked_at_its_end = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Wrap the methods that Celery generates in a subclass for each task."""
        super().__init_subclass__(**kwargs)
        for name, wrap in (("on_success", _ending_on_success), ("execute_using_pool", starting_if_it_may)):
            generated = cls.__dict__.get(name)
            if generated is not None:
                setattr(cls, name, wrap(generated))

    def _retry_worker_lost(self, *args: Any) -> Any:
        # A retry looks in the task's stack for the request to repeat. No task runs in this process: the stack is empty.
        self.task.request_stack.push(self._context)
        try:
            self._is_spared = super()._retry_worker_lost(*args)
            return self._is_spared
        finally:
            self.task.request_stack.pop()

    def _success_was_stored(self) -> Any:
        found = super()._success_was_stored()
        self._is_spared = bool(found)
        if found and self._reporting is not None:
            self._count_its_part(found)
        return found

    def _count_its_part(self, stored: Any) -> None:
        """Count the part of a chord whose process was lost after it stored its result, perhaps before it counted.

        While that process' claim of the chord lasts, nobody can count: a job that may run again does, after it.
        """
        try:
            count_what_is_stored(self.task.backend, self._context, stored["status"], stored["result"])
        except (ChordIsClaimedError, RedisError, OSError) as exc:
            logger.warning("Task %s[%s] succeeded, but its process was lost: %s", self.name, self.id, exc)
            if self.task.acks_late:
                self.reject(requeue=True)

    @tells_an_end
    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        error = error_of(exc_info)
        if self.was_cut_short(error):
            self.end_cut_short()
            return None
        if self._reporting is not None and isinstance(error, NotBegunError):
            self._reporting.settle(self._tag, RETURNED)
        elif self._reporting is not None and is_ignored(exc_info, Preempted):
            self._stop_by_itself(self._reporting)
        elif self._reporting is not None and isinstance(error, Reject) and error.requeue:
            self._reporting.settle(self._tag, REQUEUED)
        try:
            if _LEAVES_REJECTED_PENDING and isinstance(error, Reject) and not error.requeue:
                self._tell_the_first_caller(error)
            return None if self._is_fenced else super().on_failure(exc_info, *args, **kwargs)
        except (MemoryError, *LOST):
            self._abort()
            raise
        except Exception:
            self.reject(requeue=False)  # the job would come again, and fail in the same way
            raise
        finally:
            self._end(exc_info)

    def _stop_by_itself(self, reporting: Reporting) -> None:
        """Give back the job of a task that raised `Preempted`. It counts as a requeue if nobody had asked for it."""
        held = reporting.claims.find(self._tag)
        if held is None or held.outcome == ACKED:
            logger.warning(
                "Task %s[%s] raised Preempted, and does not run again: it was acked when it started (acks_late)",
                *(self.name, self.id),
            )
        elif held.stops_at_s is None:
            reporting.settle(self._tag, REQUEUED)
            self.reject(requeue=True)
        else:
            reporting.settle(self._tag, PREEMPTED)

    def _tell_the_first_caller(self, error: Reject) -> None:
        """Store that a merged run was rejected, as the other callers are told: nobody is to wait for ever."""
        if self._reporting is not None and not self._is_fenced and is_batch(job_in(self._tag)):
            self.task.backend.mark_as_failure(self.id, error, request=self._context, store_result=self.store_errors)

    @tells_an_end
    def on_timeout(self, soft: bool, timeout: float) -> Any:
        try:
            return super().on_timeout(soft, timeout)
        except Exception as exc:
            logger.error(
                "Task %s[%s]: an action after its time limit failed: %s",
                *(self.name, self.id, words(exc)),
                exc_info=traceback_of(exc),
            )
            if self.task.acks_late and not soft:
                self._settle_after_a_timeout()
        finally:
            if not soft:
                self._abort()
                self._end(TimeLimitExceeded(timeout))

    def reject(self, requeue: bool = False) -> None:
        if requeue:
            self._abort()
        super().reject(requeue)

    def _abort(self) -> None:
        """Have a pause come before the next run of a job that is not settled, unless the run ends with its worker."""
        if self._reporting is not None and not state.should_terminate:
            self._reporting.settle(self._tag, ABORTED)

    def _settle_after_a_timeout(self) -> None:
        """Ack or reject as Celery does once the result is stored: the storing failed."""
        # Celery before 5.7 has one setting for failures and time limits.
        if getattr(self.task, "acks_on_timeout", self.task.acks_on_failure_or_timeout):
            self.acknowledge()
        else:
            self.reject(requeue=True)

    def terminate(self, pool: BasePool, signal: Any = None) -> None:
        before = self._revoked_as
        if self.time_start is not None:  # else Celery terminates the task when it starts
            # Eventlet's pool waits for the end of a task that it stops, and Celery announces the revoke after that.
            self._revoked_as = REVOKED
        try:
            super().terminate(pool, signal)
        except NotImplementedError:
            self._revoked_as = before  # the task runs on
            raise

    @tells_an_end
    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> Any:
        self._revoked_as = EXPIRED if expired else REVOKED
        # Its process may live on for seconds. The server would take the ack for that of all calls of a run: were the
        # worker to die now, none of the others would be run again.
        self._is_acked_at_its_end = terminated and self._reporting is not None and is_batch(job_in(self._tag))
        try:
            return super()._announce_revoked(reason, terminated, signum, expired)
        except Exception as exc:
            if self._reporting is None:
                raise  # the dispatcher, which tells ends without a worker, tells this one again
            logger.error(
                "Task %s[%s] is revoked, but this could not be announced: %s",
                *(self.name, self.id, words(exc)),
                exc_info=traceback_of(exc),
            )
            self.acknowledge()  # else the job would come again and again, until the result backend works
            self._already_revoked = True
        finally:
            if self.time_start is None:
                self._end()

    def acknowledge(self) -> None:
        if not self._is_acked_at_its_end:
            super().acknowledge()

    def end_unnoticed(self) -> None:
        """Free the slot of a task whose end nobody noticed. Nobody knows whether the task ended well."""
        self._end(WorkerLostError("its end went unnoticed, and it does not run in its worker"))

    def _end(self, failure: Any = None) -> None:
        """Free the slot. *failure*: an exception, bare or as Celery's hooks get it; None if the task ended well."""
        if self in active_requests or self in reserved_requests:
            task_ready(self)  # Celery's own hook failed before this
        if self._reporting is None:
            return
        error = None if failure is None or self._is_spared else error_of(failure)
        if self._is_acked_at_its_end:
            self._is_acked_at_its_end = False
            self.acknowledge()
        if self._revoked_as:
            self._reporting.end(self._tag, self._revoked_as)
        elif error is not None:
            self._reporting.end(self._tag, FAILED, words(error))
        elif is_ignored(failure):
            self._reporting.end(self._tag, IGNORED)
        else:
            self._reporting.end(self._tag)


def _ending_on_success(generated: Any) -> Any:
    @wraps(generated)
    def on_success(self: Any, failed__retval__runtime: Any, **kwargs: Any) -> Any:
        if self.was_cut_short(failed__retval__runtime):
            self.end_cut_short()
            return None
        if self._reporting is not None:
            self._reporting.make_way(self._tag)  # the process is idle until then
        try:
            if self.is_called_off:
                return None
            # An error from outside the task's body, in a pool without processes. Celery's own method cannot unpack it.
            if isinstance(failed__retval__runtime, ExceptionInfo):
                return self.on_failure(failed__retval__runtime)
            return None if self._is_fenced else generated(self, failed__retval__runtime, **kwargs)
        except (WorkerShutdown, WorkerTerminate):
            raise
        except (Exception, SystemExit) as exc:  # a SystemExit of a signal's handler would end a green pool's worker
            logger.error(
                "Task %s[%s] has ended, but an action after its end failed: %s",
                *(self.name, self.id, words(exc)),
                exc_info=traceback_of(exc),
            )
            self._abort()
        finally:
            self._end(_failure_of(failed__retval__runtime))

    return on_success


def _failure_of(result: Any) -> Any:
    """Return the part of a pool's *result* that says that the task failed; None if it did not."""
    match result:
        case ExceptionInfo():
            return result
        case (failed, error, _) if failed:
            return error
    return None


@cache
def _with_end_of_task(request: type) -> type:
    return request if issubclass(request, EndOfTask) else type(request.__name__, (EndOfTask, request), {})


def install(task: Task) -> None:
    """Mix `EndOfTask` into the class of the requests of *task*."""
    task.Request = _with_end_of_task(symbol_by_name(task.Request))
