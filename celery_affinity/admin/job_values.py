"""What an app's result backend knows of a job that Redis has forgotten. Backends are foreign code, and may hang.

What a job was called with, and what came of it. The values may be secrets: `affinity_show_values_to` hides them.

The arguments are those of the message, as its sender wrote them for people (Celery's ``argsrepr``, by which a sender
hides a secret). Once the message is gone, and for results, the app's result backend is asked, which may hang.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery import Celery, states
from celery.backends.base import DisabledBackend
from celery.utils.saferepr import saferepr

from ..publishing.app_config import settings_of
from ..reports.dead_letters import letter_headers
from ..reports.jobs import Job, unknown_job
from ..scheduler.reader import Reader
from ..schema.constants import MOST_WHY_BYTES
from ..schema.untrusted import MOST_NESTED, is_too_deep
from ..settings.table import PREFIX, SHOWN_TO

_STATES = {
    states.SUCCESS: "done",
    states.FAILURE: "failed",
    states.REVOKED: "revoked",
    states.STARTED: "running",
}

#: Largest number of characters shown of an exception.
_LONGEST_WHY = min(300, MOST_WHY_BYTES)


def backend_of_job(app: Celery, id: str) -> Job:
    """Return what *app*'s result backend knows of a task; "unknown" if it knows nothing, or gives no answer."""
    found = result_meta(app, id)
    if isinstance(found, str):
        return unknown_job(id, f"never published here, or forgotten; {found}")
    state, result = str(found["status"]), found.get("result")
    ended, name, worker = found.get("date_done"), found.get("name"), found.get("worker")
    if state not in _STATES:
        known = "" if state == states.PENDING else f"; its result is {state}"
        return unknown_job(id, f"never published here, or forgotten{known}")
    return Job(
        id,
        _STATES[state],
        "backend",
        task=name if isinstance(name, str) else None,
        ended_s=_moment(ended) if state != states.STARTED else None,
        worker=worker if isinstance(worker, str) else None,
        why=stored_result(result)[:_LONGEST_WHY] if state == states.FAILURE else None,
    )


def result_meta(app: Celery, id: str) -> Mapping[str, Any] | str:
    """Return what *app*'s result backend has of a task, as Celery says it; or, in words, why there is no answer."""
    try:
        if isinstance(app.backend, DisabledBackend):
            return "the app has no result backend"
        found = app.backend.get_task_meta(id)
        found["status"], found.get("result")  # is it what Celery says it is
    except Exception as exc:  # any: a backend is foreign code
        return f"the result backend gave no answer: {type(exc).__name__}"
    return found  # type: ignore[no-any-return]


def stored_result(result: object) -> str:
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


#: Largest number of characters of a result, as JSON, and of a traceback.
_LONGEST_RESULT, _LONGEST_TRACEBACK = 1_000_000, 100_000

#: Maximum number of characters shown of a result that is nested too deeply.
_LONGEST_DEEP = 1_000

#: Largest number of characters of arguments from a result backend: as many as Celery's ``argsrepr`` has.
_LONGEST_ARGUMENTS = 1024


@dataclass(frozen=True)
class JobValues:
    """What a job was called with, and what came of it; None: not known.

    *args*, *kwargs*: texts for people. *status*: Celery's word for the state of the result, such as "SUCCESS".
    *result*: of a success, as JSON has it; the text of a value that JSON has not. *error*: type and message of the
    exception of a failure, of a retry or of a revoke. *note*: why something is not shown.
    """

    args: str | None = None
    kwargs: str | None = None
    status: str | None = None
    result: object = None
    error: str | None = None
    traceback: str | None = None
    note: str | None = None


def hidden_reason(app: Celery, role: str = "admin") -> str | None:
    """Return why *role* does not see values, in words; None if it does. Commands have the role "admin"."""
    needed = settings_of(app).show_values_to
    if SHOWN_TO.index(role) >= SHOWN_TO.index(needed):
        return None
    return f"arguments, results and tracebacks are shown to {needed} ({PREFIX}show_values_to), not to {role}"


def decode_arguments(reader: Reader, job: Job) -> JobValues:
    """Return the arguments of *job* as its message has them, if there still is one."""
    headers = letter_headers(reader, job.job_id) if job.job_id else {}
    args, kwargs, note = (headers.get(name) for name in ("argsrepr", "kwargsrepr", "arguments"))
    return JobValues(args=_text(args), kwargs=_text(kwargs), note=_text(note))


def with_result(app: Celery, id: str, known: JobValues) -> JobValues:
    """Return *known* with what *app*'s result backend, foreign code that may hang, knows of the task *id*."""
    meta = result_meta(app, id)
    if isinstance(meta, str):
        return JobValues(known.args, known.kwargs, note="; ".join(each for each in (known.note, meta) if each))
    status, result = str(meta["status"]), meta.get("result")
    if status == states.PENDING:  # Celery's word for what a backend does not know
        return known
    shown, too_long = _as_json(result) if status == states.SUCCESS else (None, None)
    traceback = meta.get("traceback")
    return JobValues(
        args=known.args or _of_backend(meta, "args"),
        kwargs=known.kwargs or _of_backend(meta, "kwargs"),
        status=status,
        result=shown,
        error=stored_result(result) if isinstance(result, BaseException) else None,
        traceback=traceback[-_LONGEST_TRACEBACK:] if isinstance(traceback, str) else None,
        note=too_long or known.note,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _of_backend(meta: Mapping[str, Any], name: str) -> str | None:
    """Return arguments that a backend has, with Celery's ``result_extended``."""
    found = meta.get(name)
    return None if found is None else saferepr(found, maxlen=_LONGEST_ARGUMENTS)


def _as_json(value: object) -> tuple[object, str | None]:
    """Return *value* as JSON has it, and why it is not shown, or only as a text."""
    if is_too_deep(value):  # what writes JSON, and the report around it, calls itself for each level
        text = saferepr(value, maxlen=_LONGEST_DEEP)
        return text, f"the result is nested more than {MOST_NESTED} levels deep: its beginning is shown as a text"
    try:
        text = json.dumps(value, allow_nan=False)
        found: object = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        found = text = saferepr(value, maxlen=_LONGEST_RESULT)
    if len(text) > _LONGEST_RESULT:
        return None, f"the result has {len(text):,} characters, of which {_LONGEST_RESULT:,} at most are shown"
    return found, None
