"""The choice of a slot: the most specialised one that is free.

``lua/matching/slot_choice.lua`` (`view.best`) is this rule in Redis, ``free_slots.lua`` there (`left`) this count.

Which of several equally specialised workers with a free slot gets a job: the one with the most points.

``lua/matching/placement.lua`` is this rule in Redis.

The priority of a worker, by which it gets jobs before or after equally specialised ones (`placement`).
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..schema.values import is_whole


def free_slots(slots: int, other: int, held: int) -> int:
    """Return how many slots of a worker are free; below 0 if it holds jobs beyond its slots.

    *other*: slots taken by running requests without a claim, less the slots that claims lend while they wait for a rate
    limit. *held*: number of the worker's claims.
    """
    return slots - other - held


@dataclass(frozen=True)
class FreeWorker:
    """A worker with a free slot. *since_us*: time of the last change of its free slots.

    *free*: their number. *priority*: the worker's own, by which `placement` prefers it. *profile*: the short name of
    its set of types.
    """

    id: str
    types: frozenset[str]
    since_us: int
    free: int = 1
    priority: int = 0
    profile: str = ""


def most_specialised(type_: str, workers: Iterable[FreeWorker]) -> list[FreeWorker]:
    """Return those of *workers* that serve *type_*, and the fewest types."""
    fit = [worker for worker in workers if type_ in worker.types]
    fewest = min((len(worker.types) for worker in fit), default=0)
    return [worker for worker in fit if len(worker.types) == fewest]


def choose_worker(type_: str, workers: Iterable[FreeWorker]) -> FreeWorker | None:
    """Return the worker that a job of *type_* goes to, or None if none of *workers* serves it.

    The worker that serves the fewest types wins, so that a versatile slot stays free for jobs that only it can run. Of
    several such workers the longest idle one wins, then the one with the smaller id.
    """
    return min(most_specialised(type_, workers), key=lambda worker: (worker.since_us, worker.id), default=None)


#: Value of ``affinity_placement``: by points.
WEIGHTED = "weighted"


class Placement(NamedTuple):
    """Points for each step of a worker's *priority*, for a hit of *locality*, and for each *free* slot.

    *sample*: how many workers are compared for one job; 0: all of them.
    """

    priority: float
    locality: float
    free: float
    sample: int

    def points(self, worker: FreeWorker, *, is_hit: bool) -> float:
        """Return the points of *worker* for a job. *is_hit*: whether it holds the hint of the job."""
        return worker.priority * self.priority + is_hit * self.locality + worker.free * self.free


def parse_placement(settings: Mapping[str, str]) -> Placement | None:
    """Return how *settings*, complete and as Redis has them, place jobs; None: on the worker that is idle longest.

    Weights that are all 0 are as good as none.
    """
    names = ("placement_priority_weight", "placement_locality_weight", "placement_free_weight")
    priority, locality, free = (float(settings[name]) for name in names)
    if settings["placement"] != WEIGHTED or not (priority or locality or free):
        return None
    return Placement(priority, locality, free, int(settings["sample_size"]))


def sample_workers(workers: Sequence[FreeWorker], job_id: str, size: int) -> list[FreeWorker]:
    """Return *size* of *workers* for the job *job_id*; 0: all of them.

    The workers are sorted by profile, and those of a profile by the time when they became idle. The sample is *size*
    neighbours in this order. The id determines the first of them: its profile, and its place among those of that.
    """
    if size == 0 or len(workers) <= size:
        return [*workers]
    number = int(hashlib.sha1(job_id.encode(), usedforsecurity=False).hexdigest()[:8], 16)
    sizes = Counter(each.profile for each in workers)
    profiles = [*sizes]
    nth, place = number % len(profiles), number // len(profiles)
    first = sum(sizes[each] for each in profiles[:nth]) + place % sizes[profiles[nth]]
    return [workers[nth % len(workers)] for nth in range(first, first + size)]


def choose_by_points(
    type_: str, workers: Iterable[FreeWorker], job_id: str, by: Placement, holders: Collection[str] = ()
) -> FreeWorker | None:
    """Return the worker that the job *job_id* of *type_* goes to, or None if none of *workers* serves it.

    The most specialised ones are compared, those of the sample and the *holders* of the job's hint. Ties go to the
    longest idle one, then to the one with the smaller id.
    """
    fit = sorted(most_specialised(type_, workers), key=lambda each: (each.profile, each.since_us, each.id))
    compared = {*sample_workers(fit, job_id, by.sample), *(each for each in fit if each.id in holders)}
    return min(
        compared,
        key=lambda each: (-by.points(each, is_hit=each.id in holders), each.since_us, each.id),
        default=None,
    )


#: Largest priority; the smallest is as far below 0.
LARGEST = 1_000

ACCEPTED = f"a whole number from {-LARGEST} to {LARGEST}"


def check_worker_priority(value: object) -> str | None:
    """Return None if *value* is accepted as a priority; else what is accepted, in words."""
    return None if is_whole(value) and abs(value) <= LARGEST else ACCEPTED
