"""Schedules by a list: whenever a slot is free, the first job of a list that may take it does.

They know how long each job takes, and with *ahead* what comes next, so no fleet can follow them. They keep to what the
slots serve, to exclusive keys, rates and limits of types, and start nothing before it arrives. So the best of them is
an upper bound of what a clairvoyant scheduler could reach.
"""

import heapq
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .gates import Gates
from .scenario import Arrival, Scenario
from .schedule import Run, Schedule
from .weighing import Weight, equally, mean_wait_s, since_us

#: The place of a job in the list: the lowest goes first. By the number of the job.
Places = Mapping[int, float]

_JOIN, _LEAVE, _END, _ARRIVE, _OPEN = range(5)


#: About how many jobs the search schedules in all, and its most steps.
_SEARCHED_JOBS, _MOST_STEPS = 400_000, 500


def steps_of(jobs: int) -> int:
    """Return how many steps the search of `best` makes for so many *jobs*: fewer on a longer trace."""
    return min(_MOST_STEPS, _SEARCHED_JOBS // max(1, jobs))


def best(scenario: Scenario, weight: Weight, *, seed: int = 1, progress: Iterable[object] | None = None) -> Schedule:
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


def guided(scenario: Scenario, weight: Weight, wished_s: Mapping[int, float]) -> Schedule:
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


def list_schedule(scenario: Scenario, places: Places, weight: Weight = equally, *, ahead: bool = False) -> Schedule:
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
        self.runs: list[Run] = []
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
        self.runs.append(Run(arrival.number, self.workers[worker].name, now_us, ended_us))

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
