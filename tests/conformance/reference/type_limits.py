"""Rules of whole types: limits, pauses and reserves, and the consequences of their changes."""

import re
from collections.abc import Mapping
from functools import lru_cache

from celery_affinity.schema import values
from celery_affinity.schema.constants import MAX_PRIORITY
from celery_affinity.schema.values import decode_part, encode_part
from celery_affinity.settings import reserves
from celery_affinity.settings.reserves import Reserve

from . import keys, matching
from .model import Cohort, Job

# -- Rules that block a whole type: a pause, or a limit of its running jobs.


def open(cohort: Cohort, type_: str) -> bool:  # noqa: A001  # its twin's name
    """Return True if the rules of *type_* let its jobs start."""
    if "*" in cohort.pauses or f"type:{encode_part(type_)}" in cohort.pauses or type_ in cohort.counting:
        return False
    limit = limit_of(cohort, type_)
    return limit is None or len(cohort.limited.get(type_, ())) < limit


def limit_of(cohort: Cohort, type_: str) -> int | None:
    """Return the maximum number of running jobs of *type_*, or None."""
    return limits_in(cohort.settings.values.get("limits", "")).get(encode_part(type_))


def hold(cohort: Cohort, job: Job, _now_us: int) -> None:
    """Count the claimed *job* for the limit of its type, or a reserve for its class."""
    _count(cohort, job)


def _count(cohort: Cohort, job: Job) -> None:
    if limit_of(cohort, job.type) is not None or covers(cohort, job):
        cohort.limited.setdefault(job.type, {})[job.id] = values.lane_number(job.on_demand, job.priority)
        job.is_limited = job.has_more = True


def free(cohort: Cohort, job: Job, _now_us: int) -> None:
    """Uncount *job*, whose claim has ended."""
    if not job.is_limited:
        return
    was_open = open(cohort, job.type)
    job.is_limited = False
    cohort.limited.get(job.type, {}).pop(job.id, None)
    gain(cohort, job.type, was_open=was_open)
    if concerning(cohort, job.type):
        cohort.to_fill.add(job.type)


def gain(cohort: Cohort, type_: str, *, was_open: bool) -> None:
    """Let the next `fill` check *type_*, if the type has just been opened."""
    if not was_open and open(cohort, type_):
        cohort.to_fill.add(type_)


def limits_in(text: str) -> dict[str, int]:
    """Return a limit for each encoded type, from the setting ``limits``."""
    return {type_: int(limit) for type_, limit in re.findall(r"(?:^| )type%3A(\S+)=([0-9]+)", text)}


# -- Changes of limits, pauses and reserves. Earlier claims are counted.


def change(cohort: Cohort, before: Mapping[str, str]) -> None:
    """The settings were *before*. A new limit is closed until earlier claims are counted."""
    now = cohort.settings.values
    _change_limits(cohort, before.get("limits", ""), now.get("limits", ""))
    if before.get("reserve", "") != now.get("reserve", ""):
        cohort.recounts = cohort.recounts or in_force(cohort)
        _gain_all(cohort)


def _change_limits(cohort: Cohort, before: str, now: str) -> None:
    old, new = limits_in(before), limits_in(now)
    for name in old.keys() | new.keys():
        type_ = decode_part(name)
        if old.get(name) == new.get(name):
            continue
        was_open = "*" not in cohort.pauses and f"type:{name}" not in cohort.pauses and type_ not in cohort.counting
        was_open = was_open and (name not in old or len(cohort.limited.get(type_, ())) < old[name])
        if name not in new:
            cohort.counting.discard(type_)
        elif name not in old:
            cohort.counting.add(type_)
            cohort.recounts = True
        gain(cohort, type_, was_open=was_open)


def pause(cohort: Cohort, what: str, words: str | None) -> None:
    """Write the pause of *what* ("type:T" or "*"); None ends it."""
    was_open = {type_: open(cohort, type_) for type_ in cohort.types()}
    cohort.pauses.pop(what, None)
    if words is None:
        cohort.pause_ends.pop(what, None)
    else:
        cohort.pauses[what] = words
    for type_ in was_open:
        if what == f"type:{encode_part(type_)}":
            gain(cohort, type_, was_open=was_open[type_])
    if what == "*" and words is None:
        _gain_all(cohort)


def recount(cohort: Cohort) -> None:
    """Count claims from before a limit or a reserve."""
    if not cohort.recounts:
        return
    for worker in cohort.workers.values():
        for job_id in worker.claims:
            _count(cohort, cohort.jobs[job_id])
    counting, cohort.counting, cohort.recounts = cohort.counting, set(), False
    for type_ in counting:
        gain(cohort, type_, was_open=False)
    if in_force(cohort):
        _gain_all(cohort)


def _gain_all(cohort: Cohort) -> None:
    cohort.to_fill |= {job.type for job in keys.standing(cohort, cohort.types())}


# -- Reserves: a job of the class starts only if enough fitting slots stay free.


_parsed = lru_cache(reserves.parse_reserves)


def in_force(cohort: Cohort) -> bool:
    """Return True if there is any reserve."""
    return bool(cohort.settings.values.get("reserve", "").strip())


def concerning(cohort: Cohort, type_: str) -> list[Reserve]:
    """Return the reserves for classes of *type_*."""
    return [each for each in _parsed(cohort.settings.values.get("reserve", "")) if each.concerns(encode_part(type_))]


def covers(cohort: Cohort, job: Job) -> bool:
    """Return True if *job* belongs to a class with a reserve."""
    return any(each.covers(job.on_demand, job.priority) for each in concerning(cohort, job.type))


def may_start(cohort: Cohort, job: Job, now_us: int, *, is_ahead: bool = False, free: int | None = None) -> bool:
    """Return True if all reserves let *job* have a free slot. *is_ahead*: for a prefetched job.

    *free*: the number of fitting slots, if it differs from the current one.

    A job that has waited for longer than ``reserve_patience`` may start in any case.
    """
    patience_us = int(cohort.settings.get("reserve_patience_us"))
    if patience_us and now_us - job.waits_since_us >= patience_us:
        return True
    covering = [each for each in concerning(cohort, job.type) if each.covers(job.on_demand, job.priority)]
    return not covering or (not is_ahead and all(_allows(cohort, each, job.type, free) for each in covering))


def _allows(cohort: Cohort, reserve: Reserve, type_: str, free: int | None) -> bool:
    """Return True if another job of the class may start.

    A reserve of all live slots or more would never let one start. Then a job may start while none of its class runs.
    """
    live = cohort.capacity(type_)
    kept = reserve.slots(live)
    if (matching.free_for(cohort, type_) if free is None else free) > kept:
        return True
    return kept >= live and not cohort.recounts and not _running(cohort, reserve, type_)


def _running(cohort: Cohort, reserve: Reserve, type_: str) -> int:
    """Return the number of claimed jobs of *type_* in the class."""
    lanes = [divmod(number, MAX_PRIORITY + 1) for number in cohort.limited.get(type_, {}).values()]
    return sum(reserve.covers(bool(on_demand), priority) for on_demand, priority in lanes)
