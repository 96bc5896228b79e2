"""The once-only end of a task: whatever happens to the task, its slot is freed once.

No hook of Celery fires exactly once at the end of a task, for every pool and every outcome; `EndOfTask` joins those
that do fire. The slot is freed by the end after which the pool can run another task: a terminated task ends when its
process does, not when the revoke is announced.

The hooks store results and send events and signals besides, any of which may fail. Such an error is logged here, as
billiard does in a prefork pool: the other pools would drop the error, and the solo pool take it for a lost connection.
"""

import logging
import signal
from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any

import celery
from billiard.common import TERM_SIGNAME
from billiard.einfo import ExceptionInfo
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.app.task import Task
from celery.concurrency.base import BasePool
from celery.exceptions import Reject, TaskRevokedError, WorkerShutdown, WorkerTerminate
from celery.utils.imports import symbol_by_name
from celery.worker import state
from celery.worker.state import active_requests, reserved_requests, task_ready
from redis.exceptions import RedisError

from ..callers.chord_parts import ChordIsClaimedError, count_what_is_stored
from ..callers.failure import error_of, is_ignored, words
from ..client.accepted_work import tells_an_end
from ..membership.held import ACKED, EXPIRED, FAILED, IGNORED, RETURNED, REVOKED, job_in
from ..membership.reporting import Reporting
from ..rules.marks import is_batch
from ..rules.protocol import PREEMPTED
from ..server.received import LOST
from . import runs
from .cancelled_request import CancelledRequest
from .pools import forks
from .preempted import Preempted

logger = logging.getLogger(__name__)

#: Whether this Celery leaves the result of a task that rejected its message pending for ever (celery#4222).
_LEAVES_REJECTED_PENDING = celery.VERSION[:2] < (5, 7)


class NotBegunError(Reject):
    """Raised in place of a task's body, which cannot begin now: the job waits again, and this counts as no delivery."""

    def __init__(self, reason: str, requeue: bool = True) -> None:
        super().__init__(reason, requeue)

    def __str__(self) -> str:
        return str(self.reason)


class EndOfTask(CancelledRequest):
    """A mixin for ``celery.worker.request.Request`` and for what users derive from it."""

    _is_fenced = False

    #: Whether the body must not begin: another worker may have got the job since the pool was given the task.
    is_called_off = False

    #: The kind of revoke that was announced: `REVOKED` or `EXPIRED`; "" before that.
    _revoked_as = ""

    #: Whether the loss of the pool process is no failure: the task runs again, or had succeeded.
    _is_spared = False

    #: Whether the ack is told with the end only.
    _is_acked_at_its_end = False

    #: Function that says whether the pool still runs the task, or will; None before the task is given to the pool.
    is_in_the_pool: Callable[[], bool] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Wrap the methods that Celery generates in a subclass for each task."""
        super().__init_subclass__(**kwargs)
        for name, wrap in (("on_success", _ending_on_success), ("execute_using_pool", _starting_if_it_may)):
            generated = cls.__dict__.get(name)
            if generated is not None:
                setattr(cls, name, wrap(generated))

    def execute_using_pool(self, pool: BasePool, **kwargs: Any) -> Any:
        return self._give_to(pool, super().execute_using_pool, **kwargs)

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
        try:
            if _LEAVES_REJECTED_PENDING and isinstance(error, Reject) and not error.requeue:
                self._tell_the_first_caller(error)
            return None if self._is_fenced else super().on_failure(exc_info, *args, **kwargs)
        except (MemoryError, *LOST):
            raise
        except Exception:
            self.reject(requeue=False)  # the job would come again, and fail in the same way
            raise
        finally:
            self._end(exc_info)

    def _stop_by_itself(self, reporting: Reporting) -> None:
        """Give back the job of a task that raised `Preempted`. It counts as a delivery if nobody had asked for it."""
        held = reporting.claims.find(self._tag)
        if held is None or held.outcome == ACKED:
            logger.warning(
                "Task %s[%s] raised Preempted, and does not run again: it was acked when it started (acks_late)",
                *(self.name, self.id),
            )
        elif held.stops_at_s is None:
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
        except Exception:
            logger.exception("Task %s[%s]: an action after its time limit failed", self.name, self.id)
            if self.task.acks_late and not soft:
                self._settle_after_a_timeout()
        finally:
            if not soft:
                self._end(TimeLimitExceeded(timeout))

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
        except Exception:
            if self._reporting is None:
                raise  # the dispatcher, which tells ends without a worker, tells this one again
            logger.exception("Task %s[%s] is revoked, but this could not be announced", self.name, self.id)
            self.acknowledge()  # else the job would come again and again, until the result backend works
            self._already_revoked = True
        finally:
            if self.time_start is None:
                self._end()

    def acknowledge(self) -> None:
        if not self._is_acked_at_its_end:
            super().acknowledge()

    def on_accepted(self, pid: int, time_accepted: float) -> Any:
        self._call_off_unless_it_may_start()  # the task may have waited for a thread, or a greenlet
        if self.is_called_off:
            return
        try:
            self._accept(pid, time_accepted)
        except Exception:
            logger.exception("Task %s[%s] starts, but this could not be announced", self.name, self.id)
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

    def end_unnoticed(self) -> None:
        """Free the slot of a task whose end nobody noticed. Nobody knows whether the task ended well."""
        self._end(WorkerLostError("its end went unnoticed, and it does not run in its worker"))

    def _give_to(self, pool: BasePool, give: Callable[..., Any], **kwargs: Any) -> Any:
        """Give the task to *pool* with *give*. A task that the pool does not take is rejected."""
        self._pool = pool
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
        self.is_in_the_pool = runs.after_given(pool, self, given)
        return given

    def _give_up_unless_it_may_start(self) -> None:
        if self._reporting is not None and not self._reporting.may_start(self._tag):
            logger.info("Task %s[%s] is not started: another worker may run it by now", self.name, self.id)
            task_ready(self)
            raise TaskRevokedError(self.id)  # Celery goes on without the task

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
        try:
            if self.is_called_off:
                return None
            # An error from outside the task's body, in a pool without processes. Celery's own method cannot unpack it.
            if isinstance(failed__retval__runtime, ExceptionInfo):
                return self.on_failure(failed__retval__runtime)
            return None if self._is_fenced else generated(self, failed__retval__runtime, **kwargs)
        except (WorkerShutdown, WorkerTerminate):
            raise
        except (Exception, SystemExit):  # a SystemExit of a signal's handler would end a green pool's worker
            logger.exception("Task %s[%s] has ended, but an action after its end failed", self.name, self.id)
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


def _starting_if_it_may(generated: Any) -> Any:
    @wraps(generated)
    def execute_using_pool(self: Any, pool: BasePool, **kwargs: Any) -> Any:
        return self._give_to(pool, partial(generated, self), **kwargs)

    return execute_using_pool


@cache
def _with_end_of_task(request: type) -> type:
    return request if issubclass(request, EndOfTask) else type(request.__name__, (EndOfTask, request), {})


def install(task: Task) -> None:
    """Mix `EndOfTask` into the class of the requests of *task*."""
    task.Request = _with_end_of_task(symbol_by_name(task.Request))
