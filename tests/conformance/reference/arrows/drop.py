"""drop: dead letters are deleted, because a person asked for it."""

from collections.abc import Iterable

from celery_affinity.rules import marks

from ..jobs import come_back
from ..model import Cohort


def drop(cohort: Cohort, job_ids: Iterable[str], *, now_us: int) -> int:
    """Delete dead letters. Return how many there were. A batch goes when all of its callers have been told."""
    dead = cohort.dead(job_ids)
    for job in dead:
        if marks.is_batch(job.id) and job.id in cohort.untold:
            job.is_listed = False
        else:
            come_back.forget(cohort, job, now_us)
    return len(dead)
