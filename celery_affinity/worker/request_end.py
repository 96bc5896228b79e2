"""End each task exactly once: its slot is freed once, however the task ends.

No hook of Celery fires exactly once at the end of a task, for every pool and every outcome. `EndOfTask` combines the
hooks that do fire. The slot is freed when the pool can run another task: a terminated task ends when its process does,
and not when the revoke is announced.

The hooks also store results and send events and signals, and any of these can fail. Such an error is logged here, like
billiard does in a prefork pool. The other pools would drop it, and the solo pool would handle it as a lost connection.
"""

from collections.abc import Iterator
from functools import cache, wraps
from time import monotonic
from typing import Any

import celery
from billiard.einfo import ExceptionInfo
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.app.task import Task
from celery.concurrency.base import BasePool
from celery.exceptions import Reject, WorkerShutdown, WorkerTerminate
from celery.utils.imports import symbol_by_name
from celery.worker import state
from celery.worker.consumer import Consumer
from celery.worker.state import active_requests, reserved_requests, task_ready
from redis.exceptions import RedisError

from ..broker.failover import LOST, short_traceback
from ..leases.held_claim import (
    ABORTED,
    ACKED,
    EXPIRED,
    FAILED,
    IGNORED,
    REQUEUED,
    RETURNED,
    REVOKED,
    HeldClaim,
    job_of_tag,
)
from ..leases.outbox import EndReporter
from ..log_limit import limited_logger
from ..publishing.publish_call import publishing_follow_ups
from ..results.chords import ChordIsClaimedError, count_what_is_stored
from ..results.reporter import describe_error, error_from, is_ignored
from ..schema.constants import PREEMPTED
from ..schema.job_record import is_batch
from .buffers import BufferedRequest, is_buffered
from .pool import unclaimed_requests
from .preemption import Preempted
from .request import ClaimedRequest, NotStartedError, starting_if_allowed

logger = limited_logger(__name__)
#: True if this Celery leaves the result of a task that rejected its message pending forever (celery#4222).
_KEEPS_REJECTED_PENDING = celery.VERSION[:2] < (5, 7)


class EndOfTask(ClaimedRequest):
    """A mixin for ``celery.worker.request.Request`` and for classes derived from it."""

    #: The kind of revoke that was announced: `REVOKED` or `EXPIRED`; "" before that.
    _revoked_as = ""
    #: True if the loss of the pool process is not a failure: the task runs again, or had succeeded.
    _is_spared = False
    #: True if the ack is sent only with the end.
    _acks_at_end = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Wrap the methods that Celery generates in a subclass per task."""
        super().__init_subclass__(**kwargs)
        for name, wrap in (("on_success", _ending_on_success), ("execute_using_pool", starting_if_allowed)):
            generated = cls.__dict__.get(name)
            if generated is not None:
                setattr(cls, name, wrap(generated))

    def _retry_worker_lost(self, *args: Any) -> Any:
        # A retry reads the request from the task's stack, which is empty because no task runs in this process.
        self.task.request_stack.push(self._context)
        try:
            self._is_spared = super()._retry_worker_lost(*args)
            return self._is_spared
        finally:
            self.task.request_stack.pop()

    def _success_was_stored(self) -> Any:
        stored = super()._success_was_stored()
        self._is_spared = bool(stored)
        if stored and self._reporting is not None:
            self._count_chord_part(stored)
        return stored

    def _count_chord_part(self, stored: Any) -> None:
        """Count the chord part of a process that was lost after it stored the result, and perhaps before it counted.

        While that process' claim of the chord lasts, the part cannot be counted. A job that may run again counts later.
        """
        try:
            count_what_is_stored(self.task.backend, self._context, stored["status"], stored["result"])
        except (ChordIsClaimedError, RedisError, OSError) as exc:
            logger.warning("Task %s[%s] succeeded, but its process was lost: %s", self.name, self.id, exc)
            if self.task.acks_late:
                self.reject(requeue=True)

    @publishing_follow_ups()
    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        error = error_from(exc_info)
        if self.was_cut_short(error):
            self.end_cut_short()
            return None
        if self._reporting is not None and isinstance(error, NotStartedError):
            self._reporting.set_outcome(self._tag, RETURNED)
        elif self._reporting is not None and is_ignored(exc_info, Preempted):
            self._stop_by_itself(self._reporting)
        elif self._reporting is not None and isinstance(error, Reject) and error.requeue:
            self._reporting.set_outcome(self._tag, REQUEUED)
        try:
            if _KEEPS_REJECTED_PENDING and isinstance(error, Reject) and not error.requeue:
                self._report_rejected_run(error)
            return None if self._is_fenced else super().on_failure(exc_info, *args, **kwargs)
        except (MemoryError, *LOST):
            self._abort()
            raise
        except Exception:
            self.reject(requeue=False)  # the job would be redelivered, and fail in the same way
            raise
        finally:
            self._end(exc_info)

    def _stop_by_itself(self, reporting: EndReporter) -> None:
        """Requeue the job of a task that raised `Preempted`: as preempted only if the server requested the stop."""
        claim = reporting.claims.find(self._tag)
        if claim is None or claim.outcome == ACKED:
            logger.warning(
                "Task %s[%s] raised Preempted, and does not run again: it was acked when it started (acks_late)",
                *(self.name, self.id),
            )
        elif claim.stops_at_s is None:
            reporting.set_outcome(self._tag, REQUEUED)
            self.reject(requeue=True)
        else:
            reporting.set_outcome(self._tag, PREEMPTED)

    def _report_rejected_run(self, error: Reject) -> None:
        """Store that a merged run was rejected, like for the other callers, so the caller does not wait forever."""
        if self._reporting is not None and not self._is_fenced and is_batch(job_of_tag(self._tag)):
            self.task.backend.mark_as_failure(self.id, error, request=self._context, store_result=self.store_errors)

    @publishing_follow_ups()
    def on_timeout(self, soft: bool, timeout: float) -> Any:
        try:
            return super().on_timeout(soft, timeout)
        except Exception as exc:
            logger.error(
                "Task %s[%s]: an action after its time limit failed: %s",
                *(self.name, self.id, describe_error(exc)),
                exc_info=short_traceback(exc),
            )
            if self.task.acks_late and not soft:
                self._settle_after_timeout()
        finally:
            if not soft:
                self._abort()
                self._end(TimeLimitExceeded(timeout))

    def reject(self, requeue: bool = False) -> None:
        if requeue:
            self._abort()
        super().reject(requeue)

    def _abort(self) -> None:
        """Settle an unsettled job as ABORTED, unless the worker is terminating. The job pauses before its next run."""
        if self._reporting is not None and not state.should_terminate:
            self._reporting.set_outcome(self._tag, ABORTED)

    def _settle_after_timeout(self) -> None:
        """Ack or reject as Celery does once the result is stored, because storing it failed."""
        # Celery before 5.7 has one setting for failures and time limits.
        if getattr(self.task, "acks_on_timeout", self.task.acks_on_failure_or_timeout):
            self.acknowledge()
        else:
            self.reject(requeue=True)

    def terminate(self, pool: BasePool, signal: Any = None) -> None:
        before = self._revoked_as
        if self.time_start is not None:  # otherwise Celery terminates the task when it starts
            # Eventlet's pool waits for the end of a task that it stops. Celery announces the revoke afterwards.
            self._revoked_as = REVOKED
        try:
            super().terminate(pool, signal)
        except NotImplementedError:
            self._revoked_as = before  # the task continues
            raise

    @publishing_follow_ups()
    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> Any:
        self._revoked_as = EXPIRED if expired else REVOKED
        # The process may run for seconds. The server would apply the ack to all calls of a run. If the worker died now,
        # the other calls would not run again.
        self._acks_at_end = terminated and self._reporting is not None and is_batch(job_of_tag(self._tag))
        try:
            return super()._announce_revoked(reason, terminated, signum, expired)
        except Exception as exc:
            if self._reporting is None:
                raise  # the dispatcher reports the end again
            logger.error(
                "Task %s[%s] is revoked, but this could not be reported: %s",
                *(self.name, self.id, describe_error(exc)),
                exc_info=short_traceback(exc),
            )
            self.acknowledge()  # otherwise the job would be redelivered until the result backend works
            self._already_revoked = True
        finally:
            if self.time_start is None:
                self._end()

    def acknowledge(self) -> None:
        if not self._acks_at_end:
            super().acknowledge()

    def end_leaked(self) -> None:
        """Free the slot of a task whose end went unnoticed. Its outcome is unknown."""
        self._end(WorkerLostError("its end went unnoticed, and it does not run in its worker"))

    def _end(self, failure: Any = None) -> None:
        """Free the slot. *failure*: an exception, bare or as Celery's hooks get it; None if the task succeeded."""
        if self in active_requests or self in reserved_requests:
            task_ready(self)  # Celery's own hook failed before this
        if self._reporting is None:
            return
        error = None if failure is None or self._is_spared else error_from(failure)
        if self._acks_at_end:
            self._acks_at_end = False
            self.acknowledge()
        if self._revoked_as:
            self._reporting.end(self._tag, self._revoked_as)
        elif error is not None:
            self._reporting.end(self._tag, FAILED, describe_error(error))
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
            self._reporting.start_next_in_freed_slot(self._tag)  # the process is idle until then
        try:
            if self.is_cancelled_before_start:
                return None
            # An error from outside the task's body, in a pool without processes. Celery's method cannot unpack it.
            if isinstance(failed__retval__runtime, ExceptionInfo):
                return self.on_failure(failed__retval__runtime)
            return None if self._is_fenced else generated(self, failed__retval__runtime, **kwargs)
        except (WorkerShutdown, WorkerTerminate):
            raise
        except (Exception, SystemExit) as exc:  # a SystemExit in a signal handler would end a worker with a green pool
            logger.error(
                "Task %s[%s] has ended, but an action after its end failed: %s",
                *(self.name, self.id, describe_error(exc)),
                exc_info=short_traceback(exc),
            )
            self._abort()
        finally:
            self._end(_failure_of(failed__retval__runtime))

    return on_success


def _failure_of(result: Any) -> Any:
    """Return the error in a pool's *result*, or None if the task succeeded."""
    match result:
        case ExceptionInfo():
            return result
        case (failed, error, _) if failed:
            return error
    return None


@cache
def _with_end_of_task(request: type) -> type:
    return request if issubclass(request, EndOfTask) else type(request.__name__, (EndOfTask, request), {})


def install_task_end(task: Task) -> None:
    """Mix `EndOfTask` into the class of the requests of *task*."""
    task.Request = _with_end_of_task(symbol_by_name(task.Request))


#: Seconds that a claim must be leaked before its slot is freed, because an end takes some time.
NOWHERE_FOR_S = 30.0
#: Seconds between two searches while there are leaked claims.
_SEARCH_INTERVAL_S = 5.0


class LeakedClaims:
    """Frees the slots of leaked claims, and of requests without a claim, that *consumer* no longer tracks.

    A running task is in the pool. A waiting job is prefetched, in a rate limit's bucket, in the queue for a pool
    process, or in the buffer of its task's strategy. Ends are reported to *reporter*.
    """

    def __init__(self, consumer: Consumer, reporter: EndReporter) -> None:
        self._consumer = consumer
        self._reporting = reporter
        self._since_s: dict[Any, float] = {}

    def free(self, *, loop_runs: bool) -> float | None:
        """Free the slots of leaked claims. Return the seconds until the next search, or None if there is no hurry.

        While the event loop is blocked, no claim counts as leaked, because the loop reads the ends and moves requests
        on. Any thread can call this method. It raises no error.
        """
        if not loop_runs:
            self._since_s.clear()
            return None
        try:
            self._search()
        except RuntimeError:
            return _SEARCH_INTERVAL_S  # a table changed while it was searched
        except Exception:
            logger.exception("The search for claimed jobs that do not run failed")
        return _SEARCH_INTERVAL_S if self._since_s else None

    def _search(self) -> None:
        for tag, claim in self._reporting.claims.open_claims():
            if isinstance(claim.request, BufferedRequest) and not claim.request.is_in_the_pool():
                logger.error(
                    "%s is pending again: the strategy of its task has dropped it, and neither acked nor rejected it",
                    claim.in_words,
                )
                self._reporting.claims.drop_from_buffer(tag)
        leaked = dict(self._leaked())
        now_s = monotonic()
        self._since_s = {key: self._since_s.get(key, now_s) for key in leaked}
        for key, since_s in tuple(self._since_s.items()):
            if now_s - since_s >= NOWHERE_FOR_S:
                del self._since_s[key]
                self._free_slot(key, leaked[key])

    def _leaked(self) -> Iterator[tuple[Any, HeldClaim | None]]:
        """Yield requests, or the tags of claims without a request, each with its claim."""
        for tag, claim in self._reporting.claims.open_claims():
            if claim.request is None:
                if tag not in self._reporting.lookahead:
                    yield tag, claim
            elif not self._is_tracked(claim.request):
                yield claim.request, claim
        for request in unclaimed_requests():
            if not self._is_tracked(request):
                yield request, None

    def _is_tracked(self, request: Any) -> bool:
        if request.is_in_the_pool is not None:
            return bool(request.is_in_the_pool())
        return is_buffered(self._consumer, request)

    def _free_slot(self, key: Any, claim: HeldClaim | None) -> None:
        name = f"Task {key.name}[{key.id}]" if claim is None else claim.in_words
        logger.error(
            "%s is claimed but has not run in this worker for %g s: its end was missed. Its slot is released%s",
            name,
            NOWHERE_FOR_S,
            ""
            if claim is None or claim.outcome == ACKED or claim.void
            else "; it was not acked, so it is pending again",
        )
        if isinstance(key, str):
            self._reporting.end(key)
        else:
            key.end_leaked()
