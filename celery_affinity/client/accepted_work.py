"""Which calls are part of work that was accepted before: no bound of ``affinity_max_pending`` holds these back.

A call is fresh, and may be refused or dropped, if nothing says that it follows from a run: no task runs in this thread,
the message names no parent and is no retry, and this process is not telling how a task ended. Else an accepted workflow
would be cut in two. A thread that a task has started publishes fresh calls.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from celery._state import get_current_worker_task

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_tells_an_end: ContextVar[bool] = ContextVar("celery_affinity_tells_an_end", default=False)


@contextmanager
def telling_an_end() -> Iterator[None]:
    """Let what is published follow from the end of a task: error callbacks, the body of a chord."""
    token = _tells_an_end.set(True)
    try:
        yield
    finally:
        _tells_an_end.reset(token)


def tells_an_end(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return *function*, which tells the end of a task, with `telling_an_end` around it."""

    @wraps(function)
    def telling(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with telling_an_end():
            return function(*args, **kwargs)

    return telling


def is_fresh(headers: Mapping[str, Any]) -> bool:
    """Return whether the message with *headers*, which is published now, begins work of its own."""
    follows = headers.get("parent_id") or headers.get("retries") or _tells_an_end.get()
    return not follows and get_current_worker_task() is None
