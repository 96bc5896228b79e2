"""What metrics show: all that is read for them, and a function for the values of each."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields

from ..rules.bounds import Bound
from ..rules.dead_reasons import REASONS
from ..rules.metrics import BOUNDS_S, OTHER_ENDS, RUNS, Times
from ..rules.protocol import LARGEST_BATCH_COUNTED
from ..server.reader import Reader
from .bounds_of_types import bounds_of_types
from .keyed.tenants import TenantStatus
from .status import Report, Status
from .type_metrics import TypeMetrics, metrics_of
from .type_status import TypeStatus

#: Values of a metric's labels, and the metric's value; None (unknown) gives no sample.
Value = tuple[tuple[str, ...], float | None]

#: Values of a histogram's labels, the number of events up to each bound and in all, and their sum.
Buckets = tuple[tuple[str, ...], list[tuple[float, int]], int, float]

#: Characters of a profile in a label; a longer one is cut.
_LONGEST_PROFILE = 200


@dataclass(frozen=True)
class Metrics(Status):
    """A status, with what grows. *bounds_s*: type -> the longest time by which a job may be younger and still pass one
    that waits; infinite while a rule lets any job pass. *of_cohorts*: those of each cohort, if there are several.
    """

    of_types: list[TypeMetrics] = field(default_factory=list)
    bounds_s: dict[str, float] = field(default_factory=dict)
    of_cohorts: dict[str, "Metrics"] = field(default_factory=dict)

    @classmethod
    def of(
        cls, status: Status, of_types: list[TypeMetrics] | None = None, bounds_s: dict[str, float] | None = None
    ) -> "Metrics":
        known = {each.name: getattr(status, each.name) for each in fields(status)}
        return cls(**known, of_types=of_types or [], bounds_s=bounds_s or {})


def read_metrics(reader: Reader, bounds: Mapping[str, int | Bound] | None = None) -> Metrics:
    """Return all that is exported, read in a number of commands that depends on types and workers alone.

    *bounds*: those of the app's queues, as `Report` takes them.
    """
    status = Report(reader, bounds).status()
    of_types = metrics_of(reader, [each.type for each in status.types])
    return Metrics.of(status, of_types, bounds_of_types(reader, status))


def by_type(value: Callable[[TypeStatus], float | None]) -> Callable[[Metrics], Iterable[Value]]:
    return lambda status: [((each.type,), value(each)) for each in status.types]


def pending(status: Status) -> Iterable[Value]:
    for each in status.types:
        yield (each.type, "queued"), each.pending - each.on_demand
        yield (each.type, "on_demand"), each.on_demand


def kept_back(status: Status) -> Iterable[Value]:
    # A job that several rules keep back is counted once, so that the rules add up.
    for each in status.types:
        yield (each.type, "key"), each.kept_back
        yield (each.type, "pause"), each.pending - each.kept_back if each.paused else 0
        by_limit = 0 if each.paused else each.kept_back_by_limit
        others = 0 if each.paused else each.pending - each.kept_back - by_limit
        yield (each.type, "type limit"), by_limit
        yield (each.type, "reserve"), min(each.kept_back_by_reserves, max(0, others))


def workers(status: Status) -> Iterable[Value]:
    draining = sum(each.draining for each in status.workers)
    stalled = sum(each.stalled and not each.draining for each in status.workers)
    accepting = len(status.workers) - draining - stalled
    return [(("accepting",), accepting), (("draining",), draining), (("stalled",), stalled)]


def slow_workers(status: Status) -> Iterable[Value]:
    slow = Counter(each.pace.type for each in status.workers if each.pace and each.is_slow)
    return [((each.type,), slow[each.type]) for each in status.types]


def dead_lettered(status: Status) -> Iterable[Value]:
    # Every reason has a sample from the start: Prometheus' `increase` misses an event with which a series begins.
    return [((reason,), status.counters.get(reason, 0)) for reason in REASONS]


def ran_merged(status: Status) -> Iterable[Value]:
    return [((each.type,), each.ran_merged) for each in status.types if each.ran_merged]


def published(metrics: Metrics) -> Iterable[Value]:
    return [((each.type,), each.published) for each in metrics.of_types]


def started(metrics: Metrics) -> Iterable[Value]:
    for each in metrics.of_types:
        yield (each.type, "queued"), each.queued.number
        yield (each.type, "on_demand"), each.on_demand.number


def ended(metrics: Metrics) -> Iterable[Value]:
    # Every outcome has a sample from the start, as every reason has of dead letters.
    outcomes = dict.fromkeys([*RUNS, *OTHER_ENDS])
    for each in metrics.of_types:
        for how in outcomes:
            yield (each.type, how), each.ended.get(how, 0)


def profile_slots(metrics: Metrics) -> Iterable[Value]:
    slots: dict[tuple[str, str], int] = {}
    for worker in metrics.workers:
        types = ",".join(worker.types)
        profile = types if len(types) <= _LONGEST_PROFILE else f"{types[:_LONGEST_PROFILE]}..."
        busy = worker.slots - worker.free if not worker.draining else worker.held
        counts = {"live": worker.slots, "free": worker.free, "busy": busy, "lent": worker.lent}
        for state, number in counts.items():
            slots[profile, state] = slots.get((profile, state), 0) + number
    return slots.items()


def reserved(metrics: Metrics) -> Iterable[Value]:
    return [((each.type,), max((one.kept for one in each.reserves), default=0)) for each in metrics.types]


def of_tenants(value: Callable[[TenantStatus], float]) -> Callable[[Metrics], Iterable[Value]]:
    return lambda metrics: [((each.name,), value(each)) for each in metrics.tenants if each.is_named]


def waits(metrics: Metrics) -> Iterable[Buckets]:
    for each in metrics.of_types:
        for mode, times in (("queued", each.queued), ("on_demand", each.on_demand)):
            if times.number:  # most types have jobs of one mode
                yield _buckets((each.type, mode), times)


def runs(metrics: Metrics) -> Iterable[Buckets]:
    return [_buckets((each.type,), each.runs) for each in metrics.of_types if each.runs.number]


def _buckets(labels: tuple[str, ...], times: Times) -> Buckets:
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
