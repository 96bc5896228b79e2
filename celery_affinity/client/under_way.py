"""Calls of Celery's functions that are under way, read from the stack with some of their values.

A process may import this package midway: its app names the transport by a text, which kombu imports for the first
connection. By then functions of stock Celery have begun to make that connection, and to publish what it is for. They
tell nobody what they know, and to replace them is too late.
"""

import inspect
from itertools import dropwhile
from traceback import walk_stack
from types import FrameType
from typing import Any, NamedTuple

from celery import Celery
from celery.app.task import Task

#: Names of the parameters and variables that are read, by the function that has them.
READ = {
    Celery._connection: ("self",),
    Celery.send_task: ("args", "kwargs", "route_name", "router", "task_id", "task_type"),
    Task.apply_async: ("options", "preopts"),
}

_BY_CODE = {inspect.unwrap(function).__code__: (function.__qualname__, names) for function, names in READ.items()}

_PACKAGE = __name__.partition(".")[0]


class PublishCall(NamedTuple):
    """A call. *function*: its name, if it is one of `READ`. *values*: what was read of it."""

    function: str
    values: dict[str, Any]


NONE = PublishCall("", {})


def calls() -> list[PublishCall]:
    """Return the calls on the stack, the innermost first, without those of this package that come before all others."""
    frames = (frame for frame, _ in walk_stack(inspect.currentframe()))
    return [_read(frame) for frame in dropwhile(_is_ours, frames)]


def _read(frame: FrameType) -> PublishCall:
    function, names = _BY_CODE.get(frame.f_code, ("", ()))
    known = frame.f_locals if names else {}
    return PublishCall(function, {name: known[name] for name in names if name in known})


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE
