"""The one list of figures for Prometheus, which the command `metrics`, the web application and Flower serve."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter

from ..rules import overtaking
from ..rules.bounds import Bound
from ..rules.figures import BOUNDS_S, OTHER_ENDS, RUNS, Times
from ..rules.keys import decode
from ..rules.protocol import LARGEST_BATCH_COUNTED
from ..rules.shared_settings import weights
from ..server.reader import Reader
from .dead_letters import REASONS
from .exposition import Family, Sample, exposition
from .figures import TypeFigures, figures_of
from .scale import scales
from .status import Report, Status, TypeStatus

#: Values of a metric's labels, and the metric's value; None (unknown) gives no sample.
Value = tuple[tuple[str, ...], float | None]

#: Values of a histogram's labels, the number of events up to each bound and in all, and their sum.
Buckets = tuple[tuple[str, ...], list[tuple[float, int]], int, float]

#: Characters of a profile in a label; a longer one is cut.
_LONGEST_PROFILE = 200


@dataclass(frozen=True)
class Metrics(Status):
    """A status, with what grows. *bounds_s*: type -> the longest time by which a job may be younger and still pass one
    that waits.
    """

    figures: list[TypeFigures] = field(default_factory=list)
    bounds_s: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, status: Status, figures: list[TypeFigures] | None = None, bounds_s: dict[str, float] | None = None
    ) -> "Metrics":
        known = {each.name: getattr(status, each.name) for each in fields(status)}
        return cls(**known, figures=figures or [], bounds_s=bounds_s or {})


def read_metrics(reader: Reader, bounds: Mapping[str, int | Bound] | None = None) -> Metrics:
    """Return all that is exported, read in a number of commands that depends on types and workers alone.

    *bounds*: those of the app's queues, as `Report` takes them.
    """
    status = Report(reader, bounds).status()
    in_force = weights(reader.hash("settings"))
    bounds_s: dict[str, float] = {}
    for lane in reader.lanes():
        bound_s = overtaking.seconds(lane.priority, lane.on_demand, in_force)
        type_ = decode(lane.type)
        bounds_s[type_] = max(bound_s, bounds_s.get(type_, 0.0))
    return Metrics.of(status, figures_of(reader, [each.type for each in status.types]), bounds_s)


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
            Sample("", dict(zip(self.labels, values, strict=True)), value)
            for values, value in (self.read(metrics) if metrics else ())
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
        for values, buckets, number, total in self.read(metrics) if metrics else ():
            labels = dict(zip(self.labels, values, strict=True))
            samples += [Sample("_bucket", {**labels, "le": str(float(bound))}, count) for bound, count in buckets]
            samples += [
                Sample("_bucket", {**labels, "le": "+Inf"}, number),
                Sample("_sum", labels, total),
                Sample("_count", labels, number),
            ]
        return Family(self.name, self.help, "histogram", samples)


def _by_type(value: Callable[[TypeStatus], float | None]) -> Callable[[Metrics], Iterable[Value]]:
    return lambda status: [((each.type,), value(each)) for each in status.types]


def _pending(status: Status) -> Iterable[Value]:
    for each in status.types:
        yield (each.type, "queued"), each.pending - each.on_demand
        yield (each.type, "on_demand"), each.on_demand


def _kept_back(status: Status) -> Iterable[Value]:
    # A job that several rules keep back is counted once, so that the rules add up.
    for each in status.types:
        yield (each.type, "key"), each.kept_back
        yield (each.type, "pause"), each.pending - each.kept_back if each.paused else 0
        yield (each.type, "reserve"), 0 if each.paused else each.kept_back_by_reserves


def _workers(status: Status) -> Iterable[Value]:
    draining = sum(each.draining for each in status.workers)
    stalled = sum(each.stalled and not each.draining for each in status.workers)
    accepting = len(status.workers) - draining - stalled
    return [(("accepting",), accepting), (("draining",), draining), (("stalled",), stalled)]


def _dead_lettered(status: Status) -> Iterable[Value]:
    # Every reason has a sample from the start: Prometheus' `increase` misses an event with which a series begins.
    return [((reason,), status.counters.get(reason, 0)) for reason in REASONS]


def _ran_merged(status: Status) -> Iterable[Value]:
    return [((each.type,), each.ran_merged) for each in status.types if each.ran_merged]


def _published(metrics: Metrics) -> Iterable[Value]:
    return [((each.type,), each.published) for each in metrics.figures]


def _started(metrics: Metrics) -> Iterable[Value]:
    for each in metrics.figures:
        yield (each.type, "queued"), each.queued.number
        yield (each.type, "on_demand"), each.on_demand.number


def _ended(metrics: Metrics) -> Iterable[Value]:
    # Every outcome has a sample from the start, as every reason has of dead letters.
    outcomes = dict.fromkeys([*RUNS, *OTHER_ENDS])
    for each in metrics.figures:
        for how in outcomes:
            yield (each.type, how), each.ended.get(how, 0)


def _profile_slots(metrics: Metrics) -> Iterable[Value]:
    slots: dict[tuple[str, str], int] = {}
    for worker in metrics.workers:
        types = ",".join(worker.types)
        profile = types if len(types) <= _LONGEST_PROFILE else f"{types[:_LONGEST_PROFILE]}..."
        busy = worker.slots - worker.free if not worker.draining else worker.held
        counts = {"live": worker.slots, "free": worker.free, "busy": busy, "lent": worker.lent}
        for state, number in counts.items():
            slots[profile, state] = slots.get((profile, state), 0) + number
    return slots.items()


def _reserved(metrics: Metrics) -> Iterable[Value]:
    return [((each.type,), max((one.kept for one in each.reserves), default=0)) for each in metrics.types]


def _waits(metrics: Metrics) -> Iterable[Buckets]:
    for each in metrics.figures:
        for mode, times in (("queued", each.queued), ("on_demand", each.on_demand)):
            if times.number:  # most types have jobs of one mode
                yield _buckets((each.type, mode), times)


def _runs(metrics: Metrics) -> Iterable[Buckets]:
    return [_buckets((each.type,), each.runs) for each in metrics.figures if each.runs.number]


def _buckets(labels: tuple[str, ...], times: Times) -> Buckets:
    seen, buckets = 0, []
    for bound_s, count in zip(BOUNDS_S, times.counts, strict=False):
        seen += count
        buckets.append((bound_s, seen))
    return labels, buckets, times.number, times.sum_s


def _batch_sizes(metrics: Metrics) -> Iterable[Buckets]:
    batches = metrics.batches
    size, runs, buckets = 2, 0, []
    while size <= LARGEST_BATCH_COUNTED:
        runs += batches.runs.get(str(size), 0)
        buckets.append((float(size), runs))
        size *= 2
    yield (), buckets, runs + batches.runs.get("more", 0), batches.calls


_PREFIX = "celery_affinity_"

#: Name of the histogram of the runs of merged calls.
BATCH_SIZE = f"{_PREFIX}batch_size"

#: Value 1 comes with all other figures, value 0 comes alone.
UP = Figure(f"{_PREFIX}up", "Whether the broker answered: 0 leaves out all other figures.", (), lambda _: [((), 1)])

FIGURES: tuple[Figure | Histogram, ...] = (
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
        f"{_PREFIX}wanted_slots",
        "Slots that the workers of these types should have, for a wait of 30 s.",
        ("profile",),
        lambda status: [((each.profile,), each.wanted_slots) for each in scales(status)],
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
    Figure(
        f"{_PREFIX}waiting_calls",
        "Calls that the pending jobs are: one of 18 merged calls is 18.",
        ("type",),
        _by_type(attrgetter("calls")),
    ),
    Figure(
        f"{_PREFIX}refused_jobs_total",
        "Calls that were refused, since as many jobs waited as may.",
        ("type",),
        lambda status: [((type_,), count) for type_, count in status.refused.items()],
    ),
    Figure(
        f"{_PREFIX}dropped_jobs_total",
        "Jobs that were dropped, since as many waited as may.",
        ("type",),
        lambda status: [((type_,), count) for type_, count in status.dropped.items()],
    ),
    Figure(f"{_PREFIX}merged_calls_total", "Calls that ran merged with others, in one run.", ("type",), _ran_merged),
    Figure(
        f"{_PREFIX}published_jobs_total",
        "Jobs that were published while live workers served their type.",
        ("type",),
        _published,
    ),
    Figure(
        f"{_PREFIX}started_jobs_total",
        "Jobs that were given a slot; one that came back, each time.",
        ("type", "mode"),
        _started,
    ),
    Figure(f"{_PREFIX}ended_jobs_total", "Jobs that ended, or became dead letters.", ("type", "outcome"), _ended),
    Figure(
        f"{_PREFIX}overtaking_bound_seconds",
        "How much younger a job may be that still passes one that waits.",
        ("type",),
        lambda metrics: [((type_,), bound_s) for type_, bound_s in sorted(metrics.bounds_s.items())],
    ),
    Figure(
        f"{_PREFIX}profile_slots",
        "Slots of live workers that serve just these types.",
        ("profile", "state"),
        _profile_slots,
    ),
    Figure(f"{_PREFIX}reserved_slots", "Slots that the largest reserve of the type keeps free.", ("type",), _reserved),
    Histogram(
        f"{_PREFIX}wait_seconds",
        "Time from the publish, or from when a job was due, to its slot.",
        ("type", "mode"),
        _waits,
    ),
    Histogram(f"{_PREFIX}run_seconds", "Time in a slot, of jobs that ended there.", ("type",), _runs),
    Histogram(BATCH_SIZE, "Calls of a run of merged calls.", (), _batch_sizes),
)


def families(metrics: Metrics | None) -> Iterator[Family]:
    """Return all metrics with their samples; None: the broker did not answer, and one sample says so."""
    if metrics is None:
        yield Family(UP.name, UP.help, "gauge", [Sample("", {}, 0)])
        return
    yield from (figure.family(metrics) for figure in FIGURES)


def as_text(metrics: Metrics | None) -> str:
    """Return the text that Prometheus reads."""
    return exposition(families(metrics))
