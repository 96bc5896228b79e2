"""The state of one type, as a report says it.

How long the jobs of a worker take beside the jobs of the same type on other workers.

A worker is compared with others of one type at a time, by the average logarithm of durations in its row (`rules.pace`).
What differs between the jobs of a type, such as the task or the size of its arguments, meets all workers alike, unless
somebody sends the long jobs to one of them. The report cannot know that.

The state of a cohort: its types, its workers and its counts.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import hypot, modf, sqrt
from statistics import median
from typing import Any, NamedTuple

from ..clock import SECOND_US
from ..scheduler.cohorts import CohortRow
from ..scheduler.reader import Backlog, Reader, as_text
from ..schema.bounds import Bound, as_bound
from ..schema.constants import BATCH_SIZE, DROPPED_OF, PACE_AVERAGED_OVER, REFUSED_OF
from ..schema.histograms import FIELD
from ..schema.values import decode_number, decode_part, decode_text, encode_part, without_mark
from ..settings.wire import complete_settings
from .blockers import ReservedSlots, reserved_slots
from .job_rows import read_jobs
from .key_usage import startable_keyed_jobs
from .recurring import stale_s
from .stock_messages import StockQueue
from .tenants import TenantStatus, tenants_status
from .type_limits import PauseInForce, TypeLimit, limits_of_types, pauses_in_force
from .type_metrics import Trend, read_trends


@dataclass(frozen=True)
class TypeStatus(CohortRow):
    """A type with pending or claimed jobs, or live workers.

    *claimed*: number of jobs that workers hold; None if versatile workers hold more than `MOST_CLAIMS_READ`.
    *oldest_wait_s*: None if no job is pending. *slots*, *free*: slots, and free ones, of the live workers that serve
    the type. *paused*: whether the type is paused, by itself or with all others.

    Jobs that could not start if slots were free: *kept_back*: those of the *pending* jobs that keys keep back, as an
    estimate if jobs wait for more than 1,000 keys. *kept_back_by_limit*: those of the others that the *limit* of the
    type keeps back, for which *running* jobs count. *kept_back_by_reserves*: those of the *pending* jobs that wait so
    that enough slots stay free. *reserves*: for whom slots are kept free.

    *ran_merged*: calls that ran with others, since workers serve the type. *further_calls*: calls that merged and wait,
    without one for each pending job. *bound*: how many jobs may wait, by the app.conf that was asked; None: any number,
    or no app was asked. *average_s*: average time in a slot, None if none has ended.
    """

    type: str
    pending: int
    on_demand: int
    claimed: int | None
    oldest_wait_s: float | None
    slots: int
    free: int
    kept_back: int = 0
    paused: bool = False
    kept_back_by_reserves: int = 0
    reserves: list[ReservedSlots] = field(default_factory=list)
    ran_merged: int = 0
    trend: Trend | None = None
    further_calls: int = 0
    bound: Bound | None = None
    limit: int | None = None
    running: int | None = None
    kept_back_by_limit: int = 0
    average_s: float | None = None

    @property
    def busy(self) -> int:
        return self.slots - self.free

    @property
    def calls(self) -> int:
        """The number of calls that the pending jobs are: a job of calls that merged is several."""
        return self.pending + self.further_calls

    @property
    def unserved(self) -> bool:
        """Whether jobs wait that no live worker can take."""
        return self.pending > 0 and self.slots == 0


def type_status(
    type_: str, backlog: Backlog | None, slots: int, free: int, claimed: int | None, now_us: int
) -> TypeStatus:
    return TypeStatus(
        type=decode_part(type_),
        pending=backlog.jobs if backlog else 0,
        on_demand=backlog.on_demand if backlog else 0,
        claimed=claimed,
        oldest_wait_s=max(0, now_us - backlog.oldest_us) / SECOND_US if backlog else None,
        slots=slots,
        free=free,
        kept_back=backlog.kept_back if backlog else 0,
    )


def corrected_counts(backlog: Backlog | None, beyond_lanes: int) -> Backlog | None:
    """Return *backlog*, of whose jobs so many more could start than stand in lanes; below 0: fewer."""
    if backlog is None:
        return None
    return backlog._replace(kept_back=min(backlog.jobs, max(0, backlog.kept_back - beyond_lanes)))


def with_limit(limit: TypeLimit | None, status: TypeStatus, **more: Any) -> TypeStatus:
    """Return *status* with *more*, and with the limit of its type, if there is one."""
    if limit is None:
        return replace(status, **more)
    kept_back = max(0, status.pending - status.kept_back - limit.room)
    return replace(status, limit=limit.limit, running=limit.running, kept_back_by_limit=kept_back, **more)


def with_pauses(types: list[TypeStatus], found: list[PauseInForce]) -> list[TypeStatus]:
    named = {each.name for each in found if each.kind == "type"}
    is_all = any(each.kind == "all" for each in found)
    return [replace(each, paused=is_all or each.type in named) for each in types]


#: Times as long as on other workers that the jobs of a type take on a worker that is called slow.
SLOW_TIMES = 2.0

#: Number of durations of a type below which nothing is said of a worker's pace.
FEWEST = 10

#: Standard errors by which a slow worker differs: durations that vary make a healthy worker look slow, by chance.
_SURE = 3.0

#: Largest average logarithm: of 2 ** 64 microseconds.
_LARGEST = 66_000


@dataclass(frozen=True)
class ComparedPace:
    """The type of which a worker's jobs take longest beside those of other workers: *times* as long.

    *is_slow*: whether they take at least `SLOW_TIMES` as long, and by more than chance explains.
    """

    type: str
    times: float
    is_slow: bool


class _Average(NamedTuple):
    """The average logarithm of durations, in thousandths, and its standard error."""

    level: float
    error: float


def paces(rows: Mapping[str, Mapping[str, str]]) -> dict[str, ComparedPace]:
    """Return the pace of each worker, of which *rows* has the row by id.

    A worker is left out if it, or every other worker of its types, has not ended enough jobs.
    """
    of_types: dict[str, dict[str, _Average]] = {}
    for worker, row in rows.items():
        for name, text in row.items():
            average = _read(text) if name.startswith(FIELD) else None
            if average is not None:
                of_types.setdefault(name.removeprefix(FIELD), {})[worker] = average
    found: dict[str, ComparedPace] = {}
    for type_, of_workers in of_types.items():
        for worker, own in of_workers.items():
            others = [average for other, average in of_workers.items() if other != worker]
            if others:
                pace = _beside(decode_part(type_), own, others)
                known = found.get(worker)
                if known is None or (pace.is_slow, pace.times) > (known.is_slow, known.times):
                    found[worker] = pace
    return found


def _read(text: str) -> _Average | None:
    """Return the average in a worker's row: its level, the mean distance from that, and the number of durations."""
    numbers = [decode_number(each, -1) for each in text.split()]
    if len(numbers) != 3 or min(numbers) < 0 or max(numbers) > _LARGEST or numbers[2] < FEWEST:
        return None
    level, spread, number = numbers
    # A moving average is as good as one of 2n - 1. The distance from it is 0.8 standard deviations, if that is normal.
    durations = number if number < PACE_AVERAGED_OVER else 2 * number - 1
    return _Average(level, 1.25 * spread / sqrt(durations - 1))


def _beside(type_: str, own: _Average, others: list[_Average]) -> ComparedPace:
    """Return the pace of a worker beside the middle one of *others*."""
    level = median(each.level for each in others)
    error = hypot(own.error, median(each.error for each in others))
    times = _duration_us(own.level) / _duration_us(level)
    return ComparedPace(type_, times, times >= SLOW_TIMES and own.level - level > _SURE * error)


def _duration_us(level: float) -> float:
    """Return the duration of which *level* is the logarithm, which is straight between powers of two (`rules.pace`)."""
    fraction, whole = modf(level / 1000)
    return float((1 + fraction) * 2 ** (whole - 2))


#: Largest number of claims whose types are read one by one: the cost of an observer must not grow with the fleet.
MOST_CLAIMS_READ = 1000

#: Maximum number of scheduled jobs that a report reads to count paused jobs. The jobs due next are read first.
MOST_REQUEUED = 200


@dataclass(frozen=True)
class WorkerStatus(CohortRow):
    """A live worker.

    *last_heartbeat_s*: time since the last heartbeat. *withdrawn*: types that the worker refuses for the moment: too
    many of their jobs wait there for a rate limit or in buffers, or it works over HTTP, and one waits for Celery's
    workers. *stalled*: the event loop stands still. *lent*: slots that other jobs may use although rate-limited or
    buffered jobs are claimed for them; *free* includes them. *held*: jobs that the worker holds. *pace*: how long its
    recent jobs take beside those of the same type on other workers; None if it has ended too few jobs, or no other
    worker of its types has ended enough. *priority*: its place among equally specialised workers.
    """

    name: str
    id: str
    types: list[str]
    slots: int
    free: int
    draining: bool
    last_heartbeat_s: float
    withdrawn: list[str]
    stalled: bool = False
    lent: int = 0
    held: int = 0
    pace: ComparedPace | None = None
    priority: int = 0

    @property
    def takes_jobs(self) -> bool:
        """Whether the worker takes jobs: it is not about to end, and was not drained."""
        return not self.draining and set(self.withdrawn) != set(self.types)

    @property
    def is_slow(self) -> bool:
        """Whether jobs take much longer here than those of the same type take on other workers."""
        return self.pace is not None and self.pace.is_slow


@dataclass(frozen=True)
class Batches:
    """Runs of merged calls. *runs*: how many of them had up to so many calls, and more than half as many; "more": more
    than the largest number. *calls*: of all runs.
    """

    runs: dict[str, int] = field(default_factory=dict)
    calls: int = 0


@dataclass(frozen=True)
class Status:
    """The fleet at a glance.

    *scheduled*: number of jobs that wait for their ETA, for more calls, or for the end of a pause; *requeued*: those
    that wait for the end of a pause after a requeue or an ended run, `MOST_REQUEUED` at most; *dead*: number of dead
    letters kept. *counters*: numbers since the cohort's first day, of jobs published for a type without a live worker
    ("unserved"), and of dead letters by reason. *waiting_keys*: number of keys for which jobs wait. *stale_s*: age, s,
    of the last match of a recurring call, of the call for which that is longest ago; None without a match. *batches*:
    runs of merged calls since the cohort's first day. *refused*, *dropped*: by type, the jobs that were refused, or
    dropped, because the type was full (``affinity_max_pending``). *tenants*: those with a quota of their own, and those
    with the most waiting jobs. *unserved_lists*: messages of producers without this transport, in lists that no live
    worker serves; *more_lists*: whether there are more queues than those whose lists were looked at. *down*: why
    cohorts are not part of this, by name; None if all are.
    """

    types: list[TypeStatus]
    workers: list[WorkerStatus]
    scheduled: int
    dead: int
    counters: dict[str, int]
    waiting_keys: int = 0
    pauses: list[PauseInForce] = field(default_factory=list)
    stale_s: float | None = None
    batches: Batches = Batches()
    refused: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    tenants: list[TenantStatus] = field(default_factory=list)
    unserved_lists: list[StockQueue] = field(default_factory=list)
    more_lists: bool = False
    down: dict[str, str] | None = None
    requeued: int = 0


def _with_trends(reader: Reader, types: list[TypeStatus], now_us: int) -> list[TypeStatus]:
    found = read_trends(reader, {each.type: each.pending for each in types}, now_us)
    return [replace(each, trend=found.get(each.type)) for each in types]


def _requeued(reader: Reader, now_us: int) -> int:
    """Return the number of jobs in a pause, among the jobs due within the longest possible pause."""
    longest_us = int(complete_settings(reader.hash("settings"))["requeue_delay_max_us"])
    ids = reader.ask_one("zrangebyscore", reader.key("scheduled"), "-inf", now_us + longest_us, 0, MOST_REQUEUED)
    return sum(
        row.paused_until_us is not None for row in read_jobs(reader, list(map(decode_text, ids)), ("state", "rank"))
    )


class Report:
    """Report the state of one cohort. *bounds*: the setting ``affinity_max_pending`` of an app."""

    def __init__(self, reader: Reader, bounds: Mapping[str, int | Bound] | None = None) -> None:
        self._reader = reader
        self._bounds = bounds or {}

    def status(self) -> Status:
        """Return types, workers and counts, which are read one after the other, not at one instant."""
        read = self._reader
        now_us = read.now_us()
        profiles = read.large_hash("profiles")
        free = _free_by_type(profiles, read.large_hash("free_slots"))
        scheduled, dead, waiting_keys = read.ask(
            [("zcard", read.key(name)) for name in ("scheduled", "dead", "waiting_keys")]
        )
        workers = self._workers(profiles, now_us)
        paused = pauses_in_force(read)
        counters, batches = _without_batches(read.hash("counters"))
        refused, dropped = (_by_type(counters, name) for name in (REFUSED_OF, DROPPED_OF))
        return Status(
            _with_trends(
                read, with_pauses(self._types(read.capacity(), free, self._claimed(workers), now_us), paused), now_us
            ),
            workers,
            scheduled,
            dead,
            counters,
            waiting_keys,
            paused,
            stale_s(read, now_us),
            batches,
            refused,
            dropped,
            tenants_status(read, now_us),
            requeued=_requeued(read, now_us) if scheduled else 0,
        )

    def _types(
        self, capacity: dict[str, int], free: dict[str, int], claimed: dict[str, int | None], now_us: int
    ) -> list[TypeStatus]:
        backlogs = self._reader.backlogs()
        types = sorted({*capacity, *claimed, *backlogs})
        averages_us = self._reader.large_hash("durations")
        limits = {encode_part(each.type): each for each in limits_of_types(self._reader, types)}
        beyond = startable_keyed_jobs(self._reader, now_us)
        reserves, kept_back = reserved_slots(self._reader, capacity, free)
        ran_merged, waiting = (self._reader.large_hash(name) for name in ("batched", "waiting_calls"))
        return [
            with_limit(
                limits.get(type_),
                type_status(
                    type_,
                    corrected_counts(backlogs.get(type_), beyond.get(type_, 0)),
                    capacity.get(type_, 0),
                    free.get(type_, 0),
                    claimed.get(type_, 0),
                    now_us,
                ),
                kept_back_by_reserves=kept_back.get(type_, 0),
                reserves=reserves.get(type_, []),
                ran_merged=decode_number(ran_merged.get(type_)),
                further_calls=max(0, decode_number(waiting.get(type_))),
                bound=as_bound(decode_part(type_), self._bounds),
                average_s=decode_number(averages_us[type_]) / SECOND_US if type_ in averages_us else None,
            )
            for type_ in types
        ]

    def _workers(self, profiles: dict[str, str], now_us: int) -> list[WorkerStatus]:
        read = self._reader
        heartbeats = read.large_zset("heartbeats")
        raws = read.ask([("hgetall", read.key("worker", worker)) for worker in heartbeats])
        # Without those that left between the two calls.
        rows = {worker: as_text(raw) for worker, raw in zip(heartbeats, raws, strict=True) if raw}
        by_worker = paces(rows)
        workers = []
        for worker, row in rows.items():
            types = profiles.get(row.get("profile", ""), "").split()
            workers.append(
                WorkerStatus(
                    name=decode_part(row.get("name", "")),
                    id=worker,
                    types=sorted(decode_part(without_mark(type_)) for type_ in types),
                    slots=decode_number(row.get("slots")),
                    free=decode_number(row.get("free")),
                    draining=row.get("accepting") == "0",
                    last_heartbeat_s=max(0.0, now_us - heartbeats[worker]) / SECOND_US,
                    withdrawn=[decode_part(without_mark(type_)) for type_ in types if type_ != without_mark(type_)],
                    stalled=row.get("stalled") == "1",
                    lent=max(0, -decode_number(row.get("other"))),
                    pace=by_worker.get(worker),
                    priority=decode_number(row.get("priority")),
                )
            )
        held = read.held([worker.id for worker in workers])
        with_claims = [replace(worker, held=claims) for worker, claims in zip(workers, held, strict=True)]
        return sorted(with_claims, key=lambda worker: (worker.name, worker.id))

    def _claimed(self, workers: Sequence[WorkerStatus]) -> dict[str, int | None]:
        """Return the number of claimed jobs by type (encoded); None for types with too many to read.

        The claims of a worker that serves one type need only be counted. The claims of a versatile worker have to be
        read; there are no more of them than slots.
        """
        read = self._reader
        claimed: Counter[str] = Counter()
        versatile: list[WorkerStatus] = []
        to_read = 0
        for worker in workers:
            claims = worker.held
            if claims and len(worker.types) == 1:
                claimed[encode_part(worker.types[0])] += claims
            elif claims:
                versatile.append(worker)
                to_read += worker.held
        if to_read > MOST_CLAIMS_READ:
            return {**claimed, **{encode_part(type_): None for worker in versatile for type_ in worker.types}}
        jobs = read.ask([("hkeys", read.key("claims", worker.id)) for worker in versatile])
        rows = read_jobs(read, [decode_text(job) for each in jobs for job in each], ("type",))
        claimed.update(row.lane.type for row in rows if row.lane.type)  # without a type: the job ended meanwhile
        return dict(claimed)


def _without_batches(counters: Mapping[str, str]) -> tuple[dict[str, int], Batches]:
    """Return the counters, without those of runs of merged calls, and the latter."""
    counted = {name: decode_number(count) for name, count in sorted(counters.items())}
    runs = {name.removeprefix(BATCH_SIZE): counted.pop(name) for name in list(counted) if name.startswith(BATCH_SIZE)}
    return counted, Batches(runs, counted.pop("batched", 0))


def _by_type(counters: dict[str, int], name: str) -> dict[str, int]:
    """Return the counters whose names begin with *name*, by the type that follows there, and take them out."""
    return {
        decode_part(each.removeprefix(name)): counters.pop(each) for each in list(counters) if each.startswith(name)
    }


def _free_by_type(profiles: dict[str, str], free_slots: dict[str, str]) -> dict[str, int]:
    free: dict[str, int] = {}
    for profile, types in profiles.items():
        for type_ in types.split():
            free[type_] = free.get(type_, 0) + decode_number(free_slots.get(profile))
    return free
