"""With ``wait`` a call that others may join waits for them: it is pending once no call has joined for so long.

Meanwhile it is scheduled, or its batch is. The rules of the first call say how long; a tick ends the patience.
"""

from celery_affinity.schema.constants import AT_ONCE_US, TICK_US
from celery_affinity.schema.rules_codec import StatedMerge, decode_rules

from . import workers
from .model import Cohort, Job


def begin(cohort: Cohort, call: Job, merge: StatedMerge, now_us: int) -> None:
    """Have *call*, the first of its kind, wait for more, unless somebody waits for it or it has waited enough."""
    until_us = _until_us(call, now_us)
    if merge.wait_us and not call.on_demand and until_us > now_us and (call.bytes or 0) < merge.most_bytes:
        call.state, call.patient_us = "scheduled", until_us
        if until_us - now_us < TICK_US and cohort.first_scheduled() is call:
            workers.have_one_tick(cohort)


def go_on(cohort: Cohort, batch: Job, merge: StatedMerge, now_us: int) -> None:
    """A call that merges as *merge* says has joined *batch*: have the batch wait anew, unless it is full or urgent."""
    is_full = (batch.calls or 0) >= merge.most or (batch.bytes or 0) >= merge.most_bytes
    if is_full or batch.on_demand:
        finish(cohort, batch)
    elif (batch.patient_us or 0) > now_us:  # else it is due, and the next tick sees it
        batch.patient_us = _until_us(batch, now_us)  # a tick that comes too early learns the new time


def finish(cohort: Cohort, job: Job) -> None:
    """Have *job* wait for no more calls, if it does: it is due from now on, even if the clock is set back."""
    if job.is_patient and job.patient_us != AT_ONCE_US:
        job.patient_us = AT_ONCE_US
        workers.have_one_tick(cohort)


def _until_us(job: Job, now_us: int) -> int:
    merge = decode_rules(job.rules).merge
    return min(now_us + merge.wait_us, job.enqueued_us + merge.at_most_us) if merge else now_us
