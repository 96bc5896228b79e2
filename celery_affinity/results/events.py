"""Send task events for all calls of a merged run, so that a monitor shows their states.

The worker sends the events of the primary call only, because it does not know which calls have merged. The field
*merged_into* of an event is the task id of the run.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from celery import Celery
from celery.app.task import Context
from celery.events.dispatcher import EventDispatcher
from celery.utils.saferepr import saferepr
from kombu.utils.encoding import safe_repr

from ..log_limit import limited_logger

logger = limited_logger(__name__)
#: Request attribute: True if the worker sends events.
SENDS_EVENTS = "affinity_sends_events"
#: Maximum number of events in one message.
_MAX_EVENTS_PER_MESSAGE = 1000


def are_events_sent(eventer: EventDispatcher | None) -> bool:
    """Return True if a worker's *eventer* sends task events. Without ``-E`` it only sends worker events."""
    return eventer is not None and eventer.enabled and (not eventer.groups or "task" in eventer.groups)


class CollectedEvents:
    """Replaces a worker's event dispatcher: collects events until the results are reported to all callers."""

    enabled = True

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def send(self, type_: str, **fields: Any) -> None:
        self.events.append((type_, {"timestamp": time.time(), **fields}))


@contextmanager
def collect_events(app: Celery, request: Context) -> Iterator[CollectedEvents | None]:
    """Yield a collector for events of *request*'s callers, or None without events. Try to send them at the end."""
    if not vars(request).get(SENDS_EVENTS):
        yield None
        return
    collected = CollectedEvents()
    try:
        yield collected
    finally:
        try:
            if collected.events:
                _send_all(app, request.hostname, collected.events)
        except Exception as exc:
            logger.warning("Events of the calls merged with task %s are not sent: %s", request.id, exc)


def _send_all(app: Celery, hostname: str | None, events: Sequence[tuple[str, dict[str, Any]]]) -> None:
    with app.producer_or_acquire() as producer:
        dispatcher = app.events.Dispatcher(
            producer.connection,
            hostname,
            channel=producer.channel,
            buffer_while_offline=False,
            buffer_group=frozenset({"task"}),
            buffer_limit=_MAX_EVENTS_PER_MESSAGE,
        )
        try:
            for type_, fields in events:
                dispatcher.send(type_, **fields)
            dispatcher.flush()
        finally:
            dispatcher.close()


def send_start(request: Any, run_id: str) -> None:
    """Send the events that Celery's worker sends at the start of a call."""
    _send(
        request,
        "task-received",
        run_id,
        name=request.name,
        args=request.argsrepr,
        kwargs=request.kwargsrepr,
        root_id=request.root_id,
        parent_id=request.parent_id,
        retries=request.request_dict.get("retries", 0),
        eta=None,
        expires=request.expires and request.expires.isoformat(),
    )
    _send(request, "task-started", run_id)


def send_success(request: Any, run_id: str, result: object) -> None:
    _send(request, "task-succeeded", run_id, result=saferepr(result, request.task.resultrepr_maxsize), runtime=None)


def send_failure(request: Any, run_id: str, error: BaseException, traceback: str | None) -> None:
    _send(request, "task-failed", run_id, exception=safe_repr(error), traceback=traceback or "")


def send_retry(request: Any, run_id: str, exc: BaseException) -> None:
    _send(request, "task-retried", run_id, exception=safe_repr(exc), traceback="")


def _send(request: Any, type_: str, run_id: str, **fields: object) -> None:
    """Send an event of a call, if events are enabled."""
    try:
        request.send_event(type_, merged_into=run_id, **fields)
    except Exception as exc:  # only the monitor misses it
        logger.warning("Event %s of task %s is not sent: %s", type_, request.id, exc)
