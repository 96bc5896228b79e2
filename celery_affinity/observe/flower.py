"""Flower's broker page, its API and its metrics, with the pending and claimed jobs counted in.

Flower reads the length of a list for each queue, and has no plugins. But Flower's process opens our transport, which
wraps two of Flower's methods, if they look as in the tested versions (2.0 to 2.2).
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

from kombu import Connection

from .status import Report, Status, TypeStatus

logger = logging.getLogger(__name__)

#: Longest waits, s, for a connection and for a reply, unless the transport options say otherwise: as long as Flower
#: waits.
_CONNECT_TIMEOUT_S = 1.0
_REPLY_TIMEOUT_S = 2.0

#: A row of Flower's broker page.
Row = dict[str, Any]

_lock = threading.Lock()
_installed = False


def install(connection: Connection) -> None:
    """Have the Flower in this process show the fleet on the broker of *connection*.

    Celery loads Flower in every process of its command line, so the broker is asked nothing before somebody opens a
    page. Calls after the first one do nothing.
    """
    global _installed
    with _lock:
        if _installed:
            return
        _installed = True
    try:
        _wrap(Observer(connection.clone()))  # a clone, since the owner of *connection* closes it
    except (ImportError, AttributeError, TypeError) as exc:
        if "flower" in sys.argv:  # elsewhere Flower is merely installed
            _warn_of_another_flower(exc)


def _wrap(observer: "Observer") -> None:
    """Wrap both methods or none. Raises ImportError, AttributeError or TypeError if they are not as expected."""
    # Not at the top: only Flower's process has these modules.
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
    """Reads the state of the fleet in threads, so that a slow broker does not hold up other pages of Flower."""

    def __init__(self, connection: Connection) -> None:
        self._origin = connection
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        self._in_trouble = False
        self.latest: Status | None = None
        """The status as last read; None if the broker did not answer."""

    async def read(self) -> Status | None:
        """Return the state of the fleet; None, with a line in the log, if the broker gives none: Flower must go on."""
        return await asyncio.get_running_loop().run_in_executor(None, self._read_or_log)

    def _read_or_log(self) -> Status | None:
        with self._lock:
            try:
                self.latest = self._read()
            except Exception as exc:  # any: Flower's own part must still work
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
            self._forget_connection()  # perhaps closed as idle; or another URL of a failover list answers now
        self._connection = _connected(self._origin)
        return self._status()

    def _status(self) -> Status:
        assert self._connection is not None, "made by _read"
        return Report(self._connection.default_channel.scheduler.reader).status()

    def _forget_connection(self) -> None:
        if self._connection is not None:
            with suppress(Exception):
                self._connection.release()
            self._connection = None


def _connected(origin: Connection) -> Connection:
    options = {
        "socket_connect_timeout": _CONNECT_TIMEOUT_S,
        "socket_timeout": _REPLY_TIMEOUT_S,
        **origin.transport_options,
    }
    connection = origin.clone(transport_options=options)
    try:
        # One try for each URL: a person waits for the page.
        return connection.ensure_connection(max_retries=len(connection.alt), interval_start=0, interval_step=0)
    except BaseException:
        connection.release()
        raise


# -- the broker page and /api/queues/length


def _queues_with_ours(original: Callable[..., Awaitable[list[Row]]], observer: Observer) -> Callable[..., Any]:
    @functools.wraps(original)
    async def queues(self: Any, names: Iterable[str]) -> list[Row]:
        status = await observer.read()
        if status is None:
            return await original(self, names)
        ours = {each.type: each for each in status.types}
        known = list(names)
        # Flower names only queues of workers that it knows, but people must see here above all a type without a worker.
        missing = set(ours).difference(known)
        try:
            rows = await original(self, sorted({*known, *missing}))
        except Exception:  # Flower's user may have no right to the lists that were added
            rows = await original(self, known)
            rows += [{"name": type_, "messages": 0} for type_ in sorted(missing)]
        return merged(rows, ours, status)

    return queues


def merged(rows: list[Row], ours: dict[str, TypeStatus], status: Status) -> list[Row]:
    """Return Flower's rows with our jobs counted in.

    Rows of other queues stay as they are; so do all rows if one has an unexpected form.
    """
    consumers = Counter(type_ for worker in status.workers for type_ in worker.types)
    try:
        return [_row(row, ours.get(row["name"]), consumers) for row in rows]
    except (KeyError, TypeError) as exc:
        _warn_of_another_flower(exc)
        return rows


def _row(row: Row, ours: TypeStatus | None, consumers: Counter[str]) -> Row:
    if ours is None:
        return row
    # A list under the queue's own name holds messages of producers on another transport.
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
        await observer.read()
        await original(self)

    return get


@functools.cache
def _register(observer: Observer) -> None:
    # Not at the top: prometheus_client comes with Flower alone.
    from prometheus_client import REGISTRY

    from .metrics import StatusCollector

    REGISTRY.register(StatusCollector(lambda: observer.latest))


@functools.cache
def _warn_once(reason: str) -> None:
    logger.warning("This Flower is none that celery_affinity knows, and shows no figures of it: %s", reason)


def _warn_of_another_flower(exc: Exception) -> None:
    _warn_once(f"{type(exc).__name__}: {exc}")
