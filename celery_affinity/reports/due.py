"""Forecast which jobs with an own due time will start late, and why: ``celery affinity due``.

A job's own due time comes from ``start_within`` or ``deadline``. The forecast is a list schedule (`policy/forecast`) of
the jobs that wait, the jobs that run, and the jobs that are expected to be published. It does not model keys, reserves,
turns of tenants and the placement of hints.

The first jobs of each lane are read individually, and the rest as blocks, so the time does not depend on the backlog.
"""

import heapq
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from ..clock import SECOND_US
from ..options.due_times import StoredDue, stored_due
from ..policy.forecast import ComingJobs, ExpectedStart, FreeSlot, Kind, Situation, Wait, expected_starts
from ..policy.run_times import RunTime
from ..scheduler.cohorts import CohortRow
from ..scheduler.reader import Command, Lane, Reader
from ..schema.job_record import is_batch
from ..schema.keys import ALL, type_address
from ..schema.values import decode_number, decode_part, decode_text, encode_part, is_on_demand, without_mark
from ..settings.wire import complete_settings, weights_of
from .job_rows import calls_of
from .render import pluralize, printable_cell
from .report import Answer, Source, report, with_cohort_name
from .sentences import late_sentence, unserved_sentence
from .type_limits import limits_of_types, paused_addresses
from .type_metrics import read_trends

#: Maximum number of jobs with an own due time that are forecast.
MAX_DUE = 1_000
#: Maximum number of overdue jobs that are searched for deadlines that cannot be met, the last ones.
_MAX_OVERDUE = 100
#: Number of other waiting jobs that are read individually in all lanes, and number of jobs that are read for blocks.
_MAX_FIRST, _MAX_SAMPLES = 512, 128
#: Maximum number of workers and of their jobs that are read. The busy slots of larger fleets become free evenly.
_MAX_WORKERS, _MAX_CLAIMS = 500, 1_000
#: A job is named if it is expected to start this long after its due time.
_LATE_US = SECOND_US
#: Expected run time of a job whose task and type have never ended a job.
_UNKNOWN_US = float(SECOND_US)
#: Number of blocks for the lane's jobs that are not read individually.
BLOCKS = 16
#: Jobs that became pending within this time tell where further ones come.
_RECENT_US = 60 * SECOND_US
#: Number of these jobs that are looked at in each lane.
_MAX_RECENT = 50
#: A block of expected arrivals is as long as the time until it divided by this number, and at least 1 s.
_INTERVALS = 20
#: Fields of a job hash that are read of other waiting jobs.
_FIELDS_OF_LANES = ("name", "due", "head")


@dataclass(frozen=True)
class LateJob(CohortRow):
    """A job that is expected to start late. Times are Unix times.

    - *expected_s*: expected start; None if it is unknown: no live worker serves the type, or it is paused.
    - *late_s*: seconds between both; None without an expected start.
    - *slots*: number of slots that fit it.
    - *jobs_before*, *work_before_s*: jobs that start before it on these slots, and the sum of their run times.
    - *deadline_s*: its deadline, if it cannot be met: when it became pending, its run time was longer than the time
      left. None otherwise.
    - *why*: the reason as text.
    """

    job_id: str
    task_id: str
    task: str
    type: str
    due_s: float
    expected_s: float | None = None
    late_s: float | None = None
    slots: int = 0
    jobs_before: int = 0
    work_before_s: float = 0.0
    deadline_s: float | None = None
    why: str = ""


@dataclass(frozen=True)
class DueReport:
    """Which jobs with an own due time are expected to start late.

    - *waiting*: number of waiting jobs whose due time is in the future.
    - *forecast*: number of these jobs that are forecast, the next ones; at most 1,000.
    - *overdue*: number of waiting jobs whose due time has passed.
    - *late*: the jobs that are expected to start more than 1 s late, the next due time first. Jobs whose deadline
      cannot be met come first.
    """

    waiting: int = 0
    forecast: int = 0
    overdue: int = 0
    late: list[LateJob] = field(default_factory=list)

    def plus(self, other: "DueReport") -> "DueReport":
        late = sorted([*self.late, *other.late], key=lambda job: (job.deadline_s is None, job.due_s))
        return DueReport(
            self.waiting + other.waiting, self.forecast + other.forecast, self.overdue + other.overdue, late
        )


class DueJob(NamedTuple):
    """A waiting job to forecast. *due_us*: None for a job without an own due time, which is explained.

    *kind*: its lane. *rank_us*: what orders it there. *from_us*: when it becomes pending. *each_us*: expected run time.
    """

    job_id: str
    kind: Kind
    rank_us: int
    from_us: int
    due_us: int | None
    each_us: float


class DueForecast(NamedTuple):
    """*starts*: expected starts by job id. *fits*: slots by type (encoded). *paused*: addresses of pauses."""

    jobs: list[DueJob]
    starts: Mapping[str, ExpectedStart]
    fits: Mapping[str, int]
    paused: frozenset[str]

    def is_paused(self, job: DueJob) -> bool:
        return bool(self.paused) and not self.paused.isdisjoint((ALL, type_address(job.kind.type)))


class _Row(NamedTuple):
    """The parts of a job that the forecast reads: the fields of `_FIELDS`. *rank_us*: what orders it in its lane.

    *since_us*: when its run began, or its claim; 0 if that was not read.
    """

    state: str
    type: str
    lane: str
    enqueued_us: int
    rank_us: int
    head_us: int
    due: StoredDue
    name: str
    since_us: int

    @property
    def kind(self) -> Kind:
        return _kind(self.type, self.lane)

    @property
    def is_waiting(self) -> bool:
        return self.state in ("pending", "scheduled")


_FIELDS = ("state", "type", "lane", "enqueued", "rank", "head", "due", "name")
_FIELDS_OF_CLAIMED = (*_FIELDS, "claimed", "started")


_NO_DUE = stored_due("")


def _row(values: Sequence[bytes | None]) -> _Row:
    state, type_, lane, enqueued, rank, head, due, name, *claimed = values
    enqueued_us, head_us = decode_number(enqueued), decode_number(head) if head else 0
    return _Row(
        decode_text(state),
        decode_text(type_),
        decode_text(lane),
        enqueued_us,
        ((decode_number(rank) if rank else 0) or enqueued_us) - head_us,
        head_us,
        stored_due(decode_text(due)) if due else _NO_DUE,
        decode_text(name),
        max(map(decode_number, claimed), default=0),
    )


def _size_in(due: StoredDue) -> float | None:
    return None if due.size_millionths is None else due.size_millionths / SECOND_US


@lru_cache(maxsize=1_000)
def _kind(type_: str, lane: str) -> Kind:
    return Kind(type_, decode_number(lane.rpartition(".")[2]), is_on_demand(lane))


class _RunTimes:
    """The expected run times of jobs: of their tasks or, if these have not ended yet, of their types."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._usual = reader.large_hash("durations")
        self._learned: dict[str, RunTime | None] = {}
        self._expected_us: dict[tuple[str, str, float | None], float] = {}

    def read(self, names: Collection[str]) -> None:
        """Read the run times of the tasks *names*, which is necessary before they are used."""
        encoded = {encode_part(name): name for name in {*names} - {*self._learned}}
        texts = self._reader.fields("run_times", list(encoded))
        self._learned |= {name: RunTime.parse(texts.get(field, "")) for field, name in encoded.items()}

    def expected_us(self, name: str, type_: str, size: float | None) -> float:
        expected_us = self._expected_us.get((name, type_, size))
        if expected_us is None:
            learned = self._learned.get(name)
            expected_us = self.usual_us(type_) if learned is None else learned.expected_us(size)
            self._expected_us[name, type_, size] = expected_us
        return expected_us

    def end_us(self, row: _Row, now_us: int) -> int:
        """Return when a running job is expected to end: its typical error from now, or later.

        A job that has run for most of its expected time is probably longer than expected, because a shorter one would
        have ended.
        """
        expected_us, learned = self.expected_us(row.name, row.type, _size_in(row.due)), self._learned.get(row.name)
        remaining_us = (row.since_us or now_us) + expected_us - now_us
        return now_us + int(max(remaining_us, learned.typical_error * expected_us if learned else 0, 0))

    def usual_us(self, type_: str) -> float:
        return float(decode_number(self._usual.get(type_)) or _UNKNOWN_US)


def read_due(reader: Reader) -> DueReport:
    """Return which jobs of a cohort are expected to start late."""
    now_us, key = reader.now_us(), reader.key("due_times")
    waiting, overdue = reader.ask([("zcount", key, now_us, "+inf"), ("zcount", key, "-inf", f"({now_us}")])
    late = _unmeetable(reader, now_us) if overdue else []
    if not waiting:
        return DueReport(overdue=overdue, late=late)
    forecast_now = forecast(reader)
    late += _with_names(
        reader, [row for row in (late_job(job, forecast_now) for job in forecast_now.jobs) if row is not None]
    )
    return DueReport(waiting, len(forecast_now.jobs), overdue, late)


def late_job(job: DueJob, forecast_now: DueForecast) -> LateJob | None:
    """Return the report of a *job*, without its task, or None if it is expected to start in time."""
    start, slots, is_paused = (
        forecast_now.starts.get(job.job_id),
        forecast_now.fits.get(job.kind.type, 0),
        forecast_now.is_paused(job),
    )
    if job.due_us is None or (start and not is_paused and start.start_us - job.due_us <= _LATE_US):
        return None
    type_, why = decode_part(job.kind.type), ""
    if is_paused or start is None:
        unserved = "the forecast does not reach that far" if slots else unserved_sentence(type_)
        why, start = f"type {type_!r} is paused" if is_paused else unserved, None
    return LateJob(
        job.job_id,
        "",
        "",
        type_,
        job.due_us / SECOND_US,
        expected_s=None if start is None else start.start_us / SECOND_US,
        late_s=None if start is None else (start.start_us - job.due_us) / SECOND_US,
        slots=slots,
        jobs_before=start.jobs_before if start else 0,
        work_before_s=start.work_us / SECOND_US if start else 0.0,
        why=why,
    )


def expected_start(reader: Reader, job_id: str) -> tuple[float | None, str | None]:
    """Return the Unix time at which a waiting job is expected to start, and why it is late; None if it is not."""
    forecast_now = forecast(reader, job_id)
    job = next((job for job in forecast_now.jobs if job.job_id == job_id), None)
    if job is None:
        return None, None
    start, late = forecast_now.starts.get(job_id), late_job(job, forecast_now)
    why_late = None if late is None else _with_names(reader, [late])[0].why
    return None if start is None else start.start_us / SECOND_US, why_late


def _with_names(reader: Reader, late: Sequence[LateJob]) -> list[LateJob]:
    """Return *late* with their tasks, and with the reasons as sentences. A batch has the name of its first call."""
    calls = calls_of(reader, [job.job_id for job in late if is_batch(job.job_id)])
    ids = [calls[job.job_id].first if job.job_id in calls else job.job_id for job in late]
    named = []
    for job, (task, name) in zip(late, reader.fields_of_jobs(ids, ("task", "name")), strict=True):
        task_id, task_name = decode_part(decode_text(task)), decode_text(name)
        why = late_sentence(job, f"{task_id or job.job_id} ({task_name})" if task_name else task_id or job.job_id)
        named.append(replace(job, task_id=task_id, task=task_name, why=why))
    return named


def _unmeetable(reader: Reader, now_us: int) -> list[LateJob]:
    """Return the last waiting jobs whose deadline was too close for their run time when they became pending."""
    key = reader.key("due_times")
    ids = list(
        map(
            decode_text,
            reader.ask_one("zrange", key, f"({now_us}", "-inf", True, False, float, True, False, 0, _MAX_OVERDUE),
        )
    )
    late = []
    for job_id, row in zip(ids, map(_row, reader.fields_of_jobs(ids, _FIELDS)), strict=True):
        due_us, deadline_us = row.due.due_us, row.due.deadline_us
        if row.is_waiting and deadline_us is not None and due_us is not None and due_us <= row.enqueued_us:
            late.append(
                LateJob(job_id, "", "", decode_part(row.type), due_us / SECOND_US, deadline_s=deadline_us / SECOND_US)
            )
    return _with_names(reader, late)


def forecast(reader: Reader, also: str = "") -> DueForecast:
    """Return the expected starts of the next jobs with an own due time. *also*: id of another job to forecast."""
    return _Forecast(reader).read(also)


class _Forecast:
    def __init__(self, reader: Reader) -> None:
        self._reader, self._now_us = reader, reader.now_us()
        self._settings = complete_settings(reader.hash("settings"))
        self._run_times = _RunTimes(reader)
        self._paused = paused_addresses(reader)

    def read(self, also: str) -> DueForecast:
        reader, now_us = self._reader, self._now_us
        due = reader.ask_one("zrangebyscore", reader.key("due_times"), now_us, "+inf", 0, MAX_DUE)
        jobs = self._due_jobs([*dict.fromkeys([*map(decode_text, due), *([also] if also else [])])])
        profiles = self._profiles({job.kind.type for job in jobs})
        types = sorted({type_ for of_profile in profiles.values() for type_ in of_profile})
        startable = [job for job in jobs if not self._is_paused(job.kind.type)]
        pending = [job for job in startable if job.from_us <= now_us]
        waiting, recent = self._waiting(types, pending)
        slots, running = self._slots(profiles)
        recent += [(row.kind, row.head_us) for row in running if row.lane]
        last_us = max((job.due_us or now_us for job in jobs), default=now_us)
        coming = [ComingJobs(job.from_us, job.kind, _wait_of(job)) for job in startable if job.from_us > now_us]
        coming += self._arrivals(types, waiting, recent, last_us)
        fits = reader.capacity(sorted({*types, *(job.kind.type for job in jobs)}))
        situation = Situation(
            now_us,
            weights_of(self._settings),
            fits if self._settings["rarity"] != "free" else {},
            waiting,
            slots,
            sorted(coming),
            {encode_part(limit.type): limit.limit for limit in limits_of_types(reader, types)},
            decode_number(self._settings["priority_percentage"]),
        )
        return DueForecast(jobs, expected_starts(situation), fits, self._paused)

    def _due_jobs(self, ids: Sequence[str]) -> list[DueJob]:
        jobs = []
        for job_id, row in zip(ids, self._rows(ids), strict=True):
            if row.is_waiting and row.lane:
                from_us = row.enqueued_us if row.state == "scheduled" else 0
                each_us = self._expected_us(row)
                jobs.append(DueJob(job_id, row.kind, row.rank_us, from_us, row.due.due_us, each_us))
        return jobs

    def _rows(self, ids: Sequence[str], fields: Sequence[str] = _FIELDS) -> list[_Row]:
        rows = list(map(_row, self._reader.fields_of_jobs(ids, fields)))
        self._run_times.read({row.name for row in rows})
        return rows

    def _profiles(self, types: set[str]) -> dict[str, frozenset[str]]:
        """Return the profiles whose slots take jobs of *types*, or jobs that compete with these, with their types."""
        remaining = {
            profile: frozenset(type_ for type_ in packed.split() if type_ == without_mark(type_))
            for profile, packed in self._reader.large_hash("profiles").items()
        }
        profiles: dict[str, frozenset[str]] = {}
        reached = {*types}
        while near := [profile for profile, its_types in remaining.items() if not reached.isdisjoint(its_types)]:
            for profile in near:
                profiles[profile] = remaining.pop(profile)
                reached |= profiles[profile]
        return profiles

    def _waiting(
        self, types: Sequence[str], jobs: Sequence[DueJob]
    ) -> tuple[dict[Kind, list[Wait]], list[tuple[Kind, int]]]:
        """Return the jobs that wait now, by kind, and the kinds and head starts (µs) of some that came recently."""
        waiting: dict[Kind, list[Wait]] = defaultdict(list)
        alone: dict[Kind, list[int]] = defaultdict(list)
        for job in jobs:
            waiting[job.kind].append(_wait_of(job))
            alone[job.kind].append(job.rank_us)
        lanes = [lane for lane in self._reader.lanes(types) if not self._is_paused(lane.type)]
        lengths = self._reader.ask([("zcard", self._reader.lane_key(lane)) for lane in lanes])
        number, samples = (max(1, most // max(1, len(lanes))) for most in (_MAX_FIRST, _MAX_SAMPLES))
        due_ids = {job.job_id for job in jobs}
        parts = [_LanePart(lane, length, number, samples) for lane, length in zip(lanes, lengths, strict=True)]
        replies = iter(self._reader.ask([command for part in parts for command in part.commands(self._reader)]))
        for part in parts:
            part.read(replies)
        ids = [job_id for part in parts for job_id in part.ids]
        values = dict(zip(ids, self._reader.fields_of_jobs(ids, _FIELDS_OF_LANES), strict=True))
        self._run_times.read({decode_text(name) for name, _, _ in values.values()})
        heads: list[tuple[Kind, int]] = []
        for part in parts:
            expected_us = {job_id: self._expected_in_lane_us(part.kind.type, values[job_id]) for job_id in part.ids}
            waiting[part.kind] += part.waits(expected_us, due_ids, sorted(alone[part.kind]))
            heads += [(part.kind, head_us) for head_us in part.recent_heads(values, self._now_us - _RECENT_US)]
        return waiting, heads

    def _expected_in_lane_us(self, type_: str, values: Sequence[bytes | None]) -> float:
        name, due, _ = values
        size = _size_in(stored_due(decode_text(due))) if due else None
        return self._run_times.expected_us(decode_text(name), type_, size)

    def _expected_us(self, row: _Row) -> float:
        return self._run_times.expected_us(row.name, row.type, _size_in(row.due))

    def _is_paused(self, type_: str) -> bool:
        return not self._paused.isdisjoint((ALL, type_address(type_)))

    def _slots(self, profiles: Mapping[str, frozenset[str]]) -> tuple[list[FreeSlot], list[_Row]]:
        """Return the slots, with the times at which they are expected to be free, and the running jobs."""
        reader = self._reader
        workers = list(map(decode_text, reader.ask_one("zrange", reader.key("heartbeats"), 0, _MAX_WORKERS)))
        if len(workers) > _MAX_WORKERS:
            return self._evenly_free(profiles), []
        fields = ["profile", "slots", "accepting"]
        hashes = reader.ask([("hmget", reader.key("worker", worker), fields) for worker in workers])
        slots: dict[str, tuple[frozenset[str], int]] = {}
        for worker, values in zip(workers, hashes, strict=True):
            profile, slots_of_worker, accepting = map(decode_text, values)
            if profile in profiles and accepting != "0":
                slots[worker] = profiles[profile], decode_number(slots_of_worker)
        if sum(number for _, number in slots.values()) > _MAX_CLAIMS:
            return self._evenly_free(profiles), []
        claims = reader.ask([("hgetall", reader.key("claims", worker)) for worker in slots])
        ids = [decode_text(job_id) for of_worker in claims for job_id in (of_worker or {})][: 2 * _MAX_CLAIMS]
        rows = dict(zip(ids, self._rows(ids, _FIELDS_OF_CLAIMED), strict=True))
        free_slots = []
        for (types, number), of_worker in zip(slots.values(), claims, strict=True):
            held = sorted((of_worker or {}).items(), key=lambda claim: decode_number(claim[1]))
            held_rows = [rows[decode_text(job_id)] for job_id, _ in held if decode_text(job_id) in rows]
            free_slots += self._worker_slots(types, number, held_rows)
        return free_slots, list(rows.values())

    def _worker_slots(self, types: frozenset[str], number: int, held: Sequence[_Row]) -> list[FreeSlot]:
        """Return the slots of a worker. *held*: its jobs in the order of claims; prefetched jobs start after others."""
        now_us = self._now_us
        busy = [FreeSlot(self._run_times.end_us(row, now_us), types, row.type) for row in held[:number]]
        heapq.heapify(busy)
        for row in held[number:] if busy else ():
            first = busy[0]
            heapq.heapreplace(busy, FreeSlot(int(first.free_us + self._expected_us(row)), types, row.type))
        return busy + [FreeSlot(now_us, types)] * (number - len(busy))

    def _evenly_free(self, profiles: Mapping[str, frozenset[str]]) -> list[FreeSlot]:
        """Return the slots of a large fleet: the busy ones become free evenly within the usual time of their types."""
        numbers, free = (self._reader.fields(name, list(profiles)) for name in ("slots", "free_slots"))
        free_slots = []
        for profile, types in profiles.items():
            idle = decode_number(free.get(profile))
            busy = max(0, decode_number(numbers.get(profile)) - idle)
            usual_us = sum(map(self._run_times.usual_us, types)) / max(1, len(types))
            free_slots += [FreeSlot(self._now_us, types)] * idle
            free_slots += [FreeSlot(self._now_us + int(usual_us * (nth + 0.5) / busy), types) for nth in range(busy)]
        return free_slots

    def _arrivals(
        self,
        types: Sequence[str],
        waiting: Mapping[Kind, Sequence[Wait]],
        recent: Sequence[tuple[Kind, int]],
        last_us: int,
    ) -> Iterator[ComingJobs]:
        """Yield the jobs that are expected to become pending, in blocks.

        *recent*: kinds and head starts (µs) of jobs that came lately: further ones are like them.
        """
        numbers: dict[str, Counter[tuple[Kind, bool]]] = defaultdict(Counter)
        head_us: Counter[tuple[Kind, bool]] = Counter()
        for kind, job_head_us in recent:
            numbers[kind.type][kind, job_head_us > 0] += 1
            head_us[kind, job_head_us > 0] += job_head_us
        for kind, waits in waiting.items():
            if kind.type not in numbers:
                numbers[kind.type][kind, False] += int(sum(wait.jobs for wait in waits))
        names = {decode_part(type_): 1 for type_ in numbers if type_ in types and not self._is_paused(type_)}
        for name, trend in read_trends(self._reader, names, self._now_us).items():
            parts = numbers[encode_part(name)]
            for part, number in parts.items():
                per_us = trend.published / max(1.0, trend.seconds * SECOND_US) * number / max(1, parts.total())
                each_us = self._run_times.usual_us(part[0].type)
                yield from _coming(self._now_us, last_us, part[0], per_us, each_us, head_us[part] // max(1, number))


def _wait_of(job: DueJob) -> Wait:
    return Wait(job.rank_us, job.job_id, job.each_us)


def _coming(now_us: int, last_us: int, kind: Kind, per_us: float, each_us: float, head_us: int) -> Iterator[ComingJobs]:
    """Yield blocks of arriving jobs of *kind*, longer ones later: *per_us* jobs in a µs, with a head start."""
    at_us, jobs = now_us, 0.0
    while at_us < 2 * last_us - now_us + _RECENT_US:
        interval_us = max(SECOND_US, (at_us - now_us) // _INTERVALS)
        jobs += per_us * interval_us
        at_us += interval_us
        if jobs >= 1:
            rank_us = at_us - interval_us // 2 - head_us
            yield ComingJobs(at_us - interval_us // 2, kind, Wait(rank_us, "", each_us, int(jobs), rank_us))
            jobs -= int(jobs)


class _LanePart:
    """The jobs of a lane: the first jobs individually, and the others as blocks with some jobs as samples.

    *number*: of the first jobs. *samples*: number of jobs that are read of the others.
    """

    def __init__(self, lane: Lane, length: int, number: int, samples: int) -> None:
        self.lane, self.kind = lane, Kind(lane.type, lane.priority, lane.on_demand)
        self._length, self._number = length, min(number, length)
        rest = length - self._number
        self._per_block = max(1, min(samples, rest) // BLOCKS)
        places = BLOCKS * self._per_block
        self._positions = sorted({self._number + rest * place // places for place in range(places)}) if rest else []
        self._members: list[tuple[str, int]] = []

    def commands(self, reader: Reader) -> list[Command]:
        key = reader.lane_key(self.lane)
        single = [*self._positions, *([self._length - 1] if self._positions else [])]
        return [
            ("zrange", key, 0, self._number - 1, False, True),
            *(("zrange", key, at, at, False, True) for at in single),
        ]

    def read(self, replies: Iterator[list[tuple[bytes, float]]]) -> None:
        for _ in range(1 + len(self._positions) + bool(self._positions)):
            self._members += [(decode_text(job_id), decode_number(rank)) for job_id, rank in next(replies)]

    @property
    def ids(self) -> list[str]:
        return [job_id for job_id, _ in self._members]

    def recent_heads(self, values: Mapping[str, Sequence[bytes | None]], since_us: int) -> list[int]:
        """Return the head starts of some jobs that became pending after *since_us*."""
        every = max(1, len(self._members) // _MAX_RECENT)
        heads = [(rank_us, decode_number(values[job_id][2])) for job_id, rank_us in self._members[::every]]
        return [head_us for rank_us, head_us in heads if rank_us + head_us > since_us]

    def waits(self, expected_us: Mapping[str, float], due_ids: Collection[str], alone: Sequence[int]) -> list[Wait]:
        """Return the jobs without the *due_ids* ones, which have the ranks *alone* (sorted)."""
        first, others = self._members[: self._number], self._members[self._number :]
        waits = [Wait(rank, "", expected_us[job_id], 1, rank) for job_id, rank in first if job_id not in due_ids]
        for begin in range(0, len(others) - 1, self._per_block):
            block = others[begin : begin + self._per_block + 1]  # and the first job after it
            positions = [*self._positions, self._length][begin : begin + self._per_block + 1]
            known_jobs = bisect_left(alone, block[-1][1]) - bisect_left(alone, block[0][1])
            jobs = positions[-1] - positions[0] - known_jobs
            each_us = sum(expected_us[job_id] for job_id, _ in block[:-1]) / (len(block) - 1)
            if jobs > 0:
                waits.append(Wait(block[0][1], "", each_us, jobs, block[-1][1]))
        return waits


def due_text(due_report: DueReport) -> str:
    """Return the report as text: numbers, and a sentence for each late job."""
    if not due_report.waiting and not due_report.overdue:
        return "no waiting job has a due time"
    many = "" if due_report.forecast == due_report.waiting else f" (the next {due_report.forecast:,} are forecast)"
    late = sum(job.deadline_s is None for job in due_report.late)
    numbers = (
        f"{pluralize(due_report.waiting, 'waiting job')} with a due time to come{many}: {late or 'none'} of them "
        f"{'is' if late == 1 else 'are'} expected to start late; {due_report.overdue:,} more are overdue"
    )
    return "\n".join([numbers, *map(_line, due_report.late)])


def _line(job: LateJob) -> str:
    return printable_cell(f"{job.why} [cohort {job.cohort}]" if job.cohort else job.why)


@report("due", "/api/due", "Jobs that are expected to start after their due time, and why", text=due_text)
def due(source: Source) -> Answer[DueReport]:
    """Show which jobs with a due time (start_within, deadline) will probably start late, and why."""
    answers = source.fleet.each(lambda scheduler: read_due(scheduler.reader))
    total = DueReport()
    for name, in_cohort in answers.answers.items():
        total = total.plus(
            replace(in_cohort, late=with_cohort_name(in_cohort.late, name)) if answers.is_split else in_cohort
        )
    return Answer(total, answers.down)
