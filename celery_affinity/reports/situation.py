"""Reads the state of a cohort for a forecast of starts (`policy/forecast`): the jobs that wait, run and will come.

The forecast does not model keys, reserves, turns of tenants and the placement of hints. The first jobs of each lane are
read individually, and the rest as blocks, so the time does not depend on the backlog.
"""

import heapq
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from ..clock import SECOND_US
from ..options.due_times import StoredDue, stored_due
from ..policy.forecast import ComingJobs, ExpectedStart, FreeSlot, Kind, Situation, Wait, expected_starts
from ..policy.run_times import RunTime
from ..scheduler.reader import Command, Lane, Reader
from ..schema.keys import ALL, type_address
from ..schema.values import decode_number, decode_part, decode_text, encode_part, is_on_demand, without_mark
from ..settings.wire import complete_settings, weights_of
from .type_limits import limits_of_types, paused_addresses
from .type_metrics import read_trends

#: Maximum number of jobs with an own due time that are forecast.
MAX_DUE = 1_000
#: Maximum number of other waiting jobs that are read individually in all lanes, with few and with many slots. Many
#: slots take these jobs within seconds, so the blocks after them determine the forecast.
_MAX_FIRST, _MAX_FIRST_OF_MANY_SLOTS = 512, 64
#: Number of slots from which on they are many.
_MANY_SLOTS = 100
#: Maximum number of jobs that are read for blocks in all lanes.
_MAX_SAMPLES = 128
#: Maximum number of workers and of their jobs that are read. The busy slots of larger fleets become free evenly.
_MAX_WORKERS, _MAX_CLAIMS = 500, 1_000
#: Expected run time of a job whose task and type have never ended a job.
_UNKNOWN_US = float(SECOND_US)
#: Jobs that became pending within this time tell where further ones come.
_RECENT_US = 60 * SECOND_US
#: Number of these jobs that are looked at in each lane.
_MAX_RECENT = 50
#: A block of expected arrivals is as long as the time until it divided by this number, and at least 1 s.
_INTERVALS = 20


class WaitingJob(NamedTuple):
    """A waiting job that is read individually.

    *kind*: its lane. *rank_us*: what orders it there. *from_us*: when it becomes pending; 0 if it is pending.
    *task_id*: encoded.
    """

    job_id: str
    kind: Kind
    enqueued_us: int
    rank_us: int
    from_us: int
    due: StoredDue
    task_id: str
    task: str


class Forecast(NamedTuple):
    """*starts*: expected starts by job id. *fits*: slots by type (encoded). *paused*: addresses of pauses."""

    jobs: list[WaitingJob]
    starts: Mapping[str, ExpectedStart]
    fits: Mapping[str, int]
    paused: frozenset[str]

    def is_paused(self, job: WaitingJob) -> bool:
        return _is_paused(self.paused, job.kind.type)

    def start_of(self, job: WaitingJob) -> ExpectedStart | None:
        """Return the expected start; None if it is unknown: no slot fits, or the type is paused."""
        return None if self.paused and self.is_paused(job) else self.starts.get(job.job_id)


class _Running(NamedTuple):
    """A running job. *end_us*: when it is expected to end. *each_us*: expected run time."""

    kind: Kind
    head_us: int
    end_us: int
    each_us: float


_NO_DUE = stored_due("")


def waiting_jobs(reader: Reader, ids: Sequence[str]) -> list[WaitingJob]:
    """Return the jobs among *ids* that wait."""
    fields = ("state", "type", "lane", "enqueued", "rank", "head", "due", "task", "name")
    jobs = []
    for job_id, values in zip(ids, reader.fields_of_jobs(ids, fields), strict=True):
        state, type_, lane, enqueued, rank, head, due, task_id, task = values
        if lane and state in (b"pending", b"scheduled"):
            enqueued_us = decode_number(enqueued)
            jobs.append(
                WaitingJob(
                    job_id,
                    _kind(decode_text(type_), decode_text(lane)),
                    enqueued_us,
                    (decode_number(rank) or enqueued_us) - decode_number(head),
                    enqueued_us if state == b"scheduled" else 0,
                    _due(due),
                    decode_text(task_id),
                    decode_text(task),
                )
            )
    return jobs


def _due(value: bytes | None) -> StoredDue:
    return stored_due(decode_text(value)) if value else _NO_DUE


@lru_cache(maxsize=1_000)
def _kind(type_: str, lane: str) -> Kind:
    return Kind(type_, decode_number(lane.rpartition(".")[2]), is_on_demand(lane))


def _is_paused(paused: frozenset[str], type_: str) -> bool:
    return bool(paused) and not paused.isdisjoint((ALL, type_address(type_)))


class _RunTimes:
    """The expected run times of jobs: of their tasks or, if these have not ended yet, of their types."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._usual = reader.large_hash("durations")
        self._learned: dict[str, RunTime | None] = {}
        self._expected_us: dict[tuple[str, str, int | None], float] = {}

    def read(self, names: Collection[str]) -> None:
        """Read the run times of the tasks *names*, which is necessary before they are used."""
        encoded = {encode_part(name): name for name in {*names} - {*self._learned}}
        texts = self._reader.fields("run_times", list(encoded))
        self._learned |= {name: RunTime.parse(texts.get(field, "")) for field, name in encoded.items()}

    def expected_us(self, name: str, type_: str, due: StoredDue) -> float:
        size = due.size_millionths
        expected_us = self._expected_us.get((name, type_, size))
        if expected_us is None:
            learned = self._learned.get(name)
            size_in_units = None if size is None else size / SECOND_US
            expected_us = self.usual_us(type_) if learned is None else learned.expected_us(size_in_units)
            self._expected_us[name, type_, size] = expected_us
        return expected_us

    def typical_error(self, name: str) -> float:
        learned = self._learned.get(name)
        return learned.typical_error if learned else 0.0

    def usual_us(self, type_: str) -> float:
        return float(decode_number(self._usual.get(type_)) or _UNKNOWN_US)


def forecast(reader: Reader, also: str = "") -> Forecast:
    """Return the expected starts of the next jobs with an own due time. *also*: id of another job to forecast."""
    return _Reading(reader).read(also)


class _Reading:
    def __init__(self, reader: Reader) -> None:
        self._reader, self._now_us = reader, reader.now_us()
        self._settings = complete_settings(reader.hash("settings"))
        self._run_times = _RunTimes(reader)
        self._paused = paused_addresses(reader)

    def read(self, also: str) -> Forecast:
        reader, now_us = self._reader, self._now_us
        due = reader.ask_one("zrangebyscore", reader.key("due_times"), now_us, "+inf", 0, MAX_DUE)
        jobs = waiting_jobs(reader, [*dict.fromkeys([*map(decode_text, due), *([also] if also else [])])])
        self._run_times.read({job.task for job in jobs})
        profiles = self._profiles({job.kind.type for job in jobs})
        types = sorted({type_ for of_profile in profiles.values() for type_ in of_profile})
        startable = [job for job in jobs if not _is_paused(self._paused, job.kind.type)]
        slots, running = self._slots(profiles)
        first = _MAX_FIRST if len(slots) < _MANY_SLOTS else _MAX_FIRST_OF_MANY_SLOTS
        waiting, recent = self._waiting(types, [job for job in startable if job.from_us <= now_us], first)
        recent += [(job.kind, job.head_us) for job in running]
        last_us = max((job.due.due_us or now_us for job in jobs), default=now_us)
        coming = [ComingJobs(job.from_us, job.kind, self._wait_of(job)) for job in startable if job.from_us > now_us]
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
        return Forecast(jobs, expected_starts(situation), fits, self._paused)

    def _wait_of(self, job: WaitingJob) -> Wait:
        return Wait(job.rank_us, job.job_id, self._run_times.expected_us(job.task, job.kind.type, job.due))

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
        self, types: Sequence[str], jobs: Sequence[WaitingJob], first: int
    ) -> tuple[dict[Kind, list[Wait]], list[tuple[Kind, int]]]:
        """Return the jobs that wait now, by kind, and the kinds and head starts (µs) of some that came recently.

        *jobs*: with own due times. *first*: number of others that are read individually.
        """
        waiting: dict[Kind, list[Wait]] = defaultdict(list)
        for job in jobs:
            waiting[job.kind].append(self._wait_of(job))
        lanes = [lane for lane in self._reader.lanes(types) if not _is_paused(self._paused, lane.type)]
        lengths = self._reader.ask([("zcard", self._reader.lane_key(lane)) for lane in lanes])
        number, samples = (max(1, most // max(1, len(lanes))) for most in (first, _MAX_SAMPLES))
        parts = [_LanePart(lane, length, number, samples) for lane, length in zip(lanes, lengths, strict=True)]
        replies = iter(self._reader.ask([command for part in parts for command in part.commands(self._reader)]))
        for part in parts:
            part.read(replies)
        ids = [job_id for part in parts for job_id, _ in part.members]
        rows = self._reader.fields_of_jobs(ids, ("name", "due", "head"))
        self._run_times.read({decode_text(name) for name, _, _ in rows})
        due_ids, remaining = {job.job_id for job in jobs}, iter(rows)
        recent: list[tuple[Kind, int]] = []
        for part in parts:
            its_rows = [next(remaining) for _ in part.members]
            each_us = [
                self._run_times.expected_us(decode_text(name), part.kind.type, _due(due)) for name, due, _ in its_rows
            ]
            alone = sorted(wait.rank_us for wait in waiting[part.kind])
            waiting[part.kind] += part.waits(each_us, due_ids, alone)
            heads_us = [decode_number(head) for _, _, head in its_rows]
            recent += [(part.kind, head_us) for head_us in part.recent_heads(heads_us, self._now_us - _RECENT_US)]
        return waiting, recent

    def _slots(self, profiles: Mapping[str, frozenset[str]]) -> tuple[list[FreeSlot], list[_Running]]:
        """Return the slots, with the times at which they are expected to be free, and the running jobs."""
        reader = self._reader
        workers = list(map(decode_text, reader.ask_one("zrange", reader.key("heartbeats"), 0, _MAX_WORKERS)))
        if len(workers) > _MAX_WORKERS:
            return self._evenly_free(profiles), []
        slots: dict[str, tuple[frozenset[str], int]] = {}
        rows = reader.fields_of_hashes("worker", workers, ("profile", "slots", "accepting"))
        for worker, (profile, its_slots, accepting) in zip(workers, rows, strict=True):
            if decode_text(profile) in profiles and accepting != b"0":
                slots[worker] = profiles[decode_text(profile)], decode_number(its_slots)
        if sum(number for _, number in slots.values()) > _MAX_CLAIMS:
            return self._evenly_free(profiles), []
        claims = reader.ask([("hgetall", reader.key("claims", worker)) for worker in slots])
        held = [_in_order(of_worker or {}) for of_worker in claims]
        running = self._running([job_id for ids in held for job_id in ids][: 2 * _MAX_CLAIMS])
        free_slots = []
        for (types, number), ids in zip(slots.values(), held, strict=True):
            free_slots += self._worker_slots(types, number, [running[job_id] for job_id in ids if job_id in running])
        return free_slots, list(running.values())

    def _running(self, ids: Sequence[str]) -> dict[str, _Running]:
        """Return the claimed jobs among *ids*.

        A job that has run for most of its expected time is probably longer than expected, because a shorter one would
        have ended. So it is expected to end its typical error from now, or later.
        """
        now_us, run_times = self._now_us, self._run_times
        fields = ("type", "lane", "name", "due", "head", "claimed", "started")
        rows = self._reader.fields_of_jobs(ids, fields)
        run_times.read({decode_text(row[2]) for row in rows})
        running = {}
        for job_id, (type_, lane, name, due, head, claimed, started) in zip(ids, rows, strict=True):
            if type_ and lane:
                kind, task = _kind(decode_text(type_), decode_text(lane)), decode_text(name)
                each_us = run_times.expected_us(task, kind.type, _due(due))
                since_us = max(decode_number(claimed), decode_number(started)) or now_us
                remaining_us = max(since_us + each_us - now_us, run_times.typical_error(task) * each_us, 0)
                running[job_id] = _Running(kind, decode_number(head), now_us + int(remaining_us), each_us)
        return running

    def _worker_slots(self, types: frozenset[str], number: int, held: Sequence[_Running]) -> list[FreeSlot]:
        """Return the slots of a worker. *held*: its jobs in the order of claims; prefetched jobs start after others."""
        busy = [FreeSlot(job.end_us, types, job.kind.type) for job in held[:number]]
        heapq.heapify(busy)
        for job in held[number:] if busy else ():
            heapq.heapreplace(busy, FreeSlot(int(busy[0].free_us + job.each_us), types, job.kind.type))
        return busy + [FreeSlot(self._now_us, types)] * (number - len(busy))

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
        names = {decode_part(type_): 1 for type_ in numbers if type_ in types and not _is_paused(self._paused, type_)}
        for name, trend in read_trends(self._reader, names, self._now_us).items():
            parts = numbers[encode_part(name)]
            for part, number in parts.items():
                per_us = trend.published / max(1.0, trend.seconds * SECOND_US) * number / max(1, parts.total())
                each_us = self._run_times.usual_us(part[0].type)
                yield from _coming(self._now_us, last_us, part[0], per_us, each_us, head_us[part] // max(1, number))


def _in_order(claims: Mapping[bytes, bytes]) -> list[str]:
    """Return the jobs of a worker in the order of their claims."""
    return [decode_text(job_id) for job_id, _ in sorted(claims.items(), key=lambda claim: decode_number(claim[1]))]


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
    """The jobs of a lane: the first jobs individually, and blocks that begin with the jobs read as samples.

    *number*: of the first jobs. *samples*: of the other jobs.
    """

    def __init__(self, lane: Lane, length: int, number: int, samples: int) -> None:
        self.lane, self.kind = lane, Kind(lane.type, lane.priority, lane.on_demand)
        #: Id and rank of the jobs that are read.
        self.members: list[tuple[str, int]] = []
        self._length, self._number = length, min(number, length)
        rest = length - self._number
        places = min(samples, rest)
        self._positions = [self._number + rest * place // places for place in range(places)]

    def commands(self, reader: Reader) -> list[Command]:
        key, last = reader.lane_key(self.lane), [self._length - 1] if self._positions else []
        ranges = [(0, self._number - 1), *((at, at) for at in [*self._positions, *last])]
        return [("zrange", key, *positions, False, True) for positions in ranges]

    def read(self, replies: Iterator[list[tuple[bytes, float]]]) -> None:
        for _ in range(1 + len(self._positions) + bool(self._positions)):
            self.members += [(decode_text(job_id), decode_number(rank)) for job_id, rank in next(replies)]

    def recent_heads(self, heads_us: Sequence[int], since_us: int) -> list[int]:
        """Return the head starts of some jobs that became pending after *since_us*, of the *heads_us* of all."""
        every = max(1, len(self.members) // _MAX_RECENT)
        some = [(rank_us, head_us) for (_, rank_us), head_us in zip(self.members, heads_us, strict=True)][::every]
        return [head_us for rank_us, head_us in some if rank_us + head_us > since_us]

    def waits(self, each_us: Sequence[float], due_ids: Collection[str], alone: Sequence[int]) -> list[Wait]:
        """Return the jobs, with the expected run times *each_us*.

        The *due_ids* ones, with the ranks *alone* (sorted), are left out.
        """
        members, first = list(zip(self.members, each_us, strict=True)), self._number
        waits = [Wait(rank, "", took_us, 1, rank) for (id_, rank), took_us in members[:first] if id_ not in due_ids]
        ends = [*self._positions[1:], self._length]
        for at, end, ((_, rank), took_us), ((_, last), _) in zip(
            self._positions, ends, members[first:], members[first + 1 :], strict=False
        ):
            jobs = end - at - (bisect_left(alone, last) - bisect_left(alone, rank))
            if jobs > 0:
                waits.append(Wait(rank, "", took_us, jobs, last))
        return waits
