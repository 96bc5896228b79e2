"""Publish a task call for a client without the task's code: checked, and once per Idempotency-Key.

Celery builds the message as for any call, so routes, defaults and signal handlers apply. The scheduler publishes it,
because it detects repeated requests.
"""

import hashlib
import json
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from celery import Celery
from celery.exceptions import QueueNotFound
from kombu import Connection
from kombu.exceptions import EncodeError

from ..errors import OptionError, refuse
from ..options import type_names
from ..options.call_options import OPTIONS, is_short_text
from ..options.key_templates import derived_id, derived_task_id
from ..options.type_names import is_type_name
from ..publishing.app_config import settings_of
from ..publishing.message import PROPERTY, encode_job
from ..publishing.publish_call import Capture
from ..scheduler import idempotency
from ..scheduler.idempotency import MadeJob
from ..scheduler.scheduler import Scheduler
from ..schema.job_record import NewJob
from ..schema.values import SECONDS_OR_0
from .jobs import Reach

#: Maximum length of an Idempotency-Key.
MAX_NAME_LENGTH = 255

#: Exceptions that `apply_async` raises for invalid arguments and options.
_CALL_ERRORS = (TypeError, ValueError, OverflowError, EncodeError, QueueNotFound)


class IdempotencyKeyReusedError(OptionError):
    """The Idempotency-Key was used for another request."""


@dataclass(frozen=True)
class Submission:
    """A requested call. *options*: options of `ACCEPTED`. *name*: the Idempotency-Key, or None."""

    task: str
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    name: str | None = None

    def __post_init__(self) -> None:
        name = self.name
        if name is not None and not (0 < len(name) <= MAX_NAME_LENGTH and name.isascii() and name.isprintable()):
            accepted = f"a text of up to {MAX_NAME_LENGTH} printable characters in ASCII"
            raise refuse("Idempotency-Key", accepted, name[:100])
        for option, value in self.options.items():
            if option not in ACCEPTED:
                raise OptionError(f"options must be of {', '.join(ACCEPTED)}, got: {option[:100]!r}")
            accepted_values, is_good = ACCEPTED[option]
            if value is not None and not is_good(value):
                raise refuse(option, accepted_values, value)

    @property
    def digest(self) -> str:
        """A hash of the request."""
        request = json.dumps([self.task, self.args, self.kwargs, self.options], sort_keys=True)
        return hashlib.sha256(request.encode()).hexdigest()


@dataclass(frozen=True)
class SubmittedIds:
    """The ids of a call, which are the same for all attempts to publish it."""

    task_id: str
    publish_id: str

    @classmethod
    def of(cls, name: str | None) -> "SubmittedIds":
        """Return the ids of the request with the Idempotency-Key *name*, or new ids for None."""
        if name is None:
            return cls(str(uuid.uuid4()), uuid.uuid4().hex)
        return cls(derived_task_id(f"idempotency {name}"), derived_id(f"idempotency {name}, published"))


def submit_task(
    app: Celery,
    request: Submission,
    ids: SubmittedIds,
    reach: Reach,
    connect: Callable[[], AbstractContextManager[Connection]],
) -> tuple[str, bool]:
    """Publish *request*. Return its task id, and True if it is new, not a repetition.

    *reach*, *connect*: open the scheduler and a kombu connection. Raises OptionError for a bad call, and
    IdempotencyKeyReusedError.
    """
    if request.name is not None:
        name = request.name
        with reach() as fleet:  # all cohorts, because the other request can have gone to another cohort
            replies = fleet.each(lambda scheduler: idempotency.made_jobs(scheduler, name))
        before = next((made for made in replies.answers.values() if made is not None), None)
        if before is not None:
            return _repeated(request, before)
    with connect() as connection:
        jobs = _capture_jobs(app, request, ids, connection)
    if not jobs:
        return ids.task_id, True  # published to a queue that is not scheduled
    with reach() as fleet:
        return fleet.ask(fleet.cohort_of(jobs[0].type), lambda scheduler: _publish(scheduler, app, request, ids, jobs))


def _publish(
    scheduler: Scheduler, app: Celery, request: Submission, ids: SubmittedIds, jobs: list[NewJob]
) -> tuple[str, bool]:
    if request.name is None:
        for published, job in zip(scheduler.publish(*jobs), jobs, strict=True):
            published.check(job)
        return ids.task_id, True
    made = MadeJob(request.digest, ids.task_id)
    before = idempotency.publish_once(scheduler, request.name, made, jobs, settings_of(app).idempotency)
    return (ids.task_id, True) if before is None else _repeated(request, before)


def _repeated(request: Submission, before: MadeJob) -> tuple[str, bool]:
    if before.digest != request.digest:
        raise IdempotencyKeyReusedError(
            f"Idempotency-Key {request.name!r} was used for another request, of task {before.task_id}"
        )
    return before.task_id, False


def _capture_jobs(app: Celery, request: Submission, ids: SubmittedIds, connection: Connection) -> list[NewJob]:
    """Return the jobs of the message that Celery builds for *request*. Empty if Celery has sent it."""
    if app.conf.task_always_eager:
        raise OptionError("task_always_eager runs tasks where they are called: nothing can be submitted")
    task, capture = app.tasks[request.task], Capture()
    options = {name: value for name, value in request.options.items() if value is not None}
    try:
        if request.name is not None:
            _check_scheduled(app, task, request, options)
        task.apply_async(
            tuple(request.args),
            request.kwargs,
            task_id=ids.task_id,
            producer=app.amqp.Producer(connection, auto_declare=False),
            retry=False,
            add_to_parent=False,
            serializer="json",
            **options,
            **{PROPERTY: capture},
        )
    except OptionError:
        raise
    except _CALL_ERRORS as exc:
        raise OptionError(f"task {request.task} cannot be called with these arguments: {str(exc)[:500]}") from exc
    return [
        encode_job(published.queue, published.message, replace(published.header, publish_id=ids.publish_id))
        for published in capture
    ]


def _check_scheduled(app: Celery, task: Any, request: Submission, options: Mapping[str, Any]) -> None:
    given = {**task._get_exec_options(), **options}
    routed = app.amqp.router.route(given, task.name, request.args, request.kwargs, task)
    queue = str(getattr(routed.get("queue"), "name", None) or "")
    if not settings_of(app).schedules(queue):
        raise OptionError(
            f"an Idempotency-Key needs a queue that is scheduled (affinity_queues): queue {queue!r} is kombu's own"
        )


def _is_seconds(value: object) -> bool:
    return SECONDS_OR_0(value) is None


def _is_time(value: object) -> bool:
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).year < 9000
    except ValueError:
        return False


_TIME = str(SECONDS_OR_0(None))
_ISO = "a time as ISO 8601 has it"

#: Options of a request: the accepted values as text, and a check. Our own options are in `options.call_options`.
ACCEPTED: dict[str, tuple[str, Callable[[object], bool]]] = {
    "queue": (type_names.ACCEPTED, is_type_name),
    **{name: (option.accepted_in_json, option.in_json) for name, option in OPTIONS.items() if option.in_json},
    "countdown": (_TIME, _is_seconds),
    "eta": (_ISO, _is_time),
    "expires": (f"{_TIME}, or {_ISO}", lambda value: _is_seconds(value) or _is_time(value)),
    "ignore_result": ("true or false", lambda value: isinstance(value, bool)),
    "time_limit": (_TIME, _is_seconds),
    "soft_time_limit": (_TIME, _is_seconds),
    "shadow": ("a text of up to 1,000 characters", is_short_text),
}
