"""A backend for Django's tasks framework (Django 6.0 or newer): each task becomes a job for Celery's workers.

::

    TASKS = {"default": {"BACKEND": "celery_affinity.contrib.django_tasks.AffinityBackend", "QUEUES": ["pdf", "mail"]}}

The name of the queue is the type of worker. ``run_after`` is the ETA. The priorities of Django, -100 to 100, become
priorities from 0 to 10 by ``round((priority + 100) / 20)``, so about twenty neighbouring priorities are equal. The
higher priority is first, regardless of ``affinity_priority_order``. Workers must import this module, which Django's
`task` decorator does.

All runs are runs of one Celery task, `TASK`. Two entries in Celery's result backend describe a run: Celery's own one,
and a record with the call and its attempts, which Celery does not store. Both expire after ``result_expires``.
"""

import traceback
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from celery import Celery, shared_task, states
from celery.backends.base import DisabledBackend
from celery.exceptions import TaskPredicate
from celery.utils import uuid
from celery.utils.imports import symbol_by_name
from django.core.checks import CheckMessage, Error
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
from django.tasks.exceptions import TaskResultDoesNotExist
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.json import normalize_json
from django.utils.module_loading import import_string

from ..publishing.app_config import settings_of, uses_affinity_transport
from ..publishing.publish_call import current_app

#: Name of the Celery task that runs Django's tasks.
TASK = "celery_affinity.django_task"

#: Celery's priorities are 0 to 10.
_MAX_PRIORITY = 10

#: State of a record in the result backend. Celery replaces an entry with the state SUCCESS never.
_RECORD = "DJANGO_TASK"

#: Celery's state -> Django's. A job that waits for its retry can run again.
_STATUSES = {
    states.STARTED: TaskResultStatus.RUNNING,
    states.RETRY: TaskResultStatus.READY,
    states.SUCCESS: TaskResultStatus.SUCCESSFUL,
    states.FAILURE: TaskResultStatus.FAILED,
    states.REVOKED: TaskResultStatus.FAILED,
}


class AffinityBackend(BaseTaskBackend):
    """Enqueues Django's tasks for Celery's workers.

    ``OPTIONS``: ``app`` is the path of the Celery app, such as "shop.celery:app" (default: Celery's current app).
    """

    supports_defer = True
    supports_async_task = True
    supports_priority = True

    @property
    def app(self) -> Celery:
        path = self.options.get("app")
        app: Celery = symbol_by_name(path) if path else current_app()
        return app

    @property
    def supports_get_result(self) -> bool:
        return not isinstance(self.app.backend, DisabledBackend)

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Publish a job. Raises InvalidTask, and the errors of Celery's `apply_async`."""
        self.validate_task(task)
        result = TaskResult(
            task=task,
            id=uuid(),
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        record = _record_of(result)
        self._store(result.id, record)  # before a worker can store its attempt
        try:
            self.app.tasks[TASK].apply_async(
                (record,),
                task_id=result.id,
                queue=task.queue_name,
                priority=self._priority_of(task),
                eta=task.run_after,
                serializer="json",
                shadow=task.module_path,
            )
        except BaseException:
            if self.supports_get_result:
                self.app.backend.forget(_record_id(result.id))
            raise
        task_enqueued.send(type(self), task_result=result)
        return result

    def _priority_of(self, task: Task) -> int:
        priority: int = round((task.priority + 100) / 20)
        return _MAX_PRIORITY - priority if settings_of(self.app).priority_order == "lower-first" else priority

    def get_result(self, result_id: str) -> TaskResult:
        """Return the result of a run.

        Raises TaskResultDoesNotExist if the result is unknown or has expired, or if its record does not describe a task
        of this project.
        """
        stored = self.app.backend.get_task_meta(_record_id(result_id), cache=False)
        if stored["status"] != _RECORD:
            raise TaskResultDoesNotExist(result_id)
        meta = self.app.backend.get_task_meta(result_id, cache=False)
        try:
            return _result_of(result_id, self.alias, stored["result"], meta)
        except (AttributeError, ImportError, LookupError, TypeError, ValueError) as exc:
            raise TaskResultDoesNotExist(result_id) from exc

    def check(self, **_: Any) -> Iterator[CheckMessage]:
        if not uses_affinity_transport(self.app.conf.broker_transport):
            yield Error(
                f"The Celery app of the task backend {self.alias!r} does not use the transport of celery_affinity.",
                hint='Set broker_transport to "celery_affinity:Transport".',
                id="celery_affinity.E001",
            )

    def _store(self, result_id: str, record: Mapping[str, Any]) -> None:
        self.app.backend.store_result(_record_id(result_id), record, _RECORD)


def _record_id(result_id: str) -> str:
    return f"{result_id}.django"


def _record_of(result: TaskResult) -> dict[str, Any]:
    """Return the call and its attempts as JSON."""
    task = result.task
    return {
        "task": task.module_path,
        "priority": task.priority,
        "queue_name": task.queue_name,
        "run_after": _text(task.run_after),
        "backend": result.backend,
        "args": result.args,
        "kwargs": result.kwargs,
        "enqueued_at": _text(result.enqueued_at),
        "started_at": _text(result.started_at),
        "last_attempted_at": _text(result.last_attempted_at),
        "worker_ids": result.worker_ids,
    }


def _result_of(result_id: str, alias: str, record: Mapping[str, Any], meta: Mapping[str, Any]) -> TaskResult:
    """Return Django's result from a record and from *meta*, Celery's entry for the run."""
    task = _import_task(record["task"]).using(
        priority=record["priority"],
        queue_name=record["queue_name"],
        run_after=_time(record["run_after"]),
        backend=alias,
    )
    started_at = _time(record["started_at"])
    running = TaskResultStatus.RUNNING if started_at else TaskResultStatus.READY
    status = _STATUSES.get(meta["status"], running)
    result = TaskResult(
        task=task,
        id=result_id,
        status=status,
        enqueued_at=_time(record["enqueued_at"]),
        started_at=started_at,
        last_attempted_at=_time(record["last_attempted_at"]),
        finished_at=_time(meta.get("date_done")) if status in _FINISHED else None,
        args=record["args"],
        kwargs=record["kwargs"],
        backend=alias,
        errors=[_error_of(meta["result"], meta.get("traceback"))] if status == TaskResultStatus.FAILED else [],
        worker_ids=list(record["worker_ids"]),
    )
    if status == TaskResultStatus.SUCCESSFUL:
        _set(result, **{_VALUE: meta["result"]})
    return result


def _import_task(path: str) -> Task:
    """Return the task with the name *path*. Raises ValueError for another object, and the errors of the import."""
    task = import_string(path)
    if not isinstance(task, Task):
        raise ValueError(f"the name of a task of Django must lead to a Task, got: {path!r}")
    return task


#: Field of the returned value, which Django's backends set as well.
_VALUE = "_return_value"
_FINISHED = (TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED)


def _error_of(error: object, text: str | None = None) -> TaskError:
    kind = type(error)
    if text is None and isinstance(error, BaseException):
        text = "".join(traceback.format_exception(error))
    return TaskError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=text or str(error))


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


def _time(text: str | datetime | None) -> datetime | None:
    """Return the time of a record, or of Celery's entry, whose times are in UTC."""
    time: datetime | None = parse_datetime(text) if isinstance(text, str) else text
    if time is None or time.tzinfo is not None:
        return time
    return time.replace(tzinfo=UTC)


def _set(result: TaskResult, **fields: object) -> None:
    """Set fields of a result, which is frozen."""
    for name, value in fields.items():
        object.__setattr__(result, name, value)


@shared_task(bind=True, name=TASK)
def run_django_task(celery_task: Any, record: dict[str, Any]) -> Any:
    """Run one of Django's tasks, and return its normalized value. Sends Django's signals."""
    request = celery_task.request
    alias = record["backend"]
    backend = _import_task(record["task"]).using(backend=alias).get_backend()
    if request.delivery_info.get("redelivered") or request.retries:
        stored = backend.app.backend.get_task_meta(_record_id(request.id), cache=False)
        record = stored["result"] if stored["status"] == _RECORD else record
    now = timezone.now()
    record = {
        **record,
        "started_at": record["started_at"] or _text(now),
        "last_attempted_at": _text(now),
        "worker_ids": [*record["worker_ids"], request.hostname],
    }
    backend._store(request.id, record)
    result = _result_of(request.id, alias, record, {"status": states.STARTED})
    task_started.send(type(backend), task_result=result)
    context = (TaskContext(task_result=result),) if result.task.takes_context else ()
    try:
        value = normalize_json(result.task.call(*context, *result.args, **result.kwargs))
    except TaskPredicate:  # a retry, for example
        raise
    except Exception as exc:
        result.errors.append(_error_of(exc))
        _set(result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
        task_finished.send(type(backend), task_result=result)
        raise
    _set(result, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now(), **{_VALUE: value})
    task_finished.send(type(backend), task_result=result)
    return value
