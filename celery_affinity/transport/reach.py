"""The one way from an app, or a connection, to a scheduler: for commands, checks, the page, Flower and `explain`.

All of them have one patience, `PATIENCE_S`, and no other module opens a connection for them. Publishers and workers go
another way: they have a channel already, and retry by Celery's own settings.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from celery import Celery
from celery.canvas import Signature
from kombu import Connection

from ..client import publishing_app, recurring
from ..client.stock_lists_of import stock_lists_of
from ..errors import CohortDownError, TransportError
from ..observe import cohorts
from ..observe.explain import Explanation
from ..rules.cohorts import DEFAULT
from ..rules.recurring import check_name
from ..server.fleet import WholeFleet
from ..server.scheduler import Scheduler
from .channel import AffinityChannel

#: Longest time, s, for which a broker that does not answer is tried. Each URL of a failover list is tried once and the
#: first once more, without a pause; no try begins later than this.
PATIENCE_S = 5.0


def connect(connection: Connection) -> None:
    """Open a connection, with `PATIENCE_S`. Raises OperationalError if no server answers."""
    tries = len(connection.alt) or 1
    connection.ensure_connection(max_retries=tries, interval_start=0, interval_step=0, timeout=PATIENCE_S)


def scheduler_on(connection: Connection, broker_transport: object, cohort: str = DEFAULT) -> Scheduler:
    """Return the scheduler of a cohort on a connection, which is opened; its ``reader`` reads without a write.

    Raises TransportError if the connection does not use this transport (*broker_transport*: what the user set instead),
    OperationalError if no server answers, SchemaError if the data there has another schema.
    """
    return channel_on(connection, broker_transport).scheduler_of(cohort)


def channel_on(connection: Connection, broker_transport: object) -> AffinityChannel:
    """Return the channel of a connection, which is opened. Raises as `connect` and `channel_of` do."""
    connect(connection)
    return channel_of(connection, broker_transport)


def channel_of(connection: Connection, broker_transport: object) -> AffinityChannel:
    """Return the channel of an open connection. Raises TransportError if it does not use this transport."""
    channel = connection.default_channel
    if not isinstance(channel, AffinityChannel):
        raise TransportError(f"broker_transport must be 'celery_affinity:Transport', got: {broker_transport!r}")
    return channel


def fleet_on(connection: Connection, broker_transport: object, cohort: str | None = None) -> WholeFleet:
    """Return all cohorts on a connection, which is opened, or the one that is named. Raises as `scheduler_on` does."""
    if cohort is not None:
        return WholeFleet.alone(scheduler_on(connection, broker_transport, cohort))
    return channel_on(connection, broker_transport).fleet


@contextmanager
def fleet_of(app: Celery) -> Iterator[WholeFleet]:
    """Yield all cohorts of *app*, on a connection from its pool. Raises what `scheduler_on` does."""
    with app.connection_or_acquire() as connection:
        yield fleet_on(connection, app.conf.broker_transport)


@contextmanager
def scheduler_of(app: Celery) -> Iterator[Scheduler]:
    """Yield the scheduler of *app*, on a connection from its pool. Raises what `scheduler_on` does."""
    with app.connection_or_acquire() as connection:
        yield scheduler_on(connection, app.conf.broker_transport)


def explain(app: Celery, task_id: str) -> Explanation:
    """Return the state of the newest job of *task_id*, and why it waits. Read only.

    Raises TransportError if *app* uses another transport, and kombu's OperationalError if the broker does not answer:
    after 5 s, plus ``broker_connection_timeout`` at most.
    """
    with app.connection_or_acquire() as connection:
        return cohorts.explain(fleet_on(connection, app.conf.broker_transport), task_id, stock_lists_of(app))


def recur(name: str, signature: Signature, *, stale_after: float, since: str = "enqueue") -> None:
    """Call *signature* whenever no matching call became pending for *stale_after* s.

    A second `recur` with the same name replaces the first. *signature*: a call of a task with ``merge=``. A call
    matches if it has the same task, type and merge key, merged or not, whoever makes it. *since*: "end" counts from the
    end of the last successful run. Workers and `celery affinity dispatcher` make the calls until `stop`.

    Raises OptionError for a call that cannot recur, and the errors of `explain`.
    """
    app = signature.app if isinstance(signature, Signature) else publishing_app.current()
    call = recurring.call_of_signature(app, name, signature, stale_after=stale_after, since=since)
    with app.connection_or_acquire() as connection:
        channel_on(connection, app.conf.broker_transport).scheduler_for(call.type).recur([call])


def stop(name: str, app: Celery | None = None) -> bool:
    """Stop the recurring call *name*. Return whether there was one. *app*: the current app by default.

    A call in ``affinity_recurring`` is declared again when a worker starts after that setting has changed. Raises the
    errors of `explain`.
    """
    check_name(name)
    app = app or publishing_app.current()
    with app.connection_or_acquire() as connection:
        fleet = fleet_on(connection, app.conf.broker_transport)
        asked = fleet.act_in_each(lambda scheduler: scheduler.stop(name))
    if asked.down and not any(asked.answers.values()):
        raise CohortDownError(*next(iter(asked.down.items())))
    return any(asked.answers.values())
