"""kombu's channels, scheduled: a task's message becomes a job, broadcasts revoke jobs, and queues include their jobs.

Messages that are not tasks (remote control and its replies, events) keep kombu's own path. `connections` opens the
connections of a channel, and `inbox` reads from it for a worker.
"""

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import redis
from celery import Celery
from kombu import Queue
from kombu.transport import redis as stock

from ..broker.failover import refuses_writes
from ..log_limit import limited_logger
from ..publishing import bulk, cohort_keys, publish_call
from ..publishing.app_config import settings_of
from ..publishing.message import PROPERTY, Message, Revoke, as_stock_message, encode_job, is_mailbox, read_revoke
from ..schema.constants import REVOKED_KEPT_S
from ..settings.cohorts import DEFAULT
from .inbox import InboxChannel

if TYPE_CHECKING:
    from kombu import Connection

logger = limited_logger(__name__)

#: Queue argument -> replacement. kombu's Redis transport implements only x-expires.
INSTEAD = {
    "x-expires": "expires= of a task or of a call",
    "x-message-ttl": "expires= of a task or of a call",
    "x-max-length": "affinity_max_pending",
    "x-max-length-bytes": "affinity_max_pending",
}

#: Maximum number of warnings per process. Otherwise `_warned` would grow in a program that generates queue names.
_MAX_WARNINGS = 10_000

_warned: set[tuple[str, str]] = set()


def warn_queue_arguments(app: Celery, queue: str, arguments: Mapping[str, object]) -> None:
    """If *app* schedules *queue*, log each argument listed in INSTEAD once per process.

    Queues for events and replies contain no jobs. They are handled by kombu and keep their arguments.
    """
    for name in INSTEAD.keys() & arguments.keys():
        if (queue, name) in _warned or len(_warned) >= _MAX_WARNINGS:
            continue
        if queue in app.amqp.queues and settings_of(app).schedules(queue):
            _warned.add((queue, name))
            logger.warning(
                "Queue %r is declared with %s=%r, which has no effect: its jobs are kept. Use %s instead",
                queue,
                name,
                arguments[name],
                INSTEAD[name],
            )


class AffinityChannel(InboxChannel):
    """The changes of this transport to kombu's Redis channels, with and without Sentinel: it publishes jobs.

    Between `publish_call`, where a call begins, and `_put`, only kombu runs, which resolves the queues of the message.
    """

    #: True if messages can be published in batches. After an error, kombu sends some of them twice; a job that is sent
    #: twice is published once.
    supports_batch_publish = True

    #: Connection for which the channel was opened. A closed channel has lost it.
    made_by: "Connection"

    #: Queues bound to this channel (`routing.BoundOnce`), by name.
    bound_queues: dict[str, Queue]

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        self.bound_queues = {}
        self.made_by = connection.client
        super().__init__(connection, **kwargs)

    def basic_publish(self, message: Message, *args: Any, **kwargs: Any) -> Any:
        if self.connection is None:
            return self._after_reconnect().basic_publish(message, *args, **kwargs)
        call = publish_call.begin_publish(message, self.connection.client)
        result = super().basic_publish(message, *args, **kwargs)
        if call is not None:
            publish_call.end_publish(call, message)
        return result

    def _after_reconnect(self) -> "AffinityChannel":
        """Return the channel that replaced this closed one. Raises ConnectionError if there is none.

        After choosing the channel and before publishing, kombu declares a queue, and reconnects by itself if the
        connection broke. An error now would use up one of the publish's retries, and its policy may allow only one.
        """
        channel: AffinityChannel = self.made_by.default_channel if self.made_by.connected else self
        if channel.connection is None:
            raise redis.ConnectionError("the channel was closed by a reconnect")
        return channel

    def _next_delivery_tag(self) -> str:
        return secrets.token_urlsafe(12)  # a UUID is longer and slower

    def _put(self, queue: str, message: Message, **kwargs: Any) -> None:
        call = publish_call.publish_call_of(message, self.connection.client)
        if call is None:
            super()._put(queue, message, **kwargs)
            return
        type_, capture = call.type(message) or queue, call.capture
        if not settings_of(call.app).schedules(type_):
            if capture is not None:
                capture.published = True
            call.warn_of_key(message, type_)
            super()._put(type_, as_stock_message(type_, queue, message), **kwargs)
            return
        header = call.header(message)
        if self.routes is not None and call.rule is not None:
            cohort_keys.check_key_cohorts(call.app, call.task_name, type_, call.rule)
        if capture is not None:
            capture.append(publish_call.CapturedMessage(queue, message, header, call.rule))
            return
        job = encode_job(queue, message, header)
        batch = kwargs.get("_publish_batch")
        if batch is not None:
            batch.append(job)
            return
        scheduler = self.scheduler_for(job.type, publishes=True)
        (published,) = scheduler.publish(job)
        published.check(job)
        if not published.served:
            bulk.warn_unserved(job.type, scheduler)

    def create_publish_batch(self, max_size: int) -> bulk.PublishBatch:
        """Return the collector for the messages of a ``Producer.batch``, which is published *max_size* at a time."""
        return bulk.PublishBatch(self, max_size)

    def _put_fanout(self, exchange: str, message: Message, routing_key: str, **kwargs: Any) -> None:
        revoked = read_revoke(exchange, message)
        if revoked is not None:
            self._revoke(revoked)
        if PROPERTY in message["properties"]:  # a broadcast task
            message = as_stock_message(exchange, exchange, message)
        super()._put_fanout(exchange, message, routing_key, **kwargs)

    def _revoke(self, revoked: Revoke) -> None:
        """End the pending jobs that a broadcast revokes, in all cohorts. Logs a warning for servers that are down.

        The workers that get the broadcast remember the revocation, and reject a task that arrives later.
        """
        self.scheduler.revoke(*revoked, keep_s=REVOKED_KEPT_S)
        routes = self.routes
        if routes is None:
            return
        outcome = self.fleet.each(lambda scheduler: scheduler.revoke(*revoked, keep_s=REVOKED_KEPT_S), routes.names)
        for name, why in outcome.down.items():
            logger.warning("The server of cohort %r does not answer: the revoke may be missing there: %s", name, why)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: Any, queue: str) -> None:
        """Bind a queue. If a full server refuses a binding that no job needs, the worker continues without it."""
        try:
            super()._queue_bind(exchange, routing_key, pattern, queue)
        except (redis.ConnectionError, redis.ResponseError) as exc:
            refused = refuses_writes(exc.__cause__ or exc)
            if not (refused and self.is_a_workers and self._works_unbound(exchange, routing_key, pattern, queue)):
                raise
            logger.debug("The server takes no writes: queue %r is not bound again", queue)

    def _works_unbound(self, exchange: str, routing_key: str, pattern: Any, queue: str) -> bool:
        """Return True if a binding exists already, or if only a reply to remote control could need it."""
        if self.typeof(exchange).type == "fanout" or is_mailbox(queue):
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
            return 0  # a worker declares its queues, and continues with the queues of other cohorts

    def _size(self, queue: str) -> int:
        return int(super()._size(queue)) + self._pending(queue)

    def _purge(self, queue: str) -> int:
        return int(super()._purge(queue)) + self.scheduler_for(queue).purge(queue)

    def _delete(self, queue: str, exchange: str, *args: Any, **kwargs: Any) -> None:
        super()._delete(queue, exchange, *args, **kwargs)
        if not is_mailbox(queue) and self.typeof(exchange).type != "fanout":  # neither kind holds a job
            self.scheduler_for(queue).purge(queue)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        # kombu's own method checks keys without their prefix. A list that exists has a message.
        return bool(self._size(queue) or self.scheduler_for(queue).reader.has_scheduled(queue))

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: Any) -> Any:
        """Declare a queue. A passive declaration also counts scheduled jobs, like stock Celery's list of the queue.

        Other declarations omit the count, which reads the scheduled jobs of all types.
        """
        declared = super().queue_declare(queue, passive=passive, **kwargs)
        if not passive:
            if kwargs.get("arguments"):
                warn_queue_arguments(publish_call.app_of_connection(self.made_by), declared.queue, kwargs["arguments"])
            return declared
        scheduled = self.scheduler_for(declared.queue).reader.scheduled_count(declared.queue)
        return declared._replace(message_count=declared.message_count + scheduled)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        """Delete a queue with its waiting jobs. With *if_empty*, keep a queue that has waiting jobs."""
        if not if_empty or not self.scheduler_for(queue).reader.has_scheduled(queue):
            super().queue_delete(queue, if_unused=if_unused, if_empty=if_empty, **kwargs)


class Channel(AffinityChannel, stock.Channel):
    from_transport_options = (*stock.Channel.from_transport_options, "namespace")


class SentinelChannel(AffinityChannel, stock.SentinelChannel):
    from_transport_options = (*stock.SentinelChannel.from_transport_options, "namespace")
