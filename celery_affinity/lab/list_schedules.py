"""What keeps a job back although a slot is free: exclusive keys, rates, and limits of types.

A list schedule asks before each start. Limits that settings have for patterns of keys are not among them: a trace has
hashes in place of keys. Nor are reserves, shares and quotas, which say who goes first, not what is possible.

Weights of jobs, and the mean weighted wait of a schedule: what `optimum` compares.

The wait of a run is the time from which its job could be claimed until the claim, within the trace: a job that was
pending as the trace began has waited since time 0. No schedule could have claimed it before.

Schedules by a list: whenever a slot is free, the first job of a list that may take it does.

They know how long each job takes, and with *ahead* what comes next, so no fleet can follow them. They keep to what the
slots serve, to exclusive keys, rates and limits of types, and start nothing before it arrives. So the best of them is
an upper bound of what a clairvoyant scheduler could reach.

Slots by profile over time: what a bound may count on, whatever a schedule does.

A lower bound by one fast slot: quick, and exact in time, so that it stands where a linear program gets too large.

All slots that serve a group of types are taken as one slot of as many times their speed, which may interrupt a job and
may give it all of its speed. docs/internals/optimum.md proves the bound.
"""

import heapq
import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..options.keys import as_stated, is_rate
from ..schema.keys import OF_TYPE
from .fast_engine import limits_of_types
from .scenario import Arrival, Scenario, Schedule, ScheduledRun
from .trace import TracedWorker


class Gates:
    """The gates of one schedule in the making; times in µs."""

    def __init__(self, scenario: Scenario) -> None:
        self._arrivals = scenario.arrivals
        self._of_types = limits_of_types(scenario.settings.get("limits", ""))
        self._running: dict[str, int] = {}
        self._free_at_us: dict[
            str, list[int]
        ] = {}  # key of a rate -> when each of its starts is free again, the latest last
        self._kept: dict[str, list[tuple[float, int]]] = {}

    def closed(self, index: int, place: float, now_us: int) -> int | None:
        """Return None if the arrival at *index* may start; else the time at which it may.

        *now_us* stands for a time that an end will tell: `ended` then returns the index.
        """
        arrival = self._arrivals[index]
        for key, limit in self._limits(arrival):
            if self._running.get(key, 0) >= limit:
                heapq.heappush(self._kept.setdefault(key, []), (place, index))
                return now_us
        if arrival.rate and arrival.rate_limit:
            starts, _ = _rate(arrival.rate_limit)
            free_at_us = self._free_at_us.get(arrival.rate, [])
            if len(free_at_us) >= starts and free_at_us[-starts] > now_us:
                return free_at_us[-starts]
        return None

    def started(self, arrival: Arrival, now_us: int) -> None:
        for key, _ in self._limits(arrival):
            self._running[key] = self._running.get(key, 0) + 1
        if arrival.rate and arrival.rate_limit:
            starts, period_us = _rate(arrival.rate_limit)
            free_at_us = self._free_at_us.setdefault(arrival.rate, [])
            # Starts become free again evenly: each one a share of the period after the one before.
            before_us = free_at_us[-1] if free_at_us else now_us
            free_at_us.append(max(now_us, before_us) + -(-period_us // starts))
            del free_at_us[:-starts]

    def ended(self, arrival: Arrival) -> list[int]:
        """Return the indexes of arrivals that may try again, since *arrival* ended: one for each of its limits."""
        let_in = []
        for key, _ in self._limits(arrival):
            self._running[key] -= 1
            if kept := self._kept.get(key):
                let_in.append(heapq.heappop(kept)[1])
        return let_in

    def _limits(self, arrival: Arrival) -> list[tuple[str, int]]:
        found = []
        if arrival.type in self._of_types:
            found.append((OF_TYPE + arrival.type, self._of_types[arrival.type]))
        if arrival.exclusive:
            found.append((arrival.exclusive, int(arrival.exclusive_limit or 1)))
        return found


def _rate(limit: str) -> tuple[int, int]:
    """Return the starts and the period, µs, of a rate such as "10/m", or as the arrows have it."""
    starts, _, period = (as_stated(limit) if is_rate(limit) else limit).partition("/")
    return int(starts), int(period)


#: Points that a mode is worth, in steps of priority: as in the score of a claim with its coefficients by default.
_ON_DEMAND_STEPS = 4

Weight = Callable[[Arrival], float]


def equal_weights(_: Arrival) -> float:
    """Return 1: a second that a job waits counts the same for all jobs."""
    return 1.0


def priority_weights(arrival: Arrival) -> float:
    """Return priority + 1, and 4 more on demand: 1 to 15."""
    return arrival.priority + 1.0 + (_ON_DEMAND_STEPS if arrival.on_demand else 0)


#: Name of a way to weigh, as an option has it -> the way.
WEIGHTS: Mapping[str, Weight] = {"equal": equal_weights, "priority": priority_weights}


def since_us(arrival: Arrival) -> int:
    """Return the time from which the wait of *arrival* counts."""
    return max(0, arrival.since_us)


def mean_wait_s(
    arrivals: Iterable[Arrival], starts_us: Mapping[int, int], weight: Weight, only: Collection[int] | None = None
) -> float:
    """Return the mean weighted wait, s, of the jobs with a start; 0 without jobs.

    *starts_us*: number of a job -> when it was claimed. *only*: numbers of the jobs that count.
    """
    waited = weights = 0.0
    for each in arrivals:
        if each.number in starts_us and (only is None or each.number in only):
            waited += weight(each) * max(0, starts_us[each.number] - since_us(each))
            weights += weight(each)
    return waited / weights / 1e6 if weights else 0.0


#: The place of a job in the list: the lowest goes first. By the number of the job.
Places = Mapping[int, float]

_JOIN, _LEAVE, _END, _ARRIVE, _OPEN = range(5)


#: About how many jobs the search schedules in all, and its most steps.
_SEARCHED_JOBS, _MOST_STEPS = 400_000, 500


def steps_of(jobs: int) -> int:
    """Return how many steps the search of `best` makes for so many *jobs*: fewer on a longer trace."""
    return min(_MOST_STEPS, _SEARCHED_JOBS // max(1, jobs))


def best_schedule(
    scenario: Scenario, weight: Weight, *, seed: int = 1, progress: Iterable[object] | None = None
) -> Schedule:
    """Return the schedule with the lowest mean weighted wait of several lists, and of a search that changes the best.

    Of schedules that run fewer jobs than others none is taken. *progress*: stepped `steps_of` times.
    """
    steps = iter(progress or ())
    tried = [
        _Tried.of(scenario, places, weight, ahead=ahead)
        for places in _lists(scenario, weight)
        for ahead in (False, True)
    ]
    best = min(tried, key=lambda each: each.rank)
    drawn = random.Random(seed)  # noqa: S311 - a search, no secret
    for _ in range(steps_of(len(scenario.arrivals))):
        changed = _changed(best.places, scenario.arrivals, drawn)
        best = min(_Tried.of(scenario, changed, weight, ahead=best.ahead), best, key=lambda each: each.rank)
        next(steps, None)
    return best.schedule


def guided_schedule(scenario: Scenario, weight: Weight, wished_s: Mapping[int, float]) -> Schedule:
    """Return the best schedule of lists by the times at which jobs would like to start, or to be half done."""
    length = {each.number: each.took_us / 1e6 for each in scenario.arrivals}
    lists = [{number: wish + part * length[number] for number, wish in wished_s.items()} for part in (0.0, 0.5, 1.0)]
    tried = [_Tried.of(scenario, places, weight, ahead=ahead) for places in lists for ahead in (False, True)]
    return min(tried, key=lambda each: each.rank).schedule


@dataclass(frozen=True)
class _Tried:
    """A list, and what came of it. *rank*: jobs that it leaves, then the mean weighted wait, s: the lowest is best."""

    places: dict[int, float]
    ahead: bool
    schedule: Schedule
    rank: tuple[int, float]

    @classmethod
    def of(cls, scenario: Scenario, places: dict[int, float], weight: Weight, *, ahead: bool) -> "_Tried":
        schedule = list_schedule(scenario, places, weight, ahead=ahead)
        starts_us = {run.number: run.claimed_us for run in schedule.runs}
        cost = mean_wait_s(scenario.arrivals, starts_us, weight)
        return cls(places, ahead, schedule, (len(scenario.arrivals) - len(starts_us), cost))


def _lists(scenario: Scenario, weight: Weight) -> Iterator[dict[int, float]]:
    """Yield shortest weighted time first, first come first served, and what is between."""
    jobs = scenario.arrivals
    for age in (0.0, 0.05, 0.2):
        yield {each.number: (each.took_us + age * since_us(each)) / weight(each) for each in jobs}
    yield {each.number: float(each.since_us) for each in jobs}


def _changed(places: Mapping[int, float], arrivals: Sequence[Arrival], drawn: random.Random) -> dict[int, float]:
    """Return *places* with those of a few jobs, neighbours in time, changed at random."""
    changed = dict(places)
    if arrivals:
        at = drawn.randrange(len(arrivals))
        for each in arrivals[at : at + drawn.choice((1, 2, 4))]:
            changed[each.number] = max(changed[each.number], 1.0) * 2.0 ** drawn.gauss(0, 2)
    return changed


def list_schedule(
    scenario: Scenario, places: Places, weight: Weight = equal_weights, *, ahead: bool = False
) -> Schedule:
    """Return what comes of *places*. A job goes to the free slot that serves the fewest types.

    *ahead*: the last free slot that serves a type stays free for the next job of that type, if the two jobs together
    wait less so: the job in hand would then run after it.
    """
    return _ByList(scenario, places, weight, ahead=ahead).run()


class _ByList:
    """One run through the events of a scenario."""

    def __init__(self, scenario: Scenario, places: Places, weight: Weight, *, ahead: bool) -> None:
        self.scenario, self.places, self.weight, self.ahead = scenario, places, weight, ahead
        self.workers = scenario.workers
        self.free: list[int] = [0] * len(self.workers)  # free slots, by worker
        self.open: list[bool] = [False] * len(self.workers)
        self.serving: dict[str, list[int]] = {}  # type -> workers, those that serve the fewest types first
        for index in sorted(range(len(self.workers)), key=lambda i: len(self.workers[i].types)):
            for type_ in self.workers[index].types:
                self.serving.setdefault(type_, []).append(index)
        self.free_of: dict[str, int] = dict.fromkeys(self.serving, 0)  # free slots, by type
        self.waiting: dict[str, list[tuple[float, int]]] = {}  # type -> heap of places and indexes of arrivals
        self.coming = self._coming()
        self.gates = Gates(scenario)
        self.runs: list[ScheduledRun] = []
        self.events: list[tuple[int, int, int, int]] = []  # time, kind, worker or arrival, arrival of an end

    def _coming(self) -> dict[str, list[int]]:
        """Return the arrivals of each type that are still to come, the next one last."""
        coming: dict[str, list[int]] = {}
        if self.ahead:
            for index in range(len(self.scenario.arrivals) - 1, -1, -1):
                coming.setdefault(self.scenario.arrivals[index].type, []).append(index)
        return coming

    def run(self) -> Schedule:
        for index, worker in enumerate(self.workers):
            heapq.heappush(self.events, (max(0, worker.joined_us), _JOIN, index, 0))
            if worker.left_us is not None:
                heapq.heappush(self.events, (max(0, worker.left_us), _LEAVE, index, 0))
        for index, arrival in enumerate(self.scenario.arrivals):
            if arrival.type in self.serving and arrival.type not in self.scenario.paused:
                self.events.append((since_us(arrival), _ARRIVE, index, 0))
        heapq.heapify(self.events)
        while self.events:
            now_us = self.events[0][0]
            while self.events and self.events[0][0] == now_us:
                self._happens(*heapq.heappop(self.events)[1:])
            self._claim(now_us)
        return Schedule(self.scenario, tuple(self.runs))

    def _happens(self, kind: int, index: int, ended: int) -> None:
        if kind == _JOIN:
            self.open[index] = True
            self._free(index, self.workers[index].slots)
        elif kind == _LEAVE:
            self.open[index] = False
            self._free(index, -self.free[index])
        elif kind == _END:
            if self.open[index]:
                self._free(index, 1)
            for let_in in self.gates.ended(self.scenario.arrivals[ended]):
                self._waits(let_in)
        else:
            if kind == _ARRIVE and self.ahead:
                self.coming[self.scenario.arrivals[index].type].pop()
            self._waits(index)

    def _free(self, index: int, slots: int) -> None:
        self.free[index] += slots
        for type_ in self.workers[index].types:
            self.free_of[type_] += slots

    def _waits(self, index: int) -> None:
        arrival = self.scenario.arrivals[index]
        heapq.heappush(self.waiting.setdefault(arrival.type, []), (self.places[arrival.number], index))

    def _claim(self, now_us: int) -> None:
        """Give free slots to waiting jobs, until none may take one."""
        left = {type_ for type_, jobs in self.waiting.items() if jobs and self.free_of[type_]}
        while left:
            type_ = min(left, key=lambda each: self.waiting[each][0])
            _, index = self.waiting[type_][0]
            arrival = self.scenario.arrivals[index]
            if (from_us := self.gates.closed(index, self.places[arrival.number], now_us)) is not None:
                heapq.heappop(self.waiting[type_])
                if from_us > now_us:
                    heapq.heappush(self.events, (from_us, _OPEN, index, 0))
            else:
                worker = next(each for each in self.serving[type_] if self.free[each])
                if self.ahead and self._is_kept(worker, arrival, now_us):
                    left.discard(type_)
                    continue
                heapq.heappop(self.waiting[type_])
                self._start(worker, index, now_us)
            left = {each for each in left if self.waiting[each] and self.free_of[each]}

    def _start(self, worker: int, index: int, now_us: int) -> None:
        arrival = self.scenario.arrivals[index]
        self._free(worker, -1)
        self.gates.started(arrival, now_us)
        ended_us = now_us + arrival.took_us
        heapq.heappush(self.events, (ended_us, _END, worker, index))
        self.runs.append(ScheduledRun(arrival.number, self.workers[worker].name, now_us, ended_us))

    def _is_kept(self, worker: int, arrival: Arrival, now_us: int) -> bool:
        """Whether the slot stays free for a job that comes soon, and that no other free slot serves."""
        ends_us = now_us + arrival.took_us
        for type_ in self.workers[worker].types:
            if self.free_of[type_] > 1 or not self.coming.get(type_):
                continue
            soon = self.scenario.arrivals[self.coming[type_][-1]]
            comes_us = since_us(soon)
            first, then = self.weight(arrival), self.weight(soon)
            if comes_us < ends_us and first * (comes_us - now_us + soon.took_us) < then * (ends_us - comes_us):
                return True
        return False


Numbers = NDArray[np.float64]
Profile = frozenset[str]


@dataclass(frozen=True)
class OpenSlots:
    """*slots* of a profile that may do work from *from_us* until *until_us* (None: for ever)."""

    profile: Profile
    slots: int
    from_us: int
    until_us: int | None


def slot_seconds(slots: Iterable[OpenSlots], profile: Profile, edges_s: Numbers) -> Numbers:
    """Return how much work, s of one slot, the slots of *profile* can do in each bin between *edges_s*."""
    total = np.zeros(len(edges_s) - 1)
    for each in slots:
        if each.profile == profile:
            until_s = edges_s[1:] if each.until_us is None else np.minimum(edges_s[1:], each.until_us / 1e6)
            total += each.slots * np.maximum(0.0, until_s - np.maximum(edges_s[:-1], each.from_us / 1e6))
    return total


def open_slots(workers: Sequence[TracedWorker], arrivals: Iterable[Arrival]) -> list[OpenSlots]:
    """Return the slots of *workers* that can do work of *arrivals*, each with the types of these alone.

    A worker that leaves takes no more jobs, and those that it has may end later: its slots count for the length of the
    longest job that they serve, beyond the time at which it left. That is more than it could do, never less.
    """
    longest: dict[str, int] = {}
    for each in arrivals:
        longest[each.type] = max(longest.get(each.type, 0), each.took_us)
    found: dict[tuple[Profile, int, int | None], int] = {}
    for worker in workers:
        profile = frozenset(worker.types).intersection(longest)
        if not profile or worker.slots <= 0:
            continue
        until_us = None if worker.left_us is None else worker.left_us + max(longest[each] for each in profile)
        key = (profile, max(0, worker.joined_us), until_us)
        found[key] = found.get(key, 0) + worker.slots
    return [OpenSlots(profile, slots, from_us, until_us) for (profile, from_us, until_us), slots in found.items()]


def weighted_wait_us(arrivals: Sequence[Arrival], slots: Sequence[OpenSlots], weight: Weight) -> float:
    """Return a number that the sum of the weighted waits, µs, of *arrivals* is never below, in any schedule.

    Of two ways to group the types the better one counts: each type for itself, or all that share slots together.
    """
    types = {each.type for each in arrivals}
    groupings = ([{each} for each in sorted(types)], _that_share_slots(types, slots))
    return max(
        sum(
            _of_group(
                [job for job in arrivals if job.type in group], [each for each in slots if each.profile & group], weight
            )
            for group in groups
        )
        for groups in groupings
    )


def keys_bound_us(arrivals: Sequence[Arrival], weight: Weight) -> float:
    """Return the same for the jobs of exclusive keys, by the limits of these: the limit of a key is as many slots."""
    by_key: dict[str, list[Arrival]] = {}
    for each in arrivals:
        if each.exclusive is not None:
            by_key.setdefault(each.exclusive, []).append(each)
    # Jobs of a key may state different limits: the highest is the one that no schedule exceeds.
    limits = {key: max(int(job.exclusive_limit or 1) for job in jobs) for key, jobs in by_key.items()}
    return sum(_of_group(jobs, [OpenSlots(frozenset(), limits[key], 0, None)], weight) for key, jobs in by_key.items())


def _that_share_slots(types: Iterable[str], slots: Iterable[OpenSlots]) -> list[set[str]]:
    groups = [{each} for each in sorted(types)]
    for each in slots:
        joined = [group for group in groups if group & each.profile]
        if len(joined) > 1:
            groups = [group for group in groups if group not in joined] + [set().union(*joined)]
    return groups


def _of_group(jobs: Sequence[Arrival], slots: Collection[OpenSlots], weight: Weight) -> float:
    """Return the bound of jobs on slots: shortest weighted time first, with interruptions, on one fast slot.

    The sums of its busy periods count where they are above 0: they have no work in common, and no wait is below 0.
    """
    total = period = speed = now_us = 0.0
    coming = sorted(((since_us(job), job.took_us, weight(job)) for job in jobs if job.took_us > 0), reverse=True)
    changes = _changes(slots)
    ready: list[tuple[float, float, float, float]] = []  # time by weight; time, weight, work left
    while ready or coming:
        if not ready:
            total, period = total + max(0.0, period), 0.0
            now_us = max(now_us, coming[-1][0])
        while coming and coming[-1][0] <= now_us:
            since, took, weighs = coming.pop()
            heapq.heappush(ready, (took / weighs, took, weighs, took))
            # Wait of a run = middle of its work - half of its length - arrival; the middle is added piece by piece.
            period -= weighs * (took / 2 + since)
        while changes and changes[-1][0] <= now_us:
            speed += changes.pop()[1]
        until_us = min(coming[-1][0] if coming else math.inf, changes[-1][0] if changes else math.inf)
        if speed:
            ends_us, done = _first_works(ready, now_us, until_us, speed)
            period += done * (now_us + ends_us) / 2
            now_us = ends_us
        elif until_us == math.inf:
            break  # no slot is left for what waits: no schedule runs it
        else:
            now_us = until_us
    return total + max(0.0, period)


def _changes(slots: Iterable[OpenSlots]) -> list[tuple[float, int]]:
    """Return when the number of slots changes, and by how much; the first change last."""
    opened = [(float(each.from_us), each.slots) for each in slots]
    closed = [(float(each.until_us), -each.slots) for each in slots if each.until_us is not None]
    return sorted(opened + closed, reverse=True)


def _first_works(
    ready: list[tuple[float, float, float, float]], now_us: float, until_us: float, speed: float
) -> tuple[float, float]:
    """Let the first job of *ready* work until it ends, at the latest *until_us*; return when, and its work by ratio."""
    ratio, took, weighs, left = ready[0]
    ends_us = now_us + left / speed
    if ends_us <= until_us:
        heapq.heappop(ready)
        return ends_us, left / ratio
    done = min(left, (until_us - now_us) * speed)
    heapq.heapreplace(ready, (ratio, took, weighs, left - done))
    return until_us, done / ratio
