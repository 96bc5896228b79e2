"""The one list of metrics for Prometheus, which the command `metrics`, the web application and Flower serve."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter

from ..clock import SECOND_US
from . import metrics as values
from .exposition import Family, Sample, exposition
from .metrics import Buckets, Metrics, Value
from .scale import scales


@dataclass(frozen=True)
class Figure:
    """One metric. A counter's *name* ends with ``_total``."""

    name: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[Metrics], Iterable[Value]]

    def family(self, metrics: Metrics | None = None) -> Family:
        """Return the metric with the samples of *metrics*; without samples for None."""
        samples = [
            Sample("", dict(zip(self.labels, of_labels, strict=True)), value)
            for of_labels, value in (self.read(metrics) if metrics else ())
            if value is not None
        ]
        return Family(self.name, self.help, "counter" if self.name.endswith("_total") else "gauge", samples)


@dataclass(frozen=True)
class Histogram:
    """One histogram, as Prometheus has them: each bucket counts all that is smaller, too."""

    name: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[Metrics], Iterable[Buckets]]

    def family(self, metrics: Metrics | None = None) -> Family:
        samples: list[Sample] = []
        for of_labels, buckets, number, total in self.read(metrics) if metrics else ():
            labels = dict(zip(self.labels, of_labels, strict=True))
            samples += [Sample("_bucket", {**labels, "le": str(float(bound))}, count) for bound, count in buckets]
            samples += [
                Sample("_bucket", {**labels, "le": "+Inf"}, number),
                Sample("_sum", labels, total),
                Sample("_count", labels, number),
            ]
        return Family(self.name, self.help, "histogram", samples)


_PREFIX = "celery_affinity_"

#: Name of the histogram of the runs of merged calls.
BATCH_SIZE = f"{_PREFIX}batch_size"

#: Value 1 comes with all other metrics, value 0 comes alone.
UP = Figure(
    f"{_PREFIX}up", "1 if the broker answered. 0 if not: then all other metrics are missing.", (), lambda _: [((), 1)]
)

METRICS: tuple[Figure | Histogram, ...] = (
    UP,
    Figure(f"{_PREFIX}pending_jobs", "Jobs that wait for a slot.", ("type", "mode"), values.pending),
    Figure(f"{_PREFIX}claimed_jobs", "Jobs that workers hold.", ("type",), values.by_type(attrgetter("claimed"))),
    Figure(
        f"{_PREFIX}kept_back_jobs",
        "Pending jobs that a rule keeps back: key, pause, type limit or reserve. No free slot would start them.",
        ("type", "rule"),
        values.kept_back,
    ),
    Figure(
        f"{_PREFIX}paused", "1 if the type is paused, else 0.", ("type",), values.by_type(lambda each: int(each.paused))
    ),
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
        values.by_type(lambda each: each.pending if each.unserved else 0),
    ),
    Figure(
        f"{_PREFIX}oldest_pending_age_seconds",
        "How long the oldest pending job has waited; 0 if none is pending.",
        ("type",),
        values.by_type(lambda each: each.oldest_wait_s or 0),
    ),
    Figure(
        f"{_PREFIX}slots", "Slots of live workers that serve the type.", ("type",), values.by_type(attrgetter("slots"))
    ),
    Figure(
        f"{_PREFIX}free_slots",
        "Free slots of live workers that serve the type.",
        ("type",),
        values.by_type(attrgetter("free")),
    ),
    Figure(
        f"{_PREFIX}wanted_slots",
        "Slots that workers of these types should have in all, for a wait of 30 s.",
        ("profile",),
        lambda status: [((each.profile,), each.wanted_slots) for each in scales(status)],
    ),
    Figure(
        f"{_PREFIX}scheduled_jobs",
        "Jobs that wait for their ETA, for more calls to merge with, or for the end of a pause after a requeue.",
        (),
        lambda status: [((), status.scheduled)],
    ),
    Figure(f"{_PREFIX}workers", "Live workers.", ("state",), values.workers),
    Figure(
        f"{_PREFIX}slow_workers",
        "Live workers on which jobs of the type take at least twice as long as on other workers.",
        ("type",),
        values.slow_workers,
    ),
    Figure(f"{_PREFIX}dead_letters", "Dead letters that are kept.", (), lambda status: [((), status.dead)]),
    Figure(f"{_PREFIX}dead_lettered_jobs_total", "Jobs that became dead letters.", ("reason",), values.dead_lettered),
    Figure(
        f"{_PREFIX}locality_hits_total",
        "Jobs with a hint that ended well on a worker which held their hint by then.",
        (),
        lambda status: [((), status.counters.get("locality_hits", 0))],
    ),
    Figure(
        f"{_PREFIX}locality_misses_total",
        "Jobs with a hint that ended well on a worker which did not hold their hint.",
        (),
        lambda status: [((), status.counters.get("locality_misses", 0))],
    ),
    Figure(
        f"{_PREFIX}recurring_fired_total",
        "Recurring calls that were made.",
        (),
        lambda status: [((), status.counters.get("recurring_fired", 0))],
    ),
    Figure(
        f"{_PREFIX}recurring_reset_total",
        "Times that a matching call postponed a recurring call.",
        (),
        lambda status: [((), status.counters.get("recurring_reset", 0))],
    ),
    Figure(
        f"{_PREFIX}recurring_stale_max_seconds",
        "Longest time for which no matching call has postponed a recurring call.",
        (),
        lambda status: [((), status.stale_s)],
    ),
    Figure(
        f"{_PREFIX}published_unserved_jobs_total",
        "Jobs published for a type that no live worker served.",
        (),
        lambda status: [((), status.counters.get("unserved", 0))],
    ),
    Figure(
        f"{_PREFIX}waiting_calls",
        "Calls in the pending jobs: a job of 18 merged calls counts as 18.",
        ("type",),
        values.by_type(attrgetter("calls")),
    ),
    Figure(
        f"{_PREFIX}refused_jobs_total",
        "Calls that were refused because the type was full (affinity_max_pending).",
        ("type",),
        lambda status: [((type_,), count) for type_, count in status.refused.items()],
    ),
    Figure(
        f"{_PREFIX}dropped_jobs_total",
        "Jobs that were dropped because the type was full (affinity_max_pending).",
        ("type",),
        lambda status: [((type_,), count) for type_, count in status.dropped.items()],
    ),
    Figure(
        f"{_PREFIX}merged_calls_total", "Calls that were merged with others into one run.", ("type",), values.ran_merged
    ),
    Figure(
        f"{_PREFIX}published_jobs_total",
        "Jobs that were published while live workers served their type.",
        ("type",),
        values.published,
    ),
    Figure(
        f"{_PREFIX}started_jobs_total",
        "Jobs that got a slot; a job that came back counts each time.",
        ("type", "mode"),
        values.started,
    ),
    Figure(f"{_PREFIX}ended_jobs_total", "Jobs that ended, or became dead letters.", ("type", "outcome"), values.ended),
    Figure(
        f"{_PREFIX}overtaking_bound_seconds",
        "A pending job is passed only by jobs published less than this time after it; +Inf while a rule lets any pass.",
        ("type",),
        lambda metrics: [((type_,), bound_s) for type_, bound_s in sorted(metrics.bounds_s.items())],
    ),
    Figure(
        f"{_PREFIX}profile_slots",
        "Slots of live workers that serve exactly these types.",
        ("profile", "state"),
        values.profile_slots,
    ),
    Figure(
        f"{_PREFIX}reserved_slots", "Slots that the largest reserve of the type keeps free.", ("type",), values.reserved
    ),
    Figure(
        f"{_PREFIX}tenant_slots",
        "Slots that jobs of a tenant have. Only tenants with a quota of their own have samples.",
        ("tenant",),
        values.of_tenants(attrgetter("held")),
    ),
    Figure(
        f"{_PREFIX}tenant_waiting_jobs",
        "Jobs of a tenant that wait. Only tenants with a quota of their own have samples.",
        ("tenant",),
        values.of_tenants(attrgetter("waiting")),
    ),
    Figure(
        f"{_PREFIX}tenant_oldest_wait_seconds",
        "Time for which the oldest waiting job of a tenant has waited; 0 if none waits.",
        ("tenant",),
        values.of_tenants(lambda each: each.oldest_wait_s or 0.0),
    ),
    Figure(
        f"{_PREFIX}tenant_missing_slots",
        "Slots that a tenant with waiting jobs lacks to its minimum.",
        ("tenant",),
        values.of_tenants(lambda each: each.minimum - each.held if each.is_below_minimum else 0),
    ),
    Figure(
        f"{_PREFIX}preempted_total",
        "Running jobs that were stopped for tenants below their minimum.",
        (),
        lambda status: [((), status.counters.get("preempted", 0))],
    ),
    Figure(
        f"{_PREFIX}preempted_seconds_total",
        "Time that such jobs had had their slots: work that is done again, unless the task had saved it.",
        (),
        lambda status: [((), status.counters.get("preempted_us", 0) / SECOND_US)],
    ),
    Histogram(
        f"{_PREFIX}wait_seconds",
        "Time from the publish of a job, or from its ETA, until it got a slot.",
        ("type", "mode"),
        values.waits,
    ),
    Histogram(f"{_PREFIX}run_seconds", "Time that jobs spent in a slot until they ended.", ("type",), values.runs),
    Histogram(BATCH_SIZE, "Number of calls in a run of merged calls.", (), values.batch_sizes),
)


def families(metrics: Metrics | None) -> Iterator[Family]:
    """Return all metrics with their samples; None: the broker did not answer, and one sample says so."""
    if metrics is None:
        yield Family(UP.name, UP.help, "gauge", [Sample("", {}, 0)])
        return
    yield from (_family(figure, metrics) for figure in METRICS)


def _family(figure: Figure | Histogram, metrics: Metrics) -> Family:
    """Return a metric: of several cohorts all samples, with a label for the cohort."""
    if not metrics.of_cohorts:
        return figure.family(metrics)
    samples = [
        replace(sample, labels={"cohort": name, **sample.labels})
        for name, each in metrics.of_cohorts.items()
        for sample in figure.family(each).samples
    ]
    if figure is UP:
        samples += [Sample("", {"cohort": name}, 0) for name in metrics.down or ()]
    return replace(figure.family(), samples=samples)


def as_text(metrics: Metrics | None) -> str:
    """Return the text that Prometheus reads."""
    return exposition(families(metrics))
