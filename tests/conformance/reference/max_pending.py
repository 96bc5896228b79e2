"""Bounds of the waiting jobs of a type, and the handling of excess jobs.

The bounds are arguments of the publish, as ``type -> Bound``.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from copy import deepcopy

from celery_affinity.schema import job_record
from celery_affinity.schema.bounds import DROP_OLDEST, Bound
from celery_affinity.schema.constants import DROPPED_OF, HAS_ENDED, IS_PENDING, MAX_DROPPED_FROM, REFUSED_OF
from celery_affinity.schema.values import encode_part

from . import ends, enqueue, keys
from .model import Cohort, Job

#: Bounds by type.
Bounds = Mapping[str, Bound]


def refuses(cohort: Cohort, jobs: Sequence[job_record.NewJob | str], bounds: Bounds, now_us: int) -> str | None:
    """Return the type of the first of *jobs* above its bound, for which the whole publish is refused, or None."""
    trial, more = deepcopy(cohort), dict.fromkeys(bounds, 0)
    for nth, job in enumerate(jobs):
        if isinstance(job, str) or enqueue.insert(trial, job, now_us + nth, now_us).state != IS_PENDING:
            continue
        bound = bounds.get(job.type)
        if bound is not None:
            more[job.type] += 1
            if bound.refuses and len(cohort.pending({job.type})) + more[job.type] > bound.most:
                cohort.counters[REFUSED_OF + encode_part(job.type)] += len(jobs)
                return job.type
    return None


def enforce_max_pending(
    cohort: Cohort, job: job_record.NewJob, state: int, bounds: Bounds, now_us: int
) -> tuple[int, bool]:
    """Drop a job if *job*, which was added with this *state*, exceeds the bound.

    Return the new state of *job*, and True if another job was dropped.
    """
    bound = bounds.get(job.type)
    if bound is None or bound.refuses or state != IS_PENDING or len(cohort.pending({job.type})) <= bound.most:
        return state, False
    dropped = (_oldest(cohort, job.type) if bound.full == DROP_OLDEST else None) or cohort.jobs[job.id]
    ends.waiting(cohort, dropped, "revoked", now_us)
    dropped.why = f"dropped: {bound.most} jobs of its type waited"
    cohort.counters[DROPPED_OF + encode_part(job.type)] += 1
    return (HAS_ENDED, False) if dropped.id == job.id else (state, True)


def _oldest(cohort: Cohort, type_: str) -> Job | None:
    """Return the oldest waiting job among the first of each lane and its blocked jobs, except batches."""
    standing = {job.id for job in keys.standing(cohort, {type_})}
    lanes: dict[object, list[Job]] = defaultdict(list)
    for job in sorted(cohort.pending({type_}), key=_age):
        lanes[job.on_demand, job.priority, job.id in standing].append(job)
    first = [job for lane in lanes.values() for job in lane[:MAX_DROPPED_FROM]]
    return min((job for job in first if not job_record.is_batch(job.id)), key=_wait, default=None)


def _age(job: Job) -> tuple[int, str]:
    return job.order_us, job.id


def _wait(job: Job) -> tuple[int, str]:
    return job.waits_since_us, job.id
