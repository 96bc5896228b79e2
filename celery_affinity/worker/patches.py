"""The changes to Celery's, billiard's and kombu's objects in a worker on this transport; `PATCHED` names each.

``docs/internals/patches.md`` gives the reasons. A change that needs to know more has a module of its own.
"""

import logging
from collections.abc import Callable
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import redis
from kombu.exceptions import OperationalError

from ..client.revokes import Revoked
from ..membership.host import Host
from ..membership.membership import Membership
from ..server import received
from ..server.passing import passes, refuses_writes
from . import end_of_task, pools, runs
from .reconnecting import Reconnecting
from .seats import Seats

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer

logger = logging.getLogger(__name__)

#: Time, s, that a connection lasts at least if the server is fit; first pause after one that did not, and longest, s.
_SHORT_S = 0.5
_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0

#: Attributes of Celery's, billiard's and kombu's objects that are replaced, by class or module.
PATCHED = (
    "Blueprint.start",
    "Connection.ensure_connection",
    "Consumer._limit_task",
    "Consumer._schedule_bucket_request",
    "Consumer.call_soon",
    "Consumer.connection_for_read",
    "Consumer.ensure_connected",
    "Consumer.on_task_request",
    "Consumer.reset_rate_limits",
    "Consumer.update_strategies",
    "AsynPool._track_child_process",
    "ResultHandler._flush_outqueue",
    "ResultHandler._recv_message",
    "TaskPool.apply_async",
    "TaskPool.flush",
    "RedisBackend.on_chord_part_return",
    "Task.Request",
    "Task.run",
    "kombu.utils.functional.sleep",
)


def connect_as_a_worker(consumer: "Consumer", on_revoked: Callable[[Revoked], None]) -> None:
    """Have *on_revoked* called with the revokes of each broadcast, on all connections of *consumer*.

    With green pools remote control has a connection of its own.
    """
    connection_for_read = consumer.connection_for_read

    def connecting(*args: Any, **kwargs: Any) -> Any:
        connection = connection_for_read(*args, **kwargs)
        connection.transport.on_revoked = on_revoked
        return connection

    consumer.connection_for_read = connecting


def outlast(consumer: "Consumer") -> None:
    """Have *consumer* connect again after an error of a server in a state that passes, or that takes no writes for now.

    Not all connections on its way are of this transport: a result backend may be on the same server. A server that
    takes connections and refuses all else would have Celery connect at once, again and again: the pauses grow.
    """
    start = consumer.blueprint.start
    pause_s = _PAUSE_S

    def starting(parent: "Consumer") -> None:
        nonlocal pause_s
        began_s = monotonic()
        try:
            start(parent)
        except (redis.ConnectionError, redis.ResponseError, OperationalError) as exc:
            is_short = monotonic() - began_s < _SHORT_S
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s) if is_short else _PAUSE_S
            if is_short:
                sleep(pause_s)
            # Of a publish on the way up, such as mingle's, kombu says that it was in vain: Celery would end for that.
            is_kombus = isinstance(exc, OperationalError) and parent.connection is not None
            if isinstance(exc, redis.ConnectionError) or not (is_kombus or passes(exc) or refuses_writes(exc)):
                raise
            raise redis.ConnectionError(str(exc)) from exc

    consumer.blueprint.start = starting


def patch(consumer: "Consumer", members: Membership | Seats, host: Host | Seats) -> None:
    """Change *consumer* and its pool, once: both outlive a connection."""
    _tell_ends(consumer)
    _wake_for_calls(consumer, host)
    pools.spare_what_is_written(consumer.pool)
    pools.keep_what_is_half_read(consumer.pool)
    pools.watch_who_is_ending(consumer.pool)
    pools.let_pauses_yield(consumer.pool)
    runs.report_all_errors(consumer.pool)
    Reconnecting(consumer, members)


def _tell_ends(consumer: "Consumer") -> None:
    """Have the requests of all tasks tell their end, tasks included that a reload of modules brings."""
    update_strategies = consumer.update_strategies

    def update() -> None:
        for task in consumer.app.tasks.values():
            end_of_task.install(task)
        update_strategies()

    consumer.update_strategies = update


def _wake_for_calls(consumer: "Consumer", host: Host | Seats) -> None:
    """Have the event loop iterate for an ack of a stock message: kombu before 5.7 lets an ack of another thread wait.

    An error of a function that is called in the loop does not end the loop: a command of remote control may ask for the
    impossible.
    """
    call_soon = consumer.call_soon

    def calling(callback: Any, *args: Any, **kwargs: Any) -> Any:
        promise = call_soon(_surviving(callback), *args, **kwargs)
        host.wake()
        return promise

    consumer.call_soon = calling


def _surviving(callback: Any) -> Any:
    """Return a function that calls *callback* and logs its errors, except the loss of a connection."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return callback(*args, **kwargs)
        except received.LOST:
            raise
        except Exception:
            logger.exception("A call in the event loop failed: %r", callback)
            return None

    return call
