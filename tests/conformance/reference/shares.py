"""Whose turn it is among the tenants of a lane, by the time that each has used of the fleet's slots.

Start-time fair queueing: the start of a job is the tag of its tenant, or the clock when the job came, if that is more.
"""

from collections.abc import Container, Iterable

from celery_affinity.rules.protocol import MOST_KEYS
from celery_affinity.rules.rule_texts import keys_in
from celery_affinity.rules.tenants import weight_of

from .model import Cohort, Job


def key_of(job: Job) -> str | None:
    """Return the key of the job's tenant, if that has a share."""
    return next((rules.key for rules in keys_in(job.rules) if rules.has_share), None)


def come(cohort: Cohort, job: Job) -> None:
    """*job* waits from now on; it may have waited before."""
    if key_of(job) is not None and job.since is None:
        job.since = cohort.clock


def start_of(cohort: Cohort, job: Job) -> int:
    key = key_of(job)
    assert key is not None
    return max(cohort.tags.get(key, 0), job.since or 0)


def turn(cohort: Cohort, job: Job, standing: Iterable[Job]) -> Job:
    """Return the job that goes instead of *job*, the best of those *standing*: of its lane, the one with the least
    start.
    """
    if key_of(job) is None:
        return job
    lane = (job.type, job.on_demand, job.priority)
    alike = [each for each in standing if (each.type, each.on_demand, each.priority) == lane and key_of(each)]
    return min(alike, key=lambda each: (start_of(cohort, each), each.enqueued_us, each.id))


def charge(cohort: Cohort, job: Job, key: str, *, is_its_turn: bool) -> None:
    """*job* was claimed: its tenant is charged the usual time of the type, as far as it has no credit.

    Not *is_its_turn*: it was claimed since its tenant had less than its minimum.
    """
    usual_us, credit_us = cohort.durations_us.get(job.type, 0), cohort.credits.get(key, 0)
    start, used_us = start_of(cohort, job), min(credit_us, usual_us)
    if used_us:
        cohort.credits[key] = credit_us - used_us
    cohort.tags[key] = start + (usual_us - used_us) // _weight(cohort, key)
    cohort.clock = max(cohort.clock or 0, start if is_its_turn else 0)
    job.charged_us = usual_us


def settle(cohort: Cohort, job: Job, key: str, now_us: int) -> None:
    """*job* has its slot no more: what it took beyond what was charged is charged, the rest is credit."""
    more_us = max(0, now_us - (job.claimed_us or 0)) - (job.charged_us or 0)
    if more_us > 0:
        cohort.tags[key] = cohort.tags.get(key, 0) + more_us // _weight(cohort, key)
    elif more_us < 0:
        cohort.credits[key] = cohort.credits.get(key, 0) - more_us


def tick(cohort: Cohort, active: Container[str]) -> bool:
    """Forget some tags that the clock has reached, of tenants not *active*. Return whether there may be more."""
    if cohort.clock is None:
        return False
    tags = [*cohort.tags.items(), ("!", cohort.clock)]
    some = sorted((tag, key) for key, tag in tags if tag <= cohort.clock)[:MOST_KEYS]
    gone = [key for _, key in some if key != "!" and key not in active]
    for key in gone:
        del cohort.tags[key]
        cohort.credits.pop(key, None)
    return bool(gone) and len(some) == MOST_KEYS


def _weight(cohort: Cohort, key: str) -> int:
    return weight_of(key, cohort.settings.values.get("tenants", ""))
