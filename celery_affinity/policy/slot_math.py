"""Calculate slots: lending, moves between cohorts, the slots that the load needs, and the limit on prefetched jobs."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..schema.values import encode_part


class Lending(NamedTuple):
    """Slots that are free although claims hold them (*lent*), and types that the worker stops claiming (*withdrawn*).

    A worker lends slots while jobs wait for a rate limit or in the buffer of a task's custom strategy.
    """

    lent: int
    withdrawn: frozenset[str]


NOTHING_LENT = Lending(0, frozenset())

#: Number of buffered jobs at which a worker stops claiming jobs of their types, unless Celery's prefetch is higher.
MAX_BUFFERED = 1_000


def max_buffered_calls(prefetch_multiplier: int, slots: int) -> int:
    """Return the maximum number of jobs in the buffers of a worker's custom strategies.

    On a stock transport, the maximum is the prefetch count: concurrency times ``worker_prefetch_multiplier``. Here that
    setting can only raise the maximum. The multiplier 0 (no limit on a stock transport) does not raise it, because one
    buffer would claim all jobs of a fleet.
    """
    return max(MAX_BUFFERED, prefetch_multiplier * slots)


def lending_of(waiting: Mapping[str, int], types: Collection[str], slots: int) -> Lending:
    """Return the lending of a worker that serves *types*. *waiting*: number of jobs that wait in the worker, by type.

    Each lent slot can bring one more waiting job. While more jobs wait than half the slots, the worker therefore claims
    only its other types. A worker without other types lends at most half its slots.
    """
    max_lent = slots // 2
    total = sum(waiting.values())
    if total <= max_lent:
        return Lending(total, frozenset())
    withdrawn = frozenset(type_ for type_ in types if waiting.get(type_))
    if withdrawn == frozenset(types):
        return Lending(max_lent, frozenset())
    return Lending(total, withdrawn)


#: Consecutive checks at which jobs wait for a worker without a slot in their cohort, before it gets a busy slot.
PATIENCE_LOOKS = 10


@dataclass(frozen=True)
class CohortLoad:
    """A worker's load in a cohort. *free*: number of its *slots* without a claim, according to the cohort's server.

    *waiting*: jobs that can start but have no slot here. *in_vain*: consecutive checks at which jobs waited while the
    worker had no slot in the cohort.
    """

    cohort: str
    slots: int
    free: int
    waiting: int = 0
    in_vain: int = 0

    @property
    def is_idle(self) -> bool:
        return self.slots > 0 and self.free > 0

    @property
    def lacks(self) -> bool:
        """True if jobs wait that only another slot can start. With a free slot they wait for something else."""
        return self.waiting > 0 and self.free <= 0

    def plus(self, slots: int) -> "CohortLoad":
        """Return the load with *slots* more or fewer slots. Each added slot gets a waiting job, if any."""
        taken = min(self.waiting, slots) if slots > 0 else 0
        return replace(
            self, slots=self.slots + slots, free=self.free + slots - taken, waiting=self.waiting - taken, in_vain=0
        )


def receiver(loads: Sequence[CohortLoad]) -> CohortLoad | None:
    """Return the load that gets the next slot. The fewest slots win, then the longest wait for a slot."""
    lacking = [load for load in loads if load.lacks]
    return min(lacking, key=lambda load: (load.slots, -load.in_vain, load.cohort), default=None)


def donor(loads: Sequence[CohortLoad], coming: int = 0) -> CohortLoad | None:
    """Return the load that must give a slot away now, or None. *coming*: number of slots already moving.

    Each slot belongs to one cohort at a time. An idle slot moves immediately. Without an idle slot, the cohorts with
    waiting jobs converge to equal numbers of slots. A cohort without a slot, because the worker has fewer slots than
    cohorts, gets one after `PATIENCE_LOOKS`. A busy slot moves when its job ends: until then the cohort has one slot
    fewer than claims.
    """
    for _ in range(coming):
        next_receiver = receiver(loads)
        if next_receiver is None:
            return None
        loads = [load.plus(1) if load is next_receiver else load for load in loads]
    target = receiver(loads)
    others = [load for load in loads if target is not None and load is not target and load.slots > 0]
    if target is None or not others:
        return None
    idle = [load for load in others if load.is_idle]
    if idle:
        return max(idle, key=lambda load: (load.free, load.slots, load.cohort))
    largest = max(others, key=lambda load: (load.slots, load.cohort))
    if largest.slots - target.slots >= 2 or (target.slots == 0 and target.in_vain >= PATIENCE_LOOKS):
        return largest
    return None


def divide_slots(slots: int, cohorts: Sequence[str]) -> dict[str, int]:
    """Return the slots of each cohort at the start: equal numbers, with the remainder given to the first cohorts."""
    share, rest = divmod(slots, len(cohorts))
    return {cohort: share + (i < rest) for i, cohort in enumerate(cohorts)}


#: Default and maximum of the target wait, in seconds.
TARGET_WAIT_S, MAX_TARGET_WAIT_S = 30.0, 1_000_000_000

#: Slot time in seconds assumed for a job whose type has no ended job yet.
UNKNOWN_AVERAGE_S = 1.0


class TypeLoad(NamedTuple):
    """The load of one type. *waiting*: pending jobs that need only a free slot. *average_s*: mean run time."""

    waiting: float
    running: float
    average_s: float | None

    @property
    def jobs(self) -> float:
        return self.waiting + self.running

    @property
    def work_s(self) -> float:
        return self.jobs * (UNKNOWN_AVERAGE_S if self.average_s is None else self.average_s)


def wanted_slots(loads: Sequence[TypeLoad], running: int, target_wait_s: float) -> int:
    """Return the slots that start all waiting work within *target_wait_s*.

    This is (waiting work + running work) / *target_wait_s*, rounded up, and at most the number of jobs: ten one-hour
    tasks need ten slots, however short the target. It is at least *running*, the slots in use, because a slot removed
    during a run loses the run.
    """
    work_s = sum(load.work_s for load in loads)
    jobs = sum(load.jobs for load in loads)
    # The quotient can be infinite. Rounding makes three thirds of a job one job.
    return max(running, math.ceil(round(min(jobs, work_s / target_wait_s), 6)))


@dataclass(frozen=True)
class PrefetchLimit:
    """How many *jobs* a worker can hold beyond its slots, or with *costs*, jobs that take *work_us* in total.

    *costs*: type -> µs that one of its jobs keeps the worker busy. Jobs of other types are not prefetched. No job is
    prefetched while an on-demand job waits, which would start later.
    """

    jobs: int = 0
    work_us: int = 0
    costs: Mapping[str, int] = field(default_factory=dict)

    @property
    def in_words(self) -> str:
        """Return the argument of ``release``: ``8``, or ``20000 pdf 1500 excel 900``."""
        if not self.costs:
            return str(self.jobs)
        return " ".join([str(self.work_us), *(f"{encode_part(type_)} {us}" for type_, us in self.costs.items())])


#: No prefetched jobs.
NOTHING = PrefetchLimit()
