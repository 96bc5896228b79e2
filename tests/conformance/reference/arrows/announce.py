"""announce: which end is to be told to its caller now. Nobody says that it is `told`: it comes again."""

from collections.abc import Collection

from celery_affinity.rules import marks
from celery_affinity.rules.protocol import (
    DROPPED,
    LONGEST_ANNOUNCED,
    LONGEST_PAUSE_US,
    MOST_ENDS_LOOKED_AT,
    OTHERS_HAVE_US,
    OTHERS_WHO_TRY_HAVE_US,
)

from ..model import Cohort, Job
from ..replies import Ending


def announce(cohort: Cohort, *, app: str, telling: Collection[str] = (), again_us: int, now_us: int) -> Ending | None:
    """Return an end to be told to its caller; None if there is none.

    If nobody says that it is `told`, it comes again *again_us* later, and each time after a pause twice as long.
    *telling*: jobs whose ends the caller is about to tell still. What *app* has left to others comes to it again only
    when it is for anyone.
    """
    due = sorted((when_us, job_id) for job_id, when_us in cohort.untold.items() if when_us <= now_us)
    for _, job_id in due[:MOST_ENDS_LOOKED_AT]:
        job = cohort.jobs[job_id]
        since_us = max(0, now_us - (job.ended_us or 0))
        is_for_anyone = since_us >= (OTHERS_WHO_TRY_HAVE_US if job.tries else OTHERS_HAVE_US)
        if job_id in telling or (app in job.left and not is_for_anyone):
            continue
        cohort.untold[job_id] = now_us + min(again_us * 2**job.tries, LONGEST_PAUSE_US)
        job.tries += 1
        message = job.message or ""
        return Ending(
            job_id,
            how=_how(job),
            type=job.type,
            task_id=job.task_id,
            task_name=job.task_name,
            deliveries=job.deliveries,
            since_us=since_us,
            for_anyone=is_for_anyone,
            message=message if len(message.encode()) <= LONGEST_ANNOUNCED else None,
        )
    return None


def _how(job: Job) -> str:
    if job.state == "revoked" and job.why.startswith(DROPPED):
        return DROPPED
    return job.reason or ("shared" if marks.is_batch(job.id) else job.state)
