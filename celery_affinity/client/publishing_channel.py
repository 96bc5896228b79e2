"""kombu's channels, as far as they publish: a message of a task becomes a job, and the job goes to the server.

So a call passes this room once, from Celery's method (`celery_methods`) to the arrow (`server.scheduler`). Between
`stamping`, where the call begins, and `PublishingChannel._put` lies only kombu, which finds the queues of the message.
"""

import secrets
from typing import TYPE_CHECKING, Any

import redis

from . import cohort_keys, envelope, stamping, unserved_warning
from .of_app import settings_of
from .stamp import Message, as_stock

if TYPE_CHECKING:
    from functools import cached_property

    from kombu import Connection
    from kombu.transport.redis import Channel as _StockChannel

    from ..server.scheduler import Scheduler
    from .producer_batch import PublishBatch

    class _Channel(_StockChannel):
        @cached_property
        def routes(self) -> object | None: ...

        def scheduler_for(self, type_: str, *, publishes: bool = False) -> Scheduler: ...

else:
    _Channel = object  # mixed into kombu's channels, beside `transport.connections`


class PublishingChannel(_Channel):
    """A kombu channel that publishes jobs. Messages that are no tasks take kombu's own way."""

    #: Whether messages may be published together. kombu asks, since an error makes it send some of them twice; a job
    #: that is sent twice is published once.
    supports_batch_publish = True

    #: The connection for which the channel was opened; a closed channel has lost it.
    made_by: "Connection"

    def basic_publish(self, message: Message, *args: Any, **kwargs: Any) -> Any:
        if self.connection is None:
            return self._after_reconnect().basic_publish(message, *args, **kwargs)
        begun = stamping.begin(message, self.connection.client)
        result = super().basic_publish(message, *args, **kwargs)
        if begun is not None:
            stamping.end(begun, message)
        return result

    def _after_reconnect(self) -> "PublishingChannel":
        """Return the channel that has taken the place of this closed one. Raises ConnectionError if none has.

        Between choosing the channel and publishing, kombu declares a queue, and reconnects by itself if the connection
        broke meanwhile. An error now would use up a repeat of that publish, and its policy may have one alone.
        """
        found: PublishingChannel = self.made_by.default_channel if self.made_by.connected else self
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
        from .producer_batch import PublishBatch  # not at the top: kombu before 5.7 knows of no batch

        return PublishBatch(self, max_size)
