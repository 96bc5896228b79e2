"""kombu's channels, scheduled: a broadcast revokes jobs, and a queue is counted, purged and deleted with its jobs.

Messages that are no tasks (remote control and its replies, events) take kombu's own ways. A channel is built of three
parts: `connections`; `inbox` and `qos`, with which a worker reads; and `client.publishing_channel`, which publishes.
"""

from typing import Any

import redis
from kombu import Queue
from kombu.transport import redis as stock

from ..client import publishing_app, revokes
from ..client.publishing_channel import PublishingChannel
from ..client.stamp import PROPERTY, Message, as_stock
from ..log_limit import limited_logger
from ..rules.cohorts import DEFAULT
from ..rules.protocol import REVOKED_KEPT_S
from ..server.passing import refuses_writes
from . import queue_arguments
from .inbox import InboxChannel

logger = limited_logger(__name__)


class AffinityChannel(InboxChannel, PublishingChannel):
    """The changes of this transport to kombu's Redis channels, with and without Sentinel."""

    #: Queues that were bound to this channel (`queue_binding`), by name.
    bound_queues: dict[str, Queue]

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        self.bound_queues = {}
        self.made_by = connection.client
        super().__init__(connection, **kwargs)

    def _put_fanout(self, exchange: str, message: Message, routing_key: str, **kwargs: Any) -> None:
        revoked = revokes.read(exchange, message)
        if revoked is not None:
            self._revoke(revoked)
        if PROPERTY in message["properties"]:  # a broadcast task
            message = as_stock(exchange, exchange, message)
        super()._put_fanout(exchange, message, routing_key, **kwargs)

    def _revoke(self, revoked: revokes.Revoked) -> None:
        """End the pending jobs that a broadcast revokes, in all cohorts; those on servers that are down are warned of.

        The workers that get the broadcast remember the revoke, and refuse a task that comes later.
        """
        self.scheduler.revoke(*revoked, keep_s=REVOKED_KEPT_S)
        routes = self.routes
        if routes is None:
            return
        asked = self.fleet.each(lambda scheduler: scheduler.revoke(*revoked, keep_s=REVOKED_KEPT_S), routes.names)
        for name, why in asked.down.items():
            logger.warning("The server of cohort %r does not answer: perhaps nothing is revoked there: %s", name, why)

    # -- queues

    def _queue_bind(self, exchange: str, routing_key: str, pattern: Any, queue: str) -> None:
        """Bind a queue. A worker continues without a binding that a full server refuses, if no job needs it."""
        try:
            super()._queue_bind(exchange, routing_key, pattern, queue)
        except (redis.ConnectionError, redis.ResponseError) as exc:
            refused = refuses_writes(exc.__cause__ or exc)
            if not (refused and self.is_a_workers and self._works_unbound(exchange, routing_key, pattern, queue)):
                raise
            logger.debug("The server takes no writes: queue %r is not bound again", queue)

    def _works_unbound(self, exchange: str, routing_key: str, pattern: Any, queue: str) -> bool:
        """Return True if a binding exists already, or if only a reply to remote control could need it."""
        if self.typeof(exchange).type == "fanout" or revokes.is_mailbox(queue):
            return True
        member = self.sep.join([routing_key or "", pattern or "", queue or ""])
        with self.conn_or_acquire() as client:
            return bool(client.sismember(self.keyprefix_queue % (exchange,), member))

    def _pending(self, queue: str) -> int:
        try:
            return self.scheduler_for(queue).reader.pending(queue)
        except self.connection_errors:
            if self.routes is None or self.routes.cohort_of(queue) == DEFAULT:
                raise
            return 0  # a worker declares its queues, and goes on with those of other cohorts

    def _size(self, queue: str) -> int:
        return int(super()._size(queue)) + self._pending(queue)

    def _purge(self, queue: str) -> int:
        return int(super()._purge(queue)) + self.scheduler_for(queue).purge(queue)

    def _delete(self, queue: str, exchange: str, *args: Any, **kwargs: Any) -> None:
        super()._delete(queue, exchange, *args, **kwargs)
        if not revokes.is_mailbox(queue) and self.typeof(exchange).type != "fanout":  # neither kind holds a job
            self.scheduler_for(queue).purge(queue)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        # kombu's own method asks for keys without their prefix. A list that exists has a message.
        return bool(self._size(queue) or self.scheduler_for(queue).reader.has_scheduled(queue))

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: Any) -> Any:
        """Declare a queue. A passive declaration counts scheduled jobs too: stock Celery has them in the queue's list.

        Other declarations spare the count, which reads the scheduled jobs of all types.
        """
        declared = super().queue_declare(queue, passive=passive, **kwargs)
        if not passive:
            if kwargs.get("arguments"):
                queue_arguments.warn(publishing_app.that_made(self.made_by), declared.queue, kwargs["arguments"])
            return declared
        scheduled = self.scheduler_for(declared.queue).reader.scheduled_count(declared.queue)
        return declared._replace(message_count=declared.message_count + scheduled)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        """Delete a queue with the jobs that wait there. *if_empty*: keep a queue in which jobs wait."""
        if not if_empty or not self.scheduler_for(queue).reader.has_scheduled(queue):
            super().queue_delete(queue, if_unused=if_unused, if_empty=if_empty, **kwargs)


class Channel(AffinityChannel, stock.Channel):
    from_transport_options = (*stock.Channel.from_transport_options, "namespace")


class SentinelChannel(AffinityChannel, stock.SentinelChannel):
    from_transport_options = (*stock.SentinelChannel.from_transport_options, "namespace")
