"""Events of the callers of a merged run, from whoever tells them: a monitor shows the state of each caller.

The worker's own process sends those of the call whose message is run, and does not know which calls have merged. Field
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

#: Name of the attribute of a request that says whether its worker sends events.
SENDS_EVENTS = "affinity_sends_events"

#: Events that are sent as one message, at most.
_AT_ONCE = 1000


def are_events_sent(eventer: EventDispatcher | None) -> bool:
    """Return whether *eventer*, of a worker, sends events of tasks. Without ``-E`` it sends those of the worker."""
    return eventer is not None and eventer.enabled and (not eventer.groups or "task" in eventer.groups)


class CollectedEvents:
    """Takes the place of a worker's dispatcher of events: keeps them until all callers are told."""

    enabled = True

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def send(self, type_: str, **fields: Any) -> None:
        self.events.append((type_, {"timestamp": time.time(), **fields}))


@contextmanager
def collect_events(app: Celery, request: Context) -> Iterator[CollectedEvents | None]:
    """Yield what takes events of the callers of *request*; None if its worker sends none. Sends them in the end.

    Callers are told, whether or not events can be sent.
    """
    if not vars(request).get(SENDS_EVENTS):
        yield None
        return
    kept = CollectedEvents()
    try:
        yield kept
    finally:
        try:
            if kept.events:
                _send_all(app, request.hostname, kept.events)
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
            buffer_limit=_AT_ONCE,
        )
        try:
            for type_, fields in events:
                dispatcher.send(type_, **fields)
            dispatcher.flush()
        finally:
            dispatcher.close()


def send_start(request: Any, run_id: str) -> None:
    """Send the events by which a monitor knows a call whose run begins, as Celery's worker sends them."""
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
    """Send an event of a call, if events are sent."""
    try:
        request.send_event(type_, merged_into=run_id, **fields)
    except Exception as exc:  # a monitor misses it, no caller does
        logger.warning("Event %s of task %s is not sent: %s", type_, request.id, exc)
