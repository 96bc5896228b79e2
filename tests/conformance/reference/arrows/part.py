"""part: claimed -> pending, for calls of a batch that its run cannot take: they are a run of their own."""

from collections.abc import Iterable

from celery_affinity.rules import marks

from ..keyed import keyed
from ..merging import batches, merging
from ..model import Cohort, Job
from ..placing.fill import fill
from ..replies import NONE, Parted


def part(cohort: Cohort, batch_id: str, job_ids: Iterable[str], *, fence: int, now_us: int) -> Parted:
    """Have calls of a batch wait again as a batch of their own, in their order, as old as the oldest of them.

    *fence*: the number of the caller's claim of the batch. The call whose message the worker has stays, and so do those
    that have ended. The new batch has the best mode and priority of its calls, or those to which the batch was moved;
    it waits for no more of them, and is open for others if nothing else is. Return how many calls went; -1 if the batch
    is not the caller's.
    """
    batch = cohort.jobs.get(batch_id)
    if batch is None or not batches.is_its_own(cohort, batch, fence):
        return Parted(-1, NONE)
    going = [each for each in dict.fromkeys(job_ids) if each in batch.callers and each != batch.primary]
    part_id = next((of for each in going if (of := marks.batch_of(each)) not in cohort.jobs), None)
    if part_id is None:
        return Parted(-1 if going else 0, NONE)
    calls = [cohort.jobs[each] for each in going]
    parted = Job(
        id=part_id,
        type=batch.type,
        on_demand=any(call.on_demand for call in calls),
        priority=max(call.priority for call in calls),
        enqueued_us=min(call.enqueued_us for call in calls),
        state="pending",
        message=None,
        task_name=batch.task_name,
        rules=batch.rules,
        bytes=sum(len((call.message or "").encode()) for call in calls),
        calls=len(calls),
        is_moved=batch.is_moved,
    )
    if batch.is_moved:
        parted.on_demand, parted.priority = batch.on_demand, batch.priority
    for number, call in enumerate(calls, 1):
        del batch.callers[call.id]
        parted.callers[call.id] = number
        call.into = parted.id
    batch.size = (batch.size or 0) - len(calls)
    cohort.jobs[parted.id] = parted
    merging.open_if_none_is(cohort, parted)
    keyed.enter(cohort, parted, now_us)
    return Parted(len(calls), fill(cohort, {parted.type}, now_us))
