"""Report the state of a cohort: its types, workers and counts, and the pace of each worker."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot, modf, sqrt
from statistics import median
from typing import NamedTuple

from ..clock import SECOND_US
from ..scheduler.cohorts import CohortRow
from ..scheduler.reader import Backlog, Reader, as_text
from ..schema.bounds import Bound, as_bound
from ..schema.constants import BATCH_SIZE, DROPPED_OF, PACE_AVERAGED_OVER, REFUSED_OF
from ..schema.histograms import FIELD
from ..schema.values import decode_number, decode_part, decode_text, encode_part, without_mark
from ..settings.wire import complete_settings
from .blockers import ReservedSlots, reserved_slots
from .headline import Headline, headline_of
from .history import recent_wait_p95_s
from .job_rows import read_jobs
from .key_usage import blocking_kinds, startable_keyed_jobs, waiting_key_facts
from .recurring import stale_s
from .stock_messages import StockQueue
from .tenants import TenantStatus, tenants_status
from .type_limits import PauseInForce, limits_of_types, pauses_in_force
from .type_metrics import Trend, read_trends


@dataclass(frozen=True)
class TypeStatus(CohortRow):
    """A type with pending or claimed jobs, or live workers.

    - *claimed*: number of jobs that workers hold. None if versatile workers hold more than `MAX_CLAIMS_READ`.
    - *oldest_wait_s*: None if no job is pending.
    - *slots*, *free*: numbers of slots and free slots of the live workers that serve the type.
    - *paused*: True if the type or all types are paused.
    - *kept_back*: pending jobs blocked by keys or by quotas of tenants, an estimate if jobs wait for more than 1,000
      keys.
    - *waits_for*: what blocks these jobs: "key", "quota" or "key or quota". "" if there are none.
    - *kept_back_by_limit*: other pending jobs blocked by the type's *limit* on *running* jobs.
    - *kept_back_by_reserves*: pending jobs that wait so that enough slots stay free.
    - *reserves*: the slots that are kept free, and for which jobs.
    - *ran_merged*: calls that ran together with others, since workers serve the type.
    - *further_calls*: merged waiting calls, without one for each pending job.
    - *bound*: maximum number of waiting jobs in the app's configuration, or None.
    - *average_s*: average slot time, None if no job has ended.
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
    waits_for: str = ""

    @property
    def busy(self) -> int:
        return self.slots - self.free

    @property
    def calls(self) -> int:
        """Number of pending calls. A job of merged calls has several."""
        return self.pending + self.further_calls

    @property
    def unserved(self) -> bool:
        """True if jobs wait that no live worker serves."""
        return self.pending > 0 and self.slots == 0


#: A worker is slow if its jobs of a type take at least this many times as long as on other workers.
SLOW_TIMES = 2.0

#: Minimum number of durations of a type for the pace of a worker.
MIN_JOBS = 10

#: Minimum difference of a slow worker in standard errors. Otherwise random durations can make a worker look slow.
_MIN_STANDARD_ERRORS = 3.0

#: Maximum average logarithm: of 2 ** 64 µs.
_MAX_LEVEL = 66_000


@dataclass(frozen=True)
class ComparedPace:
    """The type whose jobs take the longest on a worker compared to other workers: *times* as long.

    *is_slow*: True if they take at least `SLOW_TIMES` as long, and the difference is statistically significant.
    """

    type: str
    times: float
    is_slow: bool


class _Average(NamedTuple):
    """Average logarithm of durations, in thousandths, and its standard error."""

    level: float
    error: float


def paces(rows: Mapping[str, Mapping[str, str]]) -> dict[str, ComparedPace]:
    """Return the pace of each worker. *rows*: worker id -> its hash.

    Workers are compared by type, by the average logarithm of durations in their hashes. Differences between the jobs of
    a type, such as the task or the size of arguments, affect all workers alike, unless long jobs are sent to one
    worker. The report cannot detect that. A worker is omitted if it, or every other worker of its types, has not ended
    enough jobs.
    """
    by_type: dict[str, dict[str, _Average]] = {}
    for worker, row in rows.items():
        for name, text in row.items():
            average = _read(text) if name.startswith(FIELD) else None
            if average is not None:
                by_type.setdefault(name.removeprefix(FIELD), {})[worker] = average
    slowest: dict[str, ComparedPace] = {}
    for type_, averages in by_type.items():
        for worker, own_average in averages.items():
            others = [other_average for other_worker, other_average in averages.items() if other_worker != worker]
            if others:
                pace = _compare(decode_part(type_), own_average, others)
                previous = slowest.get(worker)
                if previous is None or (pace.is_slow, pace.times) > (previous.is_slow, previous.times):
                    slowest[worker] = pace
    return slowest


def _read(text: str) -> _Average | None:
    """Return the average in a worker's hash: its level, the mean distance from it, and the number of durations."""
    numbers = [decode_number(number, -1) for number in text.split()]
    if len(numbers) != 3 or min(numbers) < 0 or max(numbers) > _MAX_LEVEL or numbers[2] < MIN_JOBS:
        return None
    level, spread, number = numbers
    # A moving average is as precise as one of 2n - 1 durations. If normal, their distance is 0.8 standard deviations.
    durations = number if number < PACE_AVERAGED_OVER else 2 * number - 1
    return _Average(level, 1.25 * spread / sqrt(durations - 1))


def _compare(type_: str, own_average: _Average, others: list[_Average]) -> ComparedPace:
    """Return the pace of a worker compared to the median of *others*."""
    level = median(other.level for other in others)
    error = hypot(own_average.error, median(other.error for other in others))
    times = _duration_us(own_average.level) / _duration_us(level)
    return ComparedPace(type_, times, times >= SLOW_TIMES and own_average.level - level > _MIN_STANDARD_ERRORS * error)


def _duration_us(level: float) -> float:
    """Return the duration whose logarithm is *level*, which is linear between powers of two."""
    fraction, whole = modf(level / 1000)
    return float((1 + fraction) * 2 ** (whole - 2))


#: The period of `Status.dead_last_hour`.
_HOUR_US = 3_600 * SECOND_US

#: Maximum number of claims whose types are read one by one. It bounds the cost for large fleets.
MAX_CLAIMS_READ = 1000

#: Maximum number of scheduled jobs that a report reads to count paused jobs. The jobs due next are read first.
MAX_REQUEUED = 200


@dataclass(frozen=True)
class WorkerStatus(CohortRow):
    """A live worker.

    - *last_heartbeat_s*: seconds since the last heartbeat.
    - *withdrawn*: types that the worker refuses now. Either too many of their jobs wait in the worker for a rate limit
      or in buffers, or it is an HTTP worker and a job waits for Celery's workers.
    - *stalled*: True if the event loop is stalled.
    - *lent*: slots that other jobs can use although rate-limited or buffered jobs are claimed for them. *free* includes
      them.
    - *held*: number of jobs that the worker holds.
    - *pace*: the duration of its recent jobs compared to other workers. None if the workers have ended too few jobs.
    - *priority*: its priority among equally specialised workers.
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
        """True if the worker takes jobs: it is neither draining nor about to stop."""
        return not self.draining and set(self.withdrawn) != set(self.types)

    @property
    def is_slow(self) -> bool:
        """True if jobs take much longer on this worker than jobs of the same type on other workers."""
        return self.pace is not None and self.pace.is_slow


@dataclass(frozen=True)
class Batches:
    """Runs of merged calls. *calls*: number of calls in all runs.

    *runs*: maximum size -> number of runs with at most this many and more than half as many calls. "more": larger runs.
    """

    runs: dict[str, int] = field(default_factory=dict)
    calls: int = 0


@dataclass(frozen=True)
class Status:
    """The state of the fleet.

    - *scheduled*: number of jobs that wait for their ETA, for more calls, or for the end of a pause.
    - *requeued*: number of jobs in a pause after a requeue or an ended run, at most `MAX_REQUEUED`.
    - *dead*: number of dead letters.
    - *counters*: totals since the cohort's first day: jobs published for an unserved type ("unserved"), and dead
      letters by reason.
    - *waiting_keys*: number of keys with waiting jobs.
    - *stale_s*: age in seconds of the oldest last match of a recurring call, or None.
    - *batches*: runs of merged calls since the cohort's first day.
    - *refused*, *dropped*: by type, jobs refused or dropped because the type was full (``affinity_max_pending``).
    - *tenants*: tenants with an own quota, and tenants with the most waiting jobs.
    - *unserved_lists*: messages of producers without this transport, in lists that no live worker serves.
    - *more_lists*: True if there are more queues than were searched.
    - *down*: cohort that is not included -> the reason, or None.
    - *dead_last_hour*: number of dead letters of the last hour.
    - *wait_p95_s*: p95 of the waits of all jobs that started in the last 5 to 10 minutes; for several cohorts, the
      maximum. None if no job started.
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
    dead_last_hour: int = 0
    wait_p95_s: float | None = None

    @property
    def headline(self) -> Headline:
        """The health of the fleet in one line."""
        return headline_of(self)


def _requeued(reader: Reader, now_us: int) -> int:
    """Return the number of jobs in a pause, among the jobs due within the maximum pause."""
    max_pause_us = int(complete_settings(reader.hash("settings"))["requeue_delay_max_us"])
    ids = reader.ask_one("zrangebyscore", reader.key("scheduled"), "-inf", now_us + max_pause_us, 0, MAX_REQUEUED)
    rows = read_jobs(reader, list(map(decode_text, ids)), ("state", "rank"))
    return sum(row.paused_until_us is not None for row in rows)


class Report:
    """Reports the state of one cohort. *bounds*: the setting ``affinity_max_pending`` of an app.

    *lanes*: type (encoded) -> names of its lanes with jobs, after `status` was read.
    """

    def __init__(self, reader: Reader, bounds: Mapping[str, int | Bound] | None = None) -> None:
        self._reader = reader
        self._bounds = bounds or {}
        self.lanes: Mapping[str, Sequence[str]] = {}

    def status(self) -> Status:
        """Return types, workers and counts. They are read one after another, not at one instant."""
        read = self._reader
        now_us = read.now_us()
        profiles = read.large_hash("profiles")
        free = _free_by_type(profiles, read.large_hash("free_slots"))
        counted = ("scheduled", "dead", "waiting_keys")
        hour_ago_us = now_us - _HOUR_US
        scheduled, dead, waiting_keys, dead_last_hour = read.ask(
            [*(("zcard", read.key(name)) for name in counted), ("zcount", read.key("dead"), hour_ago_us, "+inf")]
        )
        workers = self._workers(profiles, now_us)
        paused = pauses_in_force(read)
        counters = {name: decode_number(count) for name, count in sorted(read.hash("counters").items())}
        runs, refused, dropped = (_pop_all(counters, prefix) for prefix in (BATCH_SIZE, REFUSED_OF, DROPPED_OF))
        batches = Batches(runs, counters.pop("batched", 0))
        return Status(
            self._types(read.capacity(), free, self._claimed(workers), paused, now_us),
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
            dead_last_hour=dead_last_hour,
            wait_p95_s=recent_wait_p95_s(read, now_us),
        )

    def _types(
        self,
        capacity: dict[str, int],
        free: dict[str, int],
        claimed: dict[str, int | None],
        pauses: list[PauseInForce],
        now_us: int,
    ) -> list[TypeStatus]:
        backlogs = self._reader.backlogs()
        self.lanes = {type_: backlog.lanes for type_, backlog in backlogs.items()}
        types = sorted({*capacity, *claimed, *backlogs})
        names = [decode_part(type_) for type_ in types]
        pending = [backlogs[type_].jobs if type_ in backlogs else 0 for type_ in types]
        trends = read_trends(self._reader, dict(zip(names, pending, strict=True)), now_us)
        averages_us = self._reader.large_hash("durations")
        limits = {encode_part(limit.type): limit for limit in limits_of_types(self._reader, types)}
        number, facts = waiting_key_facts(self._reader)
        beyond_lanes = startable_keyed_jobs(self._reader, now_us, number, facts)
        waits_for = blocking_kinds(self._reader, facts)
        reserves, kept_back_by_reserves = reserved_slots(self._reader, capacity, free)
        ran_merged, waiting = (self._reader.large_hash(name) for name in ("batched", "waiting_calls"))
        paused = {pause.name for pause in pauses if pause.kind == "type"}
        are_all_paused = any(pause.kind == "all" for pause in pauses)
        statuses = []
        for type_, name in zip(types, names, strict=True):
            backlog, limit = backlogs.get(type_) or Backlog(0, 0, 0), limits.get(type_)
            # Some jobs that keys block in lanes can start, or fewer can start than are in lanes.
            kept_back = min(backlog.jobs, max(0, backlog.kept_back - beyond_lanes.get(type_, 0)))
            statuses.append(
                TypeStatus(
                    type=name,
                    pending=backlog.jobs,
                    on_demand=backlog.on_demand,
                    claimed=claimed.get(type_, 0),
                    oldest_wait_s=max(0, now_us - backlog.oldest_us) / SECOND_US if type_ in backlogs else None,
                    slots=capacity.get(type_, 0),
                    free=free.get(type_, 0),
                    kept_back=kept_back,
                    waits_for=waits_for.get(type_, "key") if kept_back else "",
                    paused=are_all_paused or name in paused,
                    kept_back_by_reserves=kept_back_by_reserves.get(type_, 0),
                    reserves=reserves.get(type_, []),
                    ran_merged=decode_number(ran_merged.get(type_)),
                    trend=trends.get(name),
                    further_calls=max(0, decode_number(waiting.get(type_))),
                    bound=as_bound(name, self._bounds),
                    limit=limit.limit if limit else None,
                    running=limit.running if limit else None,
                    kept_back_by_limit=max(0, backlog.jobs - kept_back - limit.room) if limit else 0,
                    average_s=decode_number(averages_us[type_]) / SECOND_US if type_ in averages_us else None,
                )
            )
        return statuses

    def _workers(self, profiles: dict[str, str], now_us: int) -> list[WorkerStatus]:
        read = self._reader
        heartbeats = read.large_zset("heartbeats")
        raws = read.ask([("hgetall", read.key("worker", worker)) for worker in heartbeats])
        # Omit workers that left between the two calls.
        rows = {worker: as_text(raw) for worker, raw in zip(heartbeats, raws, strict=True) if raw}
        by_worker = paces(rows)
        workers = []
        for (worker, row), held in zip(rows.items(), read.claim_counts(list(rows)), strict=True):
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
                    held=held,
                    pace=by_worker.get(worker),
                    priority=decode_number(row.get("priority")),
                )
            )
        return sorted(workers, key=lambda worker: (worker.name, worker.id))

    def _claimed(self, workers: Sequence[WorkerStatus]) -> dict[str, int | None]:
        """Return the number of claimed jobs by type (encoded), or None for types with too many to read.

        The claims of a worker with one type are only counted. The claims of a versatile worker must be read. There are
        at most as many as slots.
        """
        read = self._reader
        claimed: Counter[str] = Counter()
        versatile: list[WorkerStatus] = []
        versatile_claims = 0
        for worker in workers:
            claims = worker.held
            if claims and len(worker.types) == 1:
                claimed[encode_part(worker.types[0])] += claims
            elif claims:
                versatile.append(worker)
                versatile_claims += worker.held
        if versatile_claims > MAX_CLAIMS_READ:
            return {**claimed, **{encode_part(type_): None for worker in versatile for type_ in worker.types}}
        jobs = read.ask([("hkeys", read.key("claims", worker.id)) for worker in versatile])
        rows = read_jobs(read, [decode_text(job) for jobs_of_worker in jobs for job in jobs_of_worker], ("type",))
        claimed.update(row.lane.type for row in rows if row.lane.type)  # no type: the job ended during the report
        return dict(claimed)


def _pop_all(counters: dict[str, int], prefix: str) -> dict[str, int]:
    """Remove the counters whose names begin with *prefix*, and return them by the rest of the name, decoded."""
    names = [name for name in counters if name.startswith(prefix)]
    return {decode_part(name.removeprefix(prefix)): counters.pop(name) for name in names}


def _free_by_type(profiles: dict[str, str], free_slots: dict[str, str]) -> dict[str, int]:
    free: dict[str, int] = {}
    for profile, types in profiles.items():
        for type_ in types.split():
            free[type_] = free.get(type_, 0) + decode_number(free_slots.get(profile))
    return free
