"""The state of a cohort: its types, its workers and its counts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..clock import SECOND_US
from ..rules.bounds import Bound, bound_of
from ..rules.encoding import decode, encode, unmarked
from ..rules.protocol import BATCH_SIZE, DROPPED_OF, REFUSED_OF
from ..rules.rows import number_of, text_of
from ..rules.shared_settings import complete
from ..server.fleet import Row
from ..server.reader import Reader, as_text
from .job_row import read_jobs
from .keyed.room import beyond_lanes
from .keyed.tenants import TenantStatus, tenants
from .pace import ComparedPace, paces
from .recurring import stale_s
from .reserves import reserved
from .stock_messages import StockQueue
from .trend import trends
from .type_rules import Pause, limits_of, pauses
from .type_status import TypeStatus, corrected, type_status, with_limit, with_pauses

#: Largest number of claims whose types are read one by one: the cost of an observer must not grow with the fleet.
MOST_CLAIMS_READ = 1000

#: Largest number of scheduled jobs, those that are due next, of which a report counts those after a requeue.
MOST_REQUEUED = 200


@dataclass(frozen=True)
class WorkerStatus(Row):
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
    pauses: list[Pause] = field(default_factory=list)
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
    found = trends(reader, {each.type: each.pending for each in types}, now_us)
    return [replace(each, trend=found.get(each.type)) for each in types]


def _requeued(reader: Reader, now_us: int) -> int:
    """Return how many jobs wait for the end of a pause, of those that are due within the longest pause."""
    longest_us = int(complete(reader.hash("settings"))["requeue_delay_max_us"])
    ids = reader.ask_one("zrangebyscore", reader.key("scheduled"), "-inf", now_us + longest_us, 0, MOST_REQUEUED)
    return sum(row.paused_until_us is not None for row in read_jobs(reader, list(map(text_of, ids)), ("state", "rank")))


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
        paused = pauses(read)
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
            tenants(read, now_us),
            requeued=_requeued(read, now_us) if scheduled else 0,
        )

    def _types(
        self, capacity: dict[str, int], free: dict[str, int], claimed: dict[str, int | None], now_us: int
    ) -> list[TypeStatus]:
        backlogs = self._reader.backlogs()
        types = sorted({*capacity, *claimed, *backlogs})
        averages_us = self._reader.large_hash("durations")
        limits = {encode(each.type): each for each in limits_of(self._reader, types)}
        beyond = beyond_lanes(self._reader, now_us)
        reserves, kept_back = reserved(self._reader, capacity, free)
        ran_merged, waiting = (self._reader.large_hash(name) for name in ("batched", "waiting_calls"))
        return [
            with_limit(
                limits.get(type_),
                type_status(
                    type_,
                    corrected(backlogs.get(type_), beyond.get(type_, 0)),
                    capacity.get(type_, 0),
                    free.get(type_, 0),
                    claimed.get(type_, 0),
                    now_us,
                ),
                kept_back_by_reserves=kept_back.get(type_, 0),
                reserves=reserves.get(type_, []),
                ran_merged=number_of(ran_merged.get(type_)),
                further_calls=max(0, number_of(waiting.get(type_))),
                bound=bound_of(decode(type_), self._bounds),
                average_s=number_of(averages_us[type_]) / SECOND_US if type_ in averages_us else None,
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
                    name=decode(row.get("name", "")),
                    id=worker,
                    types=sorted(decode(unmarked(type_)) for type_ in types),
                    slots=number_of(row.get("slots")),
                    free=number_of(row.get("free")),
                    draining=row.get("accepting") == "0",
                    last_heartbeat_s=max(0.0, now_us - heartbeats[worker]) / SECOND_US,
                    withdrawn=[decode(unmarked(type_)) for type_ in types if type_ != unmarked(type_)],
                    stalled=row.get("stalled") == "1",
                    lent=max(0, -number_of(row.get("other"))),
                    pace=by_worker.get(worker),
                    priority=number_of(row.get("priority")),
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
                claimed[encode(worker.types[0])] += claims
            elif claims:
                versatile.append(worker)
                to_read += worker.held
        if to_read > MOST_CLAIMS_READ:
            return {**claimed, **{encode(type_): None for worker in versatile for type_ in worker.types}}
        jobs = read.ask([("hkeys", read.key("claims", worker.id)) for worker in versatile])
        rows = read_jobs(read, [text_of(job) for each in jobs for job in each], ("type",))
        claimed.update(row.lane.type for row in rows if row.lane.type)  # without a type: the job ended meanwhile
        return dict(claimed)


def _without_batches(counters: Mapping[str, str]) -> tuple[dict[str, int], Batches]:
    """Return the counters, without those of runs of merged calls, and the latter."""
    counted = {name: number_of(count) for name, count in sorted(counters.items())}
    runs = {name.removeprefix(BATCH_SIZE): counted.pop(name) for name in list(counted) if name.startswith(BATCH_SIZE)}
    return counted, Batches(runs, counted.pop("batched", 0))


def _by_type(counters: dict[str, int], name: str) -> dict[str, int]:
    """Return the counters whose names begin with *name*, by the type that follows there, and take them out."""
    return {decode(each.removeprefix(name)): counters.pop(each) for each in list(counters) if each.startswith(name)}


def _free_by_type(profiles: dict[str, str], free_slots: dict[str, str]) -> dict[str, int]:
    free: dict[str, int] = {}
    for profile, types in profiles.items():
        for type_ in types.split():
            free[type_] = free.get(type_, 0) + number_of(free_slots.get(profile))
    return free
