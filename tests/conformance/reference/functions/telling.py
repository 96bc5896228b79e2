"""Reports of jobs that ended without a worker or in a merged run: next_report, ack_report, batch_calls, split_batch."""

from collections.abc import Collection, Iterable, Sequence

from celery_affinity.schema import job_record
from celery_affinity.schema.constants import (
    DROPPED,
    MAX_ANNOUNCED_BYTES,
    MAX_ENDS_LOOKED_AT,
    MAX_PAUSE_US,
    MAX_SHARED,
    OTHERS_HAVE_US,
    OTHERS_WHO_TRY_HAVE_US,
)

from .. import batch_calls as callers_of_batches
from .. import batches, ends, hooks, matching, merging, requeue
from ..model import Cohort, Job, Outcome
from ..replies import NONE, Caller, Callers, Ending, Parted

# -- next_report: the next end to report to its caller. Without an `ack_report`, it is handed out again.


def next_report(
    cohort: Cohort, *, app: str, telling: Collection[str] = (), again_us: int, now_us: int
) -> Ending | None:
    """Return an unreported end, or None.

    Without an `ack_report`, it is handed out again after *again_us*, with a pause that doubles each time. *telling*:
    jobs that the process is still reporting. An end that *app* declined is handed out to it again only when any app may
    report it.
    """
    due = sorted((when_us, job_id) for job_id, when_us in cohort.unreported.items() if when_us <= now_us)
    for _, job_id in due[:MAX_ENDS_LOOKED_AT]:
        job = cohort.jobs[job_id]
        since_us = max(0, now_us - (job.ended_us or 0))
        is_for_anyone = since_us >= (OTHERS_WHO_TRY_HAVE_US if job.tries else OTHERS_HAVE_US)
        if job_id in telling or (app in job.left and not is_for_anyone):
            continue
        cohort.unreported[job_id] = now_us + min(again_us * 2**job.tries, MAX_PAUSE_US)
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
            message=message if len(message.encode()) <= MAX_ANNOUNCED_BYTES else None,
        )
    return None


def _how(job: Job) -> str:
    if job.state == "revoked" and job.why.startswith(DROPPED):
        return DROPPED
    return job.reason or ("shared" if job_record.is_batch(job.id) else job.state)


# -- ack_report: the callers of these jobs have the result, or the jobs are left to another app.


def ack_report(cohort: Cohort, job_ids: Sequence[str], *, now_us: int) -> int:
    """Record that the callers of these jobs have the result. Return the number that had none before."""
    max_calls = max(1, MAX_SHARED // max(1, len(job_ids)))  # calls of a batch being deleted
    unreported = [cohort.jobs[each] for each in dict.fromkeys(job_ids) if each in cohort.unreported]
    known = [job for job in unreported if not job.callers]  # for a batch, `ack_batch_reports` records its calls
    for job in known:
        requeue.mark_reported(cohort, job, now_us, max_calls)
    return len(known)


def leave_to_others(cohort: Cohort, job_ids: Iterable[str], *, app: str, now_us: int) -> int:
    """Record that *app* does not know the tasks of these jobs. Return the number of unreported jobs."""
    unreported = [cohort.jobs[job_id] for job_id in job_ids if job_id in cohort.unreported]
    for job in unreported:
        job.left = (*job.left, app)
        job.tries = max(0, job.tries - 1)
        cohort.unreported[job.id] = now_us
    return len(unreported)


# -- batch_calls: a page of a batch's calls, except the primary, whose message its worker has.


def batch_calls(
    cohort: Cohort, batch_id: str, *, fence: int | None = None, after: int = 0, max_calls: int
) -> Callers | None:
    """Return a page of a batch's calls without a result, in order.

    *fence*: the fencing token of the caller's claim of the batch. None: the batch has an unreported end. For any other
    batch, return None.
    """
    batch = cohort.jobs.get(batch_id)
    if batch is None or not batches.may_report(cohort, batch, fence):
        return None
    page = [each for each in batch.callers.items() if each[1] > after][:max_calls]
    primary_us = callers_of_batches.published_us(cohort.jobs[batch.primary]) if batch.primary in cohort.jobs else 0
    found: list[Caller] = []
    size = 0
    for job_id, number in page:
        job = cohort.jobs[job_id]
        if job_id != batch.primary:
            found.append(Caller(job_id, job.task_id, callers_of_batches.published_us(job), job.message or ""))
            size += len(found[-1].message.encode())
        if size > cohort.most_bytes:
            return Callers(number, primary_us, found)
    return Callers(page[-1][1] if len(page) == max_calls else -1, primary_us, found)


# -- split_batch: claimed -> pending, for calls that the run of a batch cannot take. They become another run.


def split_batch(cohort: Cohort, batch_id: str, job_ids: Iterable[str], *, fence: int, now_us: int) -> Parted:
    """Split calls off a batch: they wait again as another batch, in their order, as old as the oldest of them.

    *fence*: the fencing token of the caller's claim of the batch. The primary stays, and so do ended calls. The new
    batch has the best mode and priority of its calls, or the values that the batch was moved to. It has no merge
    window, and is open for other calls if nothing else is, unless the batch had a pause. Return the number of calls, or
    -1 if the caller does not hold the batch.
    """
    batch = cohort.jobs.get(batch_id)
    if batch is None or not batches.may_report(cohort, batch, fence):
        return Parted(-1, NONE)
    going = [each for each in dict.fromkeys(job_ids) if each in batch.callers and each != batch.primary]
    part_id = next((of for each in going if (of := merging.batch_id(each)) not in cohort.jobs), None)
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
        rank_us=batch.rank_us,
    )
    parted.head_us = parted.enqueued_us - min(call.enqueued_us - call.head_us for call in calls)
    first_due = min(
        (call for call in calls if call.own_due_us is not None), key=lambda call: call.own_due_us or 0, default=None
    )
    if first_due is not None:
        parted.due, parted.own_due_us = first_due.due, first_due.own_due_us
    if batch.is_moved:
        parted.on_demand, parted.priority = batch.on_demand, batch.priority
    for number, call in enumerate(calls, 1):
        del batch.callers[call.id]
        parted.callers[call.id] = number
        call.into = parted.id
    batch.size = (batch.size or 0) - len(calls)
    cohort.jobs[parted.id] = parted
    if parted.rank_us is None:
        merging.open_unless_open(cohort, parted)
    hooks.wait(cohort, parted, now_us)
    return Parted(len(calls), matching.fill(cohort, {parted.type}, now_us))


# -- ack_batch_reports: calls of a batch have the result of its run.


def ack_batch_reports(
    cohort: Cohort, batch_id: str, job_ids: Iterable[str], *, fence: int | None = None, outcome: Outcome, now_us: int
) -> int:
    """End calls of a batch that have its result, with *outcome*. Return the number of other calls without it, or -1.

    Calls of a dead batch stay in it for a replay. *fence*: the fencing token of the caller's claim of the batch. None:
    the batch has an unreported end. -1: neither is true.
    """
    batch = cohort.jobs.get(batch_id)
    if batch is None or not batches.may_report(cohort, batch, fence):
        return -1
    how, why = ends.read_outcome(outcome)
    for job_id in job_ids:
        if job_id not in batch.callers or job_id == batch.primary:
            continue
        if batch.state == "dead":
            batch.told_callers[job_id] = batch.callers.pop(job_id)
        else:
            batches.end_caller(cohort, cohort.jobs[job_id], ends.STATE_AFTER[how], why, now_us)
    if fence is not None:
        return len(batch.callers) - 1
    if not batch.callers:
        requeue.mark_reported(cohort, batch, now_us)
    return len(batch.callers)
