"""leave: a worker goes. What it still holds is pending again, its age intact."""

from celery_affinity.rules.protocol import MOST_MOVES

from ..fleet import workers
from ..jobs import come_back
from ..model import Cohort
from ..placing.fill import fill
from ..replies import NONE, Left


def leave(cohort: Cohort, worker_id: str, *, now_us: int) -> Left:
    """Take a worker out."""
    worker = cohort.workers.get(worker_id)
    if worker is None:
        return Left(NONE, False, 0)
    workers.close(worker, now_us)
    types: set[str] = set()
    returned = 0
    for job_id in list(worker.claims)[:MOST_MOVES]:
        again = come_back.put(cohort, cohort.jobs[job_id], now_us, counted=False)
        types, returned = types | again, returned + len(again)
    if not worker.claims:
        workers.remove(cohort, worker)
    return Left(fill(cohort, types, now_us), bool(worker.claims), returned)
