"""Forecast when waiting jobs start: list scheduling with expected run times.

A slot that becomes free takes the job with the highest score, like the scheduler, and is free again after the job's
expected run time. If several slots are free, the most specialised slot chooses first. A `Wait` is a job, or a block of
jobs that were not read individually.

A slot can take several jobs of a block together. Its time with them is a fixed part of the time since the forecast
began, so the number of steps grows only with the logarithm of the forecast time. Slots then hold jobs that would start
later. The start of a forecast job is therefore delayed by the mean of these times over the fitting slots.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .score import Weights, is_by_age, score

#: Maximum number of simulated slots, with few and with many jobs. In a larger fleet, a simulated slot represents
#: several slots of one profile. There is at least one for each profile.
_MAX_SLOTS, _MAX_SLOTS_OF_MANY_JOBS = 256, 16
#: Maximum number of jobs that slots always take individually.
_MAX_SINGLE_JOBS = 2_000
#: With more jobs, the mean time between two choices is the time since the beginning divided by this number.
_STEPS = 60
#: A slot takes at least this part of what it may take of a block, although another job ranks before the last of them.
_LEAST_PART = 0.25
#: Maximum number of choices.
_MAX_CHOICES = 20_000


class Kind(NamedTuple):
    """A lane: type (encoded), priority and mode."""

    type: str
    priority: int
    on_demand: bool


class Wait(NamedTuple):
    """One waiting job, or a block of *jobs* with ranks evenly spread from *rank_us* to *last_us*.

    *each_us*: expected run time of one job. *job_id*: of a job to forecast; "" for others.
    """

    rank_us: int
    job_id: str
    each_us: float
    jobs: float = 1
    last_us: int = 0


class ComingJobs(NamedTuple):
    """Jobs that become pending at *at_us*."""

    at_us: int
    kind: Kind
    wait: Wait


class FreeSlot(NamedTuple):
    """A slot for *types* (encoded), and the time at which it is expected to be free. *limited*: type of its job."""

    free_us: int
    types: frozenset[str]
    limited: str = ""


class ExpectedStart(NamedTuple):
    """When a job is expected to start.

    *jobs_before*, *work_us*: jobs that start before it, while it waits, on slots that fit it, and their run times.
    """

    start_us: int
    jobs_before: int
    work_us: float


@dataclass(frozen=True)
class Situation:
    """The state of a cohort at one time. *fits*: slots per type. *limits*: maximum number of running jobs per type.

    *coming* is sorted by time. *priority_percentage*, *claims*: see `is_by_age`.
    """

    now_us: int
    weights: Weights
    fits: Mapping[str, int]
    waiting: Mapping[Kind, Sequence[Wait]]
    slots: Sequence[FreeSlot]
    coming: Sequence[ComingJobs] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    priority_percentage: int = 100
    claims: int = 0


def expected_starts(situation: Situation) -> dict[str, ExpectedStart]:
    """Return the expected start of each job that has an id. Jobs that no slot fits are missing."""
    return _ListSchedule(situation).run()


#: Entry of a lane's heap: rank, job id ("" for a block), number, jobs, expected run time of each, last rank.
_Entry = tuple[float, str, int, float, float, float]


class _Lane:
    """The waiting jobs of one kind, and the terms of their scores."""

    def __init__(self, kind: Kind, fits: int, weights: Weights) -> None:
        self.kind = kind
        self.type = kind.type
        self.heap: list[_Entry] = []
        self.points = score(kind.priority, kind.on_demand, 0, fits, weights).total
        self.age = weights.age
        self.demand_age = weights.on_demand_age if kind.on_demand else 0.0
        self.cap_us = weights.on_demand_age_cap_us


class _Profile:
    """The slots of one set of types, and the jobs that they took."""

    def __init__(self, types: frozenset[str]) -> None:
        self.types = types
        self.lanes: list[_Lane] = []
        self.idle: list[int] = []
        self.slots = 0
        self.jobs = 0.0
        self.work_us = 0.0
        #: Sums over its slots that have taken several jobs together: the part of the jobs after the first, and this
        #: part times the end of the slot's time. At a time t, ends - parts * t is held for jobs that start later.
        self.parts = self.ends = 0.0


class _ListSchedule:
    def __init__(self, situation: Situation) -> None:
        self._now_us, self._situation = situation.now_us, situation
        self._lanes: dict[Kind, _Lane] = {}
        self._profiles: dict[frozenset[str], _Profile] = {}
        self._serving: dict[str, list[_Profile]] = {}
        self._starts: dict[str, ExpectedStart] = {}
        self._starts_any = False
        #: Job to forecast -> what the slots that fit it had taken when it became pending, if that was anything.
        self._before: dict[str, tuple[float, float]] = {}
        self._running = dict.fromkeys(situation.limits, 0)
        self._number = 0
        self._claims = situation.claims
        waits = [wait for of_kind in situation.waiting.values() for wait in of_kind]
        waits += [arrival.wait for arrival in situation.coming]
        has_many_jobs = sum(wait.jobs for wait in waits) > _MAX_SINGLE_JOBS
        slots = _grouped(situation.slots, _MAX_SLOTS_OF_MANY_JOBS if has_many_jobs else _MAX_SLOTS)
        self._number_of_slots = len(slots)
        self._grain = self._number_of_slots / _STEPS if has_many_jobs else 0.0
        self._open = {wait.job_id for wait in waits if wait.job_id}
        #: Slot that has taken several jobs -> what it adds to the sums of its profile.
        self._ahead: dict[int, tuple[float, float]] = {}
        #: Number of real slots that each slot represents.
        self._speeds = [speed for _, speed in slots]
        #: Slot with a job of a limited type -> this type, and the number of its running jobs.
        self._limited: dict[int, tuple[str, int]] = {}
        #: Time, number of types, number and profile of the slots that have a job, or choose a job.
        self._free: list[tuple[float, int, int, _Profile]] = []
        for number, (slot, speed) in enumerate(slots):
            profile = self._profiles.setdefault(slot.types, _Profile(slot.types))
            profile.slots += speed
            if slot.limited in self._running:
                self._limited[number] = slot.limited, speed
                self._running[slot.limited] += speed
            self._free.append((max(slot.free_us, self._now_us), len(slot.types), number, profile))
        heapq.heapify(self._free)

    def run(self) -> dict[str, ExpectedStart]:
        for kind, waits in self._situation.waiting.items():
            for wait in waits:
                self._add(kind, wait)
        self._starts_any = True
        coming, position, free = self._situation.coming, 0, self._free
        for _ in range(_MAX_CHOICES):
            if not self._open:
                break
            if position < len(coming) and (not free or coming[position].at_us <= free[0][0]):
                at_us, kind, wait = coming[position]
                position += 1
                if self._add(kind, wait):
                    self._wake(kind.type, wait.jobs, max(at_us, self._now_us))
            elif free:
                self._choose()
            else:
                break
        return self._starts

    def _add(self, kind: Kind, wait: Wait) -> bool:
        """Add waiting jobs. Return False if no slot fits them."""
        serving = self._serving_profiles(kind.type)
        if not serving:
            self._open.discard(wait.job_id)
            return False
        lane = self._lanes.get(kind)
        if lane is None:
            fits = max(1, self._situation.fits.get(kind.type, 1))
            lane = self._lanes[kind] = _Lane(kind, fits, self._situation.weights)
            for profile in serving:
                profile.lanes.append(lane)
        self._number += 1
        rank_us, job_id, each_us, jobs, last_us = wait
        heapq.heappush(lane.heap, (rank_us, job_id, self._number, jobs, each_us, last_us))
        if job_id and self._starts_any:
            self._before[job_id] = _taken(serving)
        return True

    def _serving_profiles(self, type_: str) -> list[_Profile]:
        if type_ not in self._serving:
            serving = [profile for profile in self._profiles.values() if type_ in profile.types]
            self._serving[type_] = sorted(serving, key=lambda profile: len(profile.types))
        return self._serving[type_]

    def _wake(self, type_: str, jobs: float, at_us: float) -> None:
        """Let idle slots choose, the most specialised first."""
        for profile in self._serving_profiles(type_):
            while profile.idle and jobs > 0:
                heapq.heappush(self._free, (at_us, len(profile.types), profile.idle.pop(), profile))
                jobs -= 1

    def _choose(self) -> None:
        """Let the slot that is free first take its best job, or jobs of the best block."""
        at_us, size, number, profile = heapq.heappop(self._free)
        if number in self._ahead:
            part, end = self._ahead.pop(number)
            profile.parts, profile.ends = profile.parts - part, profile.ends - end
        if number in self._limited:
            limited, running = self._limited.pop(number)
            self._running[limited] -= running
            self._wake(limited, running, at_us)
        lane = self._best(profile, at_us)
        if lane is None:
            profile.idle.append(number)
            return
        rank_us, job_id, order, jobs, each_us, last_us = entry = lane.heap[0]
        if job_id:
            self._starts[job_id] = self._expected_start(job_id, lane.type, at_us)
            self._open.discard(job_id)
        speed = self._speeds[number]
        if lane.type in self._running:
            speed = min(speed, self._situation.limits[lane.type] - self._running[lane.type])
            self._running[lane.type] += speed
            self._limited[number] = lane.type, speed
        job_us = max(each_us, 1.0) / speed
        taken = self._taken_jobs(lane.heap, entry, (at_us - self._now_us) / job_us, number) if jobs > 1 else jobs
        if taken < jobs:
            rank_us += (last_us - rank_us) * taken / jobs
            heapq.heapreplace(lane.heap, (rank_us, "", order, jobs - taken, each_us, last_us))
        else:
            heapq.heappop(lane.heap)
        profile.jobs += taken
        profile.work_us += taken * each_us
        free_us = at_us + taken * job_us
        if taken > 1:
            part = self._speeds[number] * (taken - 1) / taken
            self._ahead[number] = part, part * free_us
            profile.parts, profile.ends = profile.parts + part, profile.ends + part * free_us
        heapq.heappush(self._free, (free_us, size, number, profile))

    def _best(self, profile: _Profile, at_us: float) -> _Lane | None:
        """Return the lane whose first job has the highest score, or None if no job fits."""
        by_age = False
        if self._situation.priority_percentage < 100 and sum(bool(lane.heap) for lane in profile.lanes) > 1:
            self._claims += 1
            by_age = is_by_age(self._claims, self._situation.priority_percentage)
        best, best_score, best_first, running = None, 0.0, 0.0, self._running
        for lane in profile.lanes:
            if not lane.heap or (lane.type in running and running[lane.type] >= self._situation.limits[lane.type]):
                continue
            first = lane.heap[0][0]
            points = 0.0
            if not by_age:
                age_us = at_us - first
                if age_us < 0:
                    age_us = 0
                points = lane.points + age_us * lane.age
                if lane.demand_age:
                    points += min(age_us, lane.cap_us) * lane.demand_age
            if best is None or points > best_score or (points == best_score and first < best_first):
                best, best_score, best_first = lane, points, first
        return best

    def _taken_jobs(self, heap: Sequence[_Entry], entry: _Entry, most: float, number: int) -> float:
        """Return the number of jobs of a block that a slot takes together.

        *most*: number that it could have run since the forecast began.
        """
        rank_us, _, _, jobs, _, last_us = entry
        # Slots that begin together take different numbers of jobs, so that they do not end together.
        most *= self._grain * (0.5 + (number + 0.5) / self._number_of_slots)
        if len(heap) > 1 and last_us > rank_us and most > 1:
            next_us = heap[1][0] if len(heap) < 3 else min(heap[1][0], heap[2][0])
            most = max(min(most, (next_us - rank_us) * jobs / (last_us - rank_us)), most * _LEAST_PART)
        return min(jobs, float(max(1, int(most))))

    def _expected_start(self, job_id: str, type_: str, at_us: float) -> ExpectedStart:
        jobs, work_us = self._before.get(job_id, (0.0, 0.0))
        jobs, work_us, ahead_us, slots = -jobs, -work_us, 0.0, 0
        for profile in self._serving_profiles(type_):
            jobs += profile.jobs
            work_us += profile.work_us
            ahead_us += profile.ends - profile.parts * at_us
            slots += profile.slots
        return ExpectedStart(round(at_us + max(0.0, ahead_us) / slots), round(jobs), work_us)


def _taken(profiles: Iterable[_Profile]) -> tuple[float, float]:
    jobs = work_us = 0.0
    for profile in profiles:
        jobs += profile.jobs
        work_us += profile.work_us
    return jobs, work_us


def _grouped(slots: Sequence[FreeSlot], most: int) -> list[tuple[FreeSlot, int]]:
    """Return about *most* slots, and how many real slots each of them represents."""
    size = -(-len(slots) // most)
    if size <= 1:
        return [(slot, 1) for slot in slots]
    by_types: dict[frozenset[str], list[FreeSlot]] = {}
    for slot in sorted(slots, key=lambda slot: slot.free_us):
        by_types.setdefault(slot.types, []).append(slot)
    grouped = []
    for of_types in by_types.values():
        for first in range(0, len(of_types), size):
            group = of_types[first : first + size]
            mean_us = sum(slot.free_us for slot in group) // len(group)
            grouped.append((FreeSlot(mean_us, group[0].types, group[0].limited), len(group)))
    return grouped
