"""Tell a caller how a job ended without a worker, as Celery's worker would have done, and by Celery's own code.

No worker writes the result of a job that was revoked or expired while pending, was lost with its worker, or came back
too often: the caller would wait for ever, and so would a chord with that task.
"""

import hashlib
from collections.abc import Callable
from typing import Any

from billiard.exceptions import WorkerLostError
from celery import Celery, signals, states
from celery.app.task import Context
from celery.exceptions import Reject
from celery.utils.imports import symbol_by_name
from kombu.message import Message
from kombu.serialization import prepare_accept_content
from kombu.utils.encoding import safe_repr

from ..client import bodies, envelope
from ..client.accepted_work import tells_an_end
from ..log_limit import limited_logger
from ..rules.protocol import DROPPED
from ..server.replies import Ending
from .chord_parts import count_what_is_stored

logger = limited_logger(__name__)


class Teller:
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

    @tells_an_end
    def tell(self, ending: Ending, message: bytes, is_known: Callable[[], None]) -> None:
        """Tell *ending*. Calls *is_known*, perhaps twice, once the caller can know: before handlers of signals run."""
        request = self.request_of(ending.task_name, ending.task_id, message, is_known)
        if ending.how in ("revoked", "expired", DROPPED):
            self._revoke(ending, request)
        else:
            self._fail(ending, request, is_known)
        is_known()  # a second call does no harm

    def _revoke(self, ending: Ending, request: Any) -> None:
        reason = f"dropped: too many jobs of type {ending.type} waited" if ending.how == DROPPED else ending.how
        if request is None:
            self.app.backend.mark_as_revoked(ending.task_id, reason, request=_context(ending))
        else:
            request._announce_revoked(reason, False, None, ending.how == "expired")

    def _fail(self, ending: Ending, request: Any, is_known: Callable[[], None]) -> None:
        exc = why(ending)
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
        payload = envelope.read(raw)
        properties, headers = payload["properties"], payload["headers"]
        bodies.check_content_encoding(payload.get("content-type"), payload.get("content-encoding"))
        most = bodies.MOST_LOOKED_AT if headers.get("compression") else bodies.MOST_CHARACTERS
        message = Message(
            bodies.raw_body(payload, most),
            delivery_tag=properties.get("delivery_tag"),
            content_type=payload.get("content-type"),
            content_encoding=payload.get("content-encoding"),
            delivery_info=properties.get("delivery_info"),
            properties=properties,
        )
        message.headers = headers  # not above: kombu would decompress the body once more, without a limit
        message.accept = prepare_accept_content(self.app.conf.accept_content)
        return message


def why(ending: Ending) -> Exception:
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


def _context(ending: Ending) -> Context:
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
