"""A batch that a worker held: what becomes of its calls."""

from celery_affinity.rules import marks

from ..jobs import ends, find_by, memory
from ..model import Cohort, Job, Reason, State
from . import callers


def is_its_own(cohort: Cohort, batch: Job, fence: int | None) -> bool:
    """Return whether somebody tells the calls of *batch*: the worker whose claim has the number *fence*.

    None: whoever tells ends that no worker tells.
    """
    if not marks.is_batch(batch.id):
        return False
    return batch.id in cohort.untold if fence is None else batch.state == "claimed" and batch.fence == fence


def end_caller(cohort: Cohort, caller: Job, state: State, why: str, now_us: int) -> None:
    """Record how a call ended whose caller knows, or is told by the worker."""
    callers.remove(cohort, caller)
    find_by.remove(cohort, caller, keeps_last=True)
    caller.state, caller.why, caller.ended_us, caller.message = state, why, now_us, None
    memory.remember(cohort, caller, memory.keep_s(cohort), now_us)


def meanwhile(cohort: Cohort, batch: Job, now_us: int) -> bool:
    """*batch* comes back from its worker: end the call that was run if it is to end. Return whether others are left."""
    primary = cohort.jobs[batch.primary or ""]
    batch.primary = None
    ended = ends.meanwhile(cohort, primary, now_us)
    if ended:
        callers.remove(cohort, primary)
        ends.record(cohort, primary, ended, now_us)
    if not batch.callers:
        callers.vanish(cohort, batch, now_us)
    return bool(batch.callers)


def bury(cohort: Cohort, batch: Job, reason: Reason, now_us: int) -> None:
    """*batch* is dead: all of its callers are to be told, but for the one whom the worker tells."""
    if reason in ("rejected", "failed"):
        primary = batch.primary or ""
        batch.told_callers[primary] = batch.callers.pop(primary)
    batch.primary = None
    if batch.callers:
        cohort.untold[batch.id] = now_us


def forget_some(cohort: Cohort, batch: Job, most: int, now_us: int) -> bool:
    """Delete *most* calls of a *batch* that goes. Return whether that was all; if not, the others go later."""
    calls = {**batch.told_callers, **batch.callers}
    for job_id in [*calls][:most]:
        find_by.remove(cohort, cohort.jobs.pop(job_id), keeps_last=False)
        del calls[job_id]
    if calls:
        batch.callers, batch.told_callers = {}, calls
        batch.state, batch.reason, batch.ended_us, batch.is_listed = "dead", "deleted", now_us, False
        cohort.untold[batch.id] = now_us
    return not calls


def wait_again(cohort: Cohort, batch: Job) -> None:
    """All calls of a dead *batch* wait again, and nothing ends them that would have."""
    callers = batch.callers | batch.told_callers
    batch.callers, batch.told_callers = dict(sorted(callers.items(), key=lambda each: each[1])), {}
    batch.task_id = ""
    for job_id in batch.callers:
        caller = cohort.jobs[job_id]
        find_by.fade(cohort, caller)
        caller.expires_us, caller.stamps, caller.is_moved = None, (), False
