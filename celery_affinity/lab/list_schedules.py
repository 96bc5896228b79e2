"""Schedules made with knowledge of the future, which are upper bounds, and lower bounds by one fast slot.

List schedules: whenever a slot is free, the first job of a list that can take it starts. They know the length of each
job, and with *ahead* the next arrivals, so no fleet can reproduce them. They respect the slots' types, exclusive keys,
rates and limits of types, and start no job before it arrives. Limits of key patterns are ignored, because a trace has
hashes instead of keys; so are reserves, shares and quotas, which determine the order, not what is possible.

A lower bound by one fast slot is quick and exact in time, also where a linear program becomes too large. It treats all
slots that serve a group of types as one slot with their total speed, which can interrupt jobs and can give a job all of
its speed.

Proof: a job of length p without a break has the middle of its work at M = S + p/2, so the cost of a schedule is the sum
of w (M - p/2 - r). With m(t) slots, each schedule is also a schedule of one slot of speed m(t), with the same M, in
which jobs share its speed. The sum of w M is lowest if the arrived job with the highest w/p always has the full speed.
This is Goemans' argument for one machine: the sum of w M is the sum of (w/p) times the integral of t over the job's
work, and exchanging two pieces of work that are done in the other order never makes it lower. The fast slot's work
consists of busy periods. Without the jobs of some periods, the others stay unchanged, and no wait is below 0. So
periods with a sum below 0, whose jobs hardly wait, count as 0. Groups of types that share no type add up. Three
groupings are tried: each type, all types that are connected by slots, and the jobs of an exclusive key with its limit
as slots.
"""

import heapq
import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..options.keys import as_stated, is_rate
from ..schema.keys import OF_TYPE
from ..schema.rules_codec import StatedRate, rate_in
from .fast_engine import limits_of_types
from .scenario import Arrival, Scenario, Schedule, ScheduledRun
from .trace import TracedWorker


class Gates:
    """The rules that can block a job despite a free slot, in one schedule; times in µs."""

    def __init__(self, scenario: Scenario) -> None:
        self._arrivals = scenario.arrivals
        self._type_limits = limits_of_types(scenario.settings.get("limits", ""))
        self._running: dict[str, int] = {}
        self._free_us: dict[str, int] = {}  # key of a rate -> time when all of its starts are available again
        self._blocked: dict[str, list[tuple[float, int]]] = {}

    def closed(self, index: int, position: float, now_us: int) -> int | None:
        """Return None if the arrival at *index* can start, otherwise the time at which it can.

        *now_us* means that the time depends on the end of another job: `ended` then returns the index.
        """
        arrival = self._arrivals[index]
        for key, limit in self._limits(arrival):
            if self._running.get(key, 0) >= limit:
                heapq.heappush(self._blocked.setdefault(key, []), (position, index))
                return now_us
        if rate := _rate_of(arrival):
            free_us = self._free_us.get(arrival.rate or "", now_us)
            return free_us - rate.period_us + rate.interval_us if rate.room(free_us - now_us) <= 0 else None
        return None

    def started(self, arrival: Arrival, now_us: int) -> None:
        for key, _ in self._limits(arrival):
            self._running[key] = self._running.get(key, 0) + 1
        if rate := _rate_of(arrival):
            free_us = self._free_us.get(arrival.rate or "", now_us)
            self._free_us[arrival.rate or ""] = max(now_us, free_us) + rate.interval_us

    def ended(self, arrival: Arrival) -> list[int]:
        """Return the indexes of arrivals that can try again after the end of *arrival*: one per limit."""
        unblocked = []
        for key, _ in self._limits(arrival):
            self._running[key] -= 1
            if blocked := self._blocked.get(key):
                unblocked.append(heapq.heappop(blocked)[1])
        return unblocked

    def _limits(self, arrival: Arrival) -> list[tuple[str, int]]:
        limits = []
        if arrival.type in self._type_limits:
            limits.append((OF_TYPE + arrival.type, self._type_limits[arrival.type]))
        if arrival.exclusive:
            limits.append((arrival.exclusive, int(arrival.exclusive_limit or 1)))
        return limits


def _rate_of(arrival: Arrival) -> StatedRate | None:
    limit = arrival.rate_limit if arrival.rate else None
    return rate_in(as_stated(limit) if is_rate(limit) else limit) if limit else None


#: Additional weight of on-demand jobs in steps of priority, as in the score with default coefficients.
_ON_DEMAND_STEPS = 4

Weight = Callable[[Arrival], float]


def equal_weights(_: Arrival) -> float:
    return 1.0


def priority_weights(arrival: Arrival) -> float:
    """Return priority + 1, and 4 more for on-demand jobs: 1 to 15."""
    return arrival.priority + 1.0 + (_ON_DEMAND_STEPS if arrival.on_demand else 0)


#: Value of the option -> function that returns the weight.
WEIGHTS: Mapping[str, Weight] = {"equal": equal_weights, "priority": priority_weights}


def since_us(arrival: Arrival) -> int:
    """Return the time from which the wait of *arrival* is counted: 0 for jobs that waited when the trace began."""
    return max(0, arrival.since_us)


def mean_wait_s(arrivals: Iterable[Arrival], starts_us: Mapping[int, int], weight: Weight) -> float:
    """Return the mean weighted wait in seconds of the jobs with a start; 0 without jobs.

    *starts_us*: number of a job -> time of its claim.
    """
    waited = weight_sum = 0.0
    for arrival in arrivals:
        if arrival.number in starts_us:
            waited += weight(arrival) * max(0, starts_us[arrival.number] - since_us(arrival))
            weight_sum += weight(arrival)
    return waited / weight_sum / 1e6 if weight_sum else 0.0


#: Number of a job -> its position in the list; the lowest position is first.
Places = Mapping[int, float]

_JOIN, _LEAVE, _END, _ARRIVE, _OPEN = range(5)
#: Approximate number of jobs that the search schedules in total, and its maximum number of steps.
_SEARCHED_JOBS, _MAX_STEPS = 400_000, 500


def steps_of(jobs: int) -> int:
    """Return the number of search steps in `best_schedule` for *jobs* jobs: fewer for a longer trace."""
    return min(_MAX_STEPS, _SEARCHED_JOBS // max(1, jobs))


def best_schedule(scenario: Scenario, weight: Weight, *, progress: Iterable[object] | None = None) -> Schedule:
    """Return the schedule with the lowest mean weighted wait of several lists, and of a search that changes the best.

    Schedules that run fewer jobs than others are rejected. *progress*: stepped `steps_of` times.
    """
    steps = iter(progress or ())
    jobs = scenario.arrivals
    # Shortest weighted time first, mixtures with age, and first come, first served.
    lists = [
        {job.number: (job.took_us + age * since_us(job)) / weight(job) for job in jobs} for age in (0.0, 0.05, 0.2)
    ]
    lists.append({job.number: float(job.since_us) for job in jobs})
    tried = [_Candidate.of(scenario, places, weight, ahead=ahead) for places in lists for ahead in (False, True)]
    best = min(tried, key=lambda candidate: candidate.rank)
    rng = random.Random(1)  # noqa: S311 - a search, no secret
    for _ in range(steps_of(len(scenario.arrivals))):
        changed = _change_list(best.places, scenario.arrivals, rng)
        best = min(_Candidate.of(scenario, changed, weight, ahead=best.ahead), best, key=lambda tried: tried.rank)
        next(steps, None)
    return best.schedule


def guided_schedule(scenario: Scenario, weight: Weight, wished_s: Mapping[int, float]) -> Schedule:
    """Return the best schedule of lists sorted by the jobs' desired times of the start, the middle, or the end."""
    length = {arrival.number: arrival.took_us / 1e6 for arrival in scenario.arrivals}
    lists = [{number: wish + part * length[number] for number, wish in wished_s.items()} for part in (0.0, 0.5, 1.0)]
    tried = [_Candidate.of(scenario, places, weight, ahead=ahead) for places in lists for ahead in (False, True)]
    return min(tried, key=lambda candidate: candidate.rank).schedule


@dataclass(frozen=True)
class _Candidate:
    places: dict[int, float]
    ahead: bool
    schedule: Schedule
    rank: tuple[int, float]  #: number of jobs without a run, then the mean weighted wait in seconds; the lowest is best

    @classmethod
    def of(cls, scenario: Scenario, places: dict[int, float], weight: Weight, *, ahead: bool) -> "_Candidate":
        schedule = ListScheduler(scenario, places, weight, ahead=ahead).run()
        starts_us = {run.number: run.claimed_us for run in schedule.runs}
        cost = mean_wait_s(scenario.arrivals, starts_us, weight)
        return cls(places, ahead, schedule, (len(scenario.arrivals) - len(starts_us), cost))


def _change_list(places: Mapping[int, float], arrivals: Sequence[Arrival], rng: random.Random) -> dict[int, float]:
    """Return *places* with random changes of a few jobs that are neighbours in time."""
    changed = dict(places)
    if arrivals:
        index = rng.randrange(len(arrivals))
        for job in arrivals[index : index + rng.choice((1, 2, 4))]:
            changed[job.number] = max(changed[job.number], 1.0) * 2.0 ** rng.gauss(0, 2)
    return changed


class ListScheduler:
    """Makes the schedule of the list *places*. A job gets the free slot that serves the fewest types.

    *ahead*: the last free slot of a type stays free for the type's next job if both jobs together then wait less: the
    current job would run after it.
    """

    def __init__(
        self, scenario: Scenario, places: Places, weight: Weight = equal_weights, *, ahead: bool = False
    ) -> None:
        self.scenario, self.places, self.weight, self.ahead = scenario, places, weight, ahead
        self.workers = scenario.workers
        self.free: list[int] = [0] * len(self.workers)  # free slots per worker
        self.open: list[bool] = [False] * len(self.workers)
        self.serving: dict[str, list[int]] = {}  # type -> workers, sorted by their number of types
        for index in sorted(range(len(self.workers)), key=lambda number: len(self.workers[number].types)):
            for type_ in self.workers[index].types:
                self.serving.setdefault(type_, []).append(index)
        self.free_of: dict[str, int] = dict.fromkeys(self.serving, 0)  # free slots per type
        self.waiting: dict[str, list[tuple[float, int]]] = {}  # type -> heap of (position, index of arrival)
        self.coming: dict[str, list[int]] = {}  # with *ahead*: future arrivals per type, the next one last
        for index in reversed(range(len(scenario.arrivals) if ahead else 0)):
            self.coming.setdefault(scenario.arrivals[index].type, []).append(index)
        self.gates = Gates(scenario)
        self.runs: list[ScheduledRun] = []
        self.events: list[tuple[int, int, int, int]] = []  # time, kind, worker or arrival, arrival of an end

    def run(self) -> Schedule:
        for index, worker in enumerate(self.workers):
            self.events.append((max(0, worker.joined_us), _JOIN, index, 0))
            if worker.left_us is not None:
                self.events.append((max(0, worker.left_us), _LEAVE, index, 0))
        for index, arrival in enumerate(self.scenario.arrivals):
            if arrival.type in self.serving and arrival.type not in self.scenario.paused:
                self.events.append((since_us(arrival), _ARRIVE, index, 0))
        heapq.heapify(self.events)
        while self.events:
            now_us = self.events[0][0]
            while self.events and self.events[0][0] == now_us:
                self._apply_event(*heapq.heappop(self.events)[1:])
            self._start_jobs(now_us)
        return Schedule(self.scenario, tuple(self.runs))

    def _apply_event(self, kind: int, index: int, ended: int) -> None:
        if kind == _JOIN:
            self.open[index] = True
            self._add_free_slots(index, self.workers[index].slots)
        elif kind == _LEAVE:
            self.open[index] = False
            self._add_free_slots(index, -self.free[index])
        elif kind == _END:
            if self.open[index]:
                self._add_free_slots(index, 1)
            for unblocked in self.gates.ended(self.scenario.arrivals[ended]):
                self._enqueue(unblocked)
        else:
            if kind == _ARRIVE and self.ahead:
                self.coming[self.scenario.arrivals[index].type].pop()
            self._enqueue(index)

    def _add_free_slots(self, index: int, slots: int) -> None:
        self.free[index] += slots
        for type_ in self.workers[index].types:
            self.free_of[type_] += slots

    def _enqueue(self, index: int) -> None:
        arrival = self.scenario.arrivals[index]
        heapq.heappush(self.waiting.setdefault(arrival.type, []), (self.places[arrival.number], index))

    def _start_jobs(self, now_us: int) -> None:
        """Start waiting jobs in free slots until no job can start."""
        remaining = {type_ for type_, jobs in self.waiting.items() if jobs and self.free_of[type_]}
        while remaining:
            type_ = min(remaining, key=lambda name: self.waiting[name][0])
            _, index = self.waiting[type_][0]
            arrival = self.scenario.arrivals[index]
            if (from_us := self.gates.closed(index, self.places[arrival.number], now_us)) is not None:
                heapq.heappop(self.waiting[type_])
                if from_us > now_us:
                    heapq.heappush(self.events, (from_us, _OPEN, index, 0))
            else:
                worker = next(candidate for candidate in self.serving[type_] if self.free[candidate])
                if self.ahead and self._is_reserved(worker, arrival, now_us):
                    remaining.discard(type_)
                    continue
                heapq.heappop(self.waiting[type_])
                self._add_free_slots(worker, -1)
                self.gates.started(arrival, now_us)
                ended_us = now_us + arrival.took_us
                heapq.heappush(self.events, (ended_us, _END, worker, index))
                self.runs.append(ScheduledRun(arrival.number, self.workers[worker].name, now_us, ended_us))
            remaining = {name for name in remaining if self.waiting[name] and self.free_of[name]}

    def _is_reserved(self, worker: int, arrival: Arrival, now_us: int) -> bool:
        """True if the slot stays free for a job that arrives soon, and that no other free slot serves."""
        ends_us = now_us + arrival.took_us
        for type_ in self.workers[worker].types:
            if self.free_of[type_] > 1 or not self.coming.get(type_):
                continue
            next_arrival = self.scenario.arrivals[self.coming[type_][-1]]
            next_us = since_us(next_arrival)
            weight, next_weight = self.weight(arrival), self.weight(next_arrival)
            if next_us < ends_us and weight * (next_us - now_us + next_arrival.took_us) < next_weight * (
                ends_us - next_us
            ):
                return True
        return False


Profile = frozenset[str]


@dataclass(frozen=True)
class OpenSlots:
    """*slots* of a profile that can work from *from_us* until *until_us* (None: forever)."""

    profile: Profile
    slots: int
    from_us: int
    until_us: int | None


def open_slots(workers: Sequence[TracedWorker], arrivals: Iterable[Arrival]) -> list[OpenSlots]:
    """Return the slots of *workers* that can run *arrivals*, with only the arrivals' types.

    A leaving worker takes no more jobs, but its jobs can end later. So its slots are counted beyond its leave for the
    length of the longest job that they serve. That can be more than they could do, but never less.
    """
    max_us: dict[str, int] = {}
    for arrival in arrivals:
        max_us[arrival.type] = max(max_us.get(arrival.type, 0), arrival.took_us)
    numbers: dict[tuple[Profile, int, int | None], int] = {}
    for worker in workers:
        profile = frozenset(worker.types).intersection(max_us)
        if not profile or worker.slots <= 0:
            continue
        until_us = None if worker.left_us is None else worker.left_us + max(max_us[type_] for type_ in profile)
        key = (profile, max(0, worker.joined_us), until_us)
        numbers[key] = numbers.get(key, 0) + worker.slots
    return [OpenSlots(profile, slots, from_us, until_us) for (profile, from_us, until_us), slots in numbers.items()]


def weighted_wait_us(arrivals: Sequence[Arrival], slots: Sequence[OpenSlots], weight: Weight) -> float:
    """Return a lower bound, in µs, of the total weighted wait of *arrivals* in any schedule.

    The better of two groupings is used: each type separately, or types that share slots together.
    """
    types = [{type_} for type_ in sorted({job.type for job in arrivals})]
    sharing = types
    for slot in slots:
        joined = [group for group in sharing if group & slot.profile]
        if len(joined) > 1:
            sharing = [group for group in sharing if group not in joined] + [set().union(*joined)]
    bounds_us = []
    for groups in (types, sharing):
        of_groups = (([job for job in arrivals if job.type in g], [s for s in slots if s.profile & g]) for g in groups)
        bounds_us.append(sum(_group_bound_us(jobs, serving, weight) for jobs, serving in of_groups))
    return max(bounds_us)


def keys_bound_us(arrivals: Sequence[Arrival], weight: Weight) -> float:
    """Return a lower bound for the jobs of exclusive keys: the limit of a key is its number of slots."""
    groups: dict[str, list[Arrival]] = {}
    for arrival in arrivals:
        if arrival.exclusive is not None:
            groups.setdefault(arrival.exclusive, []).append(arrival)
    # Jobs of a key can have different limits: no schedule exceeds the highest.
    limits = {key: max(int(job.exclusive_limit or 1) for job in jobs) for key, jobs in groups.items()}
    return sum(
        _group_bound_us(jobs, [OpenSlots(frozenset(), limits[key], 0, None)], weight) for key, jobs in groups.items()
    )


def _group_bound_us(jobs: Sequence[Arrival], slots: Collection[OpenSlots], weight: Weight) -> float:
    """Return the bound of jobs on slots: shortest weighted time first, with interruptions, on one fast slot.

    Only positive sums of busy periods are added: periods have no work in common, and no wait is negative.
    """
    total = period = speed = now_us = 0.0
    coming = sorted(((since_us(job), job.took_us, weight(job)) for job in jobs if job.took_us > 0), reverse=True)
    changes = [(float(slot.from_us), slot.slots) for slot in slots]
    changes += [(float(slot.until_us), -slot.slots) for slot in slots if slot.until_us is not None]
    changes.sort(reverse=True)  # the first change last
    ready: list[tuple[float, float, float, float]] = []  # time / weight, time, weight, remaining work
    while ready or coming:
        if not ready:
            total, period = total + max(0.0, period), 0.0
            now_us = max(now_us, coming[-1][0])
        while coming and coming[-1][0] <= now_us:
            arrived_us, took_us, job_weight = coming.pop()
            heapq.heappush(ready, (took_us / job_weight, took_us, job_weight, took_us))
            # Wait of a run = middle of its work - half of its length - arrival; the middle is added in parts.
            period -= job_weight * (took_us / 2 + arrived_us)
        while changes and changes[-1][0] <= now_us:
            speed += changes.pop()[1]
        until_us = min(coming[-1][0] if coming else math.inf, changes[-1][0] if changes else math.inf)
        if speed:
            ends_us, done = _work_on_first(ready, now_us, until_us, speed)
            period += done * (now_us + ends_us) / 2
            now_us = ends_us
        elif until_us == math.inf:
            break  # the remaining jobs have no slot: no schedule runs them
        else:
            now_us = until_us
    return total + max(0.0, period)


def _work_on_first(
    ready: list[tuple[float, float, float, float]], now_us: float, until_us: float, speed: float
) -> tuple[float, float]:
    """Run the first job of *ready* until it ends, or *until_us*; return the time, and its work by ratio."""
    ratio, took_us, job_weight, remaining = ready[0]
    ends_us = now_us + remaining / speed
    if ends_us <= until_us:
        heapq.heappop(ready)
        return ends_us, remaining / ratio
    done = min(remaining, (until_us - now_us) * speed)
    heapq.heapreplace(ready, (ratio, took_us, job_weight, remaining - done))
    return until_us, done / ratio
