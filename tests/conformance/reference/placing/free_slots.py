"""Free slots: counted from what a worker holds, so that no sequence of calls can leak one."""

from celery_affinity.rules.slot import free_slots

from ..model import Cohort, Worker


def count(worker: Worker) -> int:
    """Return how many slots of *worker* are free for jobs."""
    return max(0, free_slots(worker.slots, worker.other, len(worker.claims))) if worker.takes_jobs else 0


def recount(worker: Worker, now_us: int) -> None:
    """Bring the free slots of *worker* up to date with what it holds."""
    free = count(worker)
    if free != worker.free:
        worker.free, worker.free_since_us = free, now_us


def free_for(cohort: Cohort, type_: str) -> int:
    """Return how many free slots fit *type_*."""
    return sum(worker.free for worker in cohort.workers.values() if type_ in worker.types)
