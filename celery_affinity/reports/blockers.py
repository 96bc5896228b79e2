"""Report what occupies slots or keeps them free: reserves, preemptions and overdue jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..clock import SECOND_US
from ..scheduler.reader import Lane, Reader
from ..schema.constants import MAX_GIVING_LOOKED_AT, MAX_PRIORITY, TENANT_PREFIX
from ..schema.values import decode_number, decode_part, decode_text
from ..settings import reserves
from ..settings.reserves import Reserve
from ..settings.tenants import minimum_of
from . import sentences
from .job_rows import JobRow, read_jobs
from .keys import limits_in_force, stated_keys

#: Settings that define the reserves in force.
_SETTINGS = ("reserve", "priority_reversed")


@dataclass(frozen=True)
class ReservedSlots:
    """Slots that jobs of a class leave free: *kept* of the *live* fitting slots.

    *of_class*: "queued", "on_demand", a priority or a range of priorities, 10 as the highest. *for_whom*: the other
    jobs, as text.
    """

    type: str
    of_class: str
    for_whom: str
    kept: int
    live: int

    @property
    def is_too_large(self) -> bool:
        """True if the reserve keeps all live slots. Then one job of the class runs at a time."""
        return 0 < self.live <= self.kept

    @property
    def sentence(self) -> str:
        """The effect of a reserve that is too large, as text."""
        return (
            f"affinity_reserve keeps {self.kept:,} slots free for {self.for_whom} of type {self.type!r}, which has "
            f"{self.live:,}: one job of class {self.of_class!r} runs at a time."
        )


@dataclass(frozen=True)
class _ReserveInForce:
    reserve: Reserve
    shown: ReservedSlots


def reserved_slots(
    reader: Reader, live: Mapping[str, int], free: Mapping[str, int]
) -> tuple[dict[str, list[ReservedSlots]], dict[str, int]]:
    """Return the reserves and the number of blocked pending jobs, by encoded type.

    *live*, *free*: numbers of slots and of free slots that fit each type. Jobs of a class without running jobs are
    counted as blocked too.
    """
    by_type = _reserves_in_force(reader.fields("settings", _SETTINGS), live)
    if not by_type:
        return {}, {}

    def is_blocked(lane: Lane) -> bool:
        free_slots = free.get(lane.type, 0)
        return any(_concerns(reserve, lane) and free_slots <= reserve.shown.kept for reserve in by_type[lane.type])

    lanes = [*filter(is_blocked, reader.lanes([*by_type]))]
    blocked = dict.fromkeys(by_type, 0)
    for lane, jobs in zip(lanes, reader.ask([("zcard", reader.lane_key(lane)) for lane in lanes]), strict=True):
        blocked[lane.type] += int(str(jobs))
    return {type_: [reserve.shown for reserve in of_type] for type_, of_type in by_type.items()}, blocked


def reserve_too_large(reader: Reader) -> list[ReservedSlots]:
    """Return the reserves that leave no slot of a type to their class. Sends one command if there are no reserves."""
    settings = reader.fields("settings", _SETTINGS)
    if not settings.get("reserve", "").strip():
        return []
    by_type = _reserves_in_force(settings, reader.capacity())
    return [reserve.shown for of_type in by_type.values() for reserve in of_type if reserve.shown.is_too_large]


def why_reserve_blocks(
    reader: Reader, settings: Mapping[str, str], lane: Lane, live: int, free: int
) -> tuple[str, int] | None:
    """Return the text and the slots of the largest reserve that blocks a job of *lane*, or None.

    *live*, *free*: numbers of fitting slots and of free fitting slots.
    """
    of_type = _reserves_in_force(settings, {lane.type: live}).get(lane.type, [])
    covering = [reserve for reserve in of_type if _concerns(reserve, lane) and free <= reserve.shown.kept]
    running = {one: _running(reader, one.reserve, lane.type) for one in covering if one.shown.is_too_large}
    blocking = [reserve for reserve in covering if running.get(reserve, 1)]
    if not blocking:
        return None
    largest = max(blocking, key=lambda reserve: reserve.shown.kept)
    why = sentences.blocked_by_reserve_sentence(largest.shown, live, free, running.get(largest, 0))
    return why, largest.shown.kept


def _reserves_in_force(settings: Mapping[str, str], live: Mapping[str, int]) -> dict[str, list[_ReserveInForce]]:
    """Return type -> reserves in *settings* (by Redis name), for each type with *live* slots."""
    is_reversed = settings.get("priority_reversed") == "1"
    all_reserves = reserves.parse_reserves(settings.get("reserve", ""))
    by_type = {
        type_: [
            _ReserveInForce(reserve, _shown(reserve, type_, slots, is_reversed))
            for reserve in all_reserves
            if reserve.concerns(type_)
        ]
        for type_, slots in live.items()
        if slots
    }
    return {type_: of_type for type_, of_type in by_type.items() if of_type}


def _shown(reserve: Reserve, type_: str, live: int, is_reversed: bool) -> ReservedSlots:
    first, last = reserve.first, reserve.last
    if is_reversed:
        first, last = MAX_PRIORITY - last, MAX_PRIORITY - first
    oriented = reserve._replace(first=first, last=last)
    return ReservedSlots(
        decode_part(type_), oriented.of_class, sentences.others_than_clause(oriented), reserve.slots(live), live
    )


def _concerns(reserve_in_force: _ReserveInForce, lane: Lane) -> bool:
    return reserve_in_force.reserve.covers(lane.on_demand, lane.priority)


def _running(reader: Reader, reserve: Reserve, type_: str) -> int:
    key = reader.key("type_running", type_)
    ranges = reserve.lane_numbers
    return sum(int(str(jobs)) for jobs in reader.ask([("zcount", key, first, last) for first, last in ranges]))


#: Fields of a preempted job's hash, in the order of `last_preempted`.
_STOP_FIELDS = ("preempted", "preempted_on", "preempted_ran", "preempted_for", "preemptions")

#: Maximum number of preemptions shown for a tenant.
_MAX_SHOWN = 5


@dataclass(frozen=True)
class PreemptedJob:
    """A job's last preemption: Unix time, worker, run time in seconds until then, and the tenant that got the slot.

    *minimum*: the tenant's current minimum. *times*: number of preemptions of the job, at most *most*.
    """

    at_s: float
    worker: str
    ran_s: float
    tenant: str
    minimum: int
    times: int
    most: int


@dataclass(frozen=True)
class StopOrder:
    """An eviction in progress: the id of the *task*, its *worker*, and the *tenant* that gets its slot.

    *left_s*: seconds of the *grace_s* remaining until the task is stopped by force, at least 0.
    """

    task: str
    worker: str
    tenant: str
    minimum: int
    left_s: float
    grace_s: float


def last_preempted(reader: Reader, job_id: str, most: int) -> PreemptedJob | None:
    """Return the last preemption of a job, or None. *most*: the setting ``preemption_max``."""
    row = reader.ask_one("hmget", reader.key("job", job_id), list(_STOP_FIELDS))
    at_us, worker, ran_us, tenant, times = (decode_text(value or b"") for value in row)
    if not decode_number(times):
        return None
    return PreemptedJob(
        decode_number(at_us) / SECOND_US,
        decode_part(worker),
        decode_number(ran_us) / SECOND_US,
        decode_part(tenant),
        _minimum(reader, TENANT_PREFIX + tenant),
        decode_number(times),
        most,
    )


def stop_orders(reader: Reader, run: JobRow, now_us: int) -> list[StopOrder]:
    """Return the eviction of a claimed job or, for a pending job, the evictions for its tenant and type."""
    orders = {job_id: words.split(" ") for job_id, words in reader.hash("stop_orders").items()}
    orders = {job_id: words for job_id, words in orders.items() if len(words) == 6}
    keys = stated_keys(run.rules)
    if run.state == "claimed":
        ids = [run.job_id] if orders.get(run.job_id, [""])[0] == run.fence else []
    else:
        wanted = [keys[-1].key, run.lane.type] if keys and keys[-1].is_of_tenant else []
        ids = [job_id for job_id, words in orders.items() if words[2:4] == wanted][:_MAX_SHOWN]
    if not ids:
        return []
    tasks = [row.task_id for row in read_jobs(reader, ids, ("task",))]
    shown = [orders[job_id] for job_id in ids]
    names = reader.ask([("hget", reader.key("worker", words[1]), "name") for words in shown])
    return [
        StopOrder(
            task or job_id,
            decode_part(decode_text(name)) if name else words[1],
            _tenant(words[2]),
            _minimum(reader, words[2]),
            max(0.0, (decode_number(words[4]) + decode_number(words[5]) * 1000 - now_us) / SECOND_US),
            decode_number(words[5]) / 1000,
        )
        for job_id, task, name, words in zip(ids, tasks, names, shown, strict=True)
    ]


def why_not_preempted(reader: Reader) -> str:
    """Return as text why no job is preempted for a tenant below its minimum that has waited long enough."""
    members = reader.ask_one("zrevrange", reader.key("preemptible_tenants"), 0, MAX_GIVING_LOOKED_AT - 1)
    keys = [decode_text(key) for key in members]
    held = reader.ask([("zcard", reader.key("held", key)) for key in keys])
    minima = limits_in_force(reader).of_tenants
    above = [key for key, number in zip(keys, held, strict=True) if int(number) > minimum_of(key, minima)]
    return sentences.stops_nothing_sentence([_tenant(key) for key in keys], [_tenant(key) for key in above])


def _tenant(key: str) -> str:
    return decode_part(key.removeprefix(TENANT_PREFIX))


def _minimum(reader: Reader, key: str) -> int:
    return minimum_of(key, limits_in_force(reader).of_tenants)


#: A job is overdue if it has run for this multiple of its type's usual time, and for at least this many seconds.
_OVERDUE_FACTOR, _MIN_OVERDUE_S = 10, 10.0

#: Fields read from a job's hash.
_OVERDUE_FIELDS = ("task", "name", "type", "worker", "claimed", "started")

#: Maximum numbers of workers and jobs that are read. A larger fleet has no list of overdue jobs.
_MAX_WORKERS, _MAX_JOBS = 100, 200


@dataclass(frozen=True)
class OverdueJob:
    """A job that takes a slot far longer than *usual_s*, the average of its type."""

    task_id: str
    task: str
    worker: str
    ran_s: float
    usual_s: float


def overdue_jobs(reader: Reader, profiles: Sequence[str], now_us: int) -> list[OverdueJob]:
    """Return the overdue jobs of the workers with these *profiles*, the longest first."""
    workers = [decode_text(worker) for worker in reader.ask_one("zrange", reader.key("heartbeats"), 0, _MAX_WORKERS)]
    if len(workers) > _MAX_WORKERS:
        return []
    rows = reader.ask([("hmget", reader.key("worker", worker), ["profile", "name"]) for worker in workers])
    names = {
        worker: decode_part(decode_text(name or b""))
        for worker, (profile, name) in zip(workers, rows, strict=True)
        if profile is not None and decode_text(profile) in profiles
    }
    claims = reader.ask([("hkeys", reader.key("claims", worker)) for worker in names])
    ids = [decode_text(job) for worker_jobs in claims for job in worker_jobs]
    if len(ids) > _MAX_JOBS:
        return []
    rows = read_jobs(reader, ids, _OVERDUE_FIELDS)
    usual = reader.fields("durations", sorted({row.lane.type for row in rows}))
    jobs = [_overdue(row, names, usual, now_us) for row in rows]
    return sorted((job for job in jobs if job is not None), key=lambda job: -job.ran_s)


def _overdue(row: JobRow, workers: Mapping[str, str], usual: Mapping[str, str], now_us: int) -> OverdueJob | None:
    usual_us = decode_number(usual.get(row.lane.type))
    ran_us = now_us - (row.started_us or row.claimed_us or now_us)
    if not usual_us or ran_us < max(_OVERDUE_FACTOR * usual_us, _MIN_OVERDUE_S * SECOND_US):
        return None
    worker = workers.get(row.worker, row.worker)
    return OverdueJob(row.task_id, row.task, worker, ran_us / SECOND_US, usual_us / SECOND_US)
