"""Gather what the workers on the broker answer, whatever their transport."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery
from kombu import Producer

from ..clock import SECOND_US
from ..server.reader import Reader
from .facts import Answer
from .gather_server import outside


def answers_of_workers(app: Celery, connection: Any, reader: Reader, within_s: float) -> tuple[Answer, ...]:
    """Return the answers of all workers on the broker, whatever their transport."""
    first_s = reader.now_us() / SECOND_US
    stats = _ask(app, connection, "stats", within_s, None)
    if not stats:
        return ()
    queues = {name: said for name, said, _ in _ask(app, connection, "active_queues", within_s, len(stats))}

    def answer(name: str, said: dict[str, Any], took_s: float) -> Answer:
        ours = said.get("affinity")
        its_queues = queues.get(name) or []
        of_worker = ours if isinstance(ours, dict) else {}
        clock_s, versions = of_worker.get("time"), of_worker.get("versions")
        return Answer(
            name=name,
            queues=tuple(_names(its_queues if isinstance(its_queues, list) else ())),
            ours=ours is not None,
            id=of_worker.get("worker"),
            app=of_worker.get("app"),
            namespace=of_worker.get("namespace"),
            guard=of_worker.get("guard"),
            versions=versions if isinstance(versions, dict) else {},
            clock_ahead_s=outside(clock_s, first_s, first_s + took_s) if isinstance(clock_s, float) else None,
        )

    return tuple(answer(*each) for each in stats if isinstance(each[1], dict))


def _names(queues: Iterable[Any]) -> Iterator[str]:
    """Yield the names in a worker's answer about the queues that it consumes."""
    for queue in queues:
        name = queue.get("name") if isinstance(queue, dict) else None
        if isinstance(name, str):
            yield name


def _ask(
    app: Celery, connection: Any, command: str, within_s: float, limit: int | None
) -> list[tuple[str, Any, float]]:
    """Return (node name, answer, seconds taken) of each worker. Celery's `inspect` would merge namesakes."""
    replies: list[tuple[str, Any, float]] = []
    began_s = time.monotonic()

    def collect(reply: object) -> None:
        if isinstance(reply, dict):  # another program may answer anything
            replies.extend((name, said, time.monotonic() - began_s) for name, said in reply.items())

    mailbox = app.control.mailbox(connection)  # a copy, for this connection
    mailbox.producer_pool = _Producers(connection)
    mailbox.multi_call(command, timeout=within_s, limit=limit, callback=collect)
    return replies


class _Producers:
    """A pool of producers for a mailbox. The app's own pool has connections with the app's transport."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @contextmanager
    def acquire(self) -> Iterator[Producer]:
        yield _ProducerThatTriesOnce(self._connection, auto_declare=False)


class _ProducerThatTriesOnce(Producer):
    """A producer for kombu's mailbox, which otherwise lets its producers retry for ever."""

    def publish(self, *args: Any, **kwargs: Any) -> Any:
        return super().publish(*args, **{**kwargs, "retry": False})
