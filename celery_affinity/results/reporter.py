"""Report to a caller how a job ended without a worker, using the same Celery code as a worker.

If a pending job is revoked or expires, is lost with its worker, or has too many deliveries, no worker writes a result.
Without a report, the caller would wait forever, and so would a chord with that task.
"""

import hashlib
import sys
from collections.abc import Callable
from typing import Any

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from billiard.exceptions import WorkerLostError
from celery import Celery, signals, states
from celery.app.task import Context
from celery.exceptions import Ignore, NotRegistered, Reject, Retry
from celery.utils.imports import symbol_by_name
from celery.utils.serialization import UnpickleableExceptionWrapper
from kombu.message import Message
from kombu.serialization import prepare_accept_content
from kombu.utils.encoding import safe_repr

from ..log_limit import limited_logger
from ..publishing import message_body
from ..publishing.message import decode_message
from ..publishing.publish_call import publishing_follow_ups
from ..scheduler.messages import UnreportedEnd
from ..schema.constants import DROPPED
from .chords import count_what_is_stored

logger = limited_logger(__name__)


class ResultReporter:
    """Reports results for *app*. *eventer* returns the app's event dispatcher, or None; events contain *hostname*.

    All methods run untrusted code and may block: the app's tasks, result backend, serializers and signal handlers.
    """

    def __init__(self, app: Celery, hostname: str, eventer: Callable[[], object]) -> None:
        self.app = app
        self._hostname = hostname
        self._eventer = eventer
        self._identity = 0, ""  # number of tasks, and the identity computed from them

    def identity(self) -> str:
        """Return a hash of the app's name and of its current tasks."""
        tasks = self.app.tasks
        if self._identity[0] != len(tasks):
            text = " ".join([self.app.main or "", *sorted(tasks)]).encode(errors="replace")
            self._identity = len(tasks), hashlib.sha1(text, usedforsecurity=False).hexdigest()[:16]
        return self._identity[1]

    def knows(self, task_name: str) -> bool:
        """Return True if the app has the task. An app without the task may have another result backend."""
        return task_name in self.app.tasks

    @publishing_follow_ups()
    def tell(self, ending: UnreportedEnd, message: bytes, is_known: Callable[[], None]) -> None:
        """Report *ending*. Call *is_known*, possibly twice, once the result is stored: before signal handlers run."""
        request = self.request_of(ending.task_name, ending.task_id, message, is_known)
        if ending.how in ("revoked", "expired", DROPPED):
            self._revoke(ending, request)
        else:
            self._fail(ending, request, is_known)
        is_known()  # a second call is harmless

    def _revoke(self, ending: UnreportedEnd, request: Any) -> None:
        reason = f"dropped: too many jobs of type {ending.type} waited" if ending.how == DROPPED else ending.how
        if request is None:
            self.app.backend.mark_as_revoked(ending.task_id, reason, request=_context(ending))
        else:
            request._announce_revoked(reason, False, None, ending.how == "expired")

    def _fail(self, ending: UnreportedEnd, request: Any, is_known: Callable[[], None]) -> None:
        exc = reason_text(ending)
        if request is None:
            self.app.backend.mark_as_failure(ending.task_id, exc, request=_context(ending))
            return
        task = request.task
        stored = stored_meta(task.backend, ending.task_id)
        if stored is not None:  # the task had ended, but the report was lost, and perhaps also the chord part
            count_what_is_stored(task.backend, request._context, stored["status"], stored["result"])
            return
        task.backend.mark_as_failure(ending.task_id, exc, request=request._context, store_result=request.store_errors)
        is_known()
        signals.task_failure.send(
            sender=task,
            task_id=ending.task_id,
            exception=exc,
            args=request.args,
            kwargs=request.kwargs,
            traceback=None,
            einfo=None,
        )
        request.send_event("task-failed", exception=safe_repr(exc), traceback="")

    def request_of(self, task_name: str, task_id: str, raw: bytes, is_known: Callable[[], None] = lambda: None) -> Any:
        """Return the request that a worker would create for the message *raw*.

        Returns None if the message is unreadable, or the app lacks the task. *is_known* replaces the ack: Celery acks a
        request when the result is written, before the signal is sent.
        """
        task = self.app.tasks.get(task_name)
        if task is None or not raw:
            return None
        try:
            request = symbol_by_name(task.Request)(
                self._message(raw),
                on_ack=lambda *_: is_known(),
                app=self.app,
                hostname=self._hostname,
                eventer=self._eventer(),
                task=task,
            )
            _ = request.args, request._context  # decoded now, and not during the report
        except Exception:
            logger.exception("The message of task %s cannot be read: only its caller gets the outcome", task_id)
            return None
        return request

    def _message(self, raw: bytes) -> Message:
        payload = decode_message(raw)
        properties, headers = payload["properties"], payload["headers"]
        message_body.check_content_encoding(payload.get("content-type"), payload.get("content-encoding"))
        max_size = message_body.MAX_LOOKED_AT if headers.get("compression") else message_body.MAX_CHARACTERS
        message = Message(
            message_body.raw_body(payload, max_size),
            delivery_tag=properties.get("delivery_tag"),
            content_type=payload.get("content-type"),
            content_encoding=payload.get("content-encoding"),
            delivery_info=properties.get("delivery_info"),
            properties=properties,
        )
        message.headers = headers  # not above: kombu would decompress the body a second time, without a limit
        message.accept = prepare_accept_content(self.app.conf.accept_content)
        return message


def reason_text(ending: UnreportedEnd) -> Exception:
    exc: Exception
    if ending.how == "rejected":
        exc = Reject("the run of this call was rejected")
    elif ending.how == "max_requeues":
        exc = Reject("Given up: the task requeued it more often than affinity_max_requeues allows")
    elif ending.how == "lost":
        exc = WorkerLostError("The worker that ran it died, and the task had been acknowledged: it is not run again")
    else:
        exc = WorkerLostError(f"Given up after {ending.deliveries} deliveries, none of which was acknowledged")
    return exc


def _context(ending: UnreportedEnd) -> Context:
    return Context(id=ending.task_id, task=ending.task_name)


def stored_meta(backend: Any, task_id: str) -> dict[str, Any] | None:
    """Return the task's end stored in *backend*, or None. It must not change, because the caller may have read it."""
    if str(backend.as_uri()).startswith("rpc"):
        return None  # the results are in the caller's queue
    try:
        meta: dict[str, Any] = backend.get_task_meta(task_id)
    except NotImplementedError:  # no backend
        return None
    return meta if meta["status"] in states.READY_STATES else None


#: Maximum number of characters of an error's text, and of its type's name. They fit the limit in ``lua/jobs/ends.lua``.
MAX_SHOWN_LENGTH = 200
_MAX_NAME_LENGTH = 80
#: A header that exists only in task messages.
_TASK_HEADER = "task"


def describe_error(exc: BaseException) -> str:
    """Return *exc* as text, such as "ValueError: no such page"; a Reject's text is its reason. Never raises."""
    name: object = type(exc).__name__
    content: object = exc
    if isinstance(exc, UnpickleableExceptionWrapper):  # the exception itself stayed in a pool process
        name, content = exc.exc_cls_name, Exception(*exc.exc_args)
    elif isinstance(exc, Reject):
        nested = isinstance(exc.reason, BaseException) and not isinstance(exc.reason, Reject)
        content = describe_error(exc.reason) if nested else "" if exc.reason is None else exc.reason
    short_name = str(name)[:_MAX_NAME_LENGTH]
    try:
        text = str(content)[:MAX_SHOWN_LENGTH]
    except (Exception, SystemExit):  # raised by the exception's own code
        text = "(what it says cannot be shown)"
    has_type_name = text.startswith(f"{short_name}(")  # as in billiard's exceptions
    return printable_error(text if has_type_name else f"{short_name}: {text}" if text else short_name)


def printable_error(text: str) -> str:
    """Return *text* as valid UTF-8: JSON can contain lone surrogates, which Redis and logs cannot store."""
    return text.encode(errors="backslashreplace").decode()


def error_from(failure: object) -> BaseException | None:
    """Return the exception in *failure* (bare or wrapped by Celery), or None for a success, a Retry or an Ignore."""
    exc = _unwrap(failure)
    return exc if isinstance(exc, BaseException) and not isinstance(exc, (Ignore, Retry)) else None


def is_ignored(failure: object, kind: type[Ignore] = Ignore) -> bool:
    """Return True if the exception in *failure* is of this *kind*: the task itself determined its end."""
    return isinstance(_unwrap(failure), kind)


def _unwrap(failure: object) -> object:
    exc = failure.exception if isinstance(failure, ExceptionInfo) else failure
    return exc.exc if isinstance(exc, ExceptionWithTraceback) else exc


def why_refused() -> str:
    """Return the current error as text, which explains why a message was refused. "" if there is none."""
    exc = sys.exc_info()[1]
    if exc is None:
        return ""
    if type(exc) is KeyError and exc.args != (_TASK_HEADER,):  # raised where Celery looks up the task
        exc = NotRegistered(*exc.args)
    return describe_error(exc)
