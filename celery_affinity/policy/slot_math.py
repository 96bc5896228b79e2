"""Slots that a worker lends while jobs wait there, and the types of which it takes no more jobs meanwhile.

Jobs wait for a rate limit, or in the buffer of a task's own strategy.

Which slot of a worker moves from one cohort to another, when jobs wait in a cohort where the worker has none free.

Each slot belongs to one cohort at a time. An idle slot moves at once. If no slot is idle, the cohorts in which jobs
wait come to have equally many slots; a cohort that still has none, since the worker has fewer slots than cohorts, gets
one after a while.

How many slots a part of the fleet should have, so that what waits has started within a target time.

What a worker may hold beyond its slots (`affinity_lookahead`), as a release says it to the server.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..schema.values import encode_part


class Lending(NamedTuple):
    """*lent*: slots that are free though claims hold them. *withdrawn*: types of which no more jobs are wanted now."""

    lent: int
    withdrawn: frozenset[str]


NOTHING_LENT = Lending(0, frozenset())

#: Number of buffered jobs at which a worker stops claiming jobs of their types, unless Celery's prefetch is higher.
MOST_BUFFERED = 1_000


def most_buffered(prefetch_multiplier: int, slots: int) -> int:
    """Return the maximum number of jobs in the buffers of a worker's custom strategies.

    On a stock transport, the maximum is the prefetch count: concurrency times ``worker_prefetch_multiplier``. Here that
    setting can only raise the maximum. The multiplier 0 (no limit on a stock transport) does not raise it, because one
    buffer would claim all jobs of a fleet.
    """
    return max(MOST_BUFFERED, prefetch_multiplier * slots)


def lending_of(waiting: Mapping[str, int], types: Collection[str], slots: int) -> Lending:
    """Return the lending of a worker that serves *types*. *waiting*: number of jobs that wait there, by type.

    Each slot that is lent may bring one more job to wait. So while more jobs wait than half the slots, the worker
    serves its other types alone; a worker that has no others lends half its slots at most.
    """
    most = slots // 2
    total = sum(waiting.values())
    if total <= most:
        return Lending(total, frozenset())
    withdrawn = frozenset(type_ for type_ in types if waiting.get(type_))
    if withdrawn == frozenset(types):
        return Lending(most, frozenset())
    return Lending(total, withdrawn)


#: Looks, one after the other, at which jobs wait for a worker that has no slot in their cohort, before it gets one that
#: is in use.
PATIENCE_LOOKS = 10


@dataclass(frozen=True)
class CohortLoad:
    """A worker's place in a cohort. *free*: how many of its *slots* no claim has, as the cohort's server says.

    *waiting*: jobs that may start and find no slot here. *in_vain*: looks, one after the other, at which some waited
    and the seat had no slot.
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
        """Whether jobs wait that only a further slot can start: beside a free slot they wait for something else."""
        return self.waiting > 0 and self.free <= 0

    def plus(self, slots: int) -> "CohortLoad":
        """Return the seat with *slots* more, or fewer. Each further slot gets a job, as long as one waits."""
        taken = min(self.waiting, slots) if slots > 0 else 0
        return replace(
            self, slots=self.slots + slots, free=self.free + slots - taken, waiting=self.waiting - taken, in_vain=0
        )


def receiver(seats: Sequence[CohortLoad]) -> CohortLoad | None:
    """Return the seat that gets the next slot: of those that lack one, the one with the fewest, then the hungriest."""
    lacking = [each for each in seats if each.lacks]
    return min(lacking, key=lambda each: (each.slots, -each.in_vain, each.cohort), default=None)


def donor(seats: Sequence[CohortLoad], coming: int = 0) -> CohortLoad | None:
    """Return the seat that gives a slot away now; None if none has to. *coming*: slots that are on their way already.

    A slot that is in use goes when its job ends: until then the seat has one slot fewer than claims.
    """
    for _ in range(coming):
        first = receiver(seats)
        if first is None:
            return None
        seats = [each.plus(1) if each is first else each for each in seats]
    to = receiver(seats)
    others = [each for each in seats if to is not None and each is not to and each.slots > 0]
    if to is None or not others:
        return None
    idle = [each for each in others if each.is_idle]
    if idle:
        return max(idle, key=lambda each: (each.free, each.slots, each.cohort))
    largest = max(others, key=lambda each: (each.slots, each.cohort))
    if largest.slots - to.slots >= 2 or (to.slots == 0 and to.in_vain >= PATIENCE_LOOKS):
        return largest
    return None


def divide_slots(slots: int, cohorts: Sequence[str]) -> dict[str, int]:
    """Return the slots of each cohort at the start: equally many, the first ones one more."""
    each, rest = divmod(slots, len(cohorts))
    return {cohort: each + (at < rest) for at, cohort in enumerate(cohorts)}


#: Target wait, s, if nobody says one, and the longest one that is accepted.
TARGET_WAIT_S, MOST_TARGET_WAIT_S = 30.0, 1_000_000_000

#: Time in a slot, s, of a job of a type of which none has ended yet.
UNKNOWN_AVERAGE_S = 1.0


class TypeLoad(NamedTuple):
    """The load of one type. *waiting*: pending jobs that could start if a slot were free. *average_s*: of a run."""

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
    """Return (work waiting + work running) / *target_wait_s*, rounded up; no more than there are jobs.

    Never below *running*, the slots in use: a slot that is taken away while its task runs loses the run. More slots
    than jobs help nobody: ten tasks of an hour need ten slots, however short the target.
    """
    work_s = sum(each.work_s for each in loads)
    jobs = sum(each.jobs for each in loads)
    return max(running, _up(min(jobs, work_s / target_wait_s)))  # the quotient may be infinite


def _up(number: float) -> int:
    return math.ceil(round(number, 6))  # a third of a job, three times, is one job


@dataclass(frozen=True)
class PrefetchLimit:
    """So many *jobs* beyond the worker's slots; or, with *costs*, further jobs that take *work_us* in all.

    *costs*: type -> how long one of its jobs keeps the worker busy, µs. Jobs of other types are not taken ahead, and
    none is while a job on demand waits, which would start later for it.
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


#: Nothing beyond the slots.
NOTHING = PrefetchLimit()
