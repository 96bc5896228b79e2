"""Claims: a job held by a worker's slot, with a fencing number that grows at each delivery."""

from ...rules.protocol import AVERAGED_OVER, SAMPLED_ONE_IN, SHORT_US
from ..model import Cohort, Delivery, Job, State, Worker
from ..placing import free_slots
from . import ends, find_by


def payload(job: Job) -> Delivery:
    """Return what a worker reads of a claimed job."""
    assert job.fence is not None
    return Delivery(job.id, job.fence, job.type, job.deliveries, job.enqueued_us, job.message or "", job.expires_us)


def grant(cohort: Cohort, job: Job, worker: Worker, now_us: int) -> Delivery | None:
    """Give a job to *worker*; one that has expired ends instead, and nobody gets it."""
    cohort.fence += 1
    job.claimed_us = now_us
    if ends.has_expired(job, now_us):
        ends.record(cohort, job, "expired", now_us)
        return None
    job.state, job.worker, job.fence = "claimed", worker.id, cohort.fence
    worker.claims[job.id] = cohort.fence
    free_slots.recount(worker, now_us)
    return payload(job)


def held(cohort: Cohort, worker_id: str, job_id: str, fence: int) -> Job | None:
    """Return the job if the worker holds it with this very number: a stale one changes nothing."""
    worker = cohort.workers.get(worker_id)
    return cohort.jobs[job_id] if worker and worker.claims.get(job_id) == fence else None


def is_unread(worker: Worker, job: Job) -> bool:
    """Take a job out of its worker's inbox. Return whether it was there: then nobody has read it."""
    delivery = payload(job)
    if delivery not in worker.inbox:
        return False
    worker.inbox.remove(delivery)
    return True


def finish(cohort: Cohort, job: Job, state: State, why: str, now_us: int) -> None:
    """Keep only what is known of the job, so that a repeated publish changes nothing; a server forgets it later."""
    assert job.worker is not None
    assert job.fence is not None
    _average(cohort, job.type, max(0, now_us - (job.claimed_us or 0)), job.fence)
    del cohort.workers[job.worker].claims[job.id]
    find_by.remove(cohort, job, keeps_last=True)
    job.state, job.why, job.ended_us, job.message = state, why, now_us, None


def _average(cohort: Cohort, type_: str, duration_us: int, fence: int) -> None:
    """Note how long a slot was taken; nothing is noted of types that nobody serves any more."""
    is_known = type_ in cohort.durations_us or cohort.capacity(type_)
    if is_known and (duration_us >= SHORT_US or fence % SAMPLED_ONE_IN == 0):
        average_us = cohort.durations_us.get(type_, duration_us)
        cohort.durations_us[type_] = average_us + (duration_us - average_us) // AVERAGED_OVER
