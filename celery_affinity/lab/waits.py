"""How long jobs wait in a schedule, by type, mode and tenant, and how much of the slots is used. Times are seconds.

The wait of a job is the time from which it can be claimed to its claim. Percentiles are of nearest rank. A job that was
never claimed has no wait, and is counted as such.
"""

import math
from array import array
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..clock import SECOND_US
from .profiles import Profiles, types_of
from .scenario import Arrival, Scenario
from .schedule import Schedule
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
class Use:
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
    slots: Sequence[Use]


def report(schedule: Schedule, counted: Container[int] | None = None) -> WaitReport:
    """Return the report of *schedule*. *counted*: numbers of the jobs that have a wait; None: all that were claimed."""
    waits = waits_by_job(schedule)
    if counted is not None:
        waits = {number: each if number in counted else None for number, each in waits.items()}
    return WaitReport(
        summary(waits.values()),
        _by(schedule, waits, lambda job: job.type),
        _by(schedule, waits, lambda job: "on demand" if job.on_demand else "queued"),
        _by(schedule, waits, lambda job: job.tenant),
        use(schedule),
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


def summary(waits_us: Iterable[int | None]) -> Waits:
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


def grouped(
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
    found = grouped(schedule.scenario, waits, name_of)
    return {name: summary(found[name]) for name in sorted(name for name in found if name is not None)}


def use(schedule: Schedule) -> list[Use]:
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
        found.append(Use(types, sum(each.slots for each in members), share))
    return found


def _lives_us(worker: TracedWorker, ends_us: int) -> int:
    left_us = ends_us if worker.left_us is None else min(worker.left_us, ends_us)
    return max(0, left_us - max(0, worker.joined_us))
