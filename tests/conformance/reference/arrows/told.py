"""told: the callers of these jobs know how they ended, or they are left to another app."""

from collections.abc import Iterable, Sequence

from celery_affinity.rules.protocol import MOST_SHARED

from ..jobs import come_back
from ..model import Cohort


def told(cohort: Cohort, job_ids: Sequence[str], *, now_us: int) -> int:
    """Record that the callers of these jobs know how they ended. Return how many did not before."""
    most = max(1, MOST_SHARED // max(1, len(job_ids)))  # calls of a batch that goes
    untold = [cohort.jobs[each] for each in dict.fromkeys(job_ids) if each in cohort.untold]
    known = [job for job in untold if not job.callers]  # of a batch, those that know are `shared`
    for job in known:
        come_back.told(cohort, job, now_us, most)
    return len(known)


def leave_to_others(cohort: Cohort, job_ids: Iterable[str], *, app: str, now_us: int) -> int:
    """Record that *app* does not know the tasks of these jobs: it has not tried. Return how many are not told of."""
    untold = [cohort.jobs[job_id] for job_id in job_ids if job_id in cohort.untold]
    for job in untold:
        job.left = (*job.left, app)
        job.tries = max(0, job.tries - 1)
        cohort.untold[job.id] = now_us
    return len(untold)
