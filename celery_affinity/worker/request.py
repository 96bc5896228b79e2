"""A request that Celery makes of a claimed job: the claim, the times, and checks of the message's values.

A request whose task Celery cancels, in a cold shutdown or after a lost connection: an end neither good nor bad.

Celery tells the caller of an early-acked task that the task is retried, which it is not, and takes the end of a
greenlet that it kills for a good one. Here a cold shutdown is to jobs what the death of their worker is: a late-acked
job is pending again, and an early-acked one is lost when the worker leaves, of which a dispatcher tells the caller.

The start of a task: it is given to the pool, and begins, only while no other worker can have its job.

A worker may lose a job between its claim and its start: the server took the worker for dead. Then the task is not
begun; if it has begun already, it is stopped where the pool can do that.
"""

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

from ..broker.failover import short_traceback
from ..clock import SECOND_US, now_s
from ..leases.held_claim import RETURNED, is_claim_tag, job_of_tag
from ..leases.outbox import EndReporter
from ..log_limit import limited_logger
from ..publishing.app_config import merge_of
from ..publishing.message import PROPERTY
from ..publishing.option_sources import Expiry, rules_in
from ..results.events import SENDS_EVENTS, are_events_sent
from ..results.reporter import describe_error
from ..schema.constants import PREEMPTED
from ..schema.job_record import is_batch
from ..schema.rules_codec import texts_of_keys
from ..schema.untrusted import as_whole_number, bounded_text, describe_shape, is_number
from ..schema.values import LOST
from ..transport.inbox import WAIT, Inbox
from .buffers import requeue_buffered
from .pool import add_unclaimed, is_accepted_inline, liveness_check, pool_forks, read_results

if TYPE_CHECKING:
    from celery.worker.request import Request as _Request
else:
    _Request = object  # mixed into Celery's class, or into what a user derived from it

logger = limited_logger(__name__)

#: Time, s, from which on a number is no time limit.
_LONGEST_LIMIT_S = 1e9


#: Maximum plausible number of retries. Celery computes 2 to the power of this number for ``retry_backoff``.
_MOST_RETRIES = 1_000_000

_NO_LIMITS = ([None, None], (None, None))


def _is_limit(limit: object) -> bool:
    return limit is None or is_number(limit, _LONGEST_LIMIT_S)


class ClaimedRequest(_Request):
    """A mixin for ``celery.worker.request.Request``. The request of an unclaimed message takes a slot, and no more."""

    _reporting: EndReporter | None = None
    _tag: str
    #: True if the task's strategy buffers the request (`buffers`).
    is_buffered = False

    def __init__(self, message: Any, **options: Any) -> None:
        inbox: Inbox | None = getattr(message.channel, "inbox", None)
        tag = message.delivery_tag
        reporting = inbox.reporting_of(tag) if inbox is not None and is_claim_tag(tag) else None
        if reporting is not None:
            # Celery by itself would ack in a later iteration of the loop, perhaps after the end of the task is told.
            options.update(on_ack=message.ack_log_error, on_reject=message.reject_log_error)
        super().__init__(message, **options)
        self._check_what_celery_takes_on_trust()
        if reporting is not None:
            self._tag = tag
            is_of_a_batch = is_batch(job_of_tag(tag))
            if is_of_a_batch:
                self._check_that_it_can_run_all_calls()
            self._reporting = reporting
            self._show_its_eta()
            self._set_expiry()
            if is_of_a_batch:
                self._say_whether_events_are_sent()
            self._set_wait_times()
            reporting.claims.bind(tag, self)
        else:
            add_unclaimed(self)

    @property
    def holds_a_key(self) -> bool:
        """Whether the claim keeps other jobs of an exclusive key from being claimed."""
        rules = rules_in(self.request_dict["properties"].get(PROPERTY))
        return bool(rules and texts_of_keys(rules)[1])

    def _check_what_celery_takes_on_trust(self) -> None:
        """Raise InvalidTaskError for values that would end the event loop later: Celery refuses the message then."""
        limits = self.time_limits
        good = limits in _NO_LIMITS or (
            isinstance(limits, (list, tuple)) and len(limits) == 2 and all(map(_is_limit, limits))
        )
        if not good:
            raise InvalidTaskError(
                f"invalid timelimit, of type {describe_shape(limits)}: it must be two numbers of seconds, or null"
            )
        retries = self.request_dict.get("retries")
        if retries is not None and as_whole_number(retries, 0, _MOST_RETRIES) is None:  # the exponent of a pause
            raise InvalidTaskError(f"invalid retries, of type {describe_shape(retries)}: it must be a whole number")
        embedded = self._payload[2] or {}
        if not (isinstance(embedded, dict) and set(map(type, embedded)) <= {str}):
            raise InvalidTaskError(f"invalid callbacks in the message's body, of type {describe_shape(embedded)}")
        if bounded_text(self.id) is None or not isinstance(self.name, str):
            shapes = f"{describe_shape(self.id)}, or name, of type {describe_shape(self.name)}"
            raise InvalidTaskError(f"invalid task id, of type {shapes}: they must be texts")

    def _check_that_it_can_run_all_calls(self) -> None:
        """Raise InvalidTaskError for several calls that a producer merged, if the task does not merge here."""
        if merge_of(self.task) is not None:
            return
        refusal = InvalidTaskError(
            f"its producer merged calls of task {self.name}, which this worker cannot run as one: neither the task's "
            "affinity nor affinity_task_rules says merge here"
        )
        try:  # a dispatcher tells the other callers
            self.task.backend.mark_as_failure(self.id, refusal, request=self._context)
        except Exception as exc:
            logger.error(
                "Task %s[%s] is refused, but its failure could not be stored: %s",
                *(self.name, self.id, describe_error(exc)),
                exc_info=short_traceback(exc),
            )
        raise refusal

    def _show_its_eta(self) -> None:
        """Let the task see the ETA of its caller. The message has no ETA any more: a worker would wait once more."""
        stamp = self.request_dict["properties"].get(PROPERTY)
        eta = stamp.get("eta") if isinstance(stamp, dict) else None
        if eta:
            self.request_dict["eta"] = eta

    def _set_expiry(self) -> None:
        """Have a retry, which this host publishes, expire when this job does, whatever the clock here says."""
        assert self._reporting is not None, "it is a claim"
        left_us = self._reporting.claims.left_us(self._tag)
        if left_us is not None:
            properties = self.request_dict["properties"]
            kept = properties.get(PROPERTY)
            until = Expiry(self.request_dict.get("expires"), now_s() + left_us / SECOND_US)
            properties[PROPERTY] = {**(kept if isinstance(kept, dict) else {}), "until": until}

    def _say_whether_events_are_sent(self) -> None:
        """Tell the process that runs merged calls whether to send the events of each call to monitors."""
        self.request_dict[SENDS_EVENTS] = self.task.send_events and are_events_sent(self.eventer)

    def _set_wait_times(self) -> None:
        """Have the process that records the wait know its begin and end by this host's clock, in Unix time, ns."""
        assert self._reporting is not None, "it is a claim"
        wait = self.request_dict["properties"].get(WAIT)
        held = self._reporting.claims.find(self._tag)
        if wait is None or held is None:
            return
        here_us = round((time.monotonic() - held.held_since_s) * SECOND_US)  # with lookahead, it came some time ago
        until_ns = time.time_ns() - here_us * 1000
        wait.update(since_ns=until_ns - held.waited_us * 1000, until_ns=until_ns)

    def maybe_expire(self) -> Any:
        """Return whether the job has expired since its claim, by the server's clock: this host's may be wrong."""
        if self._reporting is None:
            return super().maybe_expire()
        left_us = self._reporting.claims.left_us(self._tag)
        if left_us is None and not (self.message.headers or {}).get("expires"):
            # The first version of the protocol has the expiry in the body, which no server reads.
            return super().maybe_expire()
        if left_us is None or left_us > 0:
            return False
        revoked_tasks.add(self.id)  # as Celery does: `inspect revoked` shows the task
        return True


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
        read_results(self._pool)  # a process may have ended its task
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
            self._reporting.set_outcome(self._tag, self._given_back_as)
            self._reporting.end(self._tag, self._given_back_as)
        elif self._reporting is not None and not self.acknowledged:
            self._reporting.end(self._tag)


class NotStartedError(Reject):
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
        if self.is_cancelled_before_start:
            return
        try:
            self._accept(pid, time_accepted)
        except Exception as exc:
            logger.error(
                "Task %s[%s] starts, but this could not be announced: %s",
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
                self._call_off_unless_it_may_start()  # the event may have waited for a broker that was down
                if self._reporting.claims.is_void(self._tag):
                    self.fence()
                elif state.should_terminate and pool_forks(self._pool):
                    # Celery cancels the tasks that it knows to run, and would wait for the end of this one.
                    self.cancel(self._pool, emit_retry=not self.task.acks_late)

    def _call_off_unless_it_may_start(self) -> None:
        """Call the task off if it may not start any more, in pools where the body begins after this.

        `runs` leaves out a body that is called off.
        """
        if self._reporting is None or pool_forks(self._pool):
            return
        if state.should_terminate:
            self.is_cancelled_before_start = True
            logger.info("Task %s[%s] is not started: the worker stops", self.name, self.id)
        elif not self._reporting.check_may_start(self._tag):
            self.is_cancelled_before_start = True
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
        requeue_buffered(self)
        self._give_up_unless_it_may_start()
        self.is_in_the_pool = is_accepted_inline
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
        self.is_in_the_pool = liveness_check(pool, given)
        return given

    def _give_up_unless_it_may_start(self) -> None:
        if self._reporting is not None and not self._reporting.check_may_start(self._tag):
            logger.info("Task %s[%s] is not started: another worker may run it by now", self.name, self.id)
            task_ready(self)
            raise TaskRevokedError(self.id)  # Celery goes on without the task


def starting_if_allowed(generated: Any) -> Any:
    @wraps(generated)
    def execute_using_pool(self: Any, pool: BasePool, **kwargs: Any) -> Any:
        return self._give_to(pool, partial(generated, self), **kwargs)

    return execute_using_pool
