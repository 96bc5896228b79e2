"""Which slot of a worker moves from one cohort to another, when jobs wait in a cohort where the worker has none free.

Each slot belongs to one cohort at a time. An idle slot moves at once. If no slot is idle, the cohorts in which jobs
wait come to have equally many slots; a cohort that still has none, since the worker has fewer slots than cohorts, gets
one after a while.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

#: Looks, one after the other, at which jobs wait for a worker that has no slot in their cohort, before it gets one that
#: is in use.
PATIENCE_LOOKS = 10


@dataclass(frozen=True)
class SeatAsSeen:
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

    def plus(self, slots: int) -> "SeatAsSeen":
        """Return the seat with *slots* more, or fewer. Each further slot gets a job, as long as one waits."""
        taken = min(self.waiting, slots) if slots > 0 else 0
        return replace(
            self, slots=self.slots + slots, free=self.free + slots - taken, waiting=self.waiting - taken, in_vain=0
        )


def taker(seats: Sequence[SeatAsSeen]) -> SeatAsSeen | None:
    """Return the seat that gets the next slot: of those that lack one, the one with the fewest, then the hungriest."""
    lacking = [each for each in seats if each.lacks]
    return min(lacking, key=lambda each: (each.slots, -each.in_vain, each.cohort), default=None)


def giver(seats: Sequence[SeatAsSeen], coming: int = 0) -> SeatAsSeen | None:
    """Return the seat that gives a slot away now; None if none has to. *coming*: slots that are on their way already.

    A slot that is in use goes when its job ends: until then the seat has one slot fewer than claims.
    """
    for _ in range(coming):
        first = taker(seats)
        if first is None:
            return None
        seats = [each.plus(1) if each is first else each for each in seats]
    to = taker(seats)
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


def divided(slots: int, cohorts: Sequence[str]) -> dict[str, int]:
    """Return the slots of each cohort at the start: equally many, the first ones one more."""
    each, rest = divmod(slots, len(cohorts))
    return {cohort: each + (at < rest) for at, cohort in enumerate(cohorts)}
