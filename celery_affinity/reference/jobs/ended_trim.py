"""Jobs that have ended leave the index (`ended`) when they are forgotten, or are too many."""

from ...rules.protocol import ENDED_KEPT_S, MOST_TRIMMED
from ...rules.score import MICRO
from ..model import Cohort


def trim_ended(cohort: Cohort, now_us: int) -> bool:
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
