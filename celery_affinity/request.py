"""The once-only end of a task: whatever happens to it, its slot is freed once.

No hook of Celery fires exactly once at the end of a task, for every pool and every outcome; `EndOfTask` joins those
that do fire. The end that frees the slot is the one after which the pool can run another task: a terminated one ends
when its process does, not when it is announced as revoked.
"""

import signal
import threading
from functools import cache, wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from billiard.common import TERM_SIGNAME
from billiard.einfo import ExceptionInfo
from celery.app.task import Task
from celery.exceptions import TaskRevokedError
from celery.utils.imports import symbol_by_name
from celery.worker.state import active_requests, reserved_requests, task_ready
from celery.worker.state import revoked as revoked_tasks
from kombu.log import get_logger

from . import stamping
from .claims import Claims, is_claim
from .lease import now_s

if TYPE_CHECKING:
    from celery.worker.request import Request as _Request
else:
    _Request = object  # mixed into Celery's class, or into what a user derived from it

logger = get_logger(__name__)

_unclaimed: WeakSet[_Request] = WeakSet()
_unclaimed_lock = threading.Lock()  # beats count them in threads of their own


def unclaimed_count() -> int:
    """Return how many requests take a slot without a claim: broadcast tasks, for one."""
    if not _unclaimed:
        return 0
    with _unclaimed_lock:
        return sum(each in reserved_requests for each in _unclaimed)


class EndOfTask(_Request):
    """A mixin for ``celery.worker.request.Request`` and for what users derive from it."""

    _claims: Claims | None = None
    _is_fenced = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Wrap what Celery generates in a subclass of its own for each task."""
        super().__init_subclass__(**kwargs)
        for name, wrap in (("on_success", _ending_on_success), ("execute_using_pool", _starting_if_it_may)):
            generated = cls.__dict__.get(name)
            if generated is not None:
                setattr(cls, name, wrap(generated))

    def __init__(self, message: Any, **options: Any) -> None:
        claims: Claims | None = getattr(message.channel, "claims", None)
        tag = message.delivery_tag
        if claims is not None and is_claim(tag):
            # Celery would ack in a later turn of its loop, perhaps after the end of the task is told.
            options.update(on_ack=message.ack_log_error, on_reject=message.reject_log_error)
        super().__init__(message, **options)
        if claims is not None and is_claim(tag):
            self._claims, self._tag = claims, tag
            self._show_its_eta()
            self._say_until_when()
            claims.bind(tag, self)
        else:
            with _unclaimed_lock:
                _unclaimed.add(self)

    def execute_using_pool(self, pool: Any, **kwargs: Any) -> Any:
        self._give_up_unless_it_may_start(pool)
        return super().execute_using_pool(pool, **kwargs)

    def _show_its_eta(self) -> None:
        """Let the task see the ETA that its caller gave; the message has none any more, so that nobody waits for it."""
        stamp = self._request_dict.get(stamping.HEADER)
        eta = stamp.get("eta") if isinstance(stamp, dict) else None
        if eta:
            self._request_dict["eta"] = eta

    def _say_until_when(self) -> None:
        """Have a retry, which this host publishes, expire when this job does, whatever the clock here says."""
        assert self._claims is not None, "it is a claim"
        left_us = self._claims.left_us(self._tag)
        if left_us is not None:
            stamp = self._request_dict.get(stamping.HEADER)
            until = stamping.Until(self._request_dict.get("expires"), now_s() + left_us / 1e6)
            self._request_dict[stamping.HEADER] = {**(stamp if isinstance(stamp, dict) else {}), "until": until}

    def maybe_expire(self) -> Any:
        """Ask the server's clock: this host's may be wrong, and a job was claimed before it expired."""
        if self._claims is None:
            return super().maybe_expire()
        left_us = self._claims.left_us(self._tag)
        if left_us is None or left_us > 0:
            return False
        revoked_tasks.add(self.id)  # as Celery does: `inspect revoked` shows it
        return True

    def on_failure(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return None if self._is_fenced else super().on_failure(*args, **kwargs)
        finally:
            self._end()

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        try:
            return super().on_timeout(soft, timeout)
        finally:
            if not soft:
                self._end()

    def _announce_revoked(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super()._announce_revoked(*args, **kwargs)
        finally:
            if self.time_start is None:
                self._end()

    def on_accepted(self, pid: int, time_accepted: float) -> Any:
        result = super().on_accepted(pid, time_accepted)
        if self._claims is not None:
            self._claims.started(self._tag)
            if self._claims.is_void(self._tag):
                self.fence()
        return result

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

    def _give_up_unless_it_may_start(self, pool: Any) -> None:
        self._pool = pool
        if self._claims is not None and not self._claims.may_start(self._tag):
            logger.info("Task %s[%s] is not started: it may be run by another worker by now", self.name, self.id)
            task_ready(self)
            raise TaskRevokedError(self.id)  # what makes Celery go on without it

    def _end(self) -> None:
        if self._is_fenced:
            task_ready(self)
        if self._claims is not None:
            self._claims.end(self._tag)


def _ending_on_success(generated: Any) -> Any:
    @wraps(generated)
    def on_success(self: Any, failed__retval__runtime: Any, **kwargs: Any) -> Any:
        # A SystemExit in a thread arrives here as an ExceptionInfo, which Celery's own method cannot unpack.
        if isinstance(failed__retval__runtime, ExceptionInfo):
            return self.on_failure(failed__retval__runtime)
        try:
            return None if self._is_fenced else generated(self, failed__retval__runtime, **kwargs)
        finally:
            self._end()

    return on_success


def _starting_if_it_may(generated: Any) -> Any:
    @wraps(generated)
    def execute_using_pool(self: Any, pool: Any, **kwargs: Any) -> Any:
        self._give_up_unless_it_may_start(pool)
        return generated(self, pool, **kwargs)

    return execute_using_pool


@cache
def _with_end_of_task(request: type) -> type:
    return request if issubclass(request, EndOfTask) else type(request.__name__, (EndOfTask, request), {})


def install(task: Task) -> None:
    """Make the requests of *task*, whatever their class, tell their end."""
    task.Request = _with_end_of_task(symbol_by_name(task.Request))
