"""Jobs with keys: how many may hold a key or start in a period, which of them stand in their lanes, and turns."""

import sys
from collections.abc import Collection

from celery_affinity.rules.keyed.key_limits import limit_set
from celery_affinity.rules.protocol import AT_ONCE_US, MOST_KEYS, MOST_MOVES, TICK_US
from celery_affinity.rules.redis_keys import encode
from celery_affinity.rules.rule_texts import StatedKey, StatedRate, parse

from . import type_rules, workers
from .model import Cohort, Job

# -- Jobs that have a key: at most so many of one key hold it, or start in a period. The others wait. Which of them
# may start is found further below.


def enter(cohort: Cohort, job: Job, now_us: int, *, is_fresh: bool = False) -> None:
    """Have *job* wait for its key. What the job published last says counts for its task."""
    rules = rules_of(job)
    if rules is None:
        return
    stated = cohort.stated.setdefault(rules.key, {})
    if is_fresh or job.task_name not in stated:
        stated[job.task_name] = rules.stated
    cohort.waiting_keys.setdefault(rules.key, cohort.settings.limits_revision)
    cohort.gained |= renew(cohort, rules.key, now_us, gains=True)
    if job in standing_of(cohort, rules.key):
        cohort.gained.add(job.type)


def hold(cohort: Cohort, job: Job, now_us: int) -> None:
    """*job* was claimed: it holds its key, or took one of the starts of a rate."""
    rules = rules_of(job)
    if rules is None:
        return
    if cohort.kept_for.pop(rules.key, None):
        cohort.due_keys[rules.key] = AT_ONCE_US  # others may have room now: the next tick fills their types
    rate = rate_of(cohort, rules.key)
    if rate:
        cohort.rates[rules.key] = max(free_at(cohort, rules.key, rate, now_us), now_us) + rate.interval_us
    else:
        end_turn(cohort, job, rules.key, now_us)
    renew(cohort, rules.key, now_us, gains=False)


def leave(cohort: Cohort, job: Job, now_us: int) -> None:
    """*job* waits no more. If its key was kept for it, others may have the key."""
    rules = rules_of(job)
    if rules is None:
        return
    if cohort.kept_for.get(rules.key) == job.id:
        del cohort.kept_for[rules.key]
        cohort.due_keys[rules.key] = AT_ONCE_US  # the arrow may fill no slots: the next tick does
    renew(cohort, rules.key, now_us, gains=False)


def free(cohort: Cohort, job: Job, now_us: int) -> None:
    """*job* was claimed, and is no more. With ``keep_order`` its retry is the next one that gets the key."""
    rules = rules_of(job)
    if rules is None or isinstance(rules.stated, StatedRate):
        return
    retry = _retry_of(cohort, job, rules.key) if rules.keeps_order else None
    if retry:
        cohort.kept_for[rules.key] = retry.id
        cohort.gained |= {retry.type} if retry.state == "pending" else set()
    elif rules.key not in cohort.turns and rules.key not in cohort.kept_for:
        give_turn(cohort, job, rules.key, now_us)
    cohort.gained |= renew(cohort, rules.key, now_us, gains=True)


def _retry_of(cohort: Cohort, job: Job, key: str) -> Job | None:
    others = (cohort.jobs[each] for each in [*cohort.tasks.get(job.task_id, {})][:MOST_MOVES] if each != job.id)
    waiting = (each for each in others if each.state in ("pending", "scheduled"))
    of_key = (each for each in waiting if (rules := rules_of(each)) and rules.key == key)
    return next((each for each in of_key if type_rules.open(cohort, each.type)), None)


def recheck(cohort: Cohort, now_us: int) -> bool:
    """Look at keys that the limits or the time may let go on. Return whether there may be more of them."""
    revision = cohort.settings.limits_revision
    stale = [key for key, renewed in cohort.waiting_keys.items() if renewed < revision][:MOST_KEYS]
    for key in stale:
        cohort.waiting_keys[key] = revision
    due = sorted((at_us, key) for key, at_us in cohort.due_keys.items() if at_us <= now_us)[:MOST_KEYS]
    for _, key in due:
        del cohort.due_keys[key]
    for key in stale:
        cohort.gained |= renew(cohort, key, now_us, gains=True)
    for _, key in due:  # who made them due may have renewed them, and filled no slots
        before = standing_of(cohort, key)
        renew(cohort, key, now_us, gains=True)
        cohort.gained |= {job.type for job in [*before, *standing_of(cohort, key)]}
    free = [key for key, at_us in cohort.rates.items() if at_us <= now_us][:MOST_KEYS]
    for key in free:  # all starts of these are free again
        del cohort.rates[key]
    return MOST_KEYS in (len(stale), len(due), len(free))


# -- What is known of a key: the rules of its jobs, who waits for it, and who holds it.


def rules_of(job: Job) -> StatedKey | None:
    """Return what the rules of *job* say; None if the job has none."""
    return parse(job.rules)


def waiting(cohort: Cohort, key: str) -> list[Job]:
    pending = (job for job in cohort.jobs.values() if job.state == "pending")
    return [job for job in pending if (rules := rules_of(job)) and rules.key == key]


def holders(cohort: Cohort, key: str) -> list[Job]:
    """Return the jobs that hold *key*; those of a rate hold nothing."""
    claimed = (cohort.jobs[job_id] for worker in cohort.workers.values() for job_id in worker.claims)
    return [job for job in claimed if (rules := rules_of(job)) and rules.key == key and isinstance(rules.stated, int)]


# -- How many jobs more may hold a key, or start now: by limits, rates and pauses.


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


def free_at(cohort: Cohort, key: str, rate: StatedRate, now_us: int) -> int:
    """Return when all starts of *key* are free again, µs; at most a period from now, if the clock was set back."""
    return min(cohort.rates.get(key, 0), now_us + rate.period_us)


def limit_of(cohort: Cohort, key: str) -> int:
    """Return how many jobs may hold *key*: what the settings say, else the least that a task of the key stated last."""
    given = limit_set(key, cohort.settings.values.get("limits", ""))
    limits = (stated for stated in cohort.stated.get(key, {}).values() if isinstance(stated, int))
    return given if given is not None else min(limits, default=0)


def rate_of(cohort: Cohort, key: str) -> StatedRate | None:
    """Return the slowest rate that a task of *key* stated last; None for a key that is no rate's."""
    rates = (stated for stated in cohort.stated.get(key, {}).values() if isinstance(stated, StatedRate))
    return min(rates, key=lambda rate: (rate.tokens / rate.period_us, rate), default=None)


# -- Which jobs of a key may start, by the room that the key has. Here they are found by looking at all jobs; scripts
# keep them in lanes (``lua/keyed/key_standing.lua``).


def renew(cohort: Cohort, key: str, now_us: int, *, gains: bool) -> set[str]:
    """Find out which jobs of *key* may start. Return the types of those that might not before.

    Not *gains*: nobody fills these types. Then a rate that lets no job start goes on so until a tick says otherwise.
    """
    before = {job.id for job in standing_of(cohort, key)}
    cohort.open_keys.pop(key, None)
    end_turn_in_vain(cohort, key, now_us, gains=gains)
    if not waiting(cohort, key):
        cohort.waiting_keys.pop(key, None)
        cohort.due_keys.pop(key, None)
        if key not in cohort.kept_for and not holders(cohort, key):
            cohort.stated.pop(key, None)
            cohort.had_key.pop(key, None)
        return set()
    if not gains and rate_of(cohort, key) and key in cohort.due_keys:
        return set()
    room, turn = room_of(cohort, key, now_us), cohort.turns.get(key)
    if room >= (0 if key in cohort.kept_for else 1):
        cohort.open_keys[key] = turn[0] if turn and room == 1 and key not in cohort.kept_for else None
    _look_again(cohort, key, now_us)
    return {job.type for job in standing_of(cohort, key) if job.id not in before}


def _look_again(cohort: Cohort, key: str, now_us: int) -> None:
    """Have a tick look at *key* when its rate lets the next job start."""
    rate = rate_of(cohort, key)
    if rate is None or f"key:{key}" in cohort.pauses:
        return
    if key in cohort.open_keys:
        cohort.due_keys.pop(key, None)
        return
    due_us = free_at(cohort, key, rate, now_us) - rate.period_us + rate.interval_us
    if key not in cohort.due_keys or due_us < cohort.due_keys[key]:
        cohort.due_keys[key] = due_us
        first = min(cohort.due_keys, key=lambda each: (cohort.due_keys[each], each))
        if first == key and due_us - now_us < TICK_US:
            workers.have_one_tick(cohort)


def standing(cohort: Cohort, types: Collection[str]) -> list[Job]:
    """Return the pending jobs of *types* that may start, as far as keys are concerned.

    Of each key with room these are the first jobs of each type, mode and priority, as when the key was renewed last.
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


# -- A key that jobs of other types get again and again is kept, after a while, for the type that has waited longest.
# A release of a busy type takes the key again in the same call: a type whose slots are busy at each such moment would
# never get it.


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
