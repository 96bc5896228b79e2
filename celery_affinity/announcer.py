"""Ends without a worker, told to their callers: what Celery's own worker would have said, by Celery's own code.

A job that was revoked or expired while it waited, that was lost with its worker, or that came back too often has nobody
who writes its result: its caller would wait for ever, and so would a chord that it is a part of.
"""

import base64
from collections.abc import Callable
from typing import Any

from billiard.exceptions import WorkerLostError
from celery import Celery, signals, states
from celery.app.task import Context
from celery.utils.imports import symbol_by_name
from kombu.log import get_logger
from kombu.message import Message
from kombu.serialization import prepare_accept_content
from kombu.utils.encoding import safe_repr

from . import envelope
from .calls import Ending
from .scheduler import Scheduler

logger = get_logger(__name__)

#: Another process tells what this one could not, so much later, s.
_AGAIN_S = 5.0

#: An app that does not know a task leaves it to others for so long, s: it may have another result backend.
_OTHERS_HAVE_S = 15.0


class Announcer:
    """Tells ends for *app*. *eventer* returns what sends its events, or None; *hostname* is in them."""

    def __init__(self, app: Celery, hostname: str, eventer: Callable[[], Any]) -> None:
        self._app = app
        self._hostname = hostname
        self._eventer = eventer

    def announce(self, scheduler: Scheduler) -> None:
        """Tell what is to be told. Raises a redis error if the broker does not answer: then it is told again."""
        name = self._app.main or ""
        while endings := scheduler.announce(name, again_s=_AGAIN_S):
            foreign = [ending for ending in endings if self._is_for_others(ending)]
            scheduler.leave_to_others(name, [ending.job_id for ending in foreign])
            scheduler.told([each.job_id for each in endings if each not in foreign and self._is_told(each)])

    def _is_for_others(self, ending: Ending) -> bool:
        return ending.task_name not in self._app.tasks and ending.since_s < _OTHERS_HAVE_S

    def _is_told(self, ending: Ending) -> bool:
        try:
            self._tell(ending)
        except Exception:
            logger.exception("Cannot tell that task %s is %s; tried again soon", ending.task_id, ending.how)
            return False
        logger.info("Task %s[%s] is %s: its caller is told", ending.task_name, ending.task_id, ending.how)
        return True

    def _tell(self, ending: Ending) -> None:
        request = self._request(ending)
        if ending.how in ("revoked", "expired"):
            self._revoke(ending, request)
        else:
            self._fail(ending, request, _why(ending))

    def _revoke(self, ending: Ending, request: Any) -> None:
        if request is None:
            self._app.backend.mark_as_revoked(ending.task_id, ending.how, request=_context(ending))
        else:
            request._announce_revoked(ending.how, False, None, ending.how == "expired")

    def _fail(self, ending: Ending, request: Any, exc: Exception) -> None:
        if request is None:
            self._app.backend.mark_as_failure(ending.task_id, exc, request=_context(ending))
            return
        task = request.task
        if _has_succeeded(task.backend, ending.task_id):
            return  # it was the end of it that got lost
        task.backend.mark_as_failure(ending.task_id, exc, request=request._context, store_result=request.store_errors)
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

    def _request(self, ending: Ending) -> Any:
        """Return the request that a worker would have made of the message; None if that cannot be."""
        task = self._app.tasks.get(ending.task_name)
        if task is None or not ending.message:
            return None
        try:
            message = self._message(ending.message)
            request = symbol_by_name(task.Request)(
                message, app=self._app, hostname=self._hostname, eventer=self._eventer(), task=task
            )
            _ = request.args, request._context  # read now, not in the middle of telling
        except Exception:
            logger.exception("The message of task %s cannot be read: its caller alone is told", ending.task_id)
            return None
        return request

    def _message(self, raw: bytes) -> Message:
        payload = envelope.read(raw)
        properties, body = payload["properties"], payload["body"]
        if properties.get("body_encoding") == "base64":
            body = base64.b64decode(body)
        message = Message(
            body,
            delivery_tag=properties.get("delivery_tag"),
            content_type=payload.get("content-type"),
            content_encoding=payload.get("content-encoding"),
            delivery_info=properties.get("delivery_info"),
            properties=properties,
            headers=payload["headers"],
        )
        message.accept = prepare_accept_content(self._app.conf.accept_content)
        return message


def _why(ending: Ending) -> Exception:
    exc: Exception = WorkerLostError(
        "The worker that ran it died, and the task had been acknowledged: it is not run again"
        if ending.how == "lost"
        else f"Given up after {ending.deliveries} deliveries, none of which was acknowledged"
    )
    return exc


def _context(ending: Ending) -> Context:
    return Context(id=ending.task_id, task=ending.task_name)


def _has_succeeded(backend: Any, task_id: str) -> bool:
    if str(backend.as_uri()).startswith("rpc"):
        return False  # its results are in the caller's queue
    try:
        return bool(backend.get_task_meta(task_id)["status"] == states.SUCCESS)
    except NotImplementedError:  # no backend
        return False
