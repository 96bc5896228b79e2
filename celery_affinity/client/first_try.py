"""What a retry finds of its first try: the mode, and until when it may wait.

A retry drops the properties of its message, but it is published while the task runs, whose request still has them.
"""

import time
from collections.abc import Mapping
from typing import NamedTuple

from celery._state import get_current_task
from celery.app.task import Task

from ..clock import now_s
from ..errors import OptionError
from ..rules.affinity import Affinity
from .stamp import PROPERTY, Message


class Until(NamedTuple):
    """When a job expires, for its retry. *expires*: what its message says. *until_s*: by this machine's `now_s`."""

    expires: object
    until_s: float


def left_by(task: Task | None, message: Message) -> object:
    """Return what the first try has left for *message*, a publish of *task*; None if it is no retry.

    A retry has the task id of the run that publishes it. So has a task that replaces another, which is no retry.
    """
    stack = getattr(task, "request_stack", None)
    request = stack.top if stack is not None else None
    if request is None or request.id is None:
        return None
    headers, properties = message["headers"], message["properties"]
    nesting = request.replaced_task_nesting
    if (
        request.id != (headers.get("id") or properties.get("correlation_id"))
        or headers.get("replaced_task_nesting", nesting) != nesting
    ):
        return None
    return _left_in(request.properties)


def mode_of_run() -> bool | None:
    """Return the mode of the job that this thread runs: True on demand. None if there is none, or nobody said it."""
    task = get_current_task()
    return None if task is None else mode_in(_left_in(task.request.properties))


def _left_in(properties: object) -> object:
    """Return what a message's properties have left for its retry: only the mode, if stock Celery sent the message."""
    if not isinstance(properties, Mapping):
        return None
    on_demand = properties.get("on_demand")
    return properties.get(PROPERTY, None if on_demand is None else {"on_demand": on_demand})


def mode_in(left: object) -> bool | None:
    """Return the mode that a first try has left; None if there is none, or what is there was not written by us."""
    if not isinstance(left, Mapping):
        return None
    try:
        return Affinity(on_demand=left.get("on_demand")).on_demand
    except OptionError:
        return None


def expires_at(expires: object, left: object) -> float | None:
    """Return when a retry expires that has its first try's *expires*, Unix time in s by this host's clock.

    None if the first try left no time, or one for another *expires*.
    """
    until = left.get("until") if isinstance(left, Mapping) else None
    if not isinstance(until, Until) or until.expires != expires:
        return None
    return time.time() + until.until_s - now_s()
