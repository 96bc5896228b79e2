"""How long jobs wait in a schedule, by type, mode and tenant, and how much of the slots is used. Times are seconds.

The wait of a job is the time from which it can be claimed to its claim. Percentiles are of nearest rank. A job that was
never claimed has no wait, and is counted as such.

Who gains and who loses between two schedules of the same jobs.
"""

import math
from array import array
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from ..clock import SECOND_US
from .scenario import Arrival, Profiles, Scenario, Schedule, types_of
from .trace import TracedWorker

Group = TypeVar("Group", bound=Hashable)


@dataclass(frozen=True)
class Waits:
    """Of *jobs* that were claimed, and of *unclaimed* ones, or that do not count; the times are None without jobs."""

    jobs: int
    unclaimed: int
    mean_s: float | None = None
    p50_s: float | None = None
    p95_s: float | None = None
    max_s: float | None = None


@dataclass(frozen=True)
class SlotUse:
    """How much of the slots of workers that serve the same *types* was busy while jobs arrived: *share*, 0 to 1."""

    types: tuple[str, ...]
    slots: int
    share: float


@dataclass(frozen=True)
class WaitReport:
    """The waits of a schedule, and the use of its slots. *tenants* has the jobs that have one."""

    all: Waits
    types: Mapping[str, Waits]
    modes: Mapping[str, Waits]
    tenants: Mapping[str, Waits]
    slots: Sequence[SlotUse]


def report_waits(schedule: Schedule, counted: Container[int] | None = None) -> WaitReport:
    """Return the report of *schedule*. *counted*: numbers of the jobs that have a wait; None: all that were claimed."""
    waits = waits_by_job(schedule)
    if counted is not None:
        waits = {number: each if number in counted else None for number, each in waits.items()}
    return WaitReport(
        summarize_waits(waits.values()),
        _by(schedule, waits, lambda job: job.type),
        _by(schedule, waits, lambda job: "on demand" if job.on_demand else "queued"),
        _by(schedule, waits, lambda job: job.tenant),
        slot_use(schedule),
    )


def waits_by_job(schedule: Schedule) -> dict[int, int | None]:
    """Return how long each job waited, µs, by its number; None: it was never claimed."""
    arrivals = schedule.scenario.arrivals
    since_us = array("q", bytes(8 * (1 + max((each.number for each in arrivals), default=0))))
    for each in arrivals:
        since_us[each.number] = each.since_us
    found: dict[int, int | None] = dict.fromkeys(each.number for each in arrivals)
    for run in schedule.runs:
        if found[run.number] is None:  # of a job with several runs the first counts
            found[run.number] = max(0, run.claimed_us - since_us[run.number])
    return found


def summarize_waits(waits_us: Iterable[int | None]) -> Waits:
    every = list(waits_us)
    known = sorted(each for each in every if each is not None)
    if not known:
        return Waits(0, len(every))
    return Waits(
        len(known),
        len(every) - len(known),
        sum(known) / len(known) / SECOND_US,
        percentile(known, 0.50) / SECOND_US,
        percentile(known, 0.95) / SECOND_US,
        known[-1] / SECOND_US,
    )


def percentile(in_order: Sequence[int], share: float) -> int:
    """Return the smallest value that is not below *share* of all: that of nearest rank."""
    return in_order[max(0, math.ceil(share * len(in_order)) - 1)]


def group_waits(
    scenario: Scenario, waits: Mapping[int, int | None], group_of: Callable[[Arrival], Group]
) -> dict[Group, list[int | None]]:
    """Return the *waits* of the jobs of each group."""
    found: dict[Group, list[int | None]] = {}
    for arrival in scenario.arrivals:
        found.setdefault(group_of(arrival), []).append(waits[arrival.number])
    return found


def _by(
    schedule: Schedule, waits: Mapping[int, int | None], name_of: Callable[[Arrival], str | None]
) -> dict[str, Waits]:
    found = group_waits(schedule.scenario, waits, name_of)
    return {name: summarize_waits(found[name]) for name in sorted(name for name in found if name is not None)}


def slot_use(schedule: Schedule) -> list[SlotUse]:
    """Return the use of slots from the beginning to the last arrival, by the types that they serve."""
    workers, arrivals = schedule.scenario.workers, schedule.scenario.arrivals
    ends_us = arrivals[-1].since_us if arrivals else 0
    busy_us = dict.fromkeys(dict.fromkeys(types_of(each) for each in workers), 0)
    profiles = Profiles(workers)
    for run in schedule.runs:
        busy_us[profiles.of(run)] += max(0, min(run.ended_us, ends_us) - max(0, run.claimed_us))
    found = []
    for types, its_us in busy_us.items():
        members = [each for each in workers if types_of(each) == types]
        offered_us = sum(each.slots * _lives_us(each, ends_us) for each in members)
        share = min(1.0, its_us / offered_us) if offered_us else 0.0
        found.append(SlotUse(types, sum(each.slots for each in members), share))
    return found


def _lives_us(worker: TracedWorker, ends_us: int) -> int:
    left_us = ends_us if worker.left_us is None else min(worker.left_us, ends_us)
    return max(0, left_us - max(0, worker.joined_us))


#: Smallest difference, µs, of two waits that counts as one.
_NOTICED_US = 1_000


class JobGroup(NamedTuple):
    """Jobs that are alike. *tenant*: None for jobs that have none."""

    type: str
    on_demand: bool
    tenant: str | None


@dataclass(frozen=True)
class WaitGain:
    """What changes for some jobs. *shorter*, *longer*: how many wait less, or more, by a millisecond at least.

    Only jobs of both schedules are compared; those that were claimed in one of them alone count as well.
    """

    type: str
    on_demand: bool
    tenant: str | None
    shorter: int
    longer: int
    before: Waits
    after: Waits

    @property
    def mean_s(self) -> float:
        """Seconds by which the mean wait is shorter; below 0: longer."""
        return (self.before.mean_s or 0.0) - (self.after.mean_s or 0.0)


def gains_between(before: Schedule, after: Schedule) -> list[WaitGain]:
    """Return what changes for each kind of jobs: who gains most, by seconds of all jobs together, comes first."""
    waits, its_waits = waits_by_job(before), waits_by_job(after)
    both = waits.keys() & its_waits.keys()
    jobs = [each for each in before.scenario.arrivals if each.number in both]
    groups = group_pairs(jobs, waits, its_waits)
    found = [_gain(who, pairs) for who, pairs in groups.items()]
    return sorted(
        found, key=lambda gain: (-gain.mean_s * gain.before.jobs, gain.type, gain.on_demand, gain.tenant or "")
    )


def group_pairs(
    jobs: Iterable[Arrival], waits: dict[int, int | None], its_waits: dict[int, int | None]
) -> dict[JobGroup, list[tuple[int | None, int | None]]]:
    """Return the waits before and after of each job, µs, by kind."""
    found: dict[JobGroup, list[tuple[int | None, int | None]]] = {}
    for job in jobs:
        pair = waits[job.number], its_waits[job.number]
        found.setdefault(JobGroup(job.type, job.on_demand, job.tenant), []).append(pair)
    return found


def _gain(who: JobGroup, pairs: Sequence[tuple[int | None, int | None]]) -> WaitGain:
    return WaitGain(
        *who,
        shorter=sum(_is_longer(before, after) for before, after in pairs),
        longer=sum(_is_longer(after, before) for before, after in pairs),
        before=summarize_waits(before for before, _ in pairs),
        after=summarize_waits(after for _, after in pairs),
    )


def _is_longer(wait_us: int | None, than_us: int | None) -> bool:
    """Return whether one wait is longer than another one; None is the longest."""
    if than_us is None:
        return False
    return wait_us is None or wait_us - than_us >= _NOTICED_US
