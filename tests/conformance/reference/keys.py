"""Jobs with keys: the limits of keys and rates, the jobs that they admit, and turns."""

import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from celery_affinity.schema.constants import AT_ONCE_US, MAX_KEYS, MAX_MOVES, MAX_SUBLANES, TENANT_PREFIX, TICK_US
from celery_affinity.schema.rules_codec import StatedKey, StatedRate, decode_rules
from celery_affinity.schema.values import encode_part
from celery_affinity.settings.limits import limit_set, rate_set
from celery_affinity.settings.tenants import maximum_of, minimum_of

from . import fair_share, preemption, type_limits, workers
from .model import Cohort, Job, SubLane

# -- Jobs with keys: a limited number of jobs holds a key or starts per period, and the others wait. A job with two keys
# passes them in the order of its rules. Further below is decided which jobs are admitted.


def enter(cohort: Cohort, job: Job, now_us: int, *, is_fresh: bool = False) -> None:
    """Let *job* wait for its keys. The limit in the latest job of its task applies."""
    keys = keys_of(job)
    if not keys:
        return
    key = keys[0].key
    if _is_alone_and_unbounded(cohort, job) and cohort.unbounded[sublane_of(key, job)] == limit_of(cohort, key):
        reevaluate(cohort, set(), now_us, fills=True)
        return
    noted = {each.key for each in keys if each.stated is not None and _note(cohort, job, each, is_fresh=is_fresh)}
    cohort.waiting_keys.setdefault(keys[0].key, cohort.settings.limits_revision)
    cohort.to_fill |= reevaluate(cohort, {keys[0].key} | noted, now_us, fills=True)
    if job in standing(cohort, {job.type}):
        cohort.to_fill.add(job.type)


def _note(cohort: Cohort, job: Job, rules: StatedKey, *, is_fresh: bool) -> bool:
    """Record the limit of a key in *job*. Return True if it is new. The latest job of each task applies."""
    stated = cohort.stated.setdefault(rules.key, {})
    if stated.get(job.task_name) == rules.stated or not (is_fresh or job.task_name not in stated):
        return False
    stated[job.task_name] = rules.stated
    return True


def hold(cohort: Cohort, job: Job, now_us: int) -> None:
    """Record the claim of *job*: it holds its exclusive key, and used one start of its rate."""
    keys = keys_of(job)
    if _is_alone_and_unbounded(cohort, job):
        (rules,) = keys
        is_last = sublane_of(rules.key, job) not in {sublane_of(rules.key, each) for each in waiting(cohort, rules.key)}
        reevaluate(cohort, {rules.key} if is_last else set(), now_us, fills=False)
        return
    if _is_alone_and_has_room(cohort, job):
        _hold_with_room(cohort, job, keys[0].key, now_us)
        return
    for rules in keys:
        rate = rate_of(cohort, rules.key)
        if rate:
            cohort.rates[rules.key] = max(free_at(cohort, rules.key, rate, now_us), now_us) + rate.interval_us
        else:
            end_turn(cohort, job, rules.key, now_us)
    for rules in keys:  # others advance to their next keys during this re-evaluation
        if cohort.kept_for.pop(rules.key, None):
            cohort.due_keys[rules.key] = AT_ONCE_US  # others may have capacity now: the next tick fills their types
    reevaluate(cohort, {each.key for each in keys}, now_us, fills=False)


def _is_alone_and_has_room(cohort: Cohort, job: Job) -> bool:
    """Return True if the only key of the claimed *job* is a tenant's, with capacity for several more jobs.

    Then other sub-lanes do not change, unless the job had a minimum lane.
    """
    keys = keys_of(job)
    if len(keys) != 1 or not _has_room(cohort, keys[0].key, 2) or f"key:{keys[0].key}" in cohort.pauses:
        return False
    return not {keys[0].key} & (cohort.turns.keys() | cohort.first_keys)


def _hold_with_room(cohort: Cohort, job: Job, key: str, now_us: int) -> None:
    """Admit the next job in the sub-lane of *job*, whose only key is a tenant with capacity."""
    alike = [each for each in waiting(cohort, key) if sublane_of(key, each) == sublane_of(key, job)]
    reevaluate(cohort, set() if alike else {key}, now_us, fills=False)


def leave(cohort: Cohort, job: Job, now_us: int) -> None:
    """Remove *job* from waiting. A key that was reserved for it becomes available."""
    if cohort.leaving is None:
        many_leave(cohort, [job], now_us)
    else:
        cohort.leaving.append(job)


@contextmanager
def stop_waiting(cohort: Cohort, now_us: int) -> Iterator[None]:
    """Re-evaluate the keys of all jobs that stop waiting in the block together, at its end."""
    cohort.leaving = jobs = []
    yield
    cohort.leaving = None
    many_leave(cohort, jobs, now_us)


def many_leave(cohort: Cohort, jobs: Iterable[Job], now_us: int) -> None:
    """Remove all of *jobs* from waiting, and then re-evaluate their keys together."""
    leaving = [(job, rules) for job in jobs for rules in keys_of(job)]
    for job, rules in leaving:
        if cohort.kept_for.get(rules.key) == job.id:
            del cohort.kept_for[rules.key]
            cohort.due_keys[rules.key] = AT_ONCE_US  # the function may fill no slots, so the next tick does
    before = cohort.stood
    reevaluate(cohort, {rules.key for _, rules in leaving}, now_us, fills=False, has_left=True)
    if any(len(keys_of(job)) > 1 for job, _ in leaving):  # it may have blocked others next to free slots
        cohort.may_fit |= {job_id for job_id in cohort.stood - before if keys_of(cohort.jobs[job_id])}


def free(cohort: Cohort, job: Job, now_us: int) -> None:
    """End the claim of *job*. With ``keep_order``, its retry is the next job that gets the key."""
    preemption.free(cohort, job)
    kept_for = {}
    held = [rules for rules in keys_of(job) if _holds(rules, rules.key) and not _had_room_for_several(cohort, rules)]
    for rules in held:
        retry = _retry_of(cohort, job, rules.key) if rules.keeps_order else None
        if retry:
            kept_for[rules.key] = retry.id
            cohort.to_fill |= {retry.type} if retry.state == "pending" else set()
        elif rules.key not in cohort.turns and rules.key not in cohort.kept_for:
            give_turn(cohort, job, rules.key, now_us)
    cohort.kept_for |= kept_for  # the retry advances to its next key during the first one's re-evaluation
    cohort.to_fill |= reevaluate(cohort, {each.key for each in held}, now_us, fills=True)


def reserve_keys(cohort: Cohort, job: Job, now_us: int) -> None:
    """Reserve the ``keep_order`` keys of *job* during its pause, as for a retry before its ETA."""
    keys = {
        rules.key
        for rules in keys_of(job)
        if rules.keeps_order and rules.key not in cohort.kept_for and type_limits.open(cohort, job.type)
    }
    cohort.kept_for |= dict.fromkeys(keys, job.id)
    cohort.to_fill |= reevaluate(cohort, keys, now_us, fills=True)


def _had_room_for_several(cohort: Cohort, rules: StatedKey) -> bool:
    """Return True if a tenant had capacity for all types before one of its jobs ended: then nothing changes."""
    return _has_room(cohort, rules.key, 3)


def _has_room(cohort: Cohort, key: str, number: int) -> bool:
    """Return True if *key* is a tenant without a minimum, with capacity for *number* more jobs."""
    if not key.startswith(TENANT_PREFIX) or _least_of(cohort, key):
        return False
    return limit_of(cohort, key) - len(holders(cohort, key)) >= number


def _retry_of(cohort: Cohort, job: Job, key: str) -> Job | None:
    others = (cohort.jobs[each] for each in [*cohort.tasks.get(job.task_id, {})][:MAX_MOVES] if each != job.id)
    waiting = (each for each in others if each.state in ("pending", "scheduled"))
    of_key = (each for each in waiting if has(each, key))
    return next((each for each in of_key if type_limits.open(cohort, each.type)), None)


def recheck(cohort: Cohort, now_us: int) -> bool:
    """Re-evaluate keys whose limits or times may admit jobs. Return True if there may be more."""
    revision = cohort.settings.limits_revision
    stale = [key for key, renewed in cohort.waiting_keys.items() if renewed < revision][:MAX_KEYS]
    for key in stale:
        cohort.waiting_keys[key] = revision
    due = sorted((at_us, key) for key, at_us in cohort.due_keys.items() if at_us <= now_us)[:MAX_KEYS]
    for _, key in due:
        del cohort.due_keys[key]
    for _, key in due:  # an earlier function may have re-evaluated them without filling slots
        cohort.to_fill |= {job.type for job in standing_of(cohort, key)}
    cohort.to_fill |= reevaluate(cohort, {*stale, *(key for _, key in due)}, now_us, fills=True)
    free = [key for key, at_us in cohort.rates.items() if at_us <= now_us][:MAX_KEYS]
    for key in free:  # all starts of these rates are available again
        del cohort.rates[key]
    return MAX_KEYS in (len(stale), len(due), len(free))


# -- Data of a key: the rules of its jobs, the waiting jobs, and the holders.


def keys_of(job: Job) -> tuple[StatedKey, ...]:
    """Return the keys in the rules of *job*, in the order in which it passes them."""
    return decode_rules(job.rules).keys


def has(job: Job, key: str) -> bool:
    return any(rules.key == key for rules in keys_of(job))


def waiting(cohort: Cohort, key: str) -> list[Job]:
    """Return the pending jobs that wait for *key*, admitted by the keys before it."""
    waits_for = keys_waited_for(cohort)
    return [cohort.jobs[job_id] for job_id, keys in waits_for.items() if key in keys]


def coming(cohort: Cohort, key: str) -> list[Job]:
    """Return the pending jobs whose later key is *key*."""
    several = ((job, keys_of(job)) for job in cohort.jobs.values() if job.state == "pending")
    return [job for job, keys in several if any(rules.key == key and rules.stated is not None for rules in keys[1:])]


def _active_keys(cohort: Cohort) -> set[str]:
    """Return the keys with waiting jobs or holders."""
    waited_for = {key for keys in keys_waited_for(cohort).values() for key in keys}
    claimed = (cohort.jobs[job_id] for worker in cohort.workers.values() for job_id in worker.claims)
    return waited_for | {rules.key for job in claimed for rules in keys_of(job)}


def keys_waited_for(cohort: Cohort) -> dict[str, list[str]]:
    """Return for each pending job with keys the keys that it waits for or is admitted by."""
    return _passing(cohort, [job for job in cohort.jobs.values() if job.state == "pending"])[0]


def holders(cohort: Cohort, key: str) -> list[Job]:
    """Return the holders of *key*; a rate has none."""
    claimed = (cohort.jobs[job_id] for worker in cohort.workers.values() for job_id in worker.claims)
    return [job for job in claimed if any(_holds(rules, key) for rules in keys_of(job))]


def _holds(rules: StatedKey, key: str) -> bool:
    return rules.key == key and not isinstance(rules.stated, StatedRate)


# -- The capacity of a key: limits, rates and pauses.


def capacity_of(cohort: Cohort, key: str, now_us: int) -> int:
    """Return the number of further jobs that may hold *key*, or start now.

    A job that the key is reserved for counts as a holder, and may start itself unless the capacity is below 0.
    """
    if f"key:{key}" in cohort.pauses:
        return -sys.maxsize
    rate = rate_of(cohort, key)
    if rate:
        return rate.room(free_at(cohort, key, rate, now_us) - now_us)
    return limit_of(cohort, key) - len(holders(cohort, key)) - (key in cohort.kept_for)


def free_at(cohort: Cohort, key: str, rate: StatedRate, now_us: int) -> int:
    """Return the time in µs at which all starts of *key* are available, at most a period from now."""
    return min(cohort.rates.get(key, 0), now_us + rate.period_us)


def limit_of(cohort: Cohort, key: str) -> int:
    """Return the limit of *key*: from the settings, or the least of the latest limits of its tasks."""
    if key.startswith(TENANT_PREFIX):
        most = maximum_of(key, cohort.settings.values.get("tenants", ""))
        return sys.maxsize if most is None else most
    given = limit_set(key, cohort.settings.values.get("limits", ""))
    limits = (stated for stated in cohort.stated.get(key, {}).values() if isinstance(stated, int))
    return given if given is not None else min(limits, default=0)


def _least_of(cohort: Cohort, key: str) -> int:
    """Return the number of jobs that must hold *key* before others get slots: its tenant's minimum."""
    return minimum_of(key, cohort.settings.values.get("tenants", "")) if key.startswith(TENANT_PREFIX) else 0


def is_unbounded(cohort: Cohort, key: str) -> bool:
    """Return True if no job must wait for *key*, a tenant: all waiting jobs and holders fit in any order.

    With a maximum, they are counted only in a few sub-lanes.
    """
    if not key.startswith(TENANT_PREFIX) or f"key:{key}" in cohort.pauses:
        return False
    if _least_of(cohort, key) or cohort.settings.half_life_us is not None:
        return False
    most, waits = limit_of(cohort, key), waiting(cohort, key)
    are_few = len({sublane_of(key, job) for job in waits}) <= MAX_SUBLANES
    return most == sys.maxsize or (are_few and len(waits) + len(holders(cohort, key)) <= most)


def sublane_of(key: str, job: Job) -> SubLane:
    """Return the sub-lane where *job* waits for *key*."""
    return key, job.type, job.on_demand, job.priority


def _is_alone_and_unbounded(cohort: Cohort, job: Job) -> bool:
    """Return True if the only key of *job* is a tenant's, and no job in its sub-lane must wait: see `_bound`."""
    keys = keys_of(job)
    if len(keys) != 1 or keys[0].key in cohort.turns or not is_unbounded(cohort, keys[0].key):
        return False
    return sublane_of(keys[0].key, job) in cohort.unbounded


def _bound(cohort: Cohort, key: str) -> None:
    """Find the unbounded sub-lanes of *key*: sub-lanes that began while it was unbounded, until it no longer is.

    All jobs of such a sub-lane are in their lane. A sub-lane ends when all of its jobs have left, even if others
    arrived: an admitted job is blocked again before an older job is admitted instead.
    """
    before = {each: jobs for each, jobs in cohort.sublanes.items() if each[0] == key}
    now: dict[SubLane, set[str]] = {}
    for job in waiting(cohort, key):
        now.setdefault(sublane_of(key, job), set()).add(job.id)
    cohort.sublanes = {each: jobs for each, jobs in cohort.sublanes.items() if each[0] != key} | now
    began = {each for each, jobs in now.items() if jobs.isdisjoint(before.get(each, ()))}
    its = (cohort.unbounded.keys() & now.keys()) | began
    cohort.unbounded = {each: most for each, most in cohort.unbounded.items() if each[0] != key}
    if is_unbounded(cohort, key):
        cohort.unbounded |= dict.fromkeys(its, limit_of(cohort, key))


def goes_first(cohort: Cohort, job: Job) -> bool:
    """Return True if *job* belongs in a minimum lane, because its tenant is below its minimum."""
    return any(rules.key in cohort.first_keys for rules in keys_of(job))


def rate_of(cohort: Cohort, key: str) -> StatedRate | None:
    """Return the rate of *key*: from the settings, or the slowest of the latest rates of its tasks.

    Return None for a key that is not a rate.
    """
    rates = (stated for stated in cohort.stated.get(key, {}).values() if isinstance(stated, StatedRate))
    slowest = min(rates, key=lambda rate: (rate.tokens / rate.period_us, rate), default=None)
    return slowest and (rate_set(key, cohort.settings.values.get("limits", "")) or slowest)


# -- Admission by the capacity of a key. Here it is found by reading all jobs; scripts keep admitted jobs in lanes
# (``lua/keys/admission.lua``).


def reevaluate(cohort: Cohort, keys: Collection[str], now_us: int, *, fills: bool, has_left: bool = False) -> set[str]:
    """Re-evaluate which jobs *keys* admit. Return the types of newly admitted jobs.

    After these, the keys that jobs have reached or left are re-evaluated. Not *fills*: the caller fills no slots of
    these types. A rate that admits no job stays closed until a tick. *has_left*: a job has left, and others behind it
    may fit free slots.
    """
    before, advanced, renewed = standing_ids(cohort), cohort.advanced, set()
    to_renew = set(keys)
    while to_renew:
        for key in sorted(to_renew):
            _renew_one(cohort, key, now_us, fills=fills)
        renewed |= to_renew
        to_renew = _advanced(cohort) or _end_turns_of_nobody(cohort, renewed, now_us, fills=fills)
    for key in renewed:
        _forget(cohort, key)
    cohort.stood = after = standing_ids(cohort)
    fair_share.list_some(cohort)
    if has_left:
        cohort.may_fit |= {job_id for job_id, _ in cohort.advanced - advanced}
    return {cohort.jobs[job_id].type for job_id in after - before}


def leave_to_tick(cohort: Cohort) -> None:
    """Let a tick fill slots with jobs that advanced because others left, for functions that fill none."""
    for job_id in cohort.may_fit & standing_ids(cohort):
        keys = keys_of(cohort.jobs[job_id])
        held = [each.key for each in keys if not isinstance(each.stated, StatedRate)]
        cohort.due_keys[(held or [keys[0].key])[0]] = AT_ONCE_US  # a rate is closed until then
    cohort.may_fit = set()


def _advanced(cohort: Cohort) -> set[str]:
    """Return the later keys of jobs that have just reached them, or no longer wait for them."""
    before = cohort.advanced
    cohort.advanced = {(job_id, key) for job_id, keys in keys_waited_for(cohort).items() for key in keys[1:]}
    for _, key in cohort.advanced - before:
        cohort.waiting_keys.setdefault(key, cohort.settings.limits_revision)
    return {key for _, key in cohort.advanced ^ before}


def _renew_one(cohort: Cohort, key: str, now_us: int, *, fills: bool) -> None:
    cohort.open_keys.pop(key, None)
    cohort.first_keys.discard(key)
    _bound(cohort, key)
    end_turn_unused(cohort, key, now_us, fills=fills)
    if not waiting(cohort, key):
        return
    if len(holders(cohort, key)) < _least_of(cohort, key):
        cohort.first_keys.add(key)
    if not fills and rate_of(cohort, key) and key in cohort.due_keys:
        return
    room, turn = capacity_of(cohort, key, now_us), cohort.turns.get(key)
    if room >= (0 if key in cohort.kept_for else 1):
        cohort.open_keys[key] = turn[0] if turn and room == 1 and key not in cohort.kept_for else None
    _look_again(cohort, key, now_us)


def _forget(cohort: Cohort, key: str) -> None:
    """Delete the data of *key* if no job waits for it, holds it, or has it as second key."""
    if waiting(cohort, key):
        return
    cohort.waiting_keys.pop(key, None)
    cohort.due_keys.pop(key, None)
    cohort.had_key.pop(key, None)
    if key not in cohort.kept_for and not holders(cohort, key) and not coming(cohort, key):
        cohort.stated.pop(key, None)


def _look_again(cohort: Cohort, key: str, now_us: int) -> None:
    """Schedule a re-evaluation of *key* for the next start of its rate."""
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
            workers.trigger_tick(cohort)


def standing(cohort: Cohort, types: Collection[str]) -> list[Job]:
    """Return the pending jobs of *types* that their keys admit.

    For each key with capacity, these are the first jobs per type, mode and priority at its last re-evaluation.
    """
    pending = cohort.pending(types)
    passing = _passing(cohort, pending)[1] if any(job.rules for job in pending) else set()
    return [job for job in pending if job.id in passing or not keys_of(job)]


def _passing(cohort: Cohort, pending: Collection[Job]) -> tuple[dict[str, list[str]], set[str]]:
    """Return the keys that each of the *pending* jobs with keys waits for, and the ids of jobs that pass all.

    A job waits for its second key only while the first admits it: while that has capacity, as the oldest of its type,
    mode and priority.
    """
    waits_for: dict[str, list[str]] = {}
    passing, is_taken = set(), set()
    for job in sorted((job for job in pending if keys_of(job)), key=lambda job: (job.order_us, job.id)):
        waits_for[job.id] = its_keys = []
        for rules in keys_of(job):
            its_keys.append(rules.key)
            sublane = sublane_of(rules.key, job)
            if sublane in cohort.unbounded:
                continue
            is_next = cohort.kept_for.get(rules.key, job.id) == job.id
            if rules.key not in cohort.kept_for:
                is_next = sublane not in is_taken
                is_taken.add(sublane)
            if not is_next or cohort.open_keys.get(rules.key, "") not in (None, job.type):
                break
        else:
            passing.add(job.id)
    return waits_for, passing


def standing_ids(cohort: Cohort) -> set[str]:
    """Return the ids of all pending jobs that their keys admit."""
    return {job.id for job in standing(cohort, {job.type for job in cohort.jobs.values()})}


def standing_of(cohort: Cohort, key: str) -> list[Job]:
    """Return the jobs of *key* that their keys admit."""
    with_keys = standing(cohort, {job.type for job in cohort.jobs.values() if job.rules})
    return [job for job in with_keys if has(job, key)]


# -- Turns: a key that other types take continually is reserved, after a while, for the type that has waited longest. A
# release of a busy type takes the key again in the same invocation, so a type whose slots are busy at these moments
# would never get it.


def end_turn(cohort: Cohort, job: Job, key: str, now_us: int) -> None:
    """End the turn of the type of *job*, which got *key*."""
    if cohort.turns.get(key, ("",))[0] == job.type:
        del cohort.turns[key]
        cohort.due_keys[key] = AT_ONCE_US  # others may have capacity now
    if _has_room(cohort, key, 2):
        return  # no job waits for the key
    if any(other.type != job.type for other in waiting(cohort, key)):
        cohort.had_key.setdefault(key, {})[job.type] = now_us


def give_turn(cohort: Cohort, job: Job, key: str, now_us: int) -> None:
    """Reserve *key*, freed by *job*, for the type that has waited longest while others got it, if that is too long.

    A type that no slot serves, or that is blocked, loses its turn: it waits as if it had just had the key. Jobs of an
    unbounded sub-lane are all in their lane, so they need no turn.
    """
    patience_us = int(cohort.settings.get("key_patience_us"))
    had = cohort.had_key.get(key, {})
    bounded = [each for each in waiting(cohort, key) if sublane_of(key, each) not in cohort.unbounded]
    waits = [(max(each.order_us, had.get(each.type, 0)), encode_part(each.type), each.type) for each in bounded]
    since_us, _, type_ = min(waits, default=(now_us, "", ""))
    if not patience_us or type_ == job.type or now_us - since_us < patience_us:
        return
    firsts: dict[SubLane, Job] = {}
    for each in sorted(bounded, key=lambda each: (each.order_us, each.id)):
        firsts.setdefault(sublane_of(key, each), each)
    waits_since_us = min(each.waits_since_us for each in firsts.values() if each.type == type_)
    if now_us - max(waits_since_us, had.get(type_, 0)) < patience_us:
        return
    if cohort.capacity(type_) and type_limits.open(cohort, type_):
        cohort.turns[key] = (type_, now_us, now_us + patience_us)
    else:
        cohort.had_key.setdefault(key, {})[type_] = now_us


def end_turn_unused(cohort: Cohort, key: str, now_us: int, *, fills: bool) -> None:
    """End a turn that has expired. Otherwise schedule a tick for its end.

    Not *fills*: types that may have capacity then are filled by the next tick.
    """
    if key not in cohort.turns:
        return
    _, since_us, until_us = cohort.turns[key]
    if not since_us <= now_us < until_us:  # the clock may have been reset
        _end_in_vain(cohort, key, now_us, fills=fills)
    elif _waits_for_its_turn(cohort, key):
        cohort.due_keys[key] = min(until_us, cohort.due_keys.get(key, until_us))


def _end_turns_of_nobody(cohort: Cohort, renewed: Collection[str], now_us: int, *, fills: bool) -> set[str]:
    """End the turns of *renewed* keys without waiting jobs of the type, after all have advanced. Return these keys."""
    keys = {key for key in renewed if key in cohort.turns and not _waits_for_its_turn(cohort, key)}
    for key in keys:
        _end_in_vain(cohort, key, now_us, fills=fills)
    return keys


def _waits_for_its_turn(cohort: Cohort, key: str) -> bool:
    return any(job.type == cohort.turns[key][0] for job in waiting(cohort, key))


def _end_in_vain(cohort: Cohort, key: str, now_us: int, *, fills: bool) -> None:
    type_, *_ = cohort.turns.pop(key)
    cohort.had_key.setdefault(key, {})[type_] = now_us
    if not fills:
        cohort.due_keys[key] = AT_ONCE_US
