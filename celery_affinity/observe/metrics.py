"""The figures of a `Status` as Prometheus metrics. This module does no I/O, and does not know Flower."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ..rules.protocol import LARGEST_BATCH_COUNTED
from .dead_letters import REASONS
from .status import Batches, Status, TypeStatus

#: Values of a metric's labels, and the metric's value; None (unknown) gives no sample.
Sample = tuple[tuple[str, ...], float | None]


@dataclass(frozen=True)
class Figure:
    """One metric. A counter's *name* ends with ``_total``."""

    name: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[Status], Iterable[Sample]]

    def family(self) -> GaugeMetricFamily | CounterMetricFamily:
        kind = CounterMetricFamily if self.name.endswith("_total") else GaugeMetricFamily
        return kind(self.name, self.help, labels=self.labels)


def _by_type(value: Callable[[TypeStatus], float | None]) -> Callable[[Status], Iterable[Sample]]:
    return lambda status: [((each.type,), value(each)) for each in status.types]


def _pending(status: Status) -> Iterable[Sample]:
    for each in status.types:
        yield (each.type, "queued"), each.pending - each.on_demand
        yield (each.type, "on_demand"), each.on_demand


def _kept_back(status: Status) -> Iterable[Sample]:
    # A job that several rules keep back is counted once, so that the rules add up.
    for each in status.types:
        yield (each.type, "key"), each.kept_back
        yield (each.type, "pause"), each.pending - each.kept_back if each.paused else 0
        yield (each.type, "reserve"), 0 if each.paused else each.kept_back_by_reserves


def _workers(status: Status) -> Iterable[Sample]:
    draining = sum(each.draining for each in status.workers)
    return [(("accepting",), len(status.workers) - draining), (("draining",), draining)]


def _dead_lettered(status: Status) -> Iterable[Sample]:
    # Every reason has a sample from the start: Prometheus' `increase` misses an event with which a series begins.
    return [((reason,), status.counters.get(reason, 0)) for reason in REASONS]


def _ran_merged(status: Status) -> Iterable[Sample]:
    return [((each.type,), each.ran_merged) for each in status.types if each.ran_merged]


_PREFIX = "celery_affinity_"

#: Value 1 comes with all other figures, value 0 comes alone.
UP = Figure(f"{_PREFIX}up", "Whether the broker answered: 0 leaves out all other figures.", (), lambda _: [((), 1)])

FIGURES = (
    UP,
    Figure(f"{_PREFIX}pending_jobs", "Jobs that wait for a slot.", ("type", "mode"), _pending),
    Figure(f"{_PREFIX}claimed_jobs", "Jobs that workers hold.", ("type",), _by_type(attrgetter("claimed"))),
    Figure(
        f"{_PREFIX}kept_back_jobs",
        "Pending jobs that a rule keeps back.",
        ("type", "rule"),
        _kept_back,
    ),
    Figure(f"{_PREFIX}paused", "Whether the type is paused.", ("type",), _by_type(lambda each: int(each.paused))),
    Figure(
        f"{_PREFIX}paused_keys",
        "Keys that are paused.",
        (),
        lambda status: [((), sum(each.kind == "key" for each in status.pauses))],
    ),
    Figure(
        f"{_PREFIX}keys_waiting",
        "Keys for which jobs wait.",
        (),
        lambda status: [((), status.waiting_keys)],
    ),
    Figure(
        f"{_PREFIX}unserved_jobs",
        "Pending jobs that no live worker can take.",
        ("type",),
        _by_type(lambda each: each.pending if each.unserved else 0),
    ),
    Figure(
        f"{_PREFIX}oldest_pending_age_seconds",
        "How long the oldest pending job has waited; 0 if none is pending.",
        ("type",),
        _by_type(lambda each: each.oldest_wait_s or 0),
    ),
    Figure(f"{_PREFIX}slots", "Slots of live workers that serve the type.", ("type",), _by_type(attrgetter("slots"))),
    Figure(
        f"{_PREFIX}free_slots",
        "Free slots of live workers that serve the type.",
        ("type",),
        _by_type(attrgetter("free")),
    ),
    Figure(
        f"{_PREFIX}scheduled_jobs",
        "Jobs that wait for their ETA, or for more calls.",
        (),
        lambda status: [((), status.scheduled)],
    ),
    Figure(f"{_PREFIX}workers", "Live workers.", ("state",), _workers),
    Figure(f"{_PREFIX}dead_letters", "Dead letters that are kept.", (), lambda status: [((), status.dead)]),
    Figure(f"{_PREFIX}dead_lettered_jobs_total", "Jobs that became dead letters.", ("reason",), _dead_lettered),
    Figure(
        f"{_PREFIX}recurring_fired_total",
        "Recurring calls that were made.",
        (),
        lambda status: [((), status.counters.get("recurring_fired", 0))],
    ),
    Figure(
        f"{_PREFIX}recurring_reset_total",
        "Times that a call put a recurring one off.",
        (),
        lambda status: [((), status.counters.get("recurring_reset", 0))],
    ),
    Figure(
        f"{_PREFIX}recurring_stale_max_seconds",
        "Longest time since anything put off a recurring call.",
        (),
        lambda status: [((), status.stale_s)],
    ),
    Figure(
        f"{_PREFIX}published_unserved_jobs_total",
        "Jobs published for a type that no live worker served.",
        (),
        lambda status: [((), status.counters.get("unserved", 0))],
    ),
    Figure(f"{_PREFIX}merged_calls_total", "Calls that ran merged with others, in one run.", ("type",), _ran_merged),
)

#: Name of the histogram of the runs of merged calls.
BATCH_SIZE = f"{_PREFIX}batch_size"


def _batch_size(batches: Batches | None) -> HistogramMetricFamily:
    """Return the histogram, by powers of two; without samples for None."""
    family = HistogramMetricFamily(BATCH_SIZE, "Calls of a run of merged calls.")
    if batches is not None:
        size, runs, buckets = 2, 0, []
        while size <= LARGEST_BATCH_COUNTED:
            runs += batches.runs.get(str(size), 0)
            buckets.append((str(float(size)), float(runs)))
            size *= 2
        buckets.append(("+Inf", float(runs + batches.runs.get("more", 0))))
        family.add_metric((), buckets, sum_value=batches.calls)
    return family


class StatusCollector(Collector):
    """Collects the figures of the status that *latest* returns, which is None if the broker did not answer."""

    def __init__(self, latest: Callable[[], Status | None]) -> None:
        self._latest = latest

    def describe(self) -> Iterator[Metric]:
        """Return the families without samples: a registry asks for their names."""
        yield from (figure.family() for figure in FIGURES)
        yield _batch_size(None)

    def collect(self) -> Iterator[Metric]:
        status = self._latest()
        if status is None:
            down = UP.family()
            down.add_metric((), 0)
            yield down
            return
        for figure in FIGURES:
            family = figure.family()
            for labels, value in figure.read(status):
                if value is not None:
                    family.add_metric(labels, value)
            yield family
        yield _batch_size(status.batches)
