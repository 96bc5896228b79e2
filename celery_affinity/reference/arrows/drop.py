"""drop: dead letters are deleted, because a person asked for it."""

from collections.abc import Iterable

from ..jobs import come_back
from ..model import Cohort


def drop(cohort: Cohort, job_ids: Iterable[str]) -> int:
    """Delete dead letters. Return how many there were."""
    dead = cohort.dead(job_ids)
    for job in dead:
        come_back.forget(cohort, job)
    return len(dead)
