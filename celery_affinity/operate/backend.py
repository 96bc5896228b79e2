"""What an app's result backend knows of a job that Redis has forgotten. Backends are foreign code, and may hang."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from celery import Celery, states
from celery.backends.base import DisabledBackend

from ..observe.jobs import Job, unknown
from ..rules.protocol import MOST_WHY_BYTES

_STATES = {
    states.SUCCESS: "done",
    states.FAILURE: "failed",
    states.REVOKED: "revoked",
    states.STARTED: "running",
}

#: Largest number of characters shown of an exception.
_LONGEST_WHY = min(300, MOST_WHY_BYTES)


def job(app: Celery, id: str) -> Job:
    """Return what *app*'s result backend knows of a task; "unknown" if it knows nothing, or gives no answer."""
    found = meta(app, id)
    if isinstance(found, str):
        return unknown(id, f"never published here, or forgotten; {found}")
    state, result = str(found["status"]), found.get("result")
    ended, name, worker = found.get("date_done"), found.get("name"), found.get("worker")
    if state not in _STATES:
        known = "" if state == states.PENDING else f"; its result is {state}"
        return unknown(id, f"never published here, or forgotten{known}")
    return Job(
        id,
        _STATES[state],
        "backend",
        task=name if isinstance(name, str) else None,
        ended_s=_moment(ended) if state != states.STARTED else None,
        worker=worker if isinstance(worker, str) else None,
        why=said(result)[:_LONGEST_WHY] if state == states.FAILURE else None,
    )


def meta(app: Celery, id: str) -> Mapping[str, Any] | str:
    """Return what *app*'s result backend has of a task, as Celery says it; or, in words, why there is no answer."""
    try:
        if isinstance(app.backend, DisabledBackend):
            return "the app has no result backend"
        found = app.backend.get_task_meta(id)
        found["status"], found.get("result")  # is it what Celery says it is
    except Exception as exc:  # any: a backend is foreign code
        return f"the result backend gave no answer: {type(exc).__name__}"
    return found  # type: ignore[no-any-return]


def said(result: object) -> str:
    """Return an exception, or what a backend has instead of one, as type and message."""
    try:
        return f"{type(result).__name__}: {result}" if isinstance(result, BaseException) else str(result)
    except Exception as exc:  # any: the text of an exception, or of its arguments at any depth, is foreign code
        return f"{type(result).__name__}, whose text cannot be shown: {type(exc).__name__}"


def _moment(value: object) -> float | None:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    return value.timestamp() if isinstance(value, datetime) else None
