"""Connect an app, or a connection, to a scheduler: for commands, checks, the web UI, Flower and `explain`.

All of them use the timeout `PATIENCE_S`, and no other module opens a connection for them. Publishers and workers use
their existing channels, and retry by Celery's own settings.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from celery import Celery
from celery.canvas import Signature
from kombu import Connection, Queue
from kombu.transport.redis import Channel

from ..errors import AffinityError, CohortDownError, TransportError
from ..options.affinity import affinity_of
from ..options.recurring import check_name
from ..publishing import publish_call, recurring
from ..publishing.app_config import settings_of, tasks_of
from ..publishing.option_checks import options_in_routes
from ..reports import cohorts
from ..reports.explain import Explanation
from ..scheduler.cohorts import Cohorts
from ..scheduler.scheduler import Scheduler
from ..schema.keys import StockLists
from ..settings.cohorts import DEFAULT
from ..settings.table import Settings
from .channel import AffinityChannel

#: Celery's default for the setting ``task_default_queue``.
_DEFAULT_QUEUE = "celery"


def stock_lists_of(app: Celery) -> StockLists:
    """Return the Redis lists to which stock Celery's producers of *app* could publish.

    These are the lists of all queues in the app's settings and tasks, and of Celery's default queue, because a producer
    without this transport ignores ``affinity=``.
    """
    options: Mapping[str, Any] = app.conf.broker_transport_options or {}
    try:
        settings = settings_of(app)
    except AffinityError:  # with invalid settings, workers do not start and `check` reports the cause
        settings = Settings()
    declared = [queue for queue in app.conf.task_queues or () if isinstance(queue, Queue)]
    exchanges = [app.conf.task_default_exchange, *(queue.exchange.name for queue in declared if queue.exchange)]
    return StockLists(
        queues=_names(_queues(app, settings, declared)),
        exchanges=_names([*exchanges, app.conf.task_default_queue, _DEFAULT_QUEUE]),
        steps=tuple(options.get("priority_steps") or Channel.priority_steps),
        sep=options.get("sep") or Channel.sep,
        schedules=settings.schedules,
        ingests=settings.ingest,
    )


def _queues(app: Celery, settings: Settings, declared: list[Queue]) -> Iterator[object]:
    yield from (_DEFAULT_QUEUE, app.conf.task_default_queue)
    yield from (declared_queue.name for declared_queue in declared)
    for _, options in options_in_routes(app.conf):
        queue = options.get("queue")
        yield getattr(queue, "name", queue)
    yield from settings.task_types.values()
    for task in tasks_of(app).values():
        yield getattr(task, "queue", None)
        try:
            yield affinity_of(task).type
        except AffinityError:
            continue


def _names(candidates: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in candidates if isinstance(name, str) and name))


#: Seconds for which an unresponsive broker is retried. Each URL of a failover list is tried once, and the first one
#: twice, without a pause; no attempt begins later than this.
PATIENCE_S = 5.0


def connect_app(connection: Connection) -> None:
    """Open a connection within `PATIENCE_S`. Raises OperationalError if no server answers."""
    attempts = len(connection.alt) or 1
    connection.ensure_connection(max_retries=attempts, interval_start=0, interval_step=0, timeout=PATIENCE_S)


def scheduler_on(connection: Connection, broker_transport: object, cohort: str = DEFAULT) -> Scheduler:
    """Open a connection and return the scheduler of a cohort on it. Its ``reader`` never writes.

    Raises TransportError if the connection does not use this transport (*broker_transport* is the user's value),
    OperationalError if no server answers, and SchemaError if the data there has another schema.
    """
    return channel_on(connection, broker_transport).scheduler_of(cohort)


def channel_on(connection: Connection, broker_transport: object) -> AffinityChannel:
    """Open a connection and return its channel. Raises the errors of `connect_app` and `channel_of`."""
    connect_app(connection)
    return channel_of(connection, broker_transport)


def channel_of(connection: Connection, broker_transport: object) -> AffinityChannel:
    """Return the channel of an open connection. Raises TransportError if it does not use this transport."""
    channel = connection.default_channel
    if not isinstance(channel, AffinityChannel):
        raise TransportError(f"broker_transport must be 'celery_affinity:Transport', got: {broker_transport!r}")
    return channel


def fleet_on(connection: Connection, broker_transport: object, cohort: str | None = None) -> Cohorts:
    """Open a connection and return all its cohorts, or only *cohort*. Raises the errors of `scheduler_on`."""
    if cohort is not None:
        return Cohorts.alone(scheduler_on(connection, broker_transport, cohort))
    return channel_on(connection, broker_transport).fleet


@contextmanager
def fleet_of(app: Celery) -> Iterator[Cohorts]:
    """Yield all cohorts of *app*, on a connection from its pool. Raises the errors of `scheduler_on`."""
    with app.connection_or_acquire() as connection:
        yield fleet_on(connection, app.conf.broker_transport)


@contextmanager
def scheduler_of(app: Celery) -> Iterator[Scheduler]:
    """Yield the scheduler of *app*, on a connection from its pool. Raises the errors of `scheduler_on`."""
    with app.connection_or_acquire() as connection:
        yield scheduler_on(connection, app.conf.broker_transport)


def explain(app: Celery, task_id: str) -> Explanation:
    """Return the state of the newest job of *task_id*, and the reason why it waits. Read-only.

    Raises TransportError if *app* uses another transport. Raises kombu's OperationalError if the broker does not
    answer, after at most 5 s plus ``broker_connection_timeout``.
    """
    with app.connection_or_acquire() as connection:
        return cohorts.explain_in_all(fleet_on(connection, app.conf.broker_transport), task_id, stock_lists_of(app))


def recur(name: str, signature: Signature, *, stale_after: float, since: str = "enqueue") -> None:
    """Call *signature* whenever no matching call became pending for *stale_after* seconds.

    A second `recur` with the same name replaces the first. Workers and `celery affinity dispatcher` make the calls
    until `stop`.

    - *signature*: a call of a task with ``merge=``. A call matches if it has the same task, type and merge key, merged
      or not, regardless of the caller.
    - *since*: "end" measures from the end of the last successful run.

    Raises OptionError for a call that cannot recur, and the errors of `explain`.
    """
    app = signature.app if isinstance(signature, Signature) else publish_call.current_app()
    call = recurring.call_of_signature(app, name, signature, stale_after=stale_after, since=since)
    with app.connection_or_acquire() as connection:
        channel_on(connection, app.conf.broker_transport).scheduler_for(call.type).declare_recurring([call])


def stop(name: str, app: Celery | None = None) -> bool:
    """Stop the recurring call *name* of *app* (default: the current app). Return True if it existed.

    A call in ``affinity_recurring`` is declared again when a worker starts after that setting has changed. Raises the
    errors of `explain`.
    """
    check_name(name)
    app = app or publish_call.current_app()
    with app.connection_or_acquire() as connection:
        fleet = fleet_on(connection, app.conf.broker_transport)
        outcome = fleet.act_in_each(lambda scheduler: scheduler.remove_recurring(name))
    if outcome.down and not any(outcome.answers.values()):
        raise CohortDownError(*next(iter(outcome.down.items())))
    return any(outcome.answers.values())
