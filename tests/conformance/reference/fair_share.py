"""Fair shares: turns among the tenants of a lane, by the slot time that each has used.

Start-time fair queueing: a job's start tag is its tenant's tag, or the clock at the job's arrival, if that is greater.
With a half-life, it is only the tenant's tag, the logarithm of the tenant's use, each part of which decays.
"""

from collections.abc import Container, Iterable

from celery_affinity.schema.constants import MAX_KEYS
from celery_affinity.schema.rules_codec import decode_rules
from celery_affinity.settings.tenants import weight_of

from . import tags
from .model import Cohort, Job


def key_of(job: Job) -> str | None:
    """Return the key of the job's tenant."""
    return next((rules.key for rules in decode_rules(job.rules).keys if rules.is_of_tenant), None)


def change_shares(cohort: Cohort) -> None:
    """If the changed settings begin another generation, ignore all earlier use."""
    if cohort.shares_era != cohort.settings.shares_era:
        cohort.shares_era = cohort.settings.shares_era
        cohort.tags, cohort.credits, cohort.clock = {}, {}, None


def admit(cohort: Cohort, job: Job) -> None:
    """Add the waiting *job*, which may have waited before."""
    era = cohort.settings.shares_era
    is_of_now = job.since is not None and job.since[0] == era
    if key_of(job) is not None and cohort.settings.half_life_us == 0 and cohort.clock is not None and not is_of_now:
        job.since = (era, cohort.clock)


def renew(cohort: Cohort, jobs: Iterable[Job], standing: Container[str]) -> None:
    """Give a turn to each of *jobs* (of one tenant) that is admitted to its lane."""
    era = None if cohort.settings.half_life_us is None else cohort.settings.shares_era
    for job in jobs:
        job.turn = era if job.id in standing else None


def start_of(cohort: Cohort, job: Job) -> float:
    key, settings = key_of(job), cohort.settings
    assert key is not None
    has_clock = job.since is not None and settings.half_life_us == 0 and job.since[0] == settings.shares_era
    return max(cohort.tags.get(key, 0), job.since[1] if job.since and has_clock else 0)


def turn(cohort: Cohort, job: Job, standing: Iterable[Job]) -> Job:
    """Return the job that replaces *job*, the best candidate: in its lane, the turn with the least start tag."""
    if key_of(job) is None or cohort.settings.half_life_us is None:
        return job
    lane = (job.type, job.on_demand, job.priority)
    alike = [each for each in standing if (each.type, each.on_demand, each.priority) == lane]
    having = [each for each in alike if each.turn == cohort.settings.shares_era]
    return min(having, key=lambda each: (start_of(cohort, each), each.order_us, each.id), default=job)


def charge(cohort: Cohort, job: Job, key: str, now_us: int, *, is_its_turn: bool) -> None:
    """Charge the tenant of the claimed *job* the usual time of the type, minus its credit.

    Not *is_its_turn*: the job was claimed because its tenant was below its minimum.
    """
    if cohort.settings.half_life_us is None:
        return
    usual_us, credit_us = cohort.durations_us.get(job.type, 0), cohort.credits.get(key, 0)
    start, used_us = start_of(cohort, job), min(credit_us, usual_us)
    if used_us:
        cohort.credits[key] = credit_us - used_us
    cohort.tags[key] = _with_more(cohort, key, start, usual_us - used_us, now_us)
    if not cohort.settings.half_life_us:
        cohort.clock = max(cohort.clock or 0, int(start) if is_its_turn else 0)
    job.charged_us = usual_us


def correct(cohort: Cohort, job: Job, key: str, now_us: int) -> None:
    """Correct the charge of *job*, which has left its slot: charge the additional time, or credit the rest."""
    if cohort.settings.half_life_us is None:
        return
    more_us = max(0, now_us - (job.claimed_us or 0)) - (job.charged_us or 0)
    if more_us > 0:
        cohort.tags[key] = _with_more(cohort, key, cohort.tags.get(key, 0), more_us, now_us)
    elif more_us < 0:
        cohort.credits[key] = cohort.credits.get(key, 0) - more_us


def _with_more(cohort: Cohort, key: str, tag: float, us: int, now_us: int) -> float:
    more, half_life_us = us // _weight(cohort, key), cohort.settings.half_life_us
    if half_life_us:
        return tags.decayed(tag, more, half_life_us, now_us) if more else tag
    return tag + more


def tick(cohort: Cohort, active: Container[str], now_us: int) -> bool:
    """Delete tags of tenants not *active* that are behind the clock or very old.

    Return True if there may be more.
    """
    half_life_us = cohort.settings.half_life_us
    least = tags.least_used(half_life_us, now_us) if half_life_us else cohort.clock
    if least is None:
        return False
    clock = [] if cohort.clock is None else [("!", cohort.clock)]
    some = sorted((tag, key) for key, tag in [*cohort.tags.items(), *clock] if tag <= least)[:MAX_KEYS]
    gone = [key for _, key in some if key != "!" and key not in active]
    for key in gone:
        del cohort.tags[key]
        cohort.credits.pop(key, None)
    return bool(gone) and len(some) == MAX_KEYS


def _weight(cohort: Cohort, key: str) -> int:
    return weight_of(key, cohort.settings.values.get("tenants", ""))
