"""requeue: claimed -> pending, with the first enqueue time; the slot is free again."""

from collections.abc import Iterable, Set

from ..jobs import claims, come_back
from ..model import Cohort
from ..placing import free_slots
from ..placing.fill import fill
from ..replies import NONE


def requeue(
    cohort: Cohort, worker_id: str, given: Iterable[tuple[str, int]], *, counted: bool, now_us: int
) -> tuple[Set[str], int]:
    """Take claims (job id, fencing number) back, *counted* as a delivery or not.

    Return `more`, and the number of jobs that are pending again.
    """
    worker = cohort.workers.get(worker_id)
    if worker is None:
        return NONE, 0
    types, returned = set(worker.types), 0
    for job_id, fence in given:
        job = claims.held(cohort, worker_id, job_id, fence)
        if job:
            came_back = come_back.put(cohort, job, now_us, counted=counted)
            types |= came_back
            returned += len(came_back)
    free_slots.recount(worker, now_us)
    return fill(cohort, types, now_us), returned
