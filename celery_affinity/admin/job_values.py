"""Read a job's arguments and outcome, from its message and the app's result backend.

The values can be secrets: `affinity_show_values_to` hides them. Arguments are shown in the readable form of the message
(Celery's ``argsrepr``, in which a sender can hide secrets). Results, and arguments of a deleted message, are read from
the result backend. Backends are third-party code and can block.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery import Celery, states
from celery.backends.base import DisabledBackend
from celery.utils.saferepr import saferepr

from ..publishing.app_config import settings_of
from ..reports.dead_letters import letter_headers, listed_arguments
from ..reports.jobs import Job, unknown_job
from ..scheduler.cohorts import Cohorts
from ..schema.constants import MAX_WHY_BYTES
from ..schema.untrusted import MAX_NESTED, is_too_deep
from ..settings.table import PREFIX, SHOWN_TO

_STATES = {states.SUCCESS: "done", states.FAILURE: "failed", states.REVOKED: "revoked", states.STARTED: "running"}

#: Maximum length of an exception's text.
_MAX_WHY_LENGTH = min(300, MAX_WHY_BYTES)


def backend_of_job(app: Celery, id: str) -> Job:
    """Return the facts of a task in *app*'s result backend, or an "unknown" job without an answer."""
    meta = result_meta(app, id)
    if isinstance(meta, str):
        return unknown_job(id, f"never published here, or forgotten; {meta}")
    state, result = str(meta["status"]), meta.get("result")
    ended, name, worker = meta.get("date_done"), meta.get("name"), meta.get("worker")
    if state not in _STATES:
        suffix = "" if state == states.PENDING else f"; its result is {state}"
        return unknown_job(id, f"never published here, or forgotten{suffix}")
    return Job(
        id,
        _STATES[state],
        "backend",
        task=name if isinstance(name, str) else None,
        ended_s=_timestamp(ended) if state != states.STARTED else None,
        worker=worker if isinstance(worker, str) else None,
        why=stored_result(result)[:_MAX_WHY_LENGTH] if state == states.FAILURE else None,
    )


def result_meta(app: Celery, id: str) -> Mapping[str, Any] | str:
    """Return the task's metadata in *app*'s result backend, or the reason why there is no answer, as text."""
    try:
        if isinstance(app.backend, DisabledBackend):
            return "the app has no result backend"
        meta = app.backend.get_task_meta(id)
        meta["status"], meta.get("result")  # raises unless it has Celery's format
    except Exception as exc:  # any: a backend is third-party code
        return f"the result backend gave no answer: {type(exc).__name__}"
    return meta  # type: ignore[no-any-return]


def stored_result(result: object) -> str:
    """Return an exception, or the backend's substitute for it, as type and message."""
    try:
        return f"{type(result).__name__}: {result}" if isinstance(result, BaseException) else str(result)
    except Exception as exc:  # any: the text of an exception, or of its nested arguments, is third-party code
        return f"{type(result).__name__}, whose text cannot be shown: {type(exc).__name__}"


def _timestamp(value: object) -> float | None:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    return value.timestamp() if isinstance(value, datetime) else None


#: Maximum lengths of a result, as JSON, and of a traceback, in characters.
_MAX_RESULT_LENGTH, _MAX_TRACEBACK_LENGTH = 1_000_000, 100_000

#: Maximum number of characters shown of a result that is nested too deeply.
_MAX_DEEP_LENGTH = 1_000

#: Maximum length of arguments from a result backend, the same as of Celery's ``argsrepr``.
_MAX_ARGUMENTS_LENGTH = 1024


@dataclass(frozen=True)
class JobValues:
    """Arguments and outcome of a job. Unknown values are None.

    - *args*, *kwargs*: readable text.
    - *status*: Celery's state of the result, such as "SUCCESS".
    - *result*: a successful result as JSON, or as text if JSON cannot represent it.
    - *error*: type and message of the exception after a failure, retry or revoke.
    - *note*: why something is not shown.
    """

    args: str | None = None
    kwargs: str | None = None
    status: str | None = None
    result: object = None
    error: str | None = None
    traceback: str | None = None
    note: str | None = None


def hidden_reason(app: Celery, role: str = "admin") -> str | None:
    """Return as text why *role* does not see values, or None if it does. Commands have the role "admin"."""
    needed = settings_of(app).show_values_to
    if SHOWN_TO.index(role) >= SHOWN_TO.index(needed):
        return None
    return f"arguments, results and tracebacks are shown to {needed} ({PREFIX}show_values_to), not to {role}"


def message_arguments(fleet: Cohorts, job: Job) -> JobValues:
    """Return the arguments in the message of *job*, if it still exists."""
    job_id = job.job_id
    if not job_id:
        return JobValues()
    headers = fleet.ask(job.cohort or fleet.names[0], lambda scheduler: letter_headers(scheduler.reader, job_id))
    args, kwargs, note = (headers.get(name) for name in ("argsrepr", "kwargsrepr", "arguments"))
    return JobValues(args=_text(args), kwargs=_text(kwargs), note=_text(note))


def arguments_of_jobs(fleet: Cohorts, jobs: Sequence[Job]) -> dict[str, dict[str, str]]:
    """Return the arguments in the messages of *jobs* by job id and by name, as far as the messages exist."""
    ids: dict[str, list[str]] = {}
    for job in jobs:
        ids.setdefault(job.cohort or fleet.names[0], []).append(job.job_id or "")

    def arguments_in(name: str) -> dict[str, dict[str, str]]:
        return fleet.ask(name, lambda scheduler: listed_arguments(scheduler.reader, ids[name]))

    return {job_id: arguments for name in ids for job_id, arguments in arguments_in(name).items()}


def with_result(app: Celery, id: str, values: JobValues) -> JobValues:
    """Return *values* with the task's outcome in *app*'s result backend. The backend can block."""
    meta = result_meta(app, id)
    if isinstance(meta, str):
        return JobValues(values.args, values.kwargs, note="; ".join(note for note in (values.note, meta) if note))
    status, result = str(meta["status"]), meta.get("result")
    if status == states.PENDING:  # Celery's state for a task that the backend does not have
        return values
    shown, too_long = _as_json(result) if status == states.SUCCESS else (None, None)
    traceback = meta.get("traceback")
    return JobValues(
        args=values.args or _stored_arguments(meta, "args"),
        kwargs=values.kwargs or _stored_arguments(meta, "kwargs"),
        status=status,
        result=shown,
        error=stored_result(result) if isinstance(result, BaseException) else None,
        traceback=traceback[-_MAX_TRACEBACK_LENGTH:] if isinstance(traceback, str) else None,
        note=too_long or values.note,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _stored_arguments(meta: Mapping[str, Any], name: str) -> str | None:
    """Return arguments stored by a backend with Celery's ``result_extended``."""
    arguments = meta.get(name)
    return None if arguments is None else saferepr(arguments, maxlen=_MAX_ARGUMENTS_LENGTH)


def _as_json(value: object) -> tuple[object, str | None]:
    """Return *value* as JSON, and why it is not shown or only shown as text."""
    if is_too_deep(value):  # JSON encoders recurse for each level
        text = saferepr(value, maxlen=_MAX_DEEP_LENGTH)
        return text, f"the result is nested more than {MAX_NESTED} levels deep: its beginning is shown as a text"
    try:
        text = json.dumps(value, allow_nan=False)
        shown: object = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        shown = text = saferepr(value, maxlen=_MAX_RESULT_LENGTH)
    if len(text) > _MAX_RESULT_LENGTH:
        return None, f"the result has {len(text):,} characters, of which {_MAX_RESULT_LENGTH:,} at most are shown"
    return shown, None
