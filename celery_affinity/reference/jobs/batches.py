"""A batch that a worker holds, or held: which of its calls is run, and what becomes of the others."""

from ...rules import marks
from ...rules.protocol import MOST_MOVES
from ..model import Cohort, Job, Reason, State
from . import ends, find_by, merging


def choose(cohort: Cohort, batch: Job, now_us: int) -> Job | None:
    """Choose the call that is run: the first that has not expired. Those before it end; None if no call is left.

    A call chooses among `MOST_MOVES` at most. If all of these have expired, the next one is for the worker to look at.
    """
    for job_id in list(batch.callers)[:MOST_MOVES]:
        caller = cohort.jobs[job_id]
        if not caller.has_expired(now_us):
            break
        merging.remove(cohort, caller)
        ends.record(cohort, caller, "expired", now_us)
    if not batch.callers:
        return None
    primary = cohort.jobs[next(iter(batch.callers))]
    batch.primary, batch.task_id = primary.id, primary.task_id
    return primary


def is_its_own(cohort: Cohort, batch: Job, fence: int | None) -> bool:
    """Return whether somebody tells the calls of *batch*: the worker whose claim has the number *fence*.

    None: whoever tells ends that no worker tells.
    """
    if not marks.is_batch(batch.id):
        return False
    return batch.id in cohort.untold if fence is None else batch.state == "claimed" and batch.fence == fence


def end_caller(cohort: Cohort, caller: Job, state: State, why: str, now_us: int) -> None:
    """Record how a call ended whose caller knows, or is told by the worker."""
    merging.remove(cohort, caller)
    find_by.remove(cohort, caller, keeps_last=True)
    caller.state, caller.why, caller.ended_us, caller.message = state, why, now_us, None


def meanwhile(cohort: Cohort, batch: Job, now_us: int) -> bool:
    """*batch* comes back from its worker: end the call that was run if it is to end. Return whether others are left."""
    primary = cohort.jobs[batch.primary or ""]
    batch.primary = None
    ended = ends.meanwhile(cohort, primary, now_us)
    if ended:
        merging.remove(cohort, primary)
        ends.record(cohort, primary, ended, now_us)
    if not batch.callers:
        merging.vanish(cohort, batch)
    return bool(batch.callers)


def bury(cohort: Cohort, batch: Job, reason: Reason, now_us: int) -> None:
    """*batch* is dead: all of its callers are to be told, but for the one whom the worker tells."""
    if reason == "rejected":
        primary = batch.primary or ""
        batch.told_callers[primary] = batch.callers.pop(primary)
    batch.primary = None
    if batch.callers:
        cohort.untold[batch.id] = now_us


def wait_again(cohort: Cohort, batch: Job) -> None:
    """All calls of a dead *batch* wait again, and nothing ends them that would have."""
    callers = batch.callers | batch.told_callers
    batch.callers, batch.told_callers = dict(sorted(callers.items(), key=lambda each: each[1])), {}
    batch.task_id = ""
    for job_id in batch.callers:
        caller = cohort.jobs[job_id]
        find_by.fade(cohort, caller)
        caller.expires_us, caller.stamps = None, ()
