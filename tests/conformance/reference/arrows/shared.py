"""shared: calls of a batch know the result of its run."""

from collections.abc import Iterable

from ..jobs import come_back
from ..jobs.outcomes import STATE_AFTER, read_outcome
from ..merging import batches
from ..model import Cohort, Outcome


def shared(
    cohort: Cohort, batch_id: str, job_ids: Iterable[str], *, fence: int | None = None, outcome: Outcome, now_us: int
) -> int:
    """End calls of a batch that know its end, as *outcome* says. Return how many others do not know; -1: see below.

    Calls of a dead batch stay with it, for a replay. *fence*: the number of the caller's claim of the batch; None: the
    batch is one whose end is to be told. -1: it is neither.
    """
    batch = cohort.jobs.get(batch_id)
    if batch is None or not batches.is_its_own(cohort, batch, fence):
        return -1
    how, why = read_outcome(outcome)
    for job_id in job_ids:
        if job_id not in batch.callers or job_id == batch.primary:
            continue
        if batch.state == "dead":
            batch.told_callers[job_id] = batch.callers.pop(job_id)
        else:
            batches.end_caller(cohort, cohort.jobs[job_id], STATE_AFTER[how], why, now_us)
    if fence is not None:
        return len(batch.callers) - 1
    if not batch.callers:
        come_back.told(cohort, batch, now_us)
    return len(batch.callers)
