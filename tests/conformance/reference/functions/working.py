"""A job has run, or is requeued: ack, release, requeue."""

from collections.abc import Iterable, Set

from celery_affinity.policy import slot_math
from celery_affinity.policy.slot_math import PrefetchLimit
from celery_affinity.schema import job_record
from celery_affinity.schema.constants import PREEMPTED

from .. import batches, claims, locality, matching, preemption, prefetch, recurring
from .. import ends as ends_of_jobs
from .. import requeue as requeue_module
from ..model import Cohort, Delivery, Outcome, Worker
from ..replies import NONE, Released

# -- ack: the message is acknowledged, so the job will not run again. Its slot stays taken until the release.


def ack(cohort: Cohort, worker_id: str, acks: Iterable[tuple[str, int]]) -> int:
    """Acknowledge messages (job id, fencing token). Return the number of claims that the worker held."""
    held = [job for job_id, fence in acks if (job := claims.held(cohort, worker_id, job_id, fence))]
    for job in held:
        job.acked = True
    return len(held)


# -- release: claimed -> done, failed, revoked, expired, dead or pending. The slots are free again.


def release(
    cohort: Cohort,
    worker_id: str,
    sequence: str,
    ends: Iterable[tuple[str, int, Outcome]],
    *,
    inline: bool,
    now_us: int,
    may_hold: PrefetchLimit = slot_math.NOTHING,
) -> Released:
    """End claims (job id, fencing token, outcome). A repeated invocation returns the jobs of the first reply again.

    *sequence*: the number of the invocation, negative if it is repeated.

    *inline*: True if the caller takes its next jobs from the reply. *may_hold*: the limit of prefetched jobs.
    """
    worker = cohort.workers.get(worker_id)
    if worker is None:
        return Released(NONE, [])
    before: list[Delivery] = []
    if sequence.startswith("-"):
        sequence = sequence[1:]
        before = [
            claims.payload(cohort, cohort.jobs[job_id])
            for job_id in worker.claims
            if cohort.jobs[job_id].by == sequence
        ]
    again = _take_ends(cohort, worker, ends, now_us)
    prefetch.note_return(cohort, worker, again)
    fits_others = again or any(matching.best(cohort, type_) for type_ in cohort.to_fill)  # before the slots become free
    if not fits_others:
        cohort.to_fill = set()
    if inline:
        worker.stalled = False  # only the event loop takes jobs inline, so it runs
    matching.recount(worker, now_us)
    deliveries: list[Delivery] = []
    unfilled = matching.fill(
        cohort, again | worker.types, now_us, worker, deliveries if inline else None, alone=not fits_others
    )
    if not unfilled:
        if inline and may_hold != slot_math.NOTHING:
            prefetch.fill(cohort, worker, may_hold, now_us, deliveries)
        prefetch.request_jobs(cohort, worker)
    for delivery in deliveries:
        cohort.jobs[delivery.job_id].by = sequence
    return Released(unfilled, before + deliveries)


def _take_ends(cohort: Cohort, worker: Worker, ends: Iterable[tuple[str, int, Outcome]], now_us: int) -> set[str]:
    """Record the ends of claims. Return the types with jobs that are pending again."""
    again: set[str] = set()
    for job_id, fence, outcome in ends:
        job = claims.held(cohort, worker.id, job_id, fence)
        if job is None:
            continue
        how, why = ends_of_jobs.read_outcome(outcome)
        cause = None
        if how == PREEMPTED:
            how = preemption.stopped(
                cohort, job, worker, job.stop if job.stop and job.stop.fence == fence else None, why, now_us
            )
            why, cause = "", PREEMPTED if how == "returned" else None
        if outcome == "acked":
            locality.has_succeeded(cohort, worker, job, now_us)
        if (how == "rejected" and not job.acked) or (how == "failed" and worker.keeps_failed):
            requeue_module.remove_claim(cohort, job, now_us)
            requeue_module.dead_letter(cohort, job, "rejected" if how == "rejected" else "failed", now_us, why)
        elif job_record.is_batch(job.id):
            again |= batches.release(cohort, job, how, why, cause, now_us)
        elif how in ends_of_jobs.STATE_AFTER or job.acked:
            ends_of_jobs.on_worker(
                cohort,
                job,
                ends_of_jobs.STATE_AFTER.get(how, "done"),
                why if how in ends_of_jobs.STATE_AFTER else "",
                now_us,
            )
            if how == "acked":
                recurring.run(cohort, job, job, now_us)
        else:
            again |= requeue_module.requeue(
                cohort, job, now_us, how=how if how in requeue_module.WAYS else "returned", why=why, cause=cause
            )
    return again


# -- requeue: claimed -> pending, with the original enqueue time; the slot is free again.


def requeue(
    cohort: Cohort, worker_id: str, given: Iterable[tuple[str, int]], *, counted: bool, now_us: int
) -> tuple[Set[str], int]:
    """Requeue claims (job id, fencing token), *counted* as a delivery or not.

    Return `unfilled`, and the number of jobs that are pending again.
    """
    worker = cohort.workers.get(worker_id)
    if worker is None:
        return NONE, 0
    types, returned = set(worker.types), 0
    for job_id, fence in given:
        job = claims.held(cohort, worker_id, job_id, fence)
        if job:
            came_back = requeue_module.requeue(cohort, job, now_us, how="unsettled" if counted else "returned")
            types |= came_back
            returned += len(came_back)
    matching.recount(worker, now_us)
    return matching.fill(cohort, types, now_us), returned
