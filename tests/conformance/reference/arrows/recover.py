"""recover: a worker is dead, says its guard, which saw it end. What it held is pending again, counted as a delivery."""

from celery_affinity.rules.protocol import MOST_MOVES

from ..fleet.dead_workers import take_back
from ..model import Cohort
from ..placing.fill import fill
from ..replies import NONE, Recovered


def recover(cohort: Cohort, worker_id: str, *, now_us: int) -> Recovered:
    """Take back what a dead worker held."""
    worker = cohort.workers.get(worker_id)
    if worker is None:
        return Recovered(False, 0, NONE)
    types: set[str] = set()
    taken = take_back(cohort, worker, MOST_MOVES, types, now_us)
    return Recovered(not taken.workers, taken.jobs, fill(cohort, types, now_us))
