"""The once-only end of a task: whatever happens to it, its slot is freed once.

No hook of Celery fires exactly once at the end of a task, for every pool and every outcome; `EndOfTask` joins those
that do fire. The end that frees the slot is the one after which the pool can run another task: a terminated one ends
when its process does, not when it is announced as revoked.

What the hooks do besides (a result that is stored, an event, a signal) may fail. An error is logged here, as billiard
logs it in a prefork pool: in the other pools nobody would, and the solo pool would take it for a lost connection.
"""

import logging
import signal
from collections.abc import Callable
from functools import cache, partial, wraps
from typing import TYPE_CHECKING, Any

from billiard.common import TERM_SIGNAME
from billiard.einfo import ExceptionInfo
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.app.task import Task
from celery.exceptions import InvalidTaskError, TaskRevokedError, WorkerShutdown, WorkerTerminate
from celery.utils.imports import symbol_by_name
from celery.worker.state import active_requests, reserved_requests, task_ready
from celery.worker.state import revoked as revoked_tasks

from ..client.first_try import Until
from ..client.stamp import PROPERTY
from ..clock import now_s
from ..membership.held import EXPIRED, FAILED, REVOKED, is_claim
from ..membership.telling import Telling
from ..server.received import LOST
from ..transport.failure import error_of, words
from ..transport.inbox import Inbox
from . import runs, unclaimed
from .pools import forks

if TYPE_CHECKING:
    from celery.worker.request import Request as _Request
else:
    _Request = object  # mixed into Celery's class, or into what a user derived from it

logger = logging.getLogger(__name__)

#: What is more than this is no time limit, s.
_LONGEST_LIMIT_S = 1e9


def _is_limit(limit: object) -> bool:
    return limit is None or (isinstance(limit, int | float) and abs(limit) < _LONGEST_LIMIT_S)


class EndOfTask(_Request):
    """A mixin for ``celery.worker.request.Request`` and for what users derive from it."""

    _telling: Telling | None = None
    _is_fenced = False

    #: Whether the body is not to begin: since the pool was given the task, another worker may have got the job.
    is_called_off = False

    #: How it was announced to be revoked: `REVOKED` or `EXPIRED`; "" if it was not.
    _revoked_as = ""

    #: Whether it counts as no failure, though its pool process was lost: it runs again, or had succeeded.
    _is_spared = False

    #: Says whether the pool still runs it, or will; None before it is given to the pool.
    is_in_the_pool: Callable[[], bool] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Wrap what Celery generates in a subclass of its own for each task."""
        super().__init_subclass__(**kwargs)
        for name, wrap in (("on_success", _ending_on_success), ("execute_using_pool", _starting_if_it_may)):
            generated = cls.__dict__.get(name)
            if generated is not None:
                setattr(cls, name, wrap(generated))

    def __init__(self, message: Any, **options: Any) -> None:
        inbox: Inbox | None = getattr(message.channel, "inbox", None)
        tag = message.delivery_tag
        if inbox is not None and is_claim(tag):
            # Celery would ack in a later turn of its loop, perhaps after the end of the task is told.
            options.update(on_ack=message.ack_log_error, on_reject=message.reject_log_error)
        super().__init__(message, **options)
        self._check_what_celery_takes_on_trust()
        if inbox is not None and is_claim(tag):
            self._telling, self._tag = inbox.telling, tag
            self._show_its_eta()
            self._say_until_when()
            self._telling.claims.bind(tag, self)
        else:
            unclaimed.add(self)

    def execute_using_pool(self, pool: Any, **kwargs: Any) -> Any:
        return self._give_to(pool, super().execute_using_pool, **kwargs)

    def _check_what_celery_takes_on_trust(self) -> None:
        """Raise InvalidTaskError for what would end the event loop later: Celery refuses the message then."""
        limits = self.time_limits
        good = isinstance(limits, (list, tuple)) and len(limits) == 2 and all(map(_is_limit, limits))
        if not good:
            raise InvalidTaskError(f"invalid timelimit value {limits!r}: it must be two numbers of seconds, or null")
        embedded = self._payload[2] or {}
        if not (isinstance(embedded, dict) and all(isinstance(name, str) for name in embedded)):
            raise InvalidTaskError(f"invalid callbacks in the message's body: {embedded!r:.200}")
        if isinstance(self.id, (dict, list)) or not isinstance(self.name, str):
            raise InvalidTaskError(f"invalid task id {self.id!r}, or name {self.name!r}: they must be texts")

    def _show_its_eta(self) -> None:
        """Let the task see the ETA that its caller gave; the message has none any more, so that nobody waits for it."""
        stamp = self._request_dict["properties"].get(PROPERTY)
        eta = stamp.get("eta") if isinstance(stamp, dict) else None
        if eta:
            self._request_dict["eta"] = eta

    def _retry_worker_lost(self, *args: Any) -> Any:
        # No task runs here that the retry is one of: it finds in the stack what this one asked for.
        self.task.request_stack.push(self._context)
        try:
            self._is_spared = super()._retry_worker_lost(*args)
            return self._is_spared
        finally:
            self.task.request_stack.pop()

    def _success_was_stored(self) -> Any:
        found = super()._success_was_stored()
        self._is_spared = bool(found)
        return found

    def _say_until_when(self) -> None:
        """Have a retry, which this host publishes, expire when this job does, whatever the clock here says."""
        assert self._telling is not None, "it is a claim"
        left_us = self._telling.claims.left_us(self._tag)
        if left_us is not None:
            properties = self._request_dict["properties"]
            kept = properties.get(PROPERTY)
            until = Until(self._request_dict.get("expires"), now_s() + left_us / 1e6)
            properties[PROPERTY] = {**(kept if isinstance(kept, dict) else {}), "until": until}

    def maybe_expire(self) -> Any:
        """Ask the server's clock: this host's may be wrong, and a job was claimed before it expired."""
        if self._telling is None:
            return super().maybe_expire()
        left_us = self._telling.claims.left_us(self._tag)
        if left_us is None and not (self._message.headers or {}).get("expires"):
            return super().maybe_expire()  # the first version of the protocol has it in the body: no server knows of it
        if left_us is None or left_us > 0:
            return False
        revoked_tasks.add(self.id)  # as Celery does: `inspect revoked` shows it
        return True

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return None if self._is_fenced else super().on_failure(exc_info, *args, **kwargs)
        except (MemoryError, *LOST):
            raise
        except Exception:
            self.reject(requeue=False)  # it would come again, and fail in the same way
            raise
        finally:
            self._end(exc_info)

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        try:
            return super().on_timeout(soft, timeout)
        except Exception:
            logger.exception("Task %s[%s]: what follows its time limit failed", self.name, self.id)
            if self.task.acks_late and not soft:
                self._settle_after_a_timeout()
        finally:
            if not soft:
                self._end(TimeLimitExceeded(timeout))

    def _settle_after_a_timeout(self) -> None:
        """Do what Celery does after the result is stored, which failed."""
        # Celery before 5.7 has one setting for failures and time limits.
        if getattr(self.task, "acks_on_timeout", self.task.acks_on_failure_or_timeout):
            self.acknowledge()
        else:
            self.reject(requeue=True)

    def terminate(self, pool: Any, signal: Any = None) -> None:
        before = self._revoked_as
        if self.time_start is not None:  # else it is asked for again when the task starts
            self._revoked_as = (
                REVOKED  # eventlet's pool waits for the end of what it stops, and Celery announces it then
            )
        try:
            super().terminate(pool, signal)
        except NotImplementedError:
            self._revoked_as = before  # it runs on
            raise

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> Any:
        self._revoked_as = EXPIRED if expired else REVOKED
        try:
            return super()._announce_revoked(reason, terminated, signum, expired)
        except Exception:
            if self._telling is None:
                raise  # who tells of an end without a worker tells it again
            logger.exception("Task %s[%s] is revoked, which could not be announced", self.name, self.id)
            self.acknowledge()  # else it would come again, until there is a backend
            self._already_revoked = True
        finally:
            if self.time_start is None:
                self._end()

    def on_accepted(self, pid: int, time_accepted: float) -> Any:
        self._call_off_unless_it_may_start()  # the task may have waited for a thread, or a greenlet
        if self.is_called_off:
            return
        try:
            self._accept(pid, time_accepted)
        except Exception:
            logger.exception("Task %s[%s] starts, which could not be announced", self.name, self.id)
        except BaseException as exc:
            if not forks(self._pool):
                self._end(exc)  # it does not run
            raise

    def _accept(self, pid: int, time_accepted: float) -> None:
        try:
            super().on_accepted(pid, time_accepted)
        finally:
            if self._telling is not None:
                self._telling.started(self._tag)
                self._call_off_unless_it_may_start()  # the event may have waited for a broker that was away
                if self._telling.claims.is_void(self._tag):
                    self.fence()

    def _call_off_unless_it_may_start(self) -> None:
        """Ask once more, in pools where the body begins after this: `runs` does not begin it then."""
        if self._telling is not None and not forks(self._pool) and not self._telling.may_start(self._tag):
            self.is_called_off = True
            logger.info("Task %s[%s] is not started: it may be run by another worker by now", self.name, self.id)

    def fence(self) -> None:
        """Stop, where the pool can, what runs here of a job that another worker has by now, and say nothing of it.

        What has ended meanwhile has ended.
        """
        if self not in active_requests:
            return
        self._is_fenced = True
        try:
            self._pool.terminate_job(self.worker_pid, getattr(signal, TERM_SIGNAME))
        except NotImplementedError:
            return  # threads and the solo pool run it to its end
        logger.warning("Task %s[%s] is stopped: it is run by another worker by now", self.name, self.id)

    def end_unnoticed(self) -> None:
        """End what nobody noticed the end of: whether it ended well nobody knows."""
        self._end(WorkerLostError("nobody noticed its end, and it is nowhere in its worker"))

    def _give_to(self, pool: Any, give: Callable[..., Any], **kwargs: Any) -> Any:
        """Give the task to *pool* with *give*. One that the pool does not take is rejected."""
        self._pool = pool
        self._give_up_unless_it_may_start()
        self.is_in_the_pool = runs.while_given
        try:
            given = give(pool, **kwargs)
        except TaskRevokedError:
            raise
        except LOST:
            self._end()  # it never starts
            raise
        except Exception as exc:
            logger.exception("Task %s[%s] cannot be given to the pool: it is rejected", self.name, self.id)
            self.reject(requeue=False)
            self._end(exc)
            raise TaskRevokedError(self.id) from exc  # what makes Celery go on without it
        self.is_in_the_pool = runs.after_given(pool, self, given)
        return given

    def _give_up_unless_it_may_start(self) -> None:
        if self._telling is not None and not self._telling.may_start(self._tag):
            logger.info("Task %s[%s] is not started: it may be run by another worker by now", self.name, self.id)
            task_ready(self)
            raise TaskRevokedError(self.id)  # what makes Celery go on without it

    def _end(self, failure: Any = None) -> None:
        """End it, because of *failure* if that is not None: an exception, or what Celery's hooks are given of one."""
        if self in active_requests or self in reserved_requests:
            task_ready(self)  # Celery's own hook did not come so far
        if self._telling is None:
            return
        error = None if failure is None or self._is_spared else error_of(failure)
        if self._revoked_as:
            self._telling.end(self._tag, self._revoked_as)
        elif error is not None:
            self._telling.end(self._tag, FAILED, words(error))
        else:
            self._telling.end(self._tag)


def _ending_on_success(generated: Any) -> Any:
    @wraps(generated)
    def on_success(self: Any, failed__retval__runtime: Any, **kwargs: Any) -> Any:
        try:
            if self.is_called_off:
                return None
            # What was raised outside the task's body in a pool without processes. Celery's own method cannot unpack it.
            if isinstance(failed__retval__runtime, ExceptionInfo):
                return self.on_failure(failed__retval__runtime)
            return None if self._is_fenced else generated(self, failed__retval__runtime, **kwargs)
        except (WorkerShutdown, WorkerTerminate):
            raise
        except (Exception, SystemExit):  # one that a signal's handler raises would end a green pool's whole worker
            logger.exception("Task %s[%s] has ended, and what follows its end failed", self.name, self.id)
        finally:
            self._end(_failure_of(failed__retval__runtime))

    return on_success


def _failure_of(result: Any) -> Any:
    """Return what of the *result* of a pool says that the task failed; None if it did not."""
    match result:
        case ExceptionInfo():
            return result
        case (failed, error, _) if failed:
            return error
    return None


def _starting_if_it_may(generated: Any) -> Any:
    @wraps(generated)
    def execute_using_pool(self: Any, pool: Any, **kwargs: Any) -> Any:
        return self._give_to(pool, partial(generated, self), **kwargs)

    return execute_using_pool


@cache
def _with_end_of_task(request: type) -> type:
    return request if issubclass(request, EndOfTask) else type(request.__name__, (EndOfTask, request), {})


def install(task: Task) -> None:
    """Make the requests of *task*, whatever their class, tell their end."""
    task.Request = _with_end_of_task(symbol_by_name(task.Request))
