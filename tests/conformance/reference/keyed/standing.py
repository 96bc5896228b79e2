"""Which jobs of a key may start, by the room that the key has.

Here they are found by looking at all jobs; scripts keep them in lanes (``lua/keyed/standing.lua``).
"""

from collections.abc import Collection

from celery_affinity.rules.protocol import TICK_US

from ..fleet import workers
from ..model import Cohort, Job
from . import room as key_room
from . import turns as key_turns
from .rows import holders, rules_of, waiting


def settle(cohort: Cohort, key: str, now_us: int, *, gains: bool) -> set[str]:
    """Find out which jobs of *key* may start. Return the types of those that might not before.

    Not *gains*: nobody fills these types. Then a rate that lets no job start goes on so until a tick says otherwise.
    """
    before = {job.id for job in standing_of(cohort, key)}
    cohort.open_keys.pop(key, None)
    key_turns.end_turn_in_vain(cohort, key, now_us, gains=gains)
    if not waiting(cohort, key):
        cohort.waiting_keys.pop(key, None)
        cohort.due_keys.pop(key, None)
        if key not in cohort.kept_for and not holders(cohort, key):
            cohort.stated.pop(key, None)
            cohort.had_key.pop(key, None)
        return set()
    if not gains and key_room.rate_of(cohort, key) and key in cohort.due_keys:
        return set()
    room, turn = key_room.room_of(cohort, key, now_us), cohort.turns.get(key)
    if room >= (0 if key in cohort.kept_for else 1):
        cohort.open_keys[key] = turn[0] if turn and room == 1 and key not in cohort.kept_for else None
    _look_again(cohort, key, now_us)
    return {job.type for job in standing_of(cohort, key) if job.id not in before}


def _look_again(cohort: Cohort, key: str, now_us: int) -> None:
    """Have a tick look at *key* when its rate lets the next job start."""
    rate = key_room.rate_of(cohort, key)
    if rate is None or f"key:{key}" in cohort.pauses:
        return
    if key in cohort.open_keys:
        cohort.due_keys.pop(key, None)
        return
    due_us = key_room.free_at(cohort, key, rate, now_us) - rate.period_us + rate.interval_us
    if key not in cohort.due_keys or due_us < cohort.due_keys[key]:
        cohort.due_keys[key] = due_us
        first = min(cohort.due_keys, key=lambda each: (cohort.due_keys[each], each))
        if first == key and due_us - now_us < TICK_US:
            workers.have_one_tick(cohort)


def standing(cohort: Cohort, types: Collection[str]) -> list[Job]:
    """Return the pending jobs of *types* that may start, as far as keys are concerned.

    Of each key with room these are the first jobs of each type, mode and priority, as when the key was settled last.
    """
    first: dict[tuple[str, str, bool, int], Job] = {}
    free = []
    for job in cohort.pending(types):
        rules = rules_of(job)
        if rules is None:
            free.append(job)
        elif cohort.open_keys.get(rules.key, "") not in (None, job.type):
            continue
        elif rules.key in cohort.kept_for:
            free += [job] if cohort.kept_for[rules.key] == job.id else []
        else:
            sublane = (rules.key, job.type, job.on_demand, job.priority)
            other = first.get(sublane)
            if other is None or (job.enqueued_us, job.id) < (other.enqueued_us, other.id):
                first[sublane] = job
    return [*free, *first.values()]


def standing_ids(cohort: Cohort) -> set[str]:
    """Return the ids of all pending jobs that may start, as far as keys are concerned."""
    return {job.id for job in standing(cohort, {job.type for job in cohort.jobs.values()})}


def standing_of(cohort: Cohort, key: str) -> list[Job]:
    """Return the jobs of *key* that may start, as far as keys are concerned."""
    jobs = standing(cohort, {job.type for job in cohort.jobs.values() if job.rules})
    return [job for job in jobs if (rules := rules_of(job)) and rules.key == key]
