"""How many jobs more may hold a key, or start now: by limits, rates and pauses."""

import sys

from celery_affinity.rules.job_rules import Rate, limit_set

from ..model import Cohort
from .rows import holders


def room_of(cohort: Cohort, key: str, now_us: int) -> int:
    """Return how many jobs more may hold *key*, or start now.

    A job that the key is kept for counts as a holder, and may start itself unless the room is below 0.
    """
    if f"key:{key}" in cohort.pauses:
        return -sys.maxsize
    rate = rate_of(cohort, key)
    if rate:
        return rate.room(free_at(cohort, key, rate, now_us) - now_us)
    return limit_of(cohort, key) - len(holders(cohort, key)) - (key in cohort.kept_for)


def free_at(cohort: Cohort, key: str, rate: Rate, now_us: int) -> int:
    """Return when all starts of *key* are free again, µs; at most a period from now, if the clock was set back."""
    return min(cohort.rates.get(key, 0), now_us + rate.period_us)


def limit_of(cohort: Cohort, key: str) -> int:
    """Return how many jobs may hold *key*: what the settings say, else the least that a task of the key stated last."""
    given = limit_set(key, cohort.settings.values.get("limits", ""))
    limits = (stated for stated in cohort.stated.get(key, {}).values() if isinstance(stated, int))
    return given if given is not None else min(limits, default=0)


def rate_of(cohort: Cohort, key: str) -> Rate | None:
    """Return the slowest rate that a task of *key* stated last; None for a key that is no rate's."""
    rates = (stated for stated in cohort.stated.get(key, {}).values() if isinstance(stated, Rate))
    return min(rates, key=lambda rate: (rate.tokens / rate.period_us, rate), default=None)
