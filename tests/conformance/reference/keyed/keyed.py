"""Jobs that have a key: at most so many of one key hold it, or start in a period. The others wait.

Which of them may start is found in `key_standing`.
"""

from celery_affinity.rules.job_rules import Rate
from celery_affinity.rules.protocol import AT_ONCE_US, MOST_KEYS, MOST_MOVES

from ..model import Cohort, Job
from ..types import type_rules
from . import room as key_room
from . import turns as key_turns
from .rows import rules_of
from .standing import settle, standing_of


def enter(cohort: Cohort, job: Job, now_us: int, *, is_fresh: bool = False) -> None:
    """Have *job* wait for its key. What the job published last says counts for its task."""
    rules = rules_of(job)
    if rules is None:
        return
    stated = cohort.stated.setdefault(rules.key, {})
    if is_fresh or job.task_name not in stated:
        stated[job.task_name] = rules.stated
    cohort.waiting_keys.setdefault(rules.key, cohort.settings.limits_revision)
    cohort.gained |= settle(cohort, rules.key, now_us, gains=True)
    if job in standing_of(cohort, rules.key):
        cohort.gained.add(job.type)


def hold(cohort: Cohort, job: Job, now_us: int) -> None:
    """*job* was claimed: it holds its key, or took one of the starts of a rate."""
    rules = rules_of(job)
    if rules is None:
        return
    if cohort.kept_for.pop(rules.key, None):
        cohort.due_keys[rules.key] = AT_ONCE_US  # others may have room now: the next tick fills their types
    rate = key_room.rate_of(cohort, rules.key)
    if rate:
        cohort.rates[rules.key] = max(key_room.free_at(cohort, rules.key, rate, now_us), now_us) + rate.interval_us
    else:
        key_turns.end_turn(cohort, job, rules.key, now_us)
    settle(cohort, rules.key, now_us, gains=False)


def leave(cohort: Cohort, job: Job, now_us: int) -> None:
    """*job* waits no more. If its key was kept for it, others may have the key."""
    rules = rules_of(job)
    if rules is None:
        return
    if cohort.kept_for.get(rules.key) == job.id:
        del cohort.kept_for[rules.key]
        cohort.due_keys[rules.key] = AT_ONCE_US  # the arrow may fill no slots: the next tick does
    settle(cohort, rules.key, now_us, gains=False)


def free(cohort: Cohort, job: Job, now_us: int) -> None:
    """*job* was claimed, and is no more. With ``keep_order`` its retry is the next one that gets the key."""
    rules = rules_of(job)
    if rules is None or isinstance(rules.stated, Rate):
        return
    retry = _retry_of(cohort, job, rules.key) if rules.keeps_order else None
    if retry:
        cohort.kept_for[rules.key] = retry.id
        cohort.gained |= {retry.type} if retry.state == "pending" else set()
    elif rules.key not in cohort.turns and rules.key not in cohort.kept_for:
        key_turns.give_turn(cohort, job, rules.key, now_us)
    cohort.gained |= settle(cohort, rules.key, now_us, gains=True)


def _retry_of(cohort: Cohort, job: Job, key: str) -> Job | None:
    others = (cohort.jobs[each] for each in [*cohort.tasks.get(job.task_id, {})][:MOST_MOVES] if each != job.id)
    waiting = (each for each in others if each.state in ("pending", "scheduled"))
    of_key = (each for each in waiting if (rules := rules_of(each)) and rules.key == key)
    return next((each for each in of_key if type_rules.open(cohort, each.type)), None)


def recheck(cohort: Cohort, now_us: int) -> bool:
    """Look at keys that the limits or the time may let go on. Return whether there may be more of them."""
    revision = cohort.settings.limits_revision
    stale = [key for key, settled in cohort.waiting_keys.items() if settled < revision][:MOST_KEYS]
    for key in stale:
        cohort.waiting_keys[key] = revision
    due = sorted((at_us, key) for key, at_us in cohort.due_keys.items() if at_us <= now_us)[:MOST_KEYS]
    for _, key in due:
        del cohort.due_keys[key]
    for key in stale:
        cohort.gained |= settle(cohort, key, now_us, gains=True)
    for _, key in due:  # who made them due may have settled them, and filled no slots
        before = standing_of(cohort, key)
        settle(cohort, key, now_us, gains=True)
        cohort.gained |= {job.type for job in [*before, *standing_of(cohort, key)]}
    free = [key for key, at_us in cohort.rates.items() if at_us <= now_us][:MOST_KEYS]
    for key in free:  # all starts of these are free again
        del cohort.rates[key]
    return MOST_KEYS in (len(stale), len(due), len(free))
