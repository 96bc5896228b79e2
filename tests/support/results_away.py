"""Results of Celery's that are thrown away after their server has ended.

A result that goes away ends its subscription at the result backend, in whichever thread collects the garbage. If the
server has ended by then, Celery tries 20 times to reconnect, within 20 s: a thread of a later test would stand still.
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
    """Have no result that was made by now reach for its server when it goes away, nor be told of its end later on."""
    for each in list(_consumers):
        if hasattr(each, "subscribed_to"):  # other backends subscribe to nothing
            each.subscribed_to.clear()
            each.stop()
            each._pubsub = None  # so that the next result begins anew
        for mapping in each._pending_results:
            mapping.clear()
