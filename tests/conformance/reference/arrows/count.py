"""count: a worker hands over what it added up of its jobs: waits, times in a slot and ends, for observers alone."""

from collections.abc import Iterable

from celery_affinity.server.replies import TypeSums

from ..jobs import figures
from ..model import Cohort


def count(cohort: Cohort, worker_id: str, number: int, sums: Iterable[TypeSums]) -> bool:
    """Add *sums*. Return whether the worker is known. A *number* that was counted before changes nothing."""
    worker = cohort.workers.get(worker_id)
    if worker is None:
        return False
    if number <= worker.counted:
        return True
    worker.counted = number
    for each in sums:
        figures.add(cohort, each.type, each.grown)
        if each.pace:
            worker.took[each.type] = each.pace
        if each.ended and cohort.capacity(each.type):  # else the average went with the last worker of the type
            figures.average(cohort, each.type, each.ended, each.took_us)
    return True
