"""Waits in a schedule by type, mode and tenant, the use of its slots, and comparisons of two schedules. In seconds.

The wait of a job lasts from its earliest claim time to its claim. Percentiles use the nearest rank. An unclaimed job
has no wait, and is counted separately.
"""

import math
from array import array
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..clock import SECOND_US
from .scenario import Arrival, Profiles, Schedule, types_of


@dataclass(frozen=True)
class Waits:
    """A summary of waits; the times are None without claimed jobs."""

    jobs: int  #: number of claimed jobs
    unclaimed: int  #: number of jobs that were never claimed, or are not counted
    mean_s: float | None = None
    p50_s: float | None = None
    p95_s: float | None = None
    max_s: float | None = None


@dataclass(frozen=True)
class SlotUse:
    """The busy *share*, 0 to 1, of all slots with the same *types* while jobs arrived."""

    types: tuple[str, ...]
    slots: int
    share: float


@dataclass(frozen=True)
class WaitReport:
    """The waits of a schedule, and the use of its slots. *tenants*: only jobs with a tenant."""

    all: Waits
    types: Mapping[str, Waits]
    modes: Mapping[str, Waits]
    tenants: Mapping[str, Waits]
    slots: Sequence[SlotUse]


def report_waits(schedule: Schedule, counted: Container[int] | None = None) -> WaitReport:
    """Return the report of *schedule*. *counted*: numbers of the jobs to include; None: all claimed jobs."""
    waits = waits_by_job(schedule)
    if counted is not None:
        waits = {number: wait_us if number in counted else None for number, wait_us in waits.items()}
    return WaitReport(
        summarize_waits(waits.values()),
        _summaries_by(schedule, waits, lambda job: job.type),
        _summaries_by(schedule, waits, lambda job: "on demand" if job.on_demand else "queued"),
        _summaries_by(schedule, waits, lambda job: job.tenant),
        slot_use(schedule),
    )


def waits_by_job(schedule: Schedule) -> dict[int, int | None]:
    """Return the wait of each job in µs by its number; None for a job that was never claimed."""
    arrivals = schedule.scenario.arrivals
    since_us = array("q", bytes(8 * (1 + max((arrival.number for arrival in arrivals), default=0))))
    for arrival in arrivals:
        since_us[arrival.number] = arrival.since_us
    waits_us: dict[int, int | None] = dict.fromkeys(arrival.number for arrival in arrivals)
    for run in schedule.runs:
        if waits_us[run.number] is None:  # the first run of a job determines its wait
            waits_us[run.number] = max(0, run.claimed_us - since_us[run.number])
    return waits_us


def summarize_waits(waits_us: Iterable[int | None]) -> Waits:
    all_waits = list(waits_us)
    sorted_waits = sorted(wait_us for wait_us in all_waits if wait_us is not None)
    if not sorted_waits:
        return Waits(0, len(all_waits))
    return Waits(
        len(sorted_waits),
        len(all_waits) - len(sorted_waits),
        sum(sorted_waits) / len(sorted_waits) / SECOND_US,
        percentile(sorted_waits, 0.50) / SECOND_US,
        percentile(sorted_waits, 0.95) / SECOND_US,
        sorted_waits[-1] / SECOND_US,
    )


def percentile(in_order: Sequence[float], share: float) -> float:
    """Return the smallest value that is not below *share* of all values (nearest rank)."""
    return in_order[max(0, math.ceil(share * len(in_order)) - 1)]


def _summaries_by(
    schedule: Schedule, waits: Mapping[int, int | None], name_of: Callable[[Arrival], str | None]
) -> dict[str, Waits]:
    groups: dict[str, list[int | None]] = {}
    for arrival in schedule.scenario.arrivals:
        if (name := name_of(arrival)) is not None:
            groups.setdefault(name, []).append(waits[arrival.number])
    return {name: summarize_waits(groups[name]) for name in sorted(groups)}


def slot_use(schedule: Schedule) -> list[SlotUse]:
    """Return the use of slots by types, from the beginning to the last arrival."""
    workers, arrivals = schedule.scenario.workers, schedule.scenario.arrivals
    ends_us = arrivals[-1].since_us if arrivals else 0
    busy_us = dict.fromkeys(dict.fromkeys(types_of(worker) for worker in workers), 0)
    profiles = Profiles(workers)
    for run in schedule.runs:
        busy_us[profiles.of(run)] += max(0, min(run.ended_us, ends_us) - max(0, run.claimed_us))
    uses = []
    for types, busy_of_types_us in busy_us.items():
        slots = offered_us = 0
        for member in (member for member in workers if types_of(member) == types):
            left_us = ends_us if member.left_us is None else min(member.left_us, ends_us)
            offered_us += member.slots * max(0, left_us - max(0, member.joined_us))
            slots += member.slots
        uses.append(SlotUse(types, slots, min(1.0, busy_of_types_us / offered_us) if offered_us else 0.0))
    return uses


#: Minimum difference in µs of two waits that is counted.
_MIN_DIFFERENCE_US = 1_000


@dataclass(frozen=True)
class WaitGain:
    """The change of waits for a group of jobs. Only jobs in both schedules are compared, claimed or not."""

    type: str
    on_demand: bool
    tenant: str | None
    shorter: int  #: number of jobs that wait at least a millisecond less
    longer: int  #: number of jobs that wait at least a millisecond more
    before: Waits
    after: Waits

    @property
    def mean_s(self) -> float:
        """The decrease of the mean wait in seconds; negative if it increases."""
        return (self.before.mean_s or 0.0) - (self.after.mean_s or 0.0)


def gains_between(before: Schedule, after: Schedule) -> list[WaitGain]:
    """Return the change per group of jobs, sorted by the gain in seconds of all its jobs, the largest first."""
    waits, later_waits = waits_by_job(before), waits_by_job(after)
    groups: dict[tuple[str, bool, str | None], list[tuple[int | None, int | None]]] = {}
    for job in before.scenario.arrivals:
        if job.number in later_waits:
            pair = waits[job.number], later_waits[job.number]
            groups.setdefault((job.type, job.on_demand, job.tenant), []).append(pair)
    gains = [
        WaitGain(
            *group,
            shorter=sum(_is_longer(wait_us, later_us) for wait_us, later_us in pairs),
            longer=sum(_is_longer(later_us, wait_us) for wait_us, later_us in pairs),
            before=summarize_waits(wait_us for wait_us, _ in pairs),
            after=summarize_waits(later_us for _, later_us in pairs),
        )
        for group, pairs in groups.items()
    ]
    return sorted(gains, key=lambda g: (-g.mean_s * g.before.jobs, g.type, g.on_demand, g.tenant or ""))


def _is_longer(wait_us: int | None, than_us: int | None) -> bool:
    """True if a wait is noticeably longer than another; None is the longest."""
    if than_us is None:
        return False
    return wait_us is None or wait_us - than_us >= _MIN_DIFFERENCE_US
