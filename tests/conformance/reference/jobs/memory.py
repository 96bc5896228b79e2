"""For how long a job that has ended is known (``affinity_keep``), and the index of those known for over a minute."""

from celery_affinity.rules import marks
from celery_affinity.rules.protocol import ENDED_KEPT_S, MOST_TRIMMED
from celery_affinity.rules.score import MICRO

from ..model import Cohort, Job


def keep_s(cohort: Cohort) -> int:
    """Return the seconds for which a job that ends now is known."""
    return max(ENDED_KEPT_S, int(cohort.settings.get("keep_us")) // MICRO)


def remember(cohort: Cohort, job: Job, seconds: int, now_us: int) -> None:
    """Have *job*, which has ended, be known for *seconds*. A batch is not in the index: its calls are."""
    job.keep_s, job.forgotten_us = seconds, now_us + seconds * MICRO
    if seconds > ENDED_KEPT_S and not marks.is_batch(job.id):
        cohort.ended[job.id] = now_us


def trim(cohort: Cohort, now_us: int) -> bool:
    """Take jobs out that are too old, or too many: these are known for another minute. Return whether more may be."""
    oldest = sorted(cohort.ended, key=lambda job_id: (cohort.ended[job_id], job_id))
    since_us = now_us - int(cohort.settings.get("keep_us"))
    gone = [job_id for job_id in oldest if cohort.ended[job_id] <= since_us][:MOST_TRIMMED]
    over = min(len(oldest) - int(cohort.settings.get("keep_max")), MOST_TRIMMED)
    if len(gone) < over:
        gone = oldest[:over]
        for job_id in gone:
            if job_id in cohort.jobs:
                job = cohort.jobs[job_id]
                job.keep_s, job.forgotten_us = ENDED_KEPT_S, now_us + ENDED_KEPT_S * MICRO
    for job_id in gone:
        del cohort.ended[job_id]
    return len(gone) == MOST_TRIMMED
