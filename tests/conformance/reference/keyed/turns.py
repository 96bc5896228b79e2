"""A key that jobs of other types get again and again is kept, after a while, for the type that has waited longest.

A release of a busy type takes the key again in the same call: a type whose slots are busy at each such moment would
never get it.
"""

from celery_affinity.rules.keys import encode
from celery_affinity.rules.protocol import AT_ONCE_US

from ..model import Cohort, Job
from ..types import type_rules
from .rows import waiting


def end_turn(cohort: Cohort, job: Job, key: str, now_us: int) -> None:
    """*job* got *key*: if it was the turn of its type, the turn is over."""
    if cohort.turns.get(key, ("",))[0] == job.type:
        del cohort.turns[key]
        cohort.due_keys[key] = AT_ONCE_US  # others may have room now
    if any(other.type != job.type for other in waiting(cohort, key)):
        cohort.had_key.setdefault(key, {})[job.type] = now_us


def give_turn(cohort: Cohort, job: Job, key: str, now_us: int) -> None:
    """*job* held *key*: keep it for the type that has waited longest while others got it, if that is too long.

    A type that no slot serves, or that is held back, loses its turn: it waits as if it had just had the key.
    """
    patience_us = int(cohort.settings.get("key_patience_us"))
    had = cohort.had_key.get(key, {})
    waits = [
        (max(each.enqueued_us, had.get(each.type, 0)), encode(each.type), each.type) for each in waiting(cohort, key)
    ]
    since_us, _, type_ = min(waits, default=(now_us, "", ""))
    if not patience_us or type_ == job.type or now_us - since_us < patience_us:
        return
    if cohort.capacity(type_) and type_rules.open(cohort, type_):
        cohort.turns[key] = (type_, now_us, now_us + patience_us)
    else:
        cohort.had_key.setdefault(key, {})[type_] = now_us


def end_turn_in_vain(cohort: Cohort, key: str, now_us: int, *, gains: bool) -> None:
    """Have a turn end that is over, or in which nobody waits. Else a tick looks at *key* when it is over.

    Not *gains*: nobody fills the types that may have room then, until the next tick does.
    """
    if key not in cohort.turns:
        return
    type_, since_us, until_us = cohort.turns[key]
    is_its_time = since_us <= now_us < until_us  # the clock may have been set back
    if not is_its_time or not any(job.type == type_ for job in waiting(cohort, key)):
        del cohort.turns[key]
        cohort.had_key.setdefault(key, {})[type_] = now_us
        if not gains:
            cohort.due_keys[key] = AT_ONCE_US
    else:
        cohort.due_keys[key] = min(until_us, cohort.due_keys.get(key, until_us))
