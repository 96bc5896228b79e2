"""A job that its worker ended: only what is known of it is kept, and for a while."""

from ...rules.protocol import AVERAGED_OVER, SAMPLED_ONE_IN, SHORT_US
from ..model import Cohort, Job, State
from ..placing import type_rules
from . import callers, find_by, keyed


def record(cohort: Cohort, job: Job, state: State, why: str, now_us: int) -> None:
    """Record how a claimed job ended: a repeated publish changes nothing until a server forgets the job."""
    assert job.worker is not None
    assert job.fence is not None
    _count_duration(cohort, job.type, max(0, now_us - (job.claimed_us or 0)), job.fence)
    del cohort.workers[job.worker].claims[job.id]
    type_rules.free(cohort, job)
    keyed.free(cohort, job, now_us)
    find_by.remove(cohort, job, keeps_last=True)
    callers.close(cohort, job)
    job.state, job.why, job.ended_us, job.message = state, why, now_us, None


def _count_duration(cohort: Cohort, type_: str, duration_us: int, fence: int) -> None:
    """Average how long a slot was taken by jobs of a type, unless nobody serves the type any more."""
    is_known = type_ in cohort.durations_us or cohort.capacity(type_)
    if is_known and (duration_us >= SHORT_US or fence % SAMPLED_ONE_IN == 0):
        average_us = cohort.durations_us.get(type_, duration_us)
        cohort.durations_us[type_] = average_us + (duration_us - average_us) // AVERAGED_OVER
