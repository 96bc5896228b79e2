"""Claims: a job held by a worker's slot, with a fencing token that grows with each delivery."""

from celery_affinity.schema import job_record

from . import ends, fair_share, hooks, matching, merging
from .model import Cohort, Delivery, Job, Worker


def payload(cohort: Cohort, job: Job) -> Delivery:
    """Return the claim payload; for a batch, the message of its primary."""
    assert job.fence is not None
    run = cohort.jobs[job.primary] if job.primary else job
    lane = (job.on_demand, job.priority) if job.is_moved else None
    facts = (job.id, job.fence, job.type, job.deliveries, job.enqueued_us)
    return Delivery(*facts, run.message or "", run.expires_us, lane, job.preemptions, job.requeues, job.own_due_us)


def grant(cohort: Cohort, job: Job, worker: Worker, now_us: int) -> Delivery | None:
    """Claim a job for *worker*. An expired job ends instead."""
    fair_share.list_some(cohort)
    fair_share.forget_candidate(cohort, job)
    delivery = _grant(cohort, job, worker, now_us)
    fair_share.list_some(cohort)
    return delivery


def _grant(cohort: Cohort, job: Job, worker: Worker, now_us: int) -> Delivery | None:
    if job_record.is_batch(job.id) and merging.choose(cohort, job, now_us) is None:
        hooks.leave(cohort, job, now_us)
        return None
    cohort.fence += 1
    job.claimed_us = now_us
    if job.has_expired(now_us):
        ends.record(cohort, job, "expired", now_us)
        hooks.leave(cohort, job, now_us)
        return None
    job.state, job.worker, job.fence = "claimed", worker.id, cohort.fence
    worker.claims[job.id] = cohort.fence
    fair_share.charge(cohort, job, worker.types, now_us)
    hooks.hold(cohort, job, now_us)
    matching.recount(worker, now_us)
    return payload(cohort, job)


def held(cohort: Cohort, worker_id: str, job_id: str, fence: int) -> Job | None:
    """Return the job if the worker holds it with this fencing token; a stale token changes nothing."""
    worker = cohort.workers.get(worker_id)
    return cohort.jobs[job_id] if worker and worker.claims.get(job_id) == fence else None


def is_unread(cohort: Cohort, worker: Worker, job: Job) -> bool:
    """Remove a job from its worker's inbox. Return True if it was there, that is, unread."""
    delivery = payload(cohort, job)
    if delivery not in worker.inbox:
        return False
    worker.inbox.remove(delivery)
    return True
