"""The state of the fleet for a process that serves it: Flower, and the command `metrics`.

Both hand in the way to the fleet (`transport.reach.fleet_on`), which is in a room above this one.

Flower's broker page, its API and its metrics, with the pending and claimed jobs counted in; tasks with their run.

Flower reads the length of a list for each queue, and has no plugins. But Flower's process opens our transport, which
wraps two of Flower's methods, if they look as in the tested versions (2.0 to 2.2). Of a task Flower shows the fields
that Celery's `Task` names: of a merged call it is to show the run.

Our metrics among those of a process that uses prometheus_client, as Flower does.
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

#: Returns all cohorts on a connection, which it opens; the second argument is the connection's transport.
FleetOn = Callable[[Connection, object], Cohorts]

#: Longest waits, s, for a connection and for a reply, unless the transport options say otherwise: as long as Flower
#: waits.
_CONNECT_TIMEOUT_S = 1.0
_REPLY_TIMEOUT_S = 2.0


class FleetObserver:
    """Reads the state of the fleet, on one connection, for what shows it to others: *shown_by*, in the log."""

    def __init__(self, connection: Connection, fleet_on: FleetOn, shown_by: str = "Flower") -> None:
        self._origin = connection
        self._fleet_on = fleet_on
        self._shown_by = shown_by
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        self._in_trouble = False
        self.latest: Metrics | None = None
        """The status as last read; None if the broker did not answer."""

    async def read(self) -> Metrics | None:
        """Do the same as `read_now` in a thread, so that a slow broker does not hold up other pages."""
        return await asyncio.get_running_loop().run_in_executor(None, self.read_now)

    def read_now(self) -> Metrics | None:
        """Return the state of the fleet; None, with a line in the log, if the broker gives none: others go on."""
        with self._lock:
            try:
                self.latest = self._read()
            except Exception as exc:  # any: Flower's own part must still work
                self._forget_connection()
                self.latest = None
                if not self._in_trouble:
                    logger.warning(
                        "%s shows no metrics of celery_affinity, because they cannot be read: %s",
                        self._shown_by,
                        exc,
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
            self._forget_connection()  # perhaps closed as idle; or another URL of a failover list answers now
        self._connection = _with_patience(self._origin)
        return self._status()

    def _status(self) -> Metrics:
        assert self._connection is not None, "made by _read"
        return metrics_of_all(self._fleet_on(self._connection, self._connection.transport_cls))

    def close(self) -> None:
        """Give the connection up."""
        with self._lock:
            self._forget_connection()

    def _forget_connection(self) -> None:
        if self._connection is not None:
            with suppress(Exception):
                self._connection.release()
            self._connection = None


def _with_patience(origin: Connection) -> Connection:
    """Return a connection like *origin*, not open yet, with waits that a person who looks at a page can bear."""
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
        _wrap(FleetObserver(connection.clone(), fleet_on))  # a clone, since the owner of *connection* closes it
    except (ImportError, AttributeError, TypeError) as exc:
        if "flower" in sys.argv:  # elsewhere Flower is merely installed
            _warn_of_another_flower(exc)


def _wrap(observer: "FleetObserver") -> None:
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


def _queues_with_ours(original: Callable[..., Awaitable[list[Row]]], observer: FleetObserver) -> Callable[..., Any]:
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
        return merge_flower_rows(rows, ours, status)

    return queues


def _brokers_with_clusters(original: Callable[..., Any], observer: FleetObserver) -> Callable[..., Any]:
    """Return the brokers that Flower knows, and one for a cluster, whose queues are those of the fleet."""

    async def empty(_: Any, names: Iterable[str]) -> list[Row]:
        return [{"name": name, "messages": 0} for name in names]

    cluster = type("Cluster", (), {"queues": _queues_with_ours(empty, observer)})

    @functools.wraps(original)
    def of_url(cls: type, url: str, *args: Any, **kwargs: Any) -> Any:
        return cluster() if url.partition("://")[0].endswith("-cluster") else original(cls, url, *args, **kwargs)

    return of_url


def merge_flower_rows(rows: list[Row], ours: dict[str, TypeStatus], status: Status) -> list[Row]:
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
    # Not at the top: prometheus_client comes with Flower alone.
    from prometheus_client import REGISTRY

    REGISTRY.register(StatusCollector(lambda: observer.latest))


@functools.cache
def _warn_once(reason: str) -> None:
    logger.warning("This version of Flower is unknown and shows no metrics of celery_affinity: %s", reason)


def _warn_of_another_flower(exc: Exception) -> None:
    _warn_once(f"{type(exc).__name__}: {exc}")


class StatusCollector(Collector):
    """Collects what *latest* returns, which is None if the broker did not answer."""

    def __init__(self, latest: Callable[[], Metrics | None]) -> None:
        self._latest = latest

    def describe(self) -> Iterator[Metric]:
        """Return the families without samples: a registry asks for their names."""
        yield from (_metric(figure.family()) for figure in METRICS)

    def collect(self) -> Iterator[Metric]:
        yield from map(_metric, metric_families(self._latest()))


def _metric(family: MetricFamily) -> Metric:
    name = family.name.removesuffix("_total") if family.kind == "counter" else family.name
    metric = Metric(name, family.help, family.kind)
    suffix = "_total" if family.kind == "counter" else ""
    for sample in family.samples:
        metric.add_sample(name + suffix + sample.suffix, dict(sample.labels), sample.value)
    return metric
