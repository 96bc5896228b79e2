"""How the run of a batch ended: for the call that was run, as its worker says; what of the others, is decided here."""

from celery_affinity.rules.protocol import BATCH_SIZE, LARGEST_BATCH_COUNTED

from ..jobs import come_back, finished
from ..jobs.outcomes import STATE_AFTER
from ..keyed import keyed
from ..model import Cohort, Job
from ..recurring import recurring
from . import batches, callers


def release(cohort: Cohort, batch: Job, how: str, why: str, now_us: int) -> set[str]:
    """Record the end of a claim of *batch*. Return the types that gained a pending job: one, or none."""
    if how == "returned" and batch.acked:  # the run was ended for one of the other calls, which is revoked
        return _go_on(cohort, batch, now_us)
    primary = cohort.jobs[batch.primary or ""]
    is_without_result = how in ("revoked", "expired")  # the worker ended the call before it came to a result
    if how in STATE_AFTER or batch.acked:
        state, its_why = (STATE_AFTER[how], why) if how in STATE_AFTER else ("done", "")
        batches.end_caller(cohort, primary, state, its_why, now_us)
        if batch.callers and is_without_result:
            return _go_on(cohort, batch, now_us)
        batch.primary = None
        if not is_without_result:
            _count(cohort, batch)
        finished.on_worker(cohort, batch, state, its_why, now_us)
        if how == "acked":
            recurring.run(cohort, batch, primary, now_us)
        if batch.callers:
            cohort.untold[batch.id] = now_us
        return set()
    return come_back.put(cohort, batch, now_us, counted=how == "unsettled", why=why)


def _count(cohort: Cohort, batch: Job) -> None:
    """Count a run of several calls, and these: those of a type for as long as workers serve it."""
    calls = batch.size or 0
    if calls < 2:
        return
    size = 1 << (calls - 1).bit_length()
    cohort.counters[f"{BATCH_SIZE}{size if size <= LARGEST_BATCH_COUNTED else 'more'}"] += 1
    cohort.counters["batched"] += calls
    if cohort.capacity(batch.type):
        cohort.batched[batch.type] += calls


def _go_on(cohort: Cohort, batch: Job, now_us: int) -> set[str]:
    """Have the other calls wait again; others do not join them."""
    come_back.drop(cohort, batch, now_us)
    callers.close(cohort, batch)
    batch.primary, batch.task_id, batch.acked = None, "", False
    batch.state = "pending"
    keyed.enter(cohort, batch, now_us)
    return {batch.type}
