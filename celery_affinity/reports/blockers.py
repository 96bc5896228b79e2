"""Slots that reserves keep free, for whom, and the jobs that wait because of that.

Jobs that are, or were, stopped while they ran for tenants below their minimum: what `explain` says of both sides.

Slots whose jobs have run for far longer than their type usually does: averages do not say when such a job ends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..clock import SECOND_US
from ..scheduler.reader import Lane, Reader
from ..schema.constants import MAX_PRIORITY, MOST_GIVING_LOOKED_AT, TENANT_PREFIX
from ..schema.values import decode_number, decode_part, decode_text
from ..settings import reserves
from ..settings.reserves import Reserve
from ..settings.tenants import minimum_of
from . import sentences
from .job_rows import JobRow, read_jobs
from .keys import limits_in_force, stated_keys

#: Settings that say which reserves are in force.
_SETTINGS = ("reserve", "priority_reversed")


@dataclass(frozen=True)
class ReservedSlots:
    """Slots that jobs of a class leave free: *kept* of the *live* slots that fit.

    *of_class*: "queued", "on_demand", a priority or a range of them, 10 as the highest. *for_whom*: the others, in
    words.
    """

    type: str
    of_class: str
    for_whom: str
    kept: int
    live: int

    @property
    def is_too_large(self) -> bool:
        """Whether the reserve keeps all live slots: then one job of the class runs at a time, and not none."""
        return 0 < self.live <= self.kept

    @property
    def sentence(self) -> str:
        """What a reserve that is too large comes to."""
        return sentences.too_large_sentence(self)


@dataclass(frozen=True)
class _InForce:
    reserve: Reserve
    shown: ReservedSlots


def reserved_slots(
    reader: Reader, live: Mapping[str, int], free: Mapping[str, int]
) -> tuple[dict[str, list[ReservedSlots]], dict[str, int]]:
    """Return the reserves by type, and how many pending jobs of a type they keep back. Types are encoded.

    *live*, *free*: slots, and free ones, that fit each type. A class of which none runs counts as kept back too.
    """
    found = _in_force(reader.fields("settings", _SETTINGS), live)
    if not found:
        return {}, {}
    lanes = [
        lane
        for lane in reader.lanes([*found])
        if any(_concerns(each, lane) and free.get(lane.type, 0) <= each.shown.kept for each in found[lane.type])
    ]
    kept_back = dict.fromkeys(found, 0)
    for lane, jobs in zip(lanes, reader.ask([("zcard", reader.lane_key(lane)) for lane in lanes]), strict=True):
        kept_back[lane.type] += int(str(jobs))
    return {type_: [each.shown for each in of_type] for type_, of_type in found.items()}, kept_back


def reserve_too_large(reader: Reader) -> list[ReservedSlots]:
    """Return the reserves that leave no slot of a type to their class. One command if there is no reserve."""
    settings = reader.fields("settings", _SETTINGS)
    if not settings.get("reserve", "").strip():
        return []
    found = _in_force(settings, reader.capacity())
    return [each.shown for of_type in found.values() for each in of_type if each.shown.is_too_large]


def why_reserve_blocks(
    reader: Reader, settings: Mapping[str, str], lane: Lane, live: int, free: int
) -> tuple[str, int] | None:
    """Return in words which reserve keeps a job of *lane* back, the largest one, and its slots; None if none does.

    *live*, *free*: slots that fit, and free ones.
    """
    of_type = _in_force(settings, {lane.type: live}).get(lane.type, [])
    covering = [each for each in of_type if _concerns(each, lane) and free <= each.shown.kept]
    running = {each: _running(reader, each.reserve, lane.type) for each in covering if each.shown.is_too_large}
    blocking = [each for each in covering if running.get(each, 1)]
    if not blocking:
        return None
    largest = max(blocking, key=lambda each: each.shown.kept)
    why = sentences.blocked_by_reserve_sentence(largest.shown, live, free, running.get(largest, 0))
    return why, largest.shown.kept


def _in_force(settings: Mapping[str, str], live: Mapping[str, int]) -> dict[str, list[_InForce]]:
    """Return type -> the reserves in *settings*, by their names in Redis, for each type with *live* slots."""
    is_reversed = settings.get("priority_reversed") == "1"
    all_reserves = reserves.parse_reserves(settings.get("reserve", ""))
    found = {
        type_: [
            _InForce(each, _shown(each, type_, slots, is_reversed)) for each in all_reserves if each.concerns(type_)
        ]
        for type_, slots in live.items()
        if slots
    }
    return {type_: of_type for type_, of_type in found.items() if of_type}


def _shown(reserve: Reserve, type_: str, live: int, is_reversed: bool) -> ReservedSlots:
    first, last = reserve.first, reserve.last
    if is_reversed:
        first, last = MAX_PRIORITY - last, MAX_PRIORITY - first
    read = reserve._replace(first=first, last=last)
    return ReservedSlots(
        decode_part(type_), read.of_class, sentences.others_than_clause(read), reserve.slots(live), live
    )


def _concerns(each: _InForce, lane: Lane) -> bool:
    return each.reserve.covers(lane.on_demand, lane.priority)


def _running(reader: Reader, reserve: Reserve, type_: str) -> int:
    key = reader.key("limited", type_)
    ranges = reserve.lane_numbers
    return sum(int(str(each)) for each in reader.ask([("zcount", key, first, last) for first, last in ranges]))


#: Fields of the row of a job that was stopped, in the order of `Stopped`.
_STOP_FIELDS = ("preempted", "preempted_on", "preempted_ran", "preempted_for", "preemptions")

#: Largest number of stops that are shown of one tenant.
_MOST_SHOWN = 5


@dataclass(frozen=True)
class PreemptedJob:
    """The last time that a job was stopped: when (Unix time), on which worker, after how many seconds, for whom.

    *minimum*: that of the tenant by now. *times*: how often the job was stopped in all, of *most*.
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
    """A job that is being stopped: the id of its *task*, its *worker*, and the *tenant* that is to get its slot.

    *left_s*: seconds of the *grace_s* that are left until the task is ended by force; 0 once they are over.
    """

    task: str
    worker: str
    tenant: str
    minimum: int
    left_s: float
    grace_s: float


def last_preempted(reader: Reader, job_id: str, most: int) -> PreemptedJob | None:
    """Return the last time that a job was stopped; None if it never was. *most*: the setting."""
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
    """Return the order to stop a claimed job, if there is one; of a pending one, the stops for its tenant and type."""
    orders = {job_id: words.split(" ") for job_id, words in reader.hash("vacating").items()}
    orders = {job_id: words for job_id, words in orders.items() if len(words) == 6}
    keys = stated_keys(run.rules)
    if run.state == "claimed":
        found = [run.job_id] if orders.get(run.job_id, [""])[0] == run.fence else []
    else:
        wanted = [keys[-1].key, run.lane.type] if keys and keys[-1].is_of_tenant else []
        found = [job_id for job_id, words in orders.items() if words[2:4] == wanted][:_MOST_SHOWN]
    return _described(reader, found, [orders[job_id] for job_id in found], now_us) if found else []


def why_not_preempted(reader: Reader) -> str:
    """Return why no job is stopped for a tenant below its minimum that has waited for long enough."""
    keys = [decode_text(key) for key in reader.ask_one("zrevrange", reader.key("giving"), 0, MOST_GIVING_LOOKED_AT - 1)]
    held = reader.ask([("zcard", reader.key("held", key)) for key in keys])
    minima = limits_in_force(reader).of_tenants
    above = [key for key, number in zip(keys, held, strict=True) if int(number) > minimum_of(key, minima)]
    return sentences.stops_nothing_sentence([_tenant(key) for key in keys], [_tenant(key) for key in above])


def _tenant(key: str) -> str:
    return decode_part(key.removeprefix(TENANT_PREFIX))


def _described(reader: Reader, ids: Sequence[str], orders: Sequence[Sequence[str]], now_us: int) -> list[StopOrder]:
    tasks = [row.task_id for row in read_jobs(reader, ids, ("task",))]
    names = reader.ask([("hget", reader.key("worker", words[1]), "name") for words in orders])
    return [
        StopOrder(
            task or job_id,
            decode_part(decode_text(name)) if name else words[1],
            _tenant(words[2]),
            _minimum(reader, words[2]),
            max(0.0, (decode_number(words[4]) + decode_number(words[5]) * 1000 - now_us) / SECOND_US),
            decode_number(words[5]) / 1000,
        )
        for job_id, task, name, words in zip(ids, tasks, names, orders, strict=True)
    ]


def _minimum(reader: Reader, key: str) -> int:
    return minimum_of(key, limits_in_force(reader).of_tenants)


#: A job is overdue once it has run for so many times the usual time, and for so many seconds.
_FAR_TIMES, _LEAST_S = 10, 10.0

#: Fields of a job that are read.
_OVERDUE_FIELDS = ("task", "name", "type", "worker", "claimed", "started")

#: Largest numbers of workers and of jobs that are looked at: with more of them nothing is said.
_MOST_WORKERS, _MOST_JOBS = 100, 200


@dataclass(frozen=True)
class OverdueJob:
    """A job that takes a slot for far longer than *usual_s*, the average of its type."""

    task_id: str
    task: str
    worker: str
    ran_s: float
    usual_s: float


def overdue_jobs(reader: Reader, profiles: Sequence[str], now_us: int) -> list[OverdueJob]:
    """Return the overdue jobs of the workers with these *profiles*, the longest first."""
    workers = [decode_text(worker) for worker in reader.ask_one("zrange", reader.key("heartbeats"), 0, _MOST_WORKERS)]
    if len(workers) > _MOST_WORKERS:
        return []
    rows = reader.ask([("hmget", reader.key("worker", worker), ["profile", "name"]) for worker in workers])
    names = {
        worker: decode_part(decode_text(name or b""))
        for worker, (profile, name) in zip(workers, rows, strict=True)
        if profile is not None and decode_text(profile) in profiles
    }
    found = reader.ask([("hkeys", reader.key("claims", worker)) for worker in names])
    ids = [decode_text(job) for each in found for job in each]
    if len(ids) > _MOST_JOBS:
        return []
    rows = read_jobs(reader, ids, _OVERDUE_FIELDS)
    usual = reader.fields("durations", sorted({row.lane.type for row in rows}))
    jobs = [_overdue(row, names, usual, now_us) for row in rows]
    return sorted((each for each in jobs if each is not None), key=lambda each: -each.ran_s)


def _overdue(row: JobRow, workers: Mapping[str, str], usual: Mapping[str, str], now_us: int) -> OverdueJob | None:
    usual_us = decode_number(usual.get(row.lane.type))
    ran_us = now_us - (row.started_us or row.claimed_us or now_us)
    if not usual_us or ran_us < max(_FAR_TIMES * usual_us, _LEAST_S * SECOND_US):
        return None
    worker = workers.get(row.worker, row.worker)
    return OverdueJob(row.task_id, row.task, worker, ran_us / SECOND_US, usual_us / SECOND_US)
