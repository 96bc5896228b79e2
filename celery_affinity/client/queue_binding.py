"""Queues that are bound to a channel once, not for each message.

With each message Celery has kombu declare the queue. kombu binds a copy of queue and exchange to the channel, only to
find that the connection has declared that name before: a sixth of Celery's own work on a publish.
"""

from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery
from kombu import Queue

#: Largest number of queues that are remembered, for each app and for each channel. With one more, all are forgotten, so
#: that a publisher that makes up queues does not fill its memory.
_MOST = 500

_QUEUES: "WeakKeyDictionary[Celery, dict[str, BoundOnce]]" = WeakKeyDictionary()


class BoundOnce(Queue):
    """A copy of *queue* that is bound once to each channel of ours, and then kept in the channel's `bound_queues`."""

    queue: Queue

    def bind(self, channel: Any) -> Any:
        bound_queues: dict[str, Queue] | None = getattr(channel, "bound_queues", None)
        if bound_queues is None:
            return super().bind(channel)
        bound = bound_queues.get(self.name)
        if bound is None or bound.queue is not self.queue or bound.channel is not channel:
            bound = super().bind(channel)
            bound.queue = self.queue
            _remember(bound_queues, bound)
        return bound


def bind_once(app: Celery, declare: list[Queue]) -> None:
    """Replace the queues in *declare*, which a publish of *app* will declare, by queues that are bound once."""
    for at, queue in enumerate(declare):
        if type(queue) is Queue and app.amqp.queues.get(queue.name) is queue:
            declare[at] = _bound_once(app, queue)


def _bound_once(app: Celery, queue: Queue) -> BoundOnce:
    queues = _QUEUES.setdefault(app, {})
    found = queues.get(queue.name)
    if found is None or found.queue is not queue:
        found = BoundOnce(**queue.as_dict())
        found.queue = queue
        _remember(queues, found)
    return found


def _remember(queues: dict[str, Any], queue: BoundOnce) -> None:
    if len(queues) >= _MOST:
        queues.clear()
    queues[queue.name] = queue
