"""The ways in which a claimed job leaves its slot unfinished: pending again, or dead."""

from celery_affinity.clock import SECOND_US
from celery_affinity.schema import job_record
from celery_affinity.schema.constants import MAX_FORGOTTEN, MAX_MOVES, REASONS, TICK_US

from . import batch_calls, batches, due_times, ends, hooks, job_index, keys, requeue_log, workers
from .model import Cohort, Job

#: Ways in which a worker's job is requeued. "returned": no delivery is counted. "unsettled", as after a worker's death:
#: a delivery is counted. "aborted": a delivery is counted, and the next run follows after a pause. "requeued": its task
#: requested another run, which is counted as a requeue and follows after a pause.
WAYS = ("returned", "unsettled", "aborted", "requeued")


def remove_claim(cohort: Cohort, job: Job, now_us: int) -> None:
    """Free the slot of *job*. The caller recomputes the worker's slots."""
    assert job.worker is not None
    del cohort.workers[job.worker].claims[job.id]
    job.worker = job.fence = job.started_us = None
    job.by = ""
    hooks.free(cohort, job, now_us)


def requeue(cohort: Cohort, job: Job, now_us: int, *, how: str, why: str = "", cause: str | None = None) -> set[str]:
    """Take a job from its worker like `_reclaim`, and record it."""
    made = requeue_log.entry(cohort, job, how, cause)
    types = _reclaim(cohort, job, now_us, how=how, why=why)
    if made:
        requeue_log.record(cohort, job, made, now_us)
    return types


def _reclaim(cohort: Cohort, job: Job, now_us: int, *, how: str, why: str) -> set[str]:
    """Take a job from its worker: pending again, dead after too many deliveries, or lost if it had been acked.

    A job revoked during its claim ends, acked or not, because its worker may have told the caller. An expired job ends
    unless it was acked. Return the type that got a pending job, if any. *how*: one of `WAYS`.
    """
    remove_claim(cohort, job, now_us)
    ended = None if job_record.is_batch(job.id) else ends.meanwhile(cohort, job, now_us)
    if job.acked and ended != "revoked":
        dead_letter(cohort, job, "lost", now_us)
        return set()
    if job_record.is_batch(job.id):
        if not batches.meanwhile(cohort, job, now_us):
            return set()
    elif ended is not None:
        ends.record(cohort, job, ended, now_us)
        return set()
    job.deliveries += how in ("unsettled", "aborted")
    job.requeues += how == "requeued"
    if how in ("unsettled", "aborted") and job.deliveries >= int(cohort.settings.get("max_deliveries")):
        dead_letter(cohort, job, "max_deliveries", now_us, why)
        return set()
    if how == "requeued" and job.requeues > int(cohort.settings.get("max_requeues")):
        dead_letter(cohort, job, "max_requeues", now_us, why)
        return set()
    if job_record.is_batch(job.id):
        job.task_id = ""
    job.state = "pending"
    if how in ("requeued", "aborted"):
        _begin_pause(cohort, job, now_us)
    if job.state == "scheduled":
        return set()
    hooks.wait(cohort, job, now_us)
    return {job.type}


def _begin_pause(cohort: Cohort, job: Job, now_us: int) -> None:
    """Let *job* wait for the end of its pause: 0, 1, 2, 4 ... s, at most ``requeue_delay_max``.

    The end of the pause decides its place among the waiting jobs. It is closed for further calls. A key with
    ``keep_order`` is reserved for it.
    """
    job.pauses += 1
    longest_us = int(cohort.settings.get("requeue_delay_max_us"))
    pause_us = min(SECOND_US << job.pauses - 2, longest_us) if job.pauses > 1 else 0
    job.rank_us = now_us + pause_us
    if job.own_due_us is not None:
        job.head_us = due_times.head_start(cohort, job.rank_us, job.own_due_us)
    job.state = "scheduled" if pause_us else "pending"
    batch_calls.close(cohort, job)
    keys.reserve_keys(cohort, job, now_us)
    if 0 < pause_us < TICK_US and cohort.first_scheduled() is job:
        workers.trigger_tick(cohort)


def dead_letter(cohort: Cohort, job: Job, reason: str, now_us: int, why: str = "") -> None:
    """Make a job a dead letter; the newest dead letters are kept."""
    job.state, job.reason, job.why, job.ended_us = "dead", reason, why, now_us
    cohort.counters[reason] += 1
    if cohort.capacity(job.type) and reason != "failed":  # its worker counts it
        cohort.metrics[job.type][reason] += 1
    batch_calls.close(cohort, job)
    if job_record.is_batch(job.id):
        batches.dead_letter(cohort, job, reason, now_us)
    elif REASONS[reason].is_announced:
        cohort.unreported[job.id] = now_us
    _trim_dead(cohort, now_us)


def _trim_dead(cohort: Cohort, now_us: int) -> None:
    """Delete the oldest dead letters in parts, and unreported ones as soon as they are reported."""
    listed = [job for job in cohort.jobs.values() if job.state == "dead" and job.is_listed]
    listed.sort(key=lambda job: (job.ended_us or 0, job.id))
    for job in listed[: max(0, len(listed) - int(cohort.settings.get("dead_max")))][:MAX_MOVES]:
        if job.id in cohort.unreported:
            job.is_listed = False
        else:
            delete(cohort, job, now_us)


def mark_reported(cohort: Cohort, job: Job, now_us: int, max_calls: int = MAX_FORGOTTEN) -> None:
    """The caller of the unreported *job* has the result; for a batch, all callers.

    *max_calls*: number of calls to delete now from a batch that is being deleted.
    """
    del cohort.unreported[job.id]
    job.left, job.tries = (), 0
    if job.state != "dead":
        ends.mark_reported(cohort, job, now_us)
    elif not job.is_listed:
        delete(cohort, job, now_us, max_calls)


def delete(cohort: Cohort, job: Job, now_us: int, max_calls: int = MAX_FORGOTTEN) -> None:
    """Delete a job and all its data; for a batch, with *max_calls* of its calls.

    If the batch has more calls, `ack_report` deletes it with the last of them, without reports to callers.
    """
    batch_calls.close(cohort, job)
    if not batches.forget_some(cohort, job, max_calls, now_us):
        return
    job_index.remove(cohort, job, keeps_last=False)
    del cohort.jobs[job.id]
    cohort.unreported.pop(job.id, None)
