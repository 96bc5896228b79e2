"""A job ends without a worker that could say so: revoked or expired while it waited. `announce` has its caller told."""

from typing import Literal

from ..keyed import keyed
from ..merging import callers
from ..model import Cohort, Job
from ..recurring import recurring
from . import find_by, memory

How = Literal["revoked", "expired"]


def record(cohort: Cohort, job: Job, how: How, now_us: int) -> None:
    """Record how *job*, which has no slot, has ended."""
    if job.state in ("pending", "claimed") or job.is_patient:
        recurring.take_back(cohort, job, now_us)
    job.state, job.ended_us = how, now_us
    cohort.untold[job.id] = now_us
    cohort.counters[how] += 1
    if cohort.capacity(job.type):
        cohort.figures[job.type][how] += 1
    find_by.fade(cohort, job)
    callers.close(cohort, job)


def waiting(cohort: Cohort, job: Job, how: How, now_us: int) -> bool:
    """End a job if it waits; a claimed one is its worker's. Return whether it did."""
    if job.state == "merged":
        is_let_go = callers.let_go(cohort, job, how, now_us)
        if is_let_go:
            record(cohort, job, how, now_us)
        return is_let_go
    if job.state not in ("pending", "scheduled"):
        return False
    record(cohort, job, how, now_us)
    keyed.leave(cohort, job, now_us)
    return True


def meanwhile(cohort: Cohort, job: Job, now_us: int) -> How | None:
    """Return how a job that comes back from its worker has ended meanwhile; None if it may wait again."""
    if job.has_expired(now_us):
        return "expired"
    return "revoked" if find_by.is_revoked(cohort, job.task_id, job.stamps, job.enqueued_us) else None


def told(cohort: Cohort, job: Job, now_us: int) -> None:
    """The caller of *job* knows: keep only what is known of the job."""
    job.message = None
    find_by.remove(cohort, job, keeps_last=True)
    memory.remember(cohort, job, memory.keep_s(cohort), now_us)
