"""replay: dead -> pending, because a person asked for it: as if it were published now."""

from collections.abc import Iterable

from celery_affinity.rules import marks

from ..jobs import find_by
from ..keyed import keyed
from ..merging import batches
from ..model import Cohort
from ..placing.fill import fill
from ..replies import Replayed


def replay(cohort: Cohort, job_ids: Iterable[str], *, now_us: int) -> Replayed:
    """Have dead letters run again, if the message is still there; whatever would have ended them is forgotten."""
    replayed = [job for job in cohort.dead(job_ids) if job.message is not None or marks.is_batch(job.id)]
    for job in replayed:
        job.state, job.enqueued_us, job.deliveries, job.reason, job.ended_us = "pending", now_us, 0, None, None
        job.acked, job.left, job.tries, job.is_listed, job.why = False, (), 0, True, ""
        cohort.untold.pop(job.id, None)
        find_by.fade(cohort, job)
        job.expires_us, job.stamps = None, ()
        if marks.is_batch(job.id):
            batches.wait_again(cohort, job)
        keyed.enter(cohort, job, now_us)
    return Replayed(fill(cohort, {job.type for job in replayed}, now_us), [job.id for job in replayed])
