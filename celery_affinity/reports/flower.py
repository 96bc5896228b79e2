"""Add the fleet to Flower: pending and claimed jobs in its broker page, API and metrics, and tasks with their run.

Flower reads a list's length for each queue and has no plugins. But Flower's process opens our transport, which wraps
two of Flower's methods if they match the tested versions (2.0 to 2.2). Flower shows the fields of a task that Celery's
`Task` lists; for a merged call it shows the run.

`FleetObserver` and `StatusCollector` also serve the command `metrics`. Both callers pass in the way to the fleet
(`transport.app_api.fleet_on`), because that package is in a higher layer.
"""

import asyncio
import functools
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from kombu import Connection
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ..log_limit import limited_logger
from ..scheduler.cohorts import Cohorts
from .cohorts import metrics_of_all
from .metrics import METRICS, MetricFamily, Metrics, metric_families
from .status import Status, TypeStatus

logger = limited_logger(__name__)

#: Returns all cohorts, on a connection that it opens. The second argument is the connection's transport.
FleetOn = Callable[[Connection, object], Cohorts]

#: Timeouts in seconds of a connection and a reply, unless the transport options set others. Flower has the same.
_CONNECT_TIMEOUT_S = 1.0
_REPLY_TIMEOUT_S = 2.0


class FleetObserver:
    """Reads the state of the fleet on one connection. *shown_by*: the program that shows it, for the log."""

    def __init__(self, connection: Connection, fleet_on: FleetOn, shown_by: str = "Flower") -> None:
        self._origin = connection
        self._fleet_on = fleet_on
        self._shown_by = shown_by
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        self._in_trouble = False
        self.latest: Metrics | None = None
        """The last status, or None if the broker did not answer."""

    async def read(self) -> Metrics | None:
        """Call `read_now` in a thread, so that a slow broker does not block other pages."""
        return await asyncio.get_running_loop().run_in_executor(None, self.read_now)

    def read_now(self) -> Metrics | None:
        """Return the state of the fleet. If the broker fails, log a warning and return None."""
        with self._lock:
            try:
                self.latest = self._read()
            except Exception as exc:  # any: Flower's own part must still work
                self._forget_connection()
                self.latest = None
                if not self._in_trouble:
                    logger.warning(
                        "%s shows no metrics of celery_affinity, because they cannot be read: %s", self._shown_by, exc
                    )
                self._in_trouble = True
            else:
                if self._in_trouble:
                    logger.info("%s shows the metrics of celery_affinity again", self._shown_by)
                self._in_trouble = False
            return self.latest

    def _read(self) -> Metrics:
        if self._connection is not None:
            with suppress(Exception):
                return self._status()
            self._forget_connection()  # may be closed as idle, or another URL of a failover list answers now
        self._connection = _with_short_timeouts(self._origin)
        return self._status()

    def _status(self) -> Metrics:
        assert self._connection is not None, "made by _read"
        return metrics_of_all(self._fleet_on(self._connection, self._connection.transport_cls))

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._forget_connection()

    def _forget_connection(self) -> None:
        if self._connection is not None:
            with suppress(Exception):
                self._connection.release()
            self._connection = None


def _with_short_timeouts(origin: Connection) -> Connection:
    """Return a closed connection like *origin*, with timeouts short enough for a web page."""
    options = {
        "socket_connect_timeout": _CONNECT_TIMEOUT_S,
        "socket_timeout": _REPLY_TIMEOUT_S,
        **origin.transport.client.transport_options,  # with the scheme: a clone has no URL
    }
    return origin.clone(transport_options=options)


#: A row of Flower's broker page.
Row = dict[str, Any]

_lock = threading.Lock()
_installed = False


def install_in_flower(connection: Connection, fleet_on: FleetOn) -> None:
    """Show the fleet on the broker of *connection* in this process's Flower. Later calls do nothing.

    Celery loads Flower in every process of its command line, so nothing is read before a user opens a page.
    """
    global _installed
    with _lock:
        if _installed:
            return
        _installed = True
    try:
        _wrap(FleetObserver(connection.clone(), fleet_on))  # a clone, because the owner of *connection* closes it
    except (ImportError, AttributeError, TypeError) as exc:
        if "flower" in sys.argv:  # other processes only have Flower installed
            _warn_of_another_flower(exc)


def _wrap(observer: "FleetObserver") -> None:
    """Wrap both methods or none. Raises ImportError, AttributeError or TypeError if they are not as expected."""
    # Imported here because only Flower's process has these modules.
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


def _queues_with_ours(original: Callable[..., Awaitable[list[Row]]], observer: FleetObserver) -> Callable[..., Any]:
    @functools.wraps(original)
    async def queues(self: Any, names: Iterable[str]) -> list[Row]:
        status = await observer.read()
        if status is None:
            return await original(self, names)
        ours = {row.type: row for row in status.types}
        queried = list(names)
        # Flower only reads queues of workers that it has seen. Types without a worker must be shown as well.
        missing = set(ours).difference(queried)
        try:
            rows = await original(self, sorted({*queried, *missing}))
        except Exception:  # Flower's user may lack the right to read the added lists
            rows = await original(self, queried)
            rows += [{"name": type_, "messages": 0} for type_ in sorted(missing)]
        return merge_flower_rows(rows, ours, status)

    return queues


def _brokers_with_clusters(original: Callable[..., Any], observer: FleetObserver) -> Callable[..., Any]:
    """Return Flower's brokers, and a broker for clusters whose queues are those of the fleet."""

    async def empty(_: Any, names: Iterable[str]) -> list[Row]:
        return [{"name": name, "messages": 0} for name in names]

    cluster = type("Cluster", (), {"queues": _queues_with_ours(empty, observer)})

    @functools.wraps(original)
    def of_url(cls: type, url: str, *args: Any, **kwargs: Any) -> Any:
        return cluster() if url.partition("://")[0].endswith("-cluster") else original(cls, url, *args, **kwargs)

    return of_url


def merge_flower_rows(rows: list[Row], ours: dict[str, TypeStatus], status: Status) -> list[Row]:
    """Return Flower's rows with our jobs included.

    Rows of other queues are unchanged. If one row has an unexpected form, all rows are unchanged.
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
    # A list with the queue's own name holds messages of producers on another transport.
    ready = row["messages"] + ours.pending
    metrics = {
        "messages": ready,
        "messages_ready": ready,
        "messages_unacknowledged": ours.claimed,
        "consumers": consumers[ours.type],
    }
    return {**row, **{name: count for name, count in metrics.items() if count is not None}}


def _metrics_with_ours(original: Callable[..., Awaitable[None]], observer: FleetObserver) -> Callable[..., Any]:
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
def _register(observer: FleetObserver) -> None:
    # Imported here because prometheus_client is only installed with Flower.
    from prometheus_client import REGISTRY

    REGISTRY.register(StatusCollector(lambda: observer.latest))


@functools.cache
def _warn_once(reason: str) -> None:
    logger.warning("This version of Flower is unknown and shows no metrics of celery_affinity: %s", reason)


def _warn_of_another_flower(exc: Exception) -> None:
    _warn_once(f"{type(exc).__name__}: {exc}")


class StatusCollector(Collector):
    """Collects the metrics that *latest* returns, which is None if the broker did not answer."""

    def __init__(self, latest: Callable[[], Metrics | None]) -> None:
        self._latest = latest

    def describe(self) -> Iterator[Metric]:
        """Return the families without samples. A registry reads their names."""
        yield from (_metric(definition.family()) for definition in METRICS)

    def collect(self) -> Iterator[Metric]:
        yield from map(_metric, metric_families(self._latest()))


def _metric(family: MetricFamily) -> Metric:
    name = family.name.removesuffix("_total") if family.kind == "counter" else family.name
    metric = Metric(name, family.help, family.kind)
    suffix = "_total" if family.kind == "counter" else ""
    for sample in family.samples:
        metric.add_sample(name + suffix + sample.suffix, dict(sample.labels), sample.value)
    return metric
