"""Merge windows: with ``wait``, a call collects others, and becomes pending once no call has joined for a while.

Until then, it or its batch is scheduled. The rules of the first call set the window; a tick ends it.
"""

from celery_affinity.schema.constants import AT_ONCE_US, TICK_US
from celery_affinity.schema.rules_codec import StatedMerge, decode_rules

from . import workers
from .model import Cohort, Job


def begin(cohort: Cohort, call: Job, merge: StatedMerge, now_us: int) -> None:
    """Start the merge window of *call*, unless another collects already, or it has waited enough."""
    until_us = _until_us(call, now_us)
    if merge.wait_us and not call.on_demand and until_us > now_us and (call.bytes or 0) < merge.most_bytes:
        call.state, call.patient_us = "scheduled", until_us
        if until_us - now_us < TICK_US and cohort.first_scheduled() is call:
            workers.trigger_tick(cohort)


def restart(cohort: Cohort, batch: Job, merge: StatedMerge, now_us: int) -> None:
    """Restart the window of *batch* after a call with the rules *merge* joined, unless it is full or urgent."""
    is_full = (batch.calls or 0) >= merge.most or (batch.bytes or 0) >= merge.most_bytes
    if is_full or batch.on_demand:
        finish(cohort, batch)
    elif (batch.patient_us or 0) > now_us:  # otherwise it is due, and the next tick sees it
        batch.patient_us = _until_us(batch, now_us)  # a tick that is too early learns the new time


def finish(cohort: Cohort, job: Job) -> None:
    """End the merge window of *job*, if any: it is due now, even after a clock reset."""
    if job.is_patient and job.patient_us != AT_ONCE_US:
        job.patient_us = AT_ONCE_US
        workers.trigger_tick(cohort)


def _until_us(job: Job, now_us: int) -> int:
    merge = decode_rules(job.rules).merge
    if not merge:
        return now_us
    latest_us = job.enqueued_us + merge.at_most_us
    return min(now_us + merge.wait_us, latest_us if job.own_due_us is None else min(latest_us, job.own_due_us))
