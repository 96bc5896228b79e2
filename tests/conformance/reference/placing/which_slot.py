"""Applies `rules.slot.choose` to a cohort's workers; of very many profiles the scripts compare only `MOST_COMPARED`."""

from celery_affinity.rules.slot import FreeWorker, choose

from ..model import Cohort, Worker


def best(cohort: Cohort, type_: str) -> Worker | None:
    """Return the worker that a job of *type_* goes to; None if no free slot fits."""
    free = (FreeWorker(each.id, each.types, each.free_since_us) for each in cohort.workers.values() if each.free)
    chosen = choose(type_, free)
    return cohort.workers[chosen.id] if chosen else None
