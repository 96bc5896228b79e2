"""callers: a page of the calls of a batch, but for the one whose message its worker has."""

from ..merging import batches
from ..merging.callers import published_us
from ..model import Cohort
from ..replies import Caller, Callers


def callers(cohort: Cohort, batch_id: str, *, fence: int | None = None, after: int = 0, most: int) -> Callers | None:
    """Return calls of a batch that do not know their result yet, in their order, some at a time.

    *fence*: the number of the caller's claim of the batch; None: the batch is one whose end is to be told. Any other
    batch is None.
    """
    batch = cohort.jobs.get(batch_id)
    if batch is None or not batches.is_its_own(cohort, batch, fence):
        return None
    page = [each for each in batch.callers.items() if each[1] > after][:most]
    primary_us = published_us(cohort.jobs[batch.primary]) if batch.primary in cohort.jobs else 0
    found: list[Caller] = []
    size = 0
    for job_id, number in page:
        job = cohort.jobs[job_id]
        if job_id != batch.primary:
            found.append(Caller(job_id, job.task_id, published_us(job), job.message or ""))
            size += len(found[-1].message.encode())
        if size > cohort.most_bytes:
            return Callers(number, primary_us, found)
    return Callers(page[-1][1] if len(page) == most else -1, primary_us, found)
