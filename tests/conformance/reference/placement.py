"""Choose the worker that gets a job: a free slot of the most specialised workers.

If several equally specialised workers have a free slot, either the longest idle one gets the job or the one with the
most points. The points include the worker's priority. In Redis the same rules are ``lua/matching/slot_choice.lua``
(`view.best`), ``free_slots.lua`` and ``slot_choice.lua``.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from celery_affinity.policy.placement import WEIGHTED


def free_slots(slots: int, other: int, held: int) -> int:
    """Return a worker's number of free slots, below 0 if it holds more jobs than slots.

    *other*: slots taken by running requests without a claim, minus the slots lent by claims that wait for a rate limit.
    *held*: number of the worker's claims.
    """
    return slots - other - held


@dataclass(frozen=True)
class FreeWorker:
    """A worker with *free* free slots, whose number last changed at *since_us*.

    *priority*: preference used by `placement`. *profile*: short name of the worker's set of types.
    """

    id: str
    types: frozenset[str]
    since_us: int
    free: int = 1
    priority: int = 0
    profile: str = ""


def most_specialised(type_: str, workers: Iterable[FreeWorker]) -> list[FreeWorker]:
    """Return the workers that serve *type_* and the fewest types."""
    fit = [worker for worker in workers if type_ in worker.types]
    fewest = min((len(worker.types) for worker in fit), default=0)
    return [worker for worker in fit if len(worker.types) == fewest]


def choose_worker(type_: str, workers: Iterable[FreeWorker]) -> FreeWorker | None:
    """Return the worker that gets a job of *type_*, or None if none of *workers* serves the type.

    The worker that serves the fewest types wins, so that a versatile slot stays free for jobs that only it can run.
    Ties: the longest idle worker, then the smaller id.
    """
    return min(most_specialised(type_, workers), key=lambda worker: (worker.since_us, worker.id), default=None)


class Placement(NamedTuple):
    """Points for each step of a worker's *priority*, for a *locality* hit, and for each *free* slot.

    *sample*: number of workers compared for one job, 0 for all.
    """

    priority: float
    locality: float
    free: float
    sample: int

    def points(self, worker: FreeWorker, *, is_hit: bool) -> float:
        """Return the points of *worker* for a job. *is_hit*: True if the worker holds the job's hint."""
        return worker.priority * self.priority + is_hit * self.locality + worker.free * self.free


def parse_placement(settings: Mapping[str, str]) -> Placement | None:
    """Return the placement in *settings*, or None if the longest idle worker gets the job.

    *settings*: complete settings in Redis format. Weights that are all 0 also return None.
    """
    names = ("placement_priority_weight", "placement_locality_weight", "placement_free_weight")
    priority, locality, free = (float(settings[name]) for name in names)
    if settings["placement"] != WEIGHTED or not (priority or locality or free):
        return None
    return Placement(priority, locality, free, int(settings["sample_size"]))


def sample_workers(workers: Sequence[FreeWorker], job_id: str, size: int) -> list[FreeWorker]:
    """Return *size* of *workers* for the job *job_id*, or all of them if *size* is 0.

    The workers are sorted by profile, then by the time when they became idle. The sample is *size* neighbours in this
    order. The job id determines the first one: its profile and its position in that profile.
    """
    if size == 0 or len(workers) <= size:
        return [*workers]
    number = int(hashlib.sha1(job_id.encode(), usedforsecurity=False).hexdigest()[:8], 16)
    sizes = Counter(worker.profile for worker in workers)
    profiles = [*sizes]
    nth, position = number % len(profiles), number // len(profiles)
    first = sum(sizes[profile] for profile in profiles[:nth]) + position % sizes[profiles[nth]]
    return [workers[nth % len(workers)] for nth in range(first, first + size)]


def choose_by_points(
    type_: str, workers: Iterable[FreeWorker], job_id: str, by: Placement, holders: Collection[str] = ()
) -> FreeWorker | None:
    """Return the worker that gets the job *job_id* of *type_*, or None if none of *workers* serves the type.

    Only the most specialised workers in the sample, and those among the *holders* of the job's hint, are compared.
    Ties: the longest idle worker, then the smaller id.
    """
    fit = sorted(most_specialised(type_, workers), key=lambda worker: (worker.profile, worker.since_us, worker.id))
    compared = {*sample_workers(fit, job_id, by.sample), *(worker for worker in fit if worker.id in holders)}
    return min(
        compared,
        key=lambda worker: (-by.points(worker, is_hit=worker.id in holders), worker.since_us, worker.id),
        default=None,
    )
