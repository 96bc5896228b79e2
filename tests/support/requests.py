"""Requests of Celery's worker, for claims of a worker that is not running."""

from types import SimpleNamespace
from unittest.mock import Mock

from celery_affinity.scheduler.messages import Claim
from celery_affinity.worker import request_end

from .members import inbox_of


def held(claims, fence, bound=None):
    tag = claims.hold(Claim(f"job-{fence}", str(fence), "pdf", 0, 0, b""))
    if bound is not None:
        claims.bind(tag, bound)
    return tag


def _nothing():
    pass


def request_of(app, reporting, eventer=None, **options):
    """Return a request of a claimed job whose result backend always fails, and its message."""
    task = app.task(name="task", **options)(_nothing)
    task.backend = Mock(**{f"mark_as_{what}.side_effect": LookupError for what in ("revoked", "failure")})
    message = Mock(
        headers={"id": "id", "task": "task"},
        payload=((), {}, {}),
        delivery_tag=held(reporting.claims, 1),
        delivery_info={},
        properties={},
        channel=SimpleNamespace(inbox=inbox_of(reporting)),
    )
    request_end.install_task_end(task)
    made = task.Request(message, app=app, task=task, eventer=eventer)
    made._pool = None
    return made, message
