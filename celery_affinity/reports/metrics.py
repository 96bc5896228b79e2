"""Define and read all metrics, and format them for Prometheus (text format 0.0.4).

The command `metrics`, the web application and Flower serve this one list.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import chain
from typing import Literal, NamedTuple

from ..clock import SECOND_US
from ..scheduler.reader import Reader
from ..schema.bounds import Bound
from ..schema.constants import LARGEST_BATCH_COUNTED, REASONS
from ..schema.histograms import BOUNDS_S, OTHER_ENDS, RUNS, TimeHistogram
from ..schema.values import decode_number, decode_part, is_on_demand
from ..settings import wire
from .due import DueReport, read_due
from .queue_order import largest_head_us
from .scale import scale_of_types
from .status import Report, Status, TypeStatus
from .tenants import TenantStatus, generation_in
from .type_metrics import TypeMetrics, metrics_of

#: Content type of a reply over HTTP.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Sample(NamedTuple):
    """A value with labels. *suffix*: is added to the family's name, such as ``_bucket`` of a histogram."""

    suffix: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class MetricFamily:
    """All samples of one metric. The name of a counter ends with ``_total``."""

    name: str
    help: str
    kind: Literal["gauge", "counter", "histogram"]
    samples: list[Sample] = field(default_factory=list)


def _lines(family: MetricFamily) -> Iterator[str]:
    yield _heading(family)
    for suffix, sample_labels, value in family.samples:
        labels = ",".join([f'{name}="{_escaped_label(label)}"' for name, label in sample_labels.items()])
        braces = f"{{{labels}}}" if labels else ""
        yield f"{family.name}{suffix}{braces} {_number(value)}"


def _heading(family: MetricFamily) -> str:
    return f"# HELP {family.name} {_escaped(family.help)}\n# TYPE {family.name} {family.kind}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


@lru_cache(maxsize=10_000)  # the names of types are labels of most samples
def _escaped_label(text: str) -> str:
    return _escaped(text).replace('"', r"\"")


def _number(value: float) -> str:
    if type(value) is int:
        return str(value)
    if math.isinf(value):
        return "+Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


#: Values of a metric's labels, and the metric's value, or None for no sample.
Value = tuple[tuple[str, ...], float | None]

#: Values of a histogram's labels, the number of events up to each bound and in total, and their sum.
Buckets = tuple[tuple[str, ...], list[tuple[float, int]], int, float]

#: Maximum length of a profile in a label. Longer profiles are cut.
_MAX_PROFILE_LENGTH = 200


@dataclass(frozen=True)
class Metrics(Status):
    """A status with counters.

    *bounds_s*: type -> overtaking bound in seconds, infinite while a rule lets any job overtake. *due*: the jobs with
    an own due time. *of_cohorts*: the metrics of each cohort, if there are several.
    """

    of_types: list[TypeMetrics] = field(default_factory=list)
    bounds_s: dict[str, float] = field(default_factory=dict)
    due: DueReport = field(default_factory=DueReport)
    of_cohorts: dict[str, "Metrics"] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        status: Status,
        of_types: list[TypeMetrics] | None = None,
        bounds_s: dict[str, float] | None = None,
        due: DueReport | None = None,
    ) -> "Metrics":
        values = {status_field.name: getattr(status, status_field.name) for status_field in fields(status)}
        return cls(**values, of_types=of_types or [], bounds_s=bounds_s or {}, due=due or DueReport())


def read_metrics(reader: Reader, bounds: Mapping[str, int | Bound] | None = None) -> Metrics:
    """Return all exported metrics. The number of commands depends only on types and workers.

    *bounds*: bounds of the app's queues, as in `Report`.
    """
    report = Report(reader, bounds)
    status = report.status()
    of_types = metrics_of(reader, [row.type for row in status.types])
    return Metrics.of(status, of_types, _overtaking_bounds(reader, status, report.lanes), read_due(reader))


def _overtaking_bounds(reader: Reader, status: Status, lanes: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Return, by type with pending jobs, the highest overtaking bound of its jobs, in seconds.

    *lanes*: type (encoded) -> names of its lanes with jobs.

    Infinite while a rule lets any job overtake one of them: a pause, a limit of the type, a key, a reserve without
    patience, a tenant below its minimum, or fair shares of tenants.
    """
    stored = reader.hash("settings")
    settings = wire.complete_settings(stored)
    in_force, bonus = wire.weights_of(settings), wire.bonus_seconds_in(settings)
    head_s = largest_head_us(reader, settings) / SECOND_US
    bound_s_by_lane = {
        name: head_s
        + wire.overtaking_seconds(decode_number(name.rpartition(".")[2]), is_on_demand(name), in_force, bonus=bonus)
        for name in set(chain.from_iterable(lanes.values()))
    }
    with_turns = {decode_part(type_) for type_ in lanes} if generation_in(stored.get("shares", "")) else set[str]()
    any_below_minimum = any(tenant.is_below_minimum for tenant in status.tenants)
    status_by_type = {row.type: row for row in status.types}
    bounds_s = {
        decode_part(type_): max(bound_s_by_lane[name] for name in names) for type_, names in lanes.items() if names
    }
    for type_ in {*bounds_s, *(row.type for row in status.types if row.pending)}:
        row = status_by_type.get(type_)
        is_blocked = row and row.pending and (row.paused or row.kept_back or row.kept_back_by_limit)
        if any_below_minimum or type_ in with_turns or is_blocked:
            bounds_s[type_] = math.inf
        elif row and row.kept_back_by_reserves:
            patience_us = int(settings["reserve_patience_us"])
            late_s = (patience_us + int(settings["heartbeat_interval_us"])) / SECOND_US
            bounds_s[type_] = max(bounds_s.get(type_, 0.0), late_s if patience_us else math.inf)
    return bounds_s


def pending_jobs(status: Status) -> Iterable[Value]:
    for row in status.types:
        yield (row.type, "queued"), row.pending - row.on_demand
        yield (row.type, "on_demand"), row.on_demand


def blocked_jobs(status: Status) -> Iterable[Value]:
    # A job blocked by several rules is counted once, so that the rules add up.
    for row in status.types:
        yield (row.type, "key"), row.kept_back
        yield (row.type, "pause"), row.pending - row.kept_back if row.paused else 0
        by_limit = 0 if row.paused else row.kept_back_by_limit
        others = 0 if row.paused else row.pending - row.kept_back - by_limit
        yield (row.type, "type limit"), by_limit
        yield (row.type, "reserve"), min(row.kept_back_by_reserves, max(0, others))


def worker_counts(status: Status) -> Iterable[Value]:
    draining = sum(worker.draining for worker in status.workers)
    stalled = sum(worker.stalled and not worker.draining for worker in status.workers)
    accepting = len(status.workers) - draining - stalled
    return [(("accepting",), accepting), (("draining",), draining), (("stalled",), stalled)]


def slow_workers(status: Status) -> Iterable[Value]:
    slow = Counter(worker.pace.type for worker in status.workers if worker.pace and worker.is_slow)
    return [((row.type,), slow[row.type]) for row in status.types]


def dead_letter_counts(status: Status) -> Iterable[Value]:
    # Every reason has a sample from the start: Prometheus' `increase` misses the first event of a new series.
    return [((reason,), status.counters.get(reason, 0)) for reason in REASONS]


def started_jobs(metrics: Metrics) -> Iterable[Value]:
    for row in metrics.of_types:
        yield (row.type, "queued"), row.queued.number
        yield (row.type, "on_demand"), row.on_demand.number


def ended_jobs(metrics: Metrics) -> Iterable[Value]:
    # Every outcome has a sample from the start, like the reasons of dead letters.
    outcomes = dict.fromkeys([*RUNS, *OTHER_ENDS])
    for row in metrics.of_types:
        for outcome in outcomes:
            yield (row.type, outcome), row.ended.get(outcome, 0)


def profile_slots(metrics: Metrics) -> Iterable[Value]:
    slots: dict[tuple[str, str], int] = {}
    for worker in metrics.workers:
        types = ",".join(worker.types)
        profile = types if len(types) <= _MAX_PROFILE_LENGTH else f"{types[:_MAX_PROFILE_LENGTH]}..."
        busy = worker.slots - worker.free if not worker.draining else worker.held
        counts = {"live": worker.slots, "free": worker.free, "busy": busy, "lent": worker.lent}
        for state, number in counts.items():
            slots[profile, state] = slots.get((profile, state), 0) + number
    return slots.items()


def wait_times(metrics: Metrics) -> Iterable[Buckets]:
    for row in metrics.of_types:
        for mode, times in (("queued", row.queued), ("on_demand", row.on_demand)):
            if times.number:  # most types have jobs of one mode
                yield _buckets((row.type, mode), times)


def due_starts(metrics: Metrics) -> Iterable[Value]:
    for row in metrics.of_types:
        if row.in_time or row.late.number:  # few types have jobs with due times
            yield (row.type, "yes"), row.in_time
            yield (row.type, "no"), row.late.number


def late_starts(metrics: Metrics) -> Iterable[Buckets]:
    return [_buckets((row.type,), row.late) for row in metrics.of_types if row.in_time or row.late.number]


def expected_late_jobs(metrics: Metrics) -> Iterable[Value]:
    late = Counter(job.type for job in metrics.due.late)
    types = {*late, *(row.type for row in metrics.of_types if row.in_time or row.late.number)}
    return [((type_,), late[type_]) for type_ in sorted(types)]


def run_times(metrics: Metrics) -> Iterable[Buckets]:
    return [_buckets((row.type,), row.runs) for row in metrics.of_types if row.runs.number]


def _buckets(labels: tuple[str, ...], times: TimeHistogram) -> Buckets:
    seen, buckets = 0, []
    for bound_s, count in zip(BOUNDS_S, times.counts, strict=False):
        seen += count
        buckets.append((bound_s, seen))
    return labels, buckets, times.number, times.sum_s


def batch_sizes(metrics: Metrics) -> Iterable[Buckets]:
    batches = metrics.batches
    size, runs, buckets = 2, 0, []
    while size <= LARGEST_BATCH_COUNTED:
        runs += batches.runs.get(str(size), 0)
        buckets.append((float(size), runs))
        size *= 2
    yield (), buckets, runs + batches.runs.get("more", 0), batches.calls


@dataclass(frozen=True)
class MetricFigure:
    """A metric. A counter's *name* ends with ``_total``."""

    name: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[Metrics], Iterable[Value]]

    def family(self, metrics: Metrics | None = None) -> MetricFamily:
        """Return the metric with the samples of *metrics*, or without samples for None."""
        samples = [
            Sample("", dict(zip(self.labels, of_labels, strict=True)), value)
            for of_labels, value in (self.read(metrics) if metrics else ())
            if value is not None
        ]
        return MetricFamily(self.name, self.help, "counter" if self.name.endswith("_total") else "gauge", samples)

    def lines(self, metrics: Metrics) -> Iterator[str]:
        """Yield the lines of the metric's text. With thousands of types, samples would take most of the time."""
        yield _heading(self.family())
        labels = ",".join(f'{name}="%s"' for name in self.labels)
        line = f"{self.name}{{{labels}}} %s" if labels else f"{self.name} %s"
        for of_labels, value in self.read(metrics):
            if value is not None:
                yield line % (*map(_escaped_label, of_labels), _number(value))


@dataclass(frozen=True)
class Histogram:
    """A Prometheus histogram. Each bucket includes all smaller events."""

    name: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[Metrics], Iterable[Buckets]]

    def family(self, metrics: Metrics | None = None) -> MetricFamily:
        samples: list[Sample] = []
        for of_labels, buckets, number, total in self.read(metrics) if metrics else ():
            labels = dict(zip(self.labels, of_labels, strict=True))
            samples += [Sample("_bucket", {**labels, "le": str(float(bound))}, count) for bound, count in buckets]
            samples += [
                Sample("_bucket", {**labels, "le": "+Inf"}, number),
                Sample("_sum", labels, total),
                Sample("_count", labels, number),
            ]
        return MetricFamily(self.name, self.help, "histogram", samples)

    def lines(self, metrics: Metrics) -> Iterator[str]:
        return _lines(self.family(metrics))


_PREFIX = "celery_affinity_"

#: Name of the histogram of the runs of merged calls.
BATCH_SIZE = f"{_PREFIX}batch_size"

#: 1 with all other metrics. The value 0 is sent without other metrics.
UP = MetricFigure(
    f"{_PREFIX}up", "1 if the broker answered. 0 if not: then all other metrics are missing.", (), lambda _: [((), 1)]
)


def _figure(name: str, help: str, labels: tuple[str, ...], read: Callable[[Metrics], Iterable[Value]]) -> MetricFigure:
    return MetricFigure(_PREFIX + name, help, labels, read)


def _of_fleet(name: str, help: str, value: Callable[[Metrics], float | None]) -> MetricFigure:
    return _figure(name, help, (), lambda metrics: [((), value(metrics))])


def _counter(name: str, help: str) -> MetricFigure:
    """Return the metric of the counter *name* of the status."""
    return _of_fleet(f"{name}_total", help, lambda metrics: metrics.counters.get(name, 0))


def _of_types(name: str, help: str, value: Callable[[TypeStatus], float | None]) -> MetricFigure:
    return _figure(name, help, ("type",), lambda metrics: [((row.type,), value(row)) for row in metrics.types])


def _of_tenants(name: str, help: str, value: Callable[[TenantStatus], float]) -> MetricFigure:
    def read(metrics: Metrics) -> Iterable[Value]:
        return [((tenant.name,), value(tenant)) for tenant in metrics.tenants if tenant.is_named]

    return _figure(name, help, ("tenant",), read)


METRICS: tuple[MetricFigure | Histogram, ...] = (
    UP,
    _figure("pending_jobs", "Jobs that wait for a slot.", ("type", "mode"), pending_jobs),
    _of_types("claimed_jobs", "Jobs that workers hold.", lambda row: row.claimed),
    _figure(
        "kept_back_jobs",
        "Pending jobs that a rule blocks: key (or quota), pause, type limit or reserve. No free slot starts them.",
        ("type", "rule"),
        blocked_jobs,
    ),
    _of_types("paused", "1 if the type is paused, else 0.", lambda row: int(row.paused)),
    _of_fleet("paused_keys", "Keys that are paused.", lambda metrics: sum(row.kind == "key" for row in metrics.pauses)),
    _of_fleet("keys_waiting", "Keys for which jobs wait.", lambda metrics: metrics.waiting_keys),
    _of_types(
        "unserved_jobs", "Pending jobs that no live worker can take.", lambda row: row.pending if row.unserved else 0
    ),
    _of_types(
        "oldest_pending_age_seconds",
        "How long the oldest pending job has waited; 0 if none is pending.",
        lambda row: row.oldest_wait_s or 0,
    ),
    _of_types("slots", "Slots of live workers that serve the type.", lambda row: row.slots),
    _of_types("free_slots", "Free slots of live workers that serve the type.", lambda row: row.free),
    _figure(
        "wanted_slots",
        "Slots that workers of these types should have in all, for a wait of 30 s.",
        ("profile",),
        lambda metrics: [((row.profile,), row.wanted_slots) for row in scale_of_types(metrics)],
    ),
    _of_fleet(
        "scheduled_jobs",
        "Jobs that wait for their ETA, for more calls to merge with, or for the end of a pause after a requeue.",
        lambda metrics: metrics.scheduled,
    ),
    _figure(
        "due_starts_total",
        "Starts of jobs with their own due time, by whether it was met.",
        ("type", "met"),
        due_starts,
    ),
    _figure(
        "expected_late_jobs",
        "Waiting jobs that are expected to start after their due time (`celery affinity due`).",
        ("type",),
        expected_late_jobs,
    ),
    _of_fleet("overdue_jobs", "Waiting jobs whose due time has passed.", lambda metrics: metrics.due.overdue),
    _figure("workers", "Live workers.", ("state",), worker_counts),
    _figure(
        "slow_workers",
        "Live workers on which jobs of the type take at least twice as long as on other workers.",
        ("type",),
        slow_workers,
    ),
    _of_fleet("dead_letters", "Dead letters that are kept.", lambda metrics: metrics.dead),
    _figure("dead_lettered_jobs_total", "Jobs that became dead letters.", ("reason",), dead_letter_counts),
    _counter("locality_hits", "Jobs with a hint that succeeded on a worker that held their hint."),
    _counter("locality_misses", "Jobs with a hint that succeeded on a worker that did not hold their hint."),
    _counter("recurring_fired", "Recurring calls that were published."),
    _counter("recurring_reset", "Times that a matching call postponed a recurring call."),
    _of_fleet(
        "recurring_stale_max_seconds",
        "Longest time for which no matching call has postponed a recurring call.",
        lambda metrics: metrics.stale_s,
    ),
    _of_fleet(
        "published_unserved_jobs_total",
        "Jobs published for a type that no live worker served.",
        lambda metrics: metrics.counters.get("unserved", 0),
    ),
    _of_types(
        "waiting_calls", "Calls in the pending jobs: a job of 18 merged calls counts as 18.", lambda row: row.calls
    ),
    _figure(
        "refused_jobs_total",
        "Calls that were refused because the type was full (affinity_max_pending).",
        ("type",),
        lambda metrics: [((type_,), count) for type_, count in metrics.refused.items()],
    ),
    _figure(
        "dropped_jobs_total",
        "Jobs that were dropped because the type was full (affinity_max_pending).",
        ("type",),
        lambda metrics: [((type_,), count) for type_, count in metrics.dropped.items()],
    ),
    _of_types(
        "merged_calls_total", "Calls that were merged with others into one run.", lambda row: row.ran_merged or None
    ),
    _figure(
        "published_jobs_total",
        "Jobs that were published while live workers served their type.",
        ("type",),
        lambda metrics: [((row.type,), row.published) for row in metrics.of_types],
    ),
    _figure(
        "started_jobs_total",
        "Jobs that got a slot; each attempt of a job counts.",
        ("type", "mode"),
        started_jobs,
    ),
    _figure("ended_jobs_total", "Jobs that ended, or became dead letters.", ("type", "outcome"), ended_jobs),
    _figure(
        "overtaking_bound_seconds",
        "Only jobs published less than this time after a job can overtake it; +Inf while a rule lifts this bound.",
        ("type",),
        lambda metrics: [((type_,), bound_s) for type_, bound_s in sorted(metrics.bounds_s.items())],
    ),
    _figure(
        "profile_slots",
        "Slots of live workers that serve exactly these types.",
        ("profile", "state"),
        profile_slots,
    ),
    _of_types(
        "reserved_slots",
        "Slots that the largest reserve of the type keeps free.",
        lambda row: max((reserve.kept for reserve in row.reserves), default=0),
    ),
    _of_tenants(
        "tenant_slots",
        "Slots that jobs of a tenant have. Only tenants with their own quota have samples.",
        lambda tenant: tenant.held,
    ),
    _of_tenants(
        "tenant_waiting_jobs",
        "Jobs of a tenant that wait. Only tenants with their own quota have samples.",
        lambda tenant: tenant.waiting,
    ),
    _of_tenants(
        "tenant_oldest_wait_seconds",
        "Time for which the oldest waiting job of a tenant has waited; 0 if none waits.",
        lambda tenant: tenant.oldest_wait_s or 0.0,
    ),
    _of_tenants(
        "tenant_missing_slots",
        "Slots that a tenant with waiting jobs needs to reach its minimum.",
        lambda tenant: tenant.minimum - tenant.held if tenant.is_below_minimum else 0,
    ),
    _counter("preempted", "Running jobs that were stopped for tenants below their minimum."),
    _of_fleet(
        "preempted_seconds_total",
        "Time for which preempted jobs had had their slots: lost work, unless the task had saved it.",
        lambda metrics: metrics.counters.get("preempted_us", 0) / SECOND_US,
    ),
    Histogram(
        f"{_PREFIX}wait_seconds",
        "Time from the publish of a job, or from its ETA, until it got a slot.",
        ("type", "mode"),
        wait_times,
    ),
    Histogram(f"{_PREFIX}run_seconds", "Time that jobs spent in a slot until they ended.", ("type",), run_times),
    Histogram(
        f"{_PREFIX}late_seconds", "Time from a job's own due time until it got a slot, if late.", ("type",), late_starts
    ),
    Histogram(BATCH_SIZE, "Number of calls in a run of merged calls.", (), batch_sizes),
)


def metric_families(metrics: Metrics | None) -> Iterator[MetricFamily]:
    """Return all metrics with their samples, or only `UP` with 0 for None (the broker did not answer)."""
    if metrics is None:
        yield MetricFamily(UP.name, UP.help, "gauge", [Sample("", {}, 0)])
        return
    yield from (_family(definition, metrics) for definition in METRICS)


def _family(definition: MetricFigure | Histogram, metrics: Metrics) -> MetricFamily:
    """Return a metric. For several cohorts, all samples have a label for the cohort."""
    if not metrics.of_cohorts:
        return definition.family(metrics)
    samples = [
        sample._replace(labels={"cohort": name, **sample.labels})
        for name, cohort_metrics in metrics.of_cohorts.items()
        for sample in definition.family(cohort_metrics).samples
    ]
    if definition is UP:
        samples += [Sample("", {"cohort": name}, 0) for name in metrics.down or ()]
    return replace(definition.family(), samples=samples)


def metrics_text(metrics: Metrics | None) -> str:
    """Return the text for Prometheus."""
    if metrics is None or metrics.of_cohorts:
        lines = [line for family in metric_families(metrics) for line in _lines(family)]
    else:
        lines = [line for definition in METRICS for line in definition.lines(metrics)]
    return "\n".join([*lines, ""])
