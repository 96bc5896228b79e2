"""The choice of a slot: the most specialised one that is free.

``lua/placing/which_slot.lua`` (`view.best`) is this rule in Redis, ``free_slots.lua`` there (`left`) this count.
"""

from collections.abc import Iterable
from dataclasses import dataclass


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


def choose(type_: str, workers: Iterable[FreeWorker]) -> FreeWorker | None:
    """Return the worker that a job of *type_* goes to, or None if none of *workers* serves it.

    The worker that serves the fewest types wins, so that a versatile slot stays free for jobs that only it can run. Of
    several such workers the longest idle one wins, then the one with the smaller id.
    """
    return min(most_specialised(type_, workers), key=lambda worker: (worker.since_us, worker.id), default=None)
