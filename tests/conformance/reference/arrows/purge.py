"""purge: deletes waiting jobs of a type, because a person asked for it."""

from collections.abc import Iterable

from celery_affinity.rules.protocol import MOST_PURGED

from ..jobs import come_back
from ..keyed import keyed
from ..model import Cohort
from ..recurring import recurring
from ..replies import Purged


def purge(cohort: Cohort, type_: str, scheduled: Iterable[str] = (), *, now_us: int) -> Purged:
    """Delete pending jobs of a type, and the scheduled ones of those named.

    Which of the pending ones go first is not said; a server deletes fewer in a call if they have keys, or many calls.
    """
    named = [cohort.jobs[job_id] for job_id in dict.fromkeys(scheduled) if job_id in cohort.jobs]
    waiting = [job for job in named if job.state == "scheduled" and job.type == type_]
    pending = cohort.pending({type_})
    for job in [*(job for job in waiting if job.is_patient), *pending[:MOST_PURGED]]:
        recurring.take_back(cohort, job, now_us)
    for job in waiting + pending[:MOST_PURGED]:
        come_back.forget(cohort, job, now_us)
        keyed.leave(cohort, job, now_us)
    return Purged(len(waiting) + min(len(pending), MOST_PURGED), len(pending) > MOST_PURGED)
