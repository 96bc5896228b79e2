"""The request that Celery creates for a claimed job: its checks and times, its cancellation and its start."""

import inspect
import signal
import time
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from billiard.common import TERM_SIGNAME
from billiard.exceptions import Terminated, WorkerLostError
from celery.concurrency.base import BasePool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.exceptions import InvalidTaskError, Reject, TaskRevokedError, WorkerTerminate
from celery.platforms import EX_FAILURE
from celery.worker import state
from celery.worker.request import Request
from celery.worker.state import active_requests, task_ready
from celery.worker.state import revoked as revoked_tasks

from ..broker.failover import LOST, short_traceback
from ..clock import SECOND_US, now_s
from ..leases.held_claim import RETURNED, is_claim_tag, job_of_tag
from ..leases.outbox import EndReporter
from ..log_limit import limited_logger
from ..publishing.app_config import merge_of
from ..publishing.message import PROPERTY
from ..publishing.option_resolution import size_of_call
from ..publishing.option_sources import Expiry, rules_in
from ..results.events import SENDS_EVENTS, are_events_sent
from ..results.reporter import describe_error
from ..schema.constants import PREEMPTED
from ..schema.job_record import is_batch
from ..schema.rules_codec import EXCLUSIVE, decode_rules
from ..schema.untrusted import as_whole_number, bounded_text, describe_shape, is_number
from ..transport.inbox import WAIT, Inbox
from .buffers import requeue_buffered
from .pool import add_unclaimed, is_accepted_inline, liveness_check, pool_forks, read_results

if TYPE_CHECKING:
    from celery.worker.request import Request as _Request
else:
    _Request = object  # mixed into Celery's class, or into what a user derived from it

logger = limited_logger(__name__)
#: Maximum time limit in seconds.
_MAX_LIMIT_S = 1e9

#: Maximum plausible number of retries. Celery computes 2 to the power of this number for ``retry_backoff``.
_MAX_RETRIES = 1_000_000

_NO_LIMITS = ([None, None], (None, None))


def _is_limit(limit: object) -> bool:
    return limit is None or is_number(limit, _MAX_LIMIT_S)


#: True if a cancel can omit the retry event: not in Celery 5.5.
_CAN_CANCEL_SILENTLY = "emit_retry" in inspect.signature(Request.cancel).parameters
#: Result that the gevent and eventlet pools return for a greenlet that they have killed.
_KILLED = (False, None, None)
#: Errors that prefork raises if a process ended before its task.
_PROCESS_ENDED = (Terminated, WorkerLostError, SystemExit, KeyboardInterrupt)


class NotStartedError(Reject):
    """Raised in place of a task's body that cannot start now. The job is returned, without counting a delivery."""

    def __init__(self, reason: str, requeue: bool = True) -> None:
        super().__init__(reason, requeue)

    def __str__(self) -> str:
        return str(self.reason)


class ClaimedRequest(_Request):
    """A mixin for ``celery.worker.request.Request``. The request of an unclaimed message only takes a slot.

    The task starts only while no other worker can have the job. A worker can lose a job between its claim and its
    start, if the server declared the worker dead. Then the task does not start. If it has already started, it is
    stopped if the pool can stop tasks.

    Celery cancels tasks in a cold shutdown or after a lost connection. It would report a retry to the caller of an
    early-acked task, although there is none, and a killed greenlet as a success. Here a cold shutdown acts like the
    death of the worker. A late-acked job is requeued. An early-acked job is lost when the worker leaves, and a
    dispatcher reports that to the caller. Unclaimed messages behave as in Celery.
    """

    _reporting: EndReporter | None = None
    _tag: str
    #: True if the task's strategy buffers the request (`buffers`).
    is_buffered = False
    _is_cancelled = False
    #: The pool that the task was submitted to.
    _pool: Any
    #: True if the worker stops, so that nothing is announced: the fleet observes the job's fate.
    _is_left_behind = False
    #: The outcome (`RETURNED` or `PREEMPTED`) if the job must run again after this end, even if it was acked; or "".
    _returned_as = ""
    _is_fenced = False
    #: True if the body must not start, because another worker may have claimed the job since it was submitted.
    is_cancelled_before_start = False
    #: Returns True if the pool runs the task or will run it. None before the task is submitted to the pool.
    is_in_the_pool: Callable[[], bool] | None = None

    def __init__(self, message: Any, **options: Any) -> None:
        inbox: Inbox | None = getattr(message.channel, "inbox", None)
        tag = message.delivery_tag
        reporter = inbox.reporting_of(tag) if inbox is not None and is_claim_tag(tag) else None
        if reporter is not None:
            # Celery would ack in a later loop iteration, possibly after the task's end is reported
            options.update(on_ack=message.ack_log_error, on_reject=message.reject_log_error)
        super().__init__(message, **options)
        self._check_unvalidated_values()
        if reporter is not None:
            self._tag = tag
            is_run_of_batch = is_batch(job_of_tag(tag))
            if is_run_of_batch:
                self._check_can_run_batch()
            self._reporting = reporter
            header = self.request_dict["properties"].get(PROPERTY)
            if isinstance(header, dict) and header.get("eta"):
                self.request_dict["eta"] = header["eta"]  # not in the message, or a worker would wait a second time
            self._set_expiry()
            if is_run_of_batch:
                # The pool process sends the events of each merged call if this is set.
                self.request_dict[SENDS_EVENTS] = self.task.send_events and are_events_sent(self.eventer)
            self._set_wait_times()
            reporter.claims.bind(tag, self)
        else:
            add_unclaimed(self)

    @property
    def holds_a_key(self) -> bool:
        """True if the claim prevents other jobs of an exclusive key from being claimed."""
        rules = rules_in(self.request_dict["properties"].get(PROPERTY))
        return EXCLUSIVE in decode_rules(rules or "").texts

    @property
    def size(self) -> float | None:
        """The size of the call (option ``size``), or None if it is unknown."""
        args, kwargs, *_ = self._payload
        return size_of_call(self.task, args, kwargs)

    def _check_unvalidated_values(self) -> None:
        """Raise InvalidTaskError, so that Celery refuses the message, for values that would later end the loop."""
        limits = self.time_limits
        is_valid = limits in _NO_LIMITS or (
            isinstance(limits, (list, tuple)) and len(limits) == 2 and all(map(_is_limit, limits))
        )
        if not is_valid:
            raise InvalidTaskError(
                f"invalid timelimit, of type {describe_shape(limits)}: it must be two numbers of seconds, or null"
            )
        retries = self.request_dict.get("retries")
        if retries is not None and as_whole_number(retries, 0, _MAX_RETRIES) is None:  # the exponent of a pause
            raise InvalidTaskError(f"invalid retries, of type {describe_shape(retries)}: it must be a whole number")
        embedded = self._payload[2] or {}
        if not (isinstance(embedded, dict) and set(map(type, embedded)) <= {str}):
            raise InvalidTaskError(f"invalid callbacks in the message's body, of type {describe_shape(embedded)}")
        if bounded_text(self.id) is None or not isinstance(self.name, str):
            shapes = f"{describe_shape(self.id)}, or name, of type {describe_shape(self.name)}"
            raise InvalidTaskError(f"invalid task id, of type {shapes}: they must be texts")

    def _check_can_run_batch(self) -> None:
        """Raise InvalidTaskError for calls that a producer merged, if the task does not merge in this worker."""
        if merge_of(self.task) is not None:
            return
        refusal = InvalidTaskError(
            f"its producer merged calls of task {self.name}, which this worker cannot run as one: neither the task's "
            "affinity nor affinity_task_rules says merge here"
        )
        try:  # a dispatcher reports to the other callers
            self.task.backend.mark_as_failure(self.id, refusal, request=self._context)
        except Exception as exc:
            logger.error(
                "Task %s[%s] is refused, but its failure could not be stored: %s",
                *(self.name, self.id, describe_error(exc)),
                exc_info=short_traceback(exc),
            )
        raise refusal

    def _set_expiry(self) -> None:
        """Make retries published by this host expire together with this job, independent of the local clock."""
        assert self._reporting is not None, "it is a claim"
        remaining_us = self._reporting.claims.left_us(self._tag)
        if remaining_us is not None:
            properties = self.request_dict["properties"]
            header = properties.get(PROPERTY)
            expiry = Expiry(self.request_dict.get("expires"), now_s() + remaining_us / SECOND_US)
            properties[PROPERTY] = {**(header if isinstance(header, dict) else {}), "until": expiry}

    def _set_wait_times(self) -> None:
        """Pass the start and end of the wait (Unix ns, local clock) to the process that emits the tracing span."""
        assert self._reporting is not None, "it is a claim"
        wait = self.request_dict["properties"].get(WAIT)
        claim = self._reporting.claims.find(self._tag)
        if wait is None or claim is None:
            return
        prefetched_us = round((time.monotonic() - claim.held_since_s) * SECOND_US)  # time since the arrival
        until_ns = time.time_ns() - prefetched_us * 1000
        wait.update(since_ns=until_ns - claim.waited_us * 1000, until_ns=until_ns)

    def maybe_expire(self) -> Any:
        """Return True if the job has expired since its claim, by the server's clock: this host's may be wrong."""
        if self._reporting is None:
            return super().maybe_expire()
        remaining_us = self._reporting.claims.left_us(self._tag)
        if remaining_us is None and not (self.message.headers or {}).get("expires"):
            # Version 1 of Celery's protocol has the expiry in the body, which the server does not read.
            return super().maybe_expire()
        if remaining_us is None or remaining_us > 0:
            return False
        revoked_tasks.add(self.id)  # as in Celery: `inspect revoked` shows the task
        return True

    def cancel(self, pool: Any, signal: Any = None, *, emit_retry: bool = True) -> None:
        """End the task if the pool can. In the threads pool the task continues, and the worker waits for its end.

        Raises WorkerTerminate in the solo pool: the shutdown interrupts the task, and so ends it.
        """
        is_shutdown = not (self.task.acks_late and emit_retry)  # otherwise the connection was lost
        self._is_cancelled = self._reporting is not None
        self._is_left_behind = is_shutdown and self._is_cancelled
        try:
            super().cancel(pool, signal, **({"emit_retry": emit_retry} if _CAN_CANCEL_SILENTLY else {}))
        except NotImplementedError:
            if is_shutdown and isinstance(pool, SoloPool):
                raise WorkerTerminate(EX_FAILURE) from None
            self._is_cancelled = self._is_left_behind = False
            logger.warning("Task %s[%s] continues: its pool cannot stop it", self.name, self.id)

    def give_run_back(self, pool: Any, signal: Any) -> None:
        """End a run of merged calls because one of them is revoked. The others, and the primary, are run again.

        Raises NotImplementedError if the pool cannot end a task, like a revoke of the primary call does.
        """
        self._return_job(RETURNED, pool, signal)
        logger.info(
            "Task %s[%s] is ended because a call merged with it was revoked: the others run again", self.name, self.id
        )

    def _return_job(self, outcome: str, pool: Any, signal: Any = None) -> None:
        self._is_cancelled = self._is_left_behind = True
        self._returned_as = outcome
        try:
            super().cancel(pool, signal)
        except NotImplementedError:
            self._is_cancelled = self._is_left_behind = False
            self._returned_as = ""
            raise

    def preempt(self) -> bool:
        """End a task that did not stop on request. Return True if it was still running."""
        read_results(self._pool)  # the process may have ended its task
        if self not in active_requests:
            return False
        self._return_job(PREEMPTED, self._pool)
        logger.warning(
            "Task %s[%s] is stopped by force: it did not stop in time for another tenant", self.name, self.id
        )
        return True

    def _announce_cancelled(self, *args: Any, **kwargs: Any) -> None:
        if self._is_left_behind:
            self._already_cancelled = True
            task_ready(self)
        else:
            super()._announce_cancelled(*args, **kwargs)

    def was_cut_short(self, end: Any) -> bool:
        """Return True if the task was cancelled before it ended. *end*: an error, or the result from the pool."""
        return self._is_cancelled and (isinstance(end, _PROCESS_ENDED) or (type(end) is tuple and end == _KILLED))

    def end_cut_short(self) -> None:
        """Requeue the job of a task that was cut short. An acked job stays claimed until the worker ends."""
        task_ready(self)
        if self._reporting is not None and self._returned_as:
            self._reporting.set_outcome(self._tag, self._returned_as)
            self._reporting.end(self._tag, self._returned_as)
        elif self._reporting is not None and not self.acknowledged:
            self._reporting.end(self._tag)

    def _end(self, failure: Any = None) -> None:
        """Free the slot; see `EndOfTask`. *failure*: an exception, or None if the task succeeded."""
        raise NotImplementedError

    def execute_using_pool(self, pool: BasePool, **kwargs: Any) -> Any:
        return self._submit(pool, super().execute_using_pool, **kwargs)

    def on_accepted(self, pid: int, time_accepted: float) -> Any:
        self._cancel_if_start_forbidden()  # the task may have waited for a thread or a greenlet
        if self.is_cancelled_before_start:
            return
        try:
            self._accept(pid, time_accepted)
        except Exception as exc:
            logger.error(
                "Task %s[%s] starts, but this could not be reported: %s",
                *(self.name, self.id, describe_error(exc)),
                exc_info=short_traceback(exc),
            )
        except BaseException as exc:
            if not pool_forks(self._pool):
                self._end(exc)  # the task does not run
            raise

    def _accept(self, pid: int, time_accepted: float) -> None:
        try:
            super().on_accepted(pid, time_accepted)
        finally:
            if self._reporting is not None:
                self._reporting.started(self._tag)
                self._cancel_if_start_forbidden()  # the event may have waited for an unavailable broker
                if self._reporting.claims.is_void(self._tag):
                    self.fence()
                elif state.should_terminate and pool_forks(self._pool):
                    # Celery cancels the tasks that are running for it, and would wait for the end of this one.
                    self.cancel(self._pool, emit_retry=not self.task.acks_late)

    def _cancel_if_start_forbidden(self) -> None:
        """Cancel the task if it may no longer start. `run_unless_reassigned`, called later, then skips its body."""
        if self._reporting is None or pool_forks(self._pool):
            return
        if state.should_terminate:
            self.is_cancelled_before_start = True
            logger.info("Task %s[%s] is not started: the worker stops", self.name, self.id)
        elif not self._reporting.check_may_start(self._tag):
            self.is_cancelled_before_start = True
            logger.info("Task %s[%s] is not started: another worker may already run it", self.name, self.id)

    def fence(self) -> None:
        """Stop the running task, if the pool can, without any report: another worker has claimed the job."""
        if self not in active_requests:
            return
        self._is_fenced = True
        try:
            self._pool.terminate_job(self.worker_pid, getattr(signal, TERM_SIGNAME))
        except NotImplementedError:
            return  # threads and the solo pool run the task until it ends
        logger.warning("Task %s[%s] is stopped: another worker already runs it", self.name, self.id)

    def _submit(self, pool: BasePool, submit: Callable[..., Any], **kwargs: Any) -> Any:
        """Submit the task to *pool* with *submit*. A task that the pool refuses is rejected."""
        self._pool = pool
        requeue_buffered(self)
        if self._reporting is not None and not self._reporting.check_may_start(self._tag):
            logger.info("Task %s[%s] is not started: another worker may already run it", self.name, self.id)
            task_ready(self)
            raise TaskRevokedError(self.id)  # Celery continues without the task
        self.is_in_the_pool = is_accepted_inline
        try:
            handle = submit(pool, **kwargs)
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
            raise TaskRevokedError(self.id) from exc  # Celery continues without the task
        self.is_in_the_pool = liveness_check(pool, handle)
        return handle


def starting_if_allowed(generated: Any) -> Any:
    @wraps(generated)
    def execute_using_pool(self: Any, pool: BasePool, **kwargs: Any) -> Any:
        return self._submit(pool, partial(generated, self), **kwargs)

    return execute_using_pool
