"""Jobs that have a key: at most so many of one key hold it, or start in a period. The others wait.

Here the jobs of a key that may start are found by looking at all; scripts keep them in lanes (``lua/jobs/keyed.lua``).
"""

from collections.abc import Collection

from ...rules.job_rules import Rate
from ...rules.protocol import AT_ONCE_US, MOST_KEYS, MOST_MOVES, TICK_US
from ..fleet import workers
from ..model import Cohort, Job
from ..placing import type_rules
from . import key_room, key_turns
from .key_rows import holders, rules_of, waiting


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
    if job in _standing_of(cohort, rules.key):
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


def settle(cohort: Cohort, key: str, now_us: int, *, gains: bool) -> set[str]:
    """Find out which jobs of *key* may start. Return the types of those that might not before.

    Not *gains*: nobody fills these types. Then a rate that lets no job start goes on so until a tick says otherwise.
    """
    before = {job.id for job in _standing_of(cohort, key)}
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
    return {job.type for job in _standing_of(cohort, key) if job.id not in before}


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
        before = _standing_of(cohort, key)
        settle(cohort, key, now_us, gains=True)
        cohort.gained |= {job.type for job in [*before, *_standing_of(cohort, key)]}
    free = [key for key, at_us in cohort.rates.items() if at_us <= now_us][:MOST_KEYS]
    for key in free:  # all starts of these are free again
        del cohort.rates[key]
    return MOST_KEYS in (len(stale), len(due), len(free))


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


def _standing_of(cohort: Cohort, key: str) -> list[Job]:
    jobs = standing(cohort, {job.type for job in cohort.jobs.values() if job.rules})
    return [job for job in jobs if (rules := rules_of(job)) and rules.key == key]
