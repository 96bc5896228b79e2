"""Ends of jobs, with and without a worker, and the retention of ended jobs."""

from collections.abc import Mapping
from typing import Literal

from celery_affinity.clock import SECOND_US
from celery_affinity.schema import job_record
from celery_affinity.schema.constants import ENDED_KEPT_S, MAX_KEPT_MESSAGE_BYTES, MAX_TRIMMED, MAX_WHY_BYTES

from . import batch_calls, hooks, job_index, recurring
from .model import Cohort, Job, Outcome, State

# -- A job ends without a worker that could report it: revoked or expired while it waited. `next_report` follows.


How = Literal["revoked", "expired"]


def record(cohort: Cohort, job: Job, how: How, now_us: int) -> None:
    """Record the end of *job*, which has no slot."""
    if job.state in ("pending", "claimed") or job.is_patient or job.is_paused:
        recurring.take_back(cohort, job, now_us)
    job.state, job.ended_us = how, now_us
    cohort.unreported[job.id] = now_us
    cohort.counters[how] += 1
    if cohort.capacity(job.type):
        cohort.metrics[job.type][how] += 1
    job_index.fade(cohort, job)
    batch_calls.close(cohort, job)


def waiting(cohort: Cohort, job: Job, how: How, now_us: int) -> bool:
    """End a job if it waits; a claimed job belongs to its worker. Return True if it ended."""
    if job.state == "merged":
        is_let_go = batch_calls.let_go(cohort, job, how, now_us)
        if is_let_go:
            record(cohort, job, how, now_us)
        return is_let_go
    if job.state not in ("pending", "scheduled"):
        return False
    record(cohort, job, how, now_us)
    hooks.leave(cohort, job, now_us)
    return True


def meanwhile(cohort: Cohort, job: Job, now_us: int) -> How | None:
    """Return the outcome of a returned job that was revoked or has expired, or None if it may wait again."""
    if job.has_expired(now_us):
        return "expired"
    return "revoked" if job_index.is_revoked(cohort, job.task_id, job.stamps, job.enqueued_us) else None


def mark_reported(cohort: Cohort, job: Job, now_us: int) -> None:
    """Record that the caller of *job* has the result, and keep only its summary."""
    job.message = None
    job_index.remove(cohort, job, keeps_last=True)
    remember(cohort, job, keep_s(cohort), now_us)


# -- A job that its worker ended: its summary is kept for a while.


def on_worker(cohort: Cohort, job: Job, state: State, why: str, now_us: int) -> None:
    """Record the end of a claimed job: a repeated publish changes nothing until the job is deleted."""
    assert job.worker is not None
    keep_s = cohort.workers[job.worker].keep_s
    del cohort.workers[job.worker].claims[job.id]
    hooks.free(cohort, job, now_us)
    job_index.remove(cohort, job, keeps_last=True)
    batch_calls.close(cohort, job)
    job.state, job.why, job.ended_us = state, why, now_us
    if state != "failed" or keep_s <= ENDED_KEPT_S or len((job.message or "").encode()) > MAX_KEPT_MESSAGE_BYTES:
        job.message = None
    remember(cohort, job, keep_s, now_us)


def revive(cohort: Cohort, job: Job, now_us: int) -> None:
    """Let a failed job, whose message is kept, become an unfinished one again."""
    cohort.ended.pop(job.id, None)
    job.worker, job.fence, job.by, job.started_us, job.forgotten_us = None, None, "", None, None
    job_index.add(cohort, job, None, (), now_us)


# -- The worker's description of an unsuccessful end.


#: Outcome of a settled claim -> the job's new state.
STATE_AFTER: Mapping[str, State] = {
    "acked": "done",
    "ignored": "done",
    "failed": "failed",
    "revoked": "revoked",
    "expired": "expired",
}


def read_outcome(outcome: Outcome) -> tuple[str, str]:
    """Return the outcome and the error text, "" if there is none."""
    how, _, words = outcome.partition(" ")
    return how, words.encode()[:MAX_WHY_BYTES].decode(errors="replace")


# -- Retention of ended jobs (``affinity_keep``), and the index of jobs that are retained for over a minute.


def keep_s(cohort: Cohort) -> int:
    """Return the seconds for which a job that ends now is retained."""
    return max(ENDED_KEPT_S, int(cohort.settings.get("keep_us")) // SECOND_US)


def remember(cohort: Cohort, job: Job, seconds: int, now_us: int) -> None:
    """Retain the ended *job* for *seconds*. A batch is not in the index, but its calls are."""
    job.keep_s, job.forgotten_us = seconds, now_us + seconds * SECOND_US
    if seconds > ENDED_KEPT_S and not job_record.is_batch(job.id):
        cohort.ended[job.id] = now_us


def trim(cohort: Cohort, now_us: int) -> bool:
    """Unlist jobs that are too old or too many, and retain them another minute. Return True if there may be more."""
    oldest = sorted(cohort.ended, key=lambda job_id: (cohort.ended[job_id], job_id))
    since_us = now_us - int(cohort.settings.get("keep_us"))
    gone = [job_id for job_id in oldest if cohort.ended[job_id] <= since_us][:MAX_TRIMMED]
    over = min(len(oldest) - int(cohort.settings.get("keep_max")), MAX_TRIMMED)
    if len(gone) < over:
        gone = oldest[:over]
        for job_id in gone:
            if job_id in cohort.jobs:
                job = cohort.jobs[job_id]
                job.keep_s, job.forgotten_us = ENDED_KEPT_S, now_us + ENDED_KEPT_S * SECOND_US
    for job_id in gone:
        del cohort.ended[job_id]
    return len(gone) == MAX_TRIMMED
