"""Flower's broker page, its API and its metrics, with what is pending and claimed here.

Flower reads the length of a list for each queue, and knows no plugins; but it opens our transport in its own process.
There two of its methods are wrapped, if they are what they were in the versions that this was tested with (2.0 to 2.2).
"""

import asyncio
import functools
import inspect
import logging
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

from .status import Report, Status, TypeStatus

logger = logging.getLogger(__name__)

#: For the broker to answer, s, unless the transport options say otherwise: what Flower itself grants it.
_CONNECT_TIMEOUT_S = 1.0
_REPLY_TIMEOUT_S = 2.0

#: A row of Flower's broker page.
Row = dict[str, Any]

_lock = threading.Lock()
_installed = False


def install(connection: Any) -> None:
    """Have the Flower that is loaded in this process show the fleet on the broker of a kombu *connection*.

    Celery loads Flower in every process of its command line, so nothing of it is used until a page is asked for.
    Only the first call does something.
    """
    global _installed
    with _lock:
        if _installed:
            return
        _installed = True
    try:
        _wrap(Observer(connection.clone()))  # the connection itself is its owner's, to close and to forget
    except (ImportError, AttributeError, TypeError) as exc:
        if "flower" in sys.argv:  # elsewhere it is merely installed
            _warn_of_another_flower(exc)


def _wrap(observer: "Observer") -> None:
    """Wrap both methods or none. Raises ImportError, AttributeError or TypeError if they are not as expected."""
    # Not at the top: this is a module of Flower's process alone.
    from flower.utils.broker import RedisBase
    from flower.views.monitor import Metrics

    queues, get = RedisBase.queues, Metrics.get
    for method, arguments in ((queues, (None, [])), (get, (None,))):
        if not inspect.iscoroutinefunction(method):
            raise TypeError(f"{method!r} is no coroutine function")
        inspect.signature(method).bind(*arguments)
    RedisBase.queues = _queues_with_ours(queues, observer)
    Metrics.get = _metrics_with_ours(get, observer)


class Observer:
    """Looks at the fleet, from Flower's threads, so that a slow broker does not stop its pages."""

    def __init__(self, connection: Any) -> None:
        self._origin = connection
        self._connection: Any = None
        self._lock = threading.Lock()
        self._in_trouble = False
        self.latest: Status | None = None
        """What the last look has seen; None if the broker did not answer."""

    async def look(self) -> Status | None:
        """Return the state of the fleet, or None, and log why: Flower is to go on without."""
        return await asyncio.get_running_loop().run_in_executor(None, self._look)

    def _look(self) -> Status | None:
        with self._lock:
            try:
                self.latest = self._read()
            except Exception as exc:  # whatever it is, Flower's own part still works
                self._forget_connection()
                self.latest = None
                if not self._in_trouble:
                    logger.warning("Flower shows no figures of celery_affinity, the broker gives none: %s", exc)
                self._in_trouble = True
            else:
                if self._in_trouble:
                    logger.info("Flower shows the figures of celery_affinity again")
                self._in_trouble = False
            return self.latest

    def _read(self) -> Status:
        if self._connection is not None:
            with suppress(Exception):
                return self._status()
            self._forget_connection()  # it may have idled for too long; and the next URL of a failover list may do
        self._connection = _connected(self._origin)
        return self._status()

    def _status(self) -> Status:
        return Report(self._connection.default_channel.scheduler.reader).status()

    def _forget_connection(self) -> None:
        if self._connection is not None:
            with suppress(Exception):
                self._connection.release()
            self._connection = None


def _connected(origin: Any) -> Any:
    options = {
        "socket_connect_timeout": _CONNECT_TIMEOUT_S,
        "socket_timeout": _REPLY_TIMEOUT_S,
        **origin.transport_options,
    }
    connection = origin.clone(transport_options=options)
    try:
        # Each URL is tried once: a person waits for the page.
        return connection.ensure_connection(max_retries=len(connection.alt), interval_start=0, interval_step=0)
    except BaseException:
        connection.release()
        raise


# -- the broker page and /api/queues/length


def _queues_with_ours(original: Callable[..., Awaitable[list[Row]]], observer: Observer) -> Callable[..., Any]:
    @functools.wraps(original)
    async def queues(self: Any, names: Iterable[str]) -> list[Row]:
        status = await observer.look()
        if status is None:
            return await original(self, names)
        ours = {each.type: each for each in status.types}
        known = list(names)
        # Flower names the queues of the workers it knows. A type that nobody serves is the one to be seen here.
        missing = set(ours).difference(known)
        try:
            rows = await original(self, sorted({*known, *missing}))
        except Exception:  # its user may have no right to lists that it would not have asked for
            rows = await original(self, known)
            rows += [{"name": type_, "messages": 0} for type_ in sorted(missing)]
        return merged(rows, ours, status)

    return queues


def merged(rows: list[Row], ours: dict[str, TypeStatus], status: Status) -> list[Row]:
    """Return Flower's rows, with our jobs counted in; those of queues that are not ours, or not as expected, as is."""
    consumers = Counter(type_ for worker in status.workers for type_ in worker.types)
    try:
        return [_row(row, ours.get(row["name"]), consumers) for row in rows]
    except (KeyError, TypeError) as exc:
        _warn_of_another_flower(exc)
        return rows


def _row(row: Row, ours: TypeStatus | None, consumers: Counter[str]) -> Row:
    if ours is None:
        return row
    # What stands in a list under the queue's own name was sent by producers on another transport.
    ready = row["messages"] + ours.pending
    figures = {
        "messages": ready,
        "messages_ready": ready,
        "messages_unacknowledged": ours.claimed,
        "consumers": consumers[ours.type],
    }
    return {**row, **{name: figure for name, figure in figures.items() if figure is not None}}


# -- /metrics


def _metrics_with_ours(original: Callable[..., Awaitable[None]], observer: Observer) -> Callable[..., Any]:
    @functools.wraps(original)
    async def get(self: Any) -> None:
        try:
            _register(observer)
        except (ImportError, ValueError) as exc:
            _warn_of_another_flower(exc)
        await observer.look()
        await original(self)

    return get


@functools.cache
def _register(observer: Observer) -> None:
    # Not at the top: prometheus_client comes with Flower, and other processes do without.
    from prometheus_client import REGISTRY

    from .metrics import StatusCollector

    REGISTRY.register(StatusCollector(lambda: observer.latest))


@functools.cache
def _warn_once(reason: str) -> None:
    logger.warning("This Flower is none that celery_affinity knows, and shows no figures of it: %s", reason)


def _warn_of_another_flower(exc: Exception) -> None:
    _warn_once(f"{type(exc).__name__}: {exc}")
