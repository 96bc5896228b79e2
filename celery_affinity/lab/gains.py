"""Who gains and who loses between two schedules of the same jobs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .scenario import Arrival
from .schedule import Schedule
from .waits import Waits, summary, waits_by_job

#: Smallest difference, µs, of two waits that counts as one.
_NOTICED_US = 1_000


class Who(NamedTuple):
    """Jobs that are alike. *tenant*: None for jobs that have none."""

    type: str
    on_demand: bool
    tenant: str | None


@dataclass(frozen=True)
class Gain:
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


def between(before: Schedule, after: Schedule) -> list[Gain]:
    """Return what changes for each kind of jobs: who gains most, by seconds of all jobs together, comes first."""
    waits, its_waits = waits_by_job(before), waits_by_job(after)
    both = waits.keys() & its_waits.keys()
    jobs = [each for each in before.scenario.arrivals if each.number in both]
    groups = grouped_pairs(jobs, waits, its_waits)
    found = [_gain(who, pairs) for who, pairs in groups.items()]
    return sorted(
        found, key=lambda gain: (-gain.mean_s * gain.before.jobs, gain.type, gain.on_demand, gain.tenant or "")
    )


def grouped_pairs(
    jobs: Iterable[Arrival], waits: dict[int, int | None], its_waits: dict[int, int | None]
) -> dict[Who, list[tuple[int | None, int | None]]]:
    """Return the waits before and after of each job, µs, by kind."""
    found: dict[Who, list[tuple[int | None, int | None]]] = {}
    for job in jobs:
        pair = waits[job.number], its_waits[job.number]
        found.setdefault(Who(job.type, job.on_demand, job.tenant), []).append(pair)
    return found


def _gain(who: Who, pairs: Sequence[tuple[int | None, int | None]]) -> Gain:
    return Gain(
        *who,
        shorter=sum(_is_longer(before, after) for before, after in pairs),
        longer=sum(_is_longer(after, before) for before, after in pairs),
        before=summary(before for before, _ in pairs),
        after=summary(after for _, after in pairs),
    )


def _is_longer(wait_us: int | None, than_us: int | None) -> bool:
    """Return whether one wait is longer than another one; None is the longest."""
    if than_us is None:
        return False
    return wait_us is None or wait_us - than_us >= _NOTICED_US
