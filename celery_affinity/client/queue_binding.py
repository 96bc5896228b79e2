"""Queues that kombu finds declared without a copy.

With each message Celery has kombu declare the queue, which binds a copy of it to the channel, with its exchange, only
to find that the name was declared on this connection before: a sixth of Celery's own work on a publish.
"""

from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery
from kombu import Queue

#: Queues that are kept for an app, and for a channel: more are made anew, so that a publisher that makes up queues does
#: not fill its memory.
_MOST = 500

_QUEUES: "WeakKeyDictionary[Celery, dict[str, BoundOnce]]" = WeakKeyDictionary()


class BoundOnce(Queue):
    """The same as *queue*; a channel that has `bound_queues` keeps what was bound to it."""

    queue: Queue

    def bind(self, channel: Any) -> Any:
        kept: dict[str, Queue] | None = getattr(channel, "bound_queues", None)
        if kept is None:
            return super().bind(channel)
        bound = kept.get(self.name)
        if bound is None or bound.queue is not self.queue or bound.channel is not channel:
            bound = super().bind(channel)
            bound.queue = self.queue
            _keep(kept, bound)
        return bound


def bind_once(app: Celery, declare: list[Any]) -> None:
    """Put into *declare*, what a publish of *app* is to declare, queues that are bound once."""
    for at, queue in enumerate(declare):
        if type(queue) is Queue and app.amqp.queues.get(queue.name) is queue:
            declare[at] = _bound_once(app, queue)


def _bound_once(app: Celery, queue: Queue) -> BoundOnce:
    queues = _QUEUES.setdefault(app, {})
    found = queues.get(queue.name)
    if found is None or found.queue is not queue:
        found = BoundOnce(**queue.as_dict())
        found.queue = queue
        _keep(queues, found)
    return found


def _keep(kept: dict[str, Any], queue: BoundOnce) -> None:
    if len(kept) >= _MOST:
        kept.clear()
    kept[queue.name] = queue
