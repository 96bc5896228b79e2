"""From an app to what its fleet's Redis holds: for commands and for callers that look."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery

from ..errors import TransportError
from ..observe import explain as explanation
from ..observe.explain import Explanation
from ..server.reader import Reader
from ..server.scheduler import Scheduler
from .channel import AffinityChannel


def scheduler_on(connection: Any, broker_transport: object) -> Scheduler:
    """Return the arrows on a kombu connection. Raises TransportError if it does not use this transport."""
    channel = connection.default_channel
    if not isinstance(channel, AffinityChannel):
        raise TransportError(f"broker_transport must be 'celery_affinity:Transport', got: {broker_transport!r}")
    return channel.scheduler


@contextmanager
def _reader(app: Celery) -> Iterator[Reader]:
    with app.connection_or_acquire() as connection:
        yield scheduler_on(connection, app.conf.broker_transport).reader


def explain(app: Celery, task_id: str) -> Explanation:
    """Return where the newest job of *task_id* is, and why it waits if it does. It reads only.

    Raises TransportError if *app* uses another transport; a connection error if the broker does not answer.
    """
    with _reader(app) as reader:
        return explanation.explain(reader, task_id)
