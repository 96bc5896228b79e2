"""Flower's broker page, its API and its metrics, with the pending and claimed jobs counted in; tasks with their run.

Flower reads the length of a list for each queue, and has no plugins. But Flower's process opens our transport, which
wraps two of Flower's methods, if they look as in the tested versions (2.0 to 2.2). Of a task Flower shows the fields
that Celery's `Task` names: of a merged call it is to show the run.
"""

import functools
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from kombu import Connection

from ..log_limit import limited_logger
from .observer import FleetOn, Observer
from .status import Status
from .type_status import TypeStatus

logger = limited_logger(__name__)

#: A row of Flower's broker page.
Row = dict[str, Any]

_lock = threading.Lock()
_installed = False


def install(connection: Connection, fleet_on: FleetOn) -> None:
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
        _wrap(Observer(connection.clone(), fleet_on))  # a clone, since the owner of *connection* closes it
    except (ImportError, AttributeError, TypeError) as exc:
        if "flower" in sys.argv:  # elsewhere Flower is merely installed
            _warn_of_another_flower(exc)


def _wrap(observer: "Observer") -> None:
    """Wrap both methods or none. Raises ImportError, AttributeError or TypeError if they are not as expected."""
    # Not at the top: only Flower's process has these modules.
    from celery.events.state import Task
    from flower.utils.broker import Broker, RedisBase
    from flower.views.monitor import Metrics

    queues, get, of_url = RedisBase.queues, Metrics.get, Broker.__new__
    for method, arguments in ((queues, (None, [])), (get, (None,))):
        if not inspect.iscoroutinefunction(method):
            raise TypeError(f"{method!r} is no coroutine function")
        inspect.signature(method).bind(*arguments)
    RedisBase.queues = _queues_with_ours(queues, observer)
    Metrics.get = _metrics_with_ours(get, observer)
    Broker.__new__ = _brokers_with_clusters(of_url, observer)
    Task._fields = (*Task._fields, "merged_into")
    Task.merged_into = None


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


def _brokers_with_clusters(original: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    """Return the brokers that Flower knows, and one for a cluster, whose queues are those of the fleet."""

    async def empty(_: Any, names: Iterable[str]) -> list[Row]:
        return [{"name": name, "messages": 0} for name in names]

    cluster = type("Cluster", (), {"queues": _queues_with_ours(empty, observer)})

    @functools.wraps(original)
    def of_url(cls: type, url: str, *args: Any, **kwargs: Any) -> Any:
        return cluster() if url.partition("://")[0].endswith("-cluster") else original(cls, url, *args, **kwargs)

    return of_url


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
    metrics = {
        "messages": ready,
        "messages_ready": ready,
        "messages_unacknowledged": ours.claimed,
        "consumers": consumers[ours.type],
    }
    return {**row, **{name: figure for name, figure in metrics.items() if figure is not None}}


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

    from .collector import StatusCollector

    REGISTRY.register(StatusCollector(lambda: observer.latest))


@functools.cache
def _warn_once(reason: str) -> None:
    logger.warning("This version of Flower is unknown and shows no metrics of celery_affinity: %s", reason)


def _warn_of_another_flower(exc: Exception) -> None:
    _warn_once(f"{type(exc).__name__}: {exc}")
