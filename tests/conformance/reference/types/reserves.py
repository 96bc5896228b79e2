"""Free slots that jobs of a class leave to others: such a job starts only if enough slots that fit stay free."""

from functools import lru_cache

from celery_affinity.rules import reserves
from celery_affinity.rules.keys import encode
from celery_affinity.rules.protocol import MAX_PRIORITY
from celery_affinity.rules.reserves import Reserve

from ..model import Cohort, Job
from ..placing import free_slots

_parsed = lru_cache(reserves.parsed)


def in_force(cohort: Cohort) -> bool:
    """Return whether there is any reserve."""
    return bool(cohort.settings.values.get("reserve", "").strip())


def concerning(cohort: Cohort, type_: str) -> list[Reserve]:
    """Return the reserves for classes of *type_*."""
    return [each for each in _parsed(cohort.settings.values.get("reserve", "")) if each.concerns(encode(type_))]


def covers(cohort: Cohort, job: Job) -> bool:
    """Return whether *job* is of a class with a reserve."""
    return any(each.covers(job.on_demand, job.priority) for each in concerning(cohort, job.type))


def may_start(cohort: Cohort, job: Job, now_us: int, *, is_ahead: bool = False) -> bool:
    """Return whether all reserves let *job* have a free slot; *is_ahead*: a place beyond the slots of a worker.

    A job that has waited for longer than ``reserve_patience`` may start in any case.
    """
    patience_us = int(cohort.settings.get("reserve_patience_us"))
    if patience_us and now_us - job.enqueued_us >= patience_us:
        return True
    covering = [each for each in concerning(cohort, job.type) if each.covers(job.on_demand, job.priority)]
    return not covering or (not is_ahead and all(_allows(cohort, each, job.type) for each in covering))


def _allows(cohort: Cohort, reserve: Reserve, type_: str) -> bool:
    """Return whether another job of the class may start.

    A reserve of all live slots, or more, would mean never: then a job may start while none of its class runs.
    """
    live = cohort.capacity(type_)
    kept = reserve.slots(live)
    if free_slots.free_for(cohort, type_) > kept:
        return True
    return kept >= live and not cohort.recounts and not _running(cohort, reserve, type_)


def _running(cohort: Cohort, reserve: Reserve, type_: str) -> int:
    """Return how many jobs of *type_* that are of the class are claimed."""
    lanes = cohort.limited.get(type_, {}).values()
    return sum(reserve.covers(lane > MAX_PRIORITY, lane % (MAX_PRIORITY + 1)) for lane in lanes)


def lane_number(job: Job) -> int:
    """Return the number of the lane of *job*: lanes are numbered by priority, those of on-demand jobs from 11 on."""
    return job.priority + (MAX_PRIORITY + 1) * job.on_demand
