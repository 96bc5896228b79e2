"""A message becomes a job: pending, or scheduled if its ETA is in the future."""

from typing import cast

from celery_affinity.schema import job_record
from celery_affinity.schema.constants import HAS_ENDED, IS_KNOWN, IS_MERGED, IS_PENDING, IS_SCHEDULED, TICK_US
from celery_affinity.schema.histograms import PUBLISHED
from celery_affinity.schema.rules_codec import decode_rules
from celery_affinity.schema.values import withdrawn_mark

from . import batch_calls, due_times, ends, hooks, job_index, merging, workers
from . import recurring as recurring_calls
from .model import Cohort, Job
from .replies import NONE, Published


def insert(cohort: Cohort, new: job_record.NewJob, enqueued_us: int, now_us: int, *, recurring: str = "") -> Published:
    """Add a job. *enqueued_us*: its publish time. *recurring*: the recurring call that fired it."""
    if new.id in cohort.jobs:  # perhaps with another task id
        return Published(IS_KNOWN, NONE, True)
    is_due = new.delay_us <= 0
    due_us = enqueued_us + max(0, new.delay_us)
    job = Job(
        id=new.id,
        on_demand=new.on_demand,
        priority=new.priority,
        enqueued_us=due_us,
        state="pending" if is_due else "scheduled",
        message=cast("str", new.message),
        rules=new.rules,
        bytes=len(cast("str", new.message).encode()) if decode_rules(new.rules).merge else None,
        recurring=recurring,
        **{name: getattr(new, name) for name, field in job_record.FIELDS.items() if field.kept},
    )
    cohort.jobs[new.id] = job
    has_ended = job_index.is_revoked(cohort, job.task_id) or (new.expires_us is not None and new.expires_us <= 0)
    due_times.renew(cohort, job, due_times.split(new.due, now_us), stretches=is_due and not has_ended)
    expires_us = None if new.expires_us is None else now_us + new.expires_us
    is_again = job_index.add(cohort, job, expires_us, new.stamps, now_us)
    is_revoked = job_index.is_revoked(cohort, job.task_id)
    if is_revoked or (new.expires_us is not None and new.expires_us <= 0):
        ends.record(cohort, job, "revoked" if is_revoked else "expired", now_us)
        return Published(HAS_ENDED, NONE, True)
    if cohort.capacity(job.type):
        cohort.metrics[job.type][PUBLISHED] += 1
    job.again_us = _first_published_us(cohort, job) if is_again else None
    if not is_due:
        job.published_us = enqueued_us
        if new.delay_us < TICK_US and cohort.first_scheduled() is job:
            workers.trigger_tick(cohort)
        return Published(IS_SCHEDULED, NONE, True)
    is_merged = merging.enter(cohort, job, now_us)
    if not is_again:
        recurring_calls.match(cohort, job, now_us)
    if job.patient_us is not None:
        return Published(IS_SCHEDULED, NONE, True)
    if not is_merged:
        hooks.wait(cohort, job, now_us, is_fresh=True)
    is_served = _is_served(cohort, new.type)
    if not is_served:
        cohort.counters["unserved"] += 1
    return Published(IS_MERGED if is_merged else IS_PENDING, NONE, is_served)


def _first_published_us(cohort: Cohort, job: Job) -> int | None:
    """Return the publish time of the first job of the task of *job*, or None if *job* does not merge."""
    first = next(iter(cohort.tasks[job.task_id]))
    return batch_calls.published_us(cohort.jobs[first]) if decode_rules(job.rules).merge else None


def _is_served(cohort: Cohort, type_: str) -> bool:
    """Return True if a live worker serves *type_*, even if it has withdrawn from it temporarily."""
    return bool(cohort.capacity(type_) or cohort.capacity(withdrawn_mark(type_)))
