"""Looks for claims of a schedule that the overtaking bound forbids (`rules.overtaking`): there are none.

A job may be passed only by jobs enqueued less than D after it. A claim passes a job that waited then and that the same
slot could have run. What a rule keeps back is not passed: jobs of paused and of full types, and jobs with keys.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from ..clock import SECOND_US
from ..rules import overtaking
from ..rules.addresses import ALL
from ..rules.lanes import number
from ..rules.shared_settings import complete, weights
from .known_rules import limits_of_types
from .profiles import Profiles
from .scenario import Arrival, Scenario
from .schedule import Run, Schedule


@dataclass(frozen=True)
class Passed:
    """Job *passed* was passed by job *by*, at the claim of the latter, which was enqueued *later_us* after it, not less
    than *bound_us*.
    """

    passed: int
    by: int
    claimed_us: int
    later_us: int
    bound_us: float


@dataclass
class _Lane:
    """Jobs of one type, mode and priority that wait: a heap of (enqueued, number)."""

    type: str
    bound_us: float
    jobs: list[tuple[int, int]]


def beyond_bound(schedule: Schedule) -> list[Passed]:
    """Return the claims of *schedule* that passed a job beyond its bound. With a reserve none is looked for."""
    if complete(schedule.scenario.settings)["reserve"].strip():
        return []
    return list(_Search(schedule).found())


class _Search:
    def __init__(self, schedule: Schedule) -> None:
        scenario = schedule.scenario
        self._schedule = schedule
        self._weights = weights(complete(scenario.settings))
        self._limits = limits_of_types(complete(scenario.settings)["limits"])
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._running: dict[str, list[int]] = {}  # limited type -> when its runs end, a heap
        self._claimed: set[int] = set()

    def found(self) -> Iterator[Passed]:
        scenario = self._schedule.scenario
        arrivals = iter(scenario.arrivals)
        arrival = next(arrivals, None)
        by_number = {each.number: each for each in scenario.arrivals}
        profiles = Profiles(scenario.workers)
        for run in self._schedule.runs:
            while arrival is not None and arrival.since_us < run.claimed_us:
                self._wait(arrival)
                arrival = next(arrivals, None)
            self._claimed.add(run.number)
            yield from self._passed(run, by_number[run.number], profiles.of(run))
            self._count(run, by_number[run.number].type)

    def _wait(self, job: Arrival) -> None:
        if job.number in self._claimed or _is_kept_back(job, self._schedule.scenario):
            return
        name = job.type, number(job.on_demand, job.priority)
        if name not in self._lanes:
            bound_s = overtaking.seconds(job.priority, job.on_demand, self._weights)
            self._lanes[name] = _Lane(job.type, bound_s * SECOND_US, [])
        heapq.heappush(self._lanes[name].jobs, (job.enqueued_us, job.number))

    def _passed(self, run: Run, job: Arrival, types: tuple[str, ...]) -> Iterator[Passed]:
        for lane in self._lanes.values():
            if lane.type not in types or self._is_full(lane.type, run.claimed_us):
                continue
            while lane.jobs and lane.jobs[0][1] in self._claimed:
                heapq.heappop(lane.jobs)
            if lane.jobs:
                enqueued_us, passed = lane.jobs[0]
                later_us = job.enqueued_us - enqueued_us
                if later_us > 0 and later_us >= lane.bound_us:
                    yield Passed(passed, run.number, run.claimed_us, later_us, lane.bound_us)

    def _count(self, run: Run, type_: str) -> None:
        if type_ in self._limits:
            heapq.heappush(self._running.setdefault(type_, []), run.ended_us)

    def _is_full(self, type_: str, now_us: int) -> bool:
        if type_ not in self._limits:
            return False
        ends = self._running.setdefault(type_, [])
        while ends and ends[0] < now_us:  # one that ends just now may count still
            heapq.heappop(ends)
        return len(ends) >= self._limits[type_]


def _is_kept_back(job: Arrival, scenario: Scenario) -> bool:
    if not {job.type, ALL}.isdisjoint(scenario.paused):
        return True
    has_quotas = bool(complete(scenario.settings)["tenants"].strip())
    return not (job.exclusive is job.rate is job.merge is None) or (has_quotas and job.tenant is not None)
