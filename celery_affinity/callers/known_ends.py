"""The end of a task that the result backend knows: of a call itself, or of a run, for the other callers of the run."""

from collections.abc import Callable
from typing import Any, NamedTuple

from celery import Celery, states
from celery.app.task import Task
from celery.exceptions import TaskRevokedError

from ..client.of_app import merge_of
from ..errors import ResultLostError


class Succeeded(NamedTuple):
    """A good end of a run. *result_of* returns the result of the caller with this job id."""

    result_of: Callable[[str], Any]


class Failed(NamedTuple):
    """A bad end of a run. *traceback*: a text, or None."""

    error: BaseException
    traceback: str | None = None


def is_revoked(end: Succeeded | Failed | None) -> bool:
    """Return whether the call was revoked, or has expired."""
    return isinstance(end, Failed) and isinstance(end.error, TaskRevokedError)


def end_of_call(app: Celery, task_name: str, task_id: str) -> Succeeded | Failed | None:
    """Return the end of a call; None if nobody knows one, or the result backend does not answer."""
    backend = app.tasks[task_name].backend
    if str(backend.as_uri()).startswith("rpc"):
        return None  # the results are in the caller's queue
    try:
        return _end(backend.get_task_meta(task_id))
    except Exception:  # no backend, or it does not answer
        return None


def end_of_run(app: Celery, task_name: str, task_id: str) -> Succeeded | Failed | None:
    """Return the end of a run for its other callers; None if nobody knows one. Raises what the backend raises."""
    task = app.tasks[task_name]
    try:
        end = _end(task.backend.get_task_meta(task_id))
    except NotImplementedError:  # no backend
        return None
    if isinstance(end, Succeeded) and _splits(task):
        return Failed(ResultLostError("the run of this call succeeded, but the call's part of the result is lost"))
    return end


def _end(meta: dict[str, Any]) -> Succeeded | Failed | None:
    if meta["status"] == states.SUCCESS:
        return Succeeded(lambda _: meta["result"])
    return Failed(meta["result"], meta.get("traceback")) if meta["status"] in states.READY_STATES else None


def _splits(task: Task) -> bool:
    merge = merge_of(task)
    return merge is not None and merge.split is not None
