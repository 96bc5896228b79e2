"""A batch held by a worker: what happens to its calls when the run ends, or the batch is returned or dead-lettered."""

from celery_affinity.schema import job_record
from celery_affinity.schema.constants import BATCH_SIZE, LARGEST_BATCH_COUNTED

from . import batch_calls, ends, hooks, job_index, recurring, requeue
from .model import Cohort, Job, State

# -- A batch held by a worker: what happens to its calls.


def may_report(cohort: Cohort, batch: Job, fence: int | None) -> bool:
    """Return True if the holder of *fence* may report the end of *batch* to its calls.

    None: the process that reports ends without a worker.
    """
    if not job_record.is_batch(batch.id):
        return False
    return batch.id in cohort.unreported if fence is None else batch.state == "claimed" and batch.fence == fence


def end_caller(cohort: Cohort, caller: Job, state: State, why: str, now_us: int) -> None:
    """Record the end of a call whose caller has the result, or gets it from the worker."""
    batch_calls.remove(cohort, caller)
    job_index.remove(cohort, caller, keeps_last=True)
    caller.state, caller.why, caller.ended_us, caller.message = state, why, now_us, None
    ends.remember(cohort, caller, ends.keep_s(cohort), now_us)


def meanwhile(cohort: Cohort, batch: Job, now_us: int) -> bool:
    """End the primary of a returned *batch* if it was revoked or has expired. Return True if calls remain."""
    primary = cohort.jobs[batch.primary or ""]
    batch.primary = None
    ended = ends.meanwhile(cohort, primary, now_us)
    if ended:
        batch_calls.remove(cohort, primary)
        ends.record(cohort, primary, ended, now_us)
    if not batch.callers:
        batch_calls.vanish(cohort, batch, now_us)
    return bool(batch.callers)


def dead_letter(cohort: Cohort, batch: Job, reason: str, now_us: int) -> None:
    """Dead-letter *batch*: all of its callers need a report, except the one that its worker reports to."""
    if reason in ("rejected", "failed"):
        primary = batch.primary or ""
        batch.told_callers[primary] = batch.callers.pop(primary)
    batch.primary = None
    if batch.callers:
        cohort.unreported[batch.id] = now_us


def forget_some(cohort: Cohort, batch: Job, max_calls: int, now_us: int) -> bool:
    """Delete *max_calls* calls of an ending *batch*. Return True if none remain; later calls delete the others."""
    calls = {**batch.told_callers, **batch.callers}
    for job_id in [*calls][:max_calls]:
        job_index.remove(cohort, cohort.jobs.pop(job_id), keeps_last=False)
        del calls[job_id]
    if calls:
        batch.callers, batch.told_callers = {}, calls
        batch.state, batch.reason, batch.ended_us, batch.is_listed = "dead", "deleted", now_us, False
        cohort.unreported[batch.id] = now_us
    return not calls


def wait_again(cohort: Cohort, batch: Job) -> None:
    """Let all calls of a dead *batch* wait again, without their former expiry and revocation."""
    calls = batch.callers | batch.told_callers
    batch.callers, batch.told_callers = dict(sorted(calls.items(), key=lambda each: each[1])), {}
    batch.task_id = ""
    for job_id in batch.callers:
        caller = cohort.jobs[job_id]
        job_index.fade(cohort, caller)
        caller.expires_us, caller.stamps, caller.is_moved = None, (), False


# -- The end of a batch's run: as the worker reports for the primary; this decides the others.


def release(cohort: Cohort, batch: Job, how: str, why: str, cause: str | None, now_us: int) -> set[str]:
    """Record the end of a claim of *batch*. Return the type that got a pending job, if any."""
    if how == "returned" and batch.acked:  # the run was stopped for one of the other calls, which is revoked
        return _go_on(cohort, batch, now_us)
    primary = cohort.jobs[batch.primary or ""]
    is_without_result = how in ("revoked", "expired")  # the worker ended the call before it had a result
    if how in ends.STATE_AFTER or batch.acked:
        state, its_why = (ends.STATE_AFTER[how], why) if how in ends.STATE_AFTER else ("done", "")
        end_caller(cohort, primary, state, its_why, now_us)
        if batch.callers and is_without_result:
            return _go_on(cohort, batch, now_us)
        batch.primary = None
        if not is_without_result:
            _count(cohort, batch)
        ends.on_worker(cohort, batch, state, its_why, now_us)
        if how == "acked":
            recurring.run(cohort, batch, primary, now_us)
        if batch.callers:
            cohort.unreported[batch.id] = now_us
        return set()
    how = how if how in requeue.WAYS else "returned"
    return requeue.requeue(cohort, batch, now_us, how=how, why=why, cause=cause)


def _count(cohort: Cohort, batch: Job) -> None:
    """Count a run of several calls, and the calls of each type while workers serve it."""
    calls = batch.size or 0
    if calls < 2:
        return
    size = 1 << (calls - 1).bit_length()
    cohort.counters[f"{BATCH_SIZE}{size if size <= LARGEST_BATCH_COUNTED else 'more'}"] += 1
    cohort.counters["batched"] += calls
    if cohort.capacity(batch.type):
        cohort.batched[batch.type] += calls


def _go_on(cohort: Cohort, batch: Job, now_us: int) -> set[str]:
    """Let the other calls wait again, closed for further calls."""
    requeue.remove_claim(cohort, batch, now_us)
    batch_calls.close(cohort, batch)
    batch.primary, batch.task_id, batch.acked = None, "", False
    batch.state = "pending"
    hooks.wait(cohort, batch, now_us)
    return {batch.type}
