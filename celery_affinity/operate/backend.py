"""What an app's result backend knows of a job that Redis has forgotten. Backends are foreign code, and may hang."""

from datetime import datetime

from celery import Celery, states

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
    try:
        meta = app.backend.get_task_meta(id)
        state, result = str(meta["status"]), meta.get("result")
        ended, name, worker = meta.get("date_done"), meta.get("name"), meta.get("worker")
    except NotImplementedError:
        return unknown(id, "never published here, or forgotten; the app has no result backend")
    except Exception as exc:  # any: a backend is foreign code
        return unknown(
            id, f"forgotten, or never published here; the result backend gave no answer: {type(exc).__name__}"
        )
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
        why=_said(result) if state == states.FAILURE else None,
    )


def _said(result: object) -> str:
    text = f"{type(result).__name__}: {result}" if isinstance(result, BaseException) else str(result)
    return text[:_LONGEST_WHY]


def _moment(value: object) -> float | None:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    return value.timestamp() if isinstance(value, datetime) else None
