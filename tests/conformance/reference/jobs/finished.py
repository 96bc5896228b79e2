"""A job that its worker ended: only what is known of it is kept, and for a while."""

import math

from celery_affinity.rules.protocol import AVERAGED_OVER, PACE_AVERAGED_OVER, SAMPLED_ONE_IN, SHORT_US

from ..keyed import keyed
from ..merging import callers
from ..model import Cohort, Job, State, Worker
from ..types import type_rules
from . import figures, find_by, memory


def record(cohort: Cohort, job: Job, state: State, why: str, now_us: int) -> None:
    """Record how a claimed job ended: a repeated publish changes nothing until a server forgets the job."""
    assert job.worker is not None
    assert job.fence is not None
    keep_s = cohort.workers[job.worker].keep_s
    duration_us = max(0, now_us - (job.claimed_us or 0))
    _count_duration(cohort, job.type, duration_us, job.fence, cohort.workers[job.worker])
    figures.count(cohort, job.type, state, duration_us)
    del cohort.workers[job.worker].claims[job.id]
    type_rules.free(cohort, job)
    keyed.free(cohort, job, now_us)
    find_by.remove(cohort, job, keeps_last=True)
    callers.close(cohort, job)
    job.state, job.why, job.ended_us, job.message = state, why, now_us, None
    memory.keep(cohort, job, keep_s, now_us)


def _count_duration(cohort: Cohort, type_: str, duration_us: int, fence: int, worker: Worker) -> None:
    """Average how long a slot was taken by jobs of a type, unless nobody serves the type any more."""
    is_known = type_ in cohort.durations_us or cohort.capacity(type_)
    if is_known and (duration_us >= SHORT_US or fence % SAMPLED_ONE_IN == 0):
        worker.took[type_] = averaged(worker.took.get(type_), duration_us)
        average_us = cohort.durations_us.get(type_, duration_us)
        cohort.durations_us[type_] = average_us + (duration_us - average_us) // AVERAGED_OVER


def averaged(before: tuple[int, int, int] | None, duration_us: int) -> tuple[int, int, int]:
    """Return how long jobs of a type take on one worker, after one more: see `Worker.took`."""
    fraction, exponent = math.frexp(max(duration_us, 1))
    its = math.floor((exponent + 2 * fraction) * 1000)
    level, spread, number = before or (its, 0, 0)
    number = min(number + 1, PACE_AVERAGED_OVER)
    spread += (abs(its - level) - spread) // number
    return level + (its - level) // number, spread, number
