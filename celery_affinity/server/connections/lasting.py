"""Connections whose users outlast a state of the server that passes, such as a planned switch-over.

kombu and Celery connect again after a redis.ConnectionError, and end after another error. redis-py raises some of the
states that pass as one, and others as an error of the command.
"""

from typing import Any

import redis

from ..passing import WrongNodeError, elsewhere, passes, refuses_writes

#: What MOVED and ASK mean to a connection that leads to one server: on a cluster, `cluster` has read them already.
_CLUSTER = "the server is a node of a cluster, and another node has the keys: write redis-cluster:// in broker_url"


def lasting(kind: type, *, reads: bool) -> type:
    """Return a subclass of *kind* that closes on an error of the server that passes, and raises a ConnectionError.

    Such errors: the server loads its data, a failover. *reads*: also that the server takes no writes for now, an error
    that publishers must see themselves.
    """

    class Lasting(kind):
        def read_response(self, *args: Any, **options: Any) -> Any:
            try:
                return super().read_response(*args, **options)
            except redis.ResponseError as exc:
                if not (passes(exc) or (reads and refuses_writes(exc))):
                    raise
                self.disconnect()  # replies to other commands may follow
                if elsewhere(exc):
                    raise WrongNodeError(_CLUSTER) from exc
                raise redis.ConnectionError(str(exc)) from exc

    Lasting.__name__ = Lasting.__qualname__ = kind.__name__  # redis-py and kombu show it
    return Lasting
