"""Celery results that are garbage-collected after their server has ended.

A collected result ends its subscription at the result backend, in the thread that runs the garbage collector. If the
server has ended, Celery tries 20 times within 20 s to reconnect, which would block a thread of a later test.
"""

from weakref import WeakSet

from celery.backends.asynchronous import BaseResultConsumer

_consumers: "WeakSet[BaseResultConsumer]" = WeakSet()
_init = BaseResultConsumer.__init__


def _noted(self, *args, **kwargs):
    _init(self, *args, **kwargs)
    _consumers.add(self)


BaseResultConsumer.__init__ = _noted


def forget_results():
    """Detach all existing results from their server: they neither contact it when collected nor receive their ends."""
    for consumer in list(_consumers):
        if hasattr(consumer, "subscribed_to"):  # other backends do not subscribe
            consumer.subscribed_to.clear()
            consumer.stop()
            consumer._pubsub = None  # the next result subscribes again
        for mapping in consumer._pending_results:
            mapping.clear()
