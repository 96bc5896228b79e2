"""kombu's channels, scheduled: `_put` publishes a message of a task as a job, and a queue is counted with its jobs.

Messages that are no tasks (remote control and its replies, events) take kombu's own ways. A channel is built in three
steps: `connections`; `inbox` and `qos`, with which a worker reads; and this module, for publishing and for queues.
"""

import logging
import secrets
from typing import TYPE_CHECKING, Any

import redis
from kombu import Queue
from kombu.transport import redis as stock

from ..client import cohort_keys, envelope, revokes, stamping, unserved_warning
from ..client.of_app import settings_of
from ..client.stamp import PROPERTY, Message, as_stock
from ..rules.cohorts import DEFAULT
from ..rules.protocol import REVOKED_KEPT_S
from .inbox import InboxChannel

if TYPE_CHECKING:
    from ..client.producer_batch import PublishBatch


logger = logging.getLogger(__name__)


class AffinityChannel(InboxChannel):
    """The changes of this transport to kombu's Redis channels, with and without Sentinel."""

    #: Whether messages may be published together. kombu asks, since an error makes it send some of them twice; a job
    #: that is sent twice is published once.
    supports_batch_publish = True

    #: Queues that were bound to this channel (`queue_binding`), by name.
    bound_queues: dict[str, Queue]

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        self.bound_queues = {}
        self._made_by = connection.client
        super().__init__(connection, **kwargs)

    # -- publish

    def basic_publish(self, message: Message, *args: Any, **kwargs: Any) -> Any:
        if self.connection is None:
            return self._after_reconnect().basic_publish(message, *args, **kwargs)
        begun = stamping.begin(message, self.connection.client)
        result = super().basic_publish(message, *args, **kwargs)
        if begun is not None:
            stamping.end(begun, message)
        return result

    def _after_reconnect(self) -> "AffinityChannel":
        """Return the channel that has taken the place of this closed one. Raises ConnectionError if none has.

        Between choosing the channel and publishing, kombu declares a queue, and reconnects by itself if the connection
        broke meanwhile. An error now would be the second one of that publish, which kombu does not repeat.
        """
        found = self._made_by.default_channel if self._made_by.connected else self
        if found.connection is None:
            raise redis.ConnectionError("the channel was closed by a reconnect")
        return found

    def _next_delivery_tag(self) -> str:
        return secrets.token_urlsafe(12)  # a UUID is longer, and takes longer

    def _put(self, queue: str, message: Message, **kwargs: Any) -> None:
        sending = stamping.sending_of(message, self.connection.client)
        if sending is None:
            super()._put(queue, message, **kwargs)
            return
        type_, capture = sending.type(message) or queue, sending.capture
        if not settings_of(sending.app).schedules(type_):
            if capture is not None:
                capture.published = True
            sending.warn_of_key(message, type_)
            super()._put(type_, as_stock(type_, queue, message), **kwargs)
            return
        stamp = sending.stamp(message)
        if self.routes is not None and sending.rule is not None:
            cohort_keys.check(sending.app, sending.task_name, type_, sending.rule)
        if capture is not None:
            capture.append(stamping.Captured(queue, message, stamp, sending.rule))
            return
        job = envelope.as_job(queue, message, stamp)
        batch = kwargs.get("_publish_batch")
        if batch is not None:
            batch.add_job(job)
            return
        scheduler = self.scheduler_for(job.type, publishes=True)
        (published,) = scheduler.publish(job)
        published.check(job)
        if not published.served:
            unserved_warning.warn(job.type, scheduler)

    def create_publish_batch(self, max_size: int) -> "PublishBatch":
        """Return the collector of the messages of a ``Producer.batch``, which is published *max_size* at a time."""
        from ..client.producer_batch import PublishBatch  # not at the top: kombu before 5.7 knows of no batch

        return PublishBatch(self, max_size)

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
