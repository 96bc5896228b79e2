"""What a job was called with, and what came of it. The values may be secrets: `affinity_show_values_to` hides them.

The arguments are those of the message, as its sender wrote them for people (Celery's ``argsrepr``, by which a sender
hides a secret). Once the message is gone, and for results, the app's result backend is asked, which may hang.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery import Celery, states
from celery.utils.saferepr import saferepr

from ..client.of_app import settings_of
from ..observe.dead_letters import headers_of
from ..observe.jobs import Job
from ..rules.settings import PREFIX, SHOWN_TO
from ..rules.untrusted import MOST_NESTED, is_too_deep
from ..server.reader import Reader
from . import backend

#: Largest number of characters of a result, as JSON, and of a traceback.
_LONGEST_RESULT, _LONGEST_TRACEBACK = 1_000_000, 100_000

#: Maximum number of characters shown of a result that is nested too deeply.
_LONGEST_DEEP = 1_000

#: Largest number of characters of arguments from a result backend: as many as Celery's ``argsrepr`` has.
_LONGEST_ARGUMENTS = 1024


@dataclass(frozen=True)
class Values:
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


def why_hidden(app: Celery, role: str = "admin") -> str | None:
    """Return why *role* does not see values, in words; None if it does. Commands have the role "admin"."""
    needed = settings_of(app).show_values_to
    if SHOWN_TO.index(role) >= SHOWN_TO.index(needed):
        return None
    return f"arguments, results and tracebacks are shown to {needed} ({PREFIX}show_values_to), not to {role}"


def arguments(reader: Reader, job: Job) -> Values:
    """Return the arguments of *job* as its message has them, if there still is one."""
    headers = headers_of(reader, job.job_id) if job.job_id else {}
    args, kwargs, note = (headers.get(name) for name in ("argsrepr", "kwargsrepr", "arguments"))
    return Values(args=_text(args), kwargs=_text(kwargs), note=_text(note))


def with_result(app: Celery, id: str, known: Values) -> Values:
    """Return *known* with what *app*'s result backend, foreign code that may hang, knows of the task *id*."""
    meta = backend.meta(app, id)
    if isinstance(meta, str):
        return Values(known.args, known.kwargs, note="; ".join(each for each in (known.note, meta) if each))
    status, result = str(meta["status"]), meta.get("result")
    if status == states.PENDING:  # Celery's word for what a backend does not know
        return known
    shown, too_long = _as_json(result) if status == states.SUCCESS else (None, None)
    traceback = meta.get("traceback")
    return Values(
        args=known.args or _of_backend(meta, "args"),
        kwargs=known.kwargs or _of_backend(meta, "kwargs"),
        status=status,
        result=shown,
        error=backend.said(result) if isinstance(result, BaseException) else None,
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
