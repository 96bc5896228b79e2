"""Tell a caller how a job ended without a worker, as Celery's worker would have done, and by Celery's own code.

No worker writes the result of a job that was revoked or expired while pending, was lost with its worker, or came back
too often: the caller would wait for ever, and so would a chord with that task.

An error that ended a job, in words: its type, and the beginning of its text.
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
from ..publishing.publish_call import publishes_follow_ups
from ..scheduler.messages import UnreportedEnd
from ..schema.constants import DROPPED
from .chords import count_what_is_stored

logger = limited_logger(__name__)


class ResultReporter:
    """Tells ends for *app*. *eventer* returns the app's event dispatcher, or None; events carry *hostname*.

    Every method runs foreign code and may hang: the app's tasks, result backend, serializers, handlers of signals.
    """

    def __init__(self, app: Celery, hostname: str, eventer: Callable[[], object]) -> None:
        self.app = app
        self._hostname = hostname
        self._eventer = eventer
        self._identity = 0, ""  # number of tasks, and the identity made from them

    def identity(self) -> str:
        """Return a hash of the app's name and of the tasks that it knows now."""
        tasks = self.app.tasks
        if self._identity[0] != len(tasks):
            known = " ".join([self.app.main or "", *sorted(tasks)]).encode(errors="replace")
            self._identity = len(tasks), hashlib.sha1(known, usedforsecurity=False).hexdigest()[:16]
        return self._identity[1]

    def knows(self, task_name: str) -> bool:
        """Return whether the app has the task: an app that lacks the task may have another result backend."""
        return task_name in self.app.tasks

    @publishes_follow_ups
    def tell(self, ending: UnreportedEnd, message: bytes, is_known: Callable[[], None]) -> None:
        """Tell *ending*. Calls *is_known*, perhaps twice, once the caller can know: before handlers of signals run."""
        request = self.request_of(ending.task_name, ending.task_id, message, is_known)
        if ending.how in ("revoked", "expired", DROPPED):
            self._revoke(ending, request)
        else:
            self._fail(ending, request, is_known)
        is_known()  # a second call does no harm

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
        known = _known_end(task.backend, ending.task_id)
        if known is not None:  # the task had ended: only the word of its end got lost, and perhaps its part of a chord
            count_what_is_stored(task.backend, request._context, known["status"], known["result"])
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
        """Return the request that a worker would have made of a message.

        None if the message cannot be read, or the app lacks the task. *is_known* stands in for the ack: Celery acks a
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
            _ = request.args, request._context  # decoded now, not in the middle of telling
        except Exception:
            logger.exception("The message of task %s cannot be read: only its caller is told", task_id)
            return None
        return request

    def _message(self, raw: bytes) -> Message:
        payload = decode_message(raw)
        properties, headers = payload["properties"], payload["headers"]
        message_body.check_content_encoding(payload.get("content-type"), payload.get("content-encoding"))
        most = message_body.MOST_LOOKED_AT if headers.get("compression") else message_body.MOST_CHARACTERS
        message = Message(
            message_body.raw_body(payload, most),
            delivery_tag=properties.get("delivery_tag"),
            content_type=payload.get("content-type"),
            content_encoding=payload.get("content-encoding"),
            delivery_info=properties.get("delivery_info"),
            properties=properties,
        )
        message.headers = headers  # not above: kombu would decompress the body once more, without a limit
        message.accept = prepare_accept_content(self.app.conf.accept_content)
        return message


def reason_text(ending: UnreportedEnd) -> Exception:
    exc: Exception
    if ending.how == "rejected":
        exc = Reject("the run of this call was rejected")
        return exc
    if ending.how == "max_requeues":
        exc = Reject("Given up: the task requeued it more often than affinity_max_requeues allows")
        return exc
    exc = WorkerLostError(
        "The worker that ran it died, and the task had been acknowledged: it is not run again"
        if ending.how == "lost"
        else f"Given up after {ending.deliveries} deliveries, none of which was acknowledged"
    )
    return exc


def _context(ending: UnreportedEnd) -> Context:
    return Context(id=ending.task_id, task=ending.task_name)


def _known_end(backend: Any, task_id: str) -> dict[str, Any] | None:
    """Return the end of a task that *backend* has, None for none. Nobody may change it: the caller may have seen it."""
    if str(backend.as_uri()).startswith("rpc"):
        return None  # the results are in the caller's queue
    try:
        meta: dict[str, Any] = backend.get_task_meta(task_id)
    except NotImplementedError:  # no backend
        return None
    return meta if meta["status"] in states.READY_STATES else None


#: Characters, at most, of an error's text, and of the name of its type. ``lua/jobs/ends.lua`` has room for them.
MOST = 200
_MOST_OF_NAME = 80

#: The header that only a task's message has.
_NO_TASK = "task"


def describe_error(exc: BaseException) -> str:
    """Return an exception in words: "ValueError: no such page". The text of a Reject is its reason.

    Nothing is raised, whatever the exception's own code does.
    """
    name: object = type(exc).__name__
    what: object = exc
    if isinstance(exc, UnpickleableExceptionWrapper):  # the exception itself stayed in a pool process
        name, what = exc.exc_cls_name, Exception(*exc.exc_args)
    elif isinstance(exc, Reject):
        nested = isinstance(exc.reason, BaseException) and not isinstance(exc.reason, Reject)
        what = describe_error(exc.reason) if nested else "" if exc.reason is None else exc.reason
    short_name = str(name)[:_MOST_OF_NAME]
    try:
        said = str(what)[:MOST]
    except (Exception, SystemExit):  # of the exception's own code
        said = "(what it says cannot be shown)"
    says_its_type = said.startswith(f"{short_name}(")  # the texts of billiard's exceptions do
    return printable_error(said if says_its_type else f"{short_name}: {said}" if said else short_name)


def printable_error(text: str) -> str:
    """Return *text* in UTF-8: JSON may hold halves of surrogate pairs, which Redis and logs cannot."""
    return text.encode(errors="backslashreplace").decode()


def error_from(failure: object) -> BaseException | None:
    """Return the exception in *failure*: an exception, or one of the wrappers that Celery's hooks get.

    None if there is none, or if the task has not failed: a Retry or an Ignore.
    """
    exc = _bare(failure)
    return exc if isinstance(exc, BaseException) and not isinstance(exc, (Ignore, Retry)) else None


def is_ignored(failure: object, kind: type[Ignore] = Ignore) -> bool:
    """Return whether the exception in *failure*, one of this *kind*, says that the task itself knows how it ended."""
    return isinstance(_bare(failure), kind)


def _bare(failure: object) -> object:
    exc = failure.exception if isinstance(failure, ExceptionInfo) else failure
    return exc.exc if isinstance(exc, ExceptionWithTraceback) else exc


def why_refused() -> str:
    """Return the error that is being handled, in words: why no request was made of a message. "" if there is none."""
    exc = sys.exc_info()[1]
    if exc is None:
        return ""
    if type(exc) is KeyError and exc.args != (_NO_TASK,):  # from where Celery looks for the task
        exc = NotRegistered(*exc.args)
    return describe_error(exc)
