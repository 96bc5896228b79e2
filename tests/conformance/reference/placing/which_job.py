"""Which job: by score, or by age alone."""

from collections.abc import Collection, Iterable, Mapping

from celery_affinity.rules.score import Place, goes_by_age, overtakes, score

from ..keyed import standing as key_standing
from ..model import Cohort, Job
from ..types import reserves
from . import free_slots


def has_choice(cohort: Cohort, types: Collection[str]) -> bool:
    """Return whether jobs of more than one lane of *types* wait."""
    return len({(job.type, job.on_demand, job.priority) for job in key_standing.standing(cohort, types)}) > 1


def slots_that_fit(cohort: Cohort, type_: str) -> int:
    """Return the slots that make *type_* less rare: the free ones, or all, as the setting ``rarity`` says."""
    if cohort.settings.get("rarity") == "free":
        return free_slots.free_for(cohort, type_)
    return cohort.capacity(type_)


def first(cohort: Cohort, fits: Mapping[str, int], now_us: int, *, counts: bool, is_ahead: bool = False) -> Job | None:
    """Return the job that goes first of those that no reserve keeps back; None if there is none.

    *fits*: type -> number of slots that fit it. *counts*: whether the claim had a choice among lanes. Only such claims
    are numbered, for the share that goes by age. *is_ahead*: whether the job gets a place beyond the slots of a worker.
    """
    percentage = int(cohort.settings.get("priority_percentage"))
    may_start = [
        each
        for each in key_standing.standing(cohort, fits)
        if reserves.may_start(cohort, each, now_us, is_ahead=is_ahead)
    ]
    job = _best(cohort, may_start, fits, now_us, by_age=goes_by_age(cohort.claim_number, percentage))
    cohort.claim_number += counts and job is not None and percentage < 100
    return job


def _best(cohort: Cohort, jobs: Iterable[Job], fits: Mapping[str, int], now_us: int, *, by_age: bool) -> Job | None:
    coefficients = cohort.settings.weights
    best: Place | None = None
    for job in jobs:
        terms = score(job.priority, job.on_demand, now_us - job.enqueued_us, fits[job.type], coefficients)
        candidate = Place(0 if by_age else terms.total, job.enqueued_us, job.id)
        if best is None or overtakes(candidate, best):
            best = candidate
    return cohort.jobs[best.job_id] if best else None
