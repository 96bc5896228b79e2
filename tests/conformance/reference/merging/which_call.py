"""Which call of a batch is run."""

from celery_affinity.rules.protocol import MOST_MOVES

from ..jobs import ends
from ..model import Cohort, Job
from . import callers


def choose(cohort: Cohort, batch: Job, now_us: int) -> Job | None:
    """Choose the call that is run: the first that has not expired. Those before it end; None if no call is left.

    A call chooses among `MOST_MOVES` at most. If all of these have expired, the next one is for the worker to look at.
    """
    for job_id in list(batch.callers)[:MOST_MOVES]:
        caller = cohort.jobs[job_id]
        if not caller.has_expired(now_us):
            break
        callers.remove(cohort, caller)
        ends.record(cohort, caller, "expired", now_us)
    if not batch.callers:
        callers.vanish(cohort, batch, now_us)
        return None
    primary = cohort.jobs[next(iter(batch.callers))]
    batch.primary, batch.task_id, batch.size = primary.id, primary.task_id, len(batch.callers)
    return primary
