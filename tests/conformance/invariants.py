"""Invariants of a cohort, which hold after every server function."""

import re
from collections import Counter
from fnmatch import fnmatchcase
from fractions import Fraction
from math import ceil

from celery_affinity.schema.constants import AT_ONCE_US
from celery_affinity.schema.job_record import is_batch
from celery_affinity.schema.rules_codec import StatedRate
from celery_affinity.schema.values import encode_part
from tests.conformance.reference.keys import has, keys_of, limit_of, standing_ids

from .mirror import KEYS

#: Prefixes of the keys that can contain a job. Inboxes are left out: a job there is claimed. A done job is in none of
#: these keys.
_PLACES = tuple(KEYS.base + name for name in ("scheduled", "lane:", "claims:", "dead"))

#: Prefix of the keys with further data of jobs that are in another key.
_OF_KEYS = KEYS.base + "lane:key:"

#: Prefixes of the keys with the calls of a batch.
_OF_BATCHES = (KEYS.key("callers", ""), KEYS.key("reported_calls", ""))

#: States of ended jobs, which are in none of these keys.
_NOWHERE = ("done", "failed", "revoked", "expired")


def check_that_each_job_is_in_one_place(reference, state):
    places = Counter()
    for name, members in state.items():
        is_place = name.startswith(_PLACES) and name != KEYS.key("kept_lanes") and not name.startswith(_OF_KEYS)
        if is_place or name.startswith(_OF_BATCHES):
            places.update(members.keys())
    for job in reference.jobs.values():
        is_somewhere = job.state not in _NOWHERE and job.is_listed
        assert places.pop(job.id, 0) == is_somewhere, f"{job.id} is in no place, or in several"
    assert not places, f"only a place knows of {places}"


def check_placements(reference, granted, left):
    """Check the claims that were just *granted*, the last one first: each took the most specialised slot.

    A prefetched job fitted no free slot. *left*: the types that were left to a tick. Before it, slots of other workers
    are not offered to their jobs, so the first free worker may take one.
    """
    free = free_slots(reference)
    for job in reversed(granted):
        worker = reference.workers[job.worker]
        free[worker.id] += 1
        if job.type in left:
            continue
        ahead = free[worker.id] <= 0
        assert not ahead or reference.ahead[job.type] == worker.id, f"{worker.id} got {job.id} with no slot free"
        for each in reference.workers.values():
            idle = free.get(each.id, 0) > 0 and job.type in each.types
            better = ahead or len(each.types) < len(worker.types)
            assert not (idle and better), f"{job.id} would have fitted {each.id}"


def check_that_no_slot_is_idle(reference):
    job = next(eligible(reference, idle_types(reference)), None)
    assert job is None, f"{job.id} waits beside a free slot"


def eligible(reference, types):
    """Yield the pending jobs of *types* that no rule blocks, checked rule by rule, except types left to a tick."""
    pending = reference.pending(types)
    if not pending:
        return
    held, standing = held_keys(reference), standing_ids(reference)
    left = left_to_a_tick(reference)
    for job in pending:
        keys = keys_of(job)
        is_paused = "*" in reference.pauses or f"type:{encode_part(job.type)}" in reference.pauses
        if is_paused or job.type in left:
            continue
        if any(each.key in reference.due_keys and may_wait_for_its_key(reference, each) for each in keys):
            continue
        if job.type in reference.counting or is_at_its_limit(reference, job.type):
            continue
        if any(f"key:{each.key}" in reference.pauses for each in keys) or is_kept_back(reference, job):
            continue
        if any(isinstance(each.stated, StatedRate) for each in keys) and job.id not in standing:
            continue
        if is_behind_one_with_two_keys(reference, job, standing):
            continue
        exclusive = [each.key for each in keys if not isinstance(each.stated, StatedRate)]
        if all(
            held[key] < limit_of(reference, key) and reference.kept_for.get(key) in (None, job.id) for key in exclusive
        ):
            yield job


def is_behind_one_with_two_keys(reference, job, standing):
    """Return True if an older job with the key and lane of *job* waits for its second key: a key keeps the order."""
    of_lane = [other for other in reference.pending({job.type}) if lane(other) == lane(job) and age(other) < age(job)]
    waiting = [other for other in of_lane if len(keys_of(other)) > 1 and other.id not in standing]
    return any(has(other, each.key) for other in waiting for each in keys_of(job))


def lane(job):
    return job.on_demand, job.priority


def age(job):
    return job.order_us, job.id


def left_to_a_tick(reference):
    """Return the types with an admitted job that only the next tick starts, while others of the type wait behind it."""
    standing = standing_ids(reference)
    jobs = [job for job in reference.jobs.values() if job.id in standing]
    return {job.type for job in jobs if any(reference.due_keys.get(each.key) == AT_ONCE_US for each in keys_of(job))}


def may_wait_for_its_key(reference, rules):
    """Return True if a tick re-evaluates the key now, or at a fixed time (of a turn, or of a rate)."""
    is_soon = reference.due_keys[rules.key] == AT_ONCE_US
    return is_soon or rules.key in reference.turns or isinstance(rules.stated, StatedRate)


def is_kept_back(reference, job):
    """Return True if a reserve blocks *job*, ignoring its patience: time alone starts no job."""
    free = free_for(reference, job.type, free_slots(reference))
    return any(
        free <= kept and (kept < reference.capacity(job.type) or reference.recounts or is_of_class(claimed(reference)))
        for kept, is_of_class in reserves_for(reference, job)
    )


def check_that_reserves_are_kept(reference, granted, now_us):
    """Check the claims that were just *granted*, the last one first: each left enough slots free.

    If all slots were reserved, the job was the only running one of its class.
    """
    patience_us = int(reference.settings.get("reserve_patience_us"))
    free, running = free_slots(reference), claimed(reference)
    for job in reversed(granted):
        left = free_for(reference, job.type, free)
        free[job.worker] += 1
        running.remove(job)
        if patience_us and now_us - job.waits_since_us >= patience_us:
            continue
        for kept, is_of_class in reserves_for(reference, job):
            is_ahead = free[job.worker] <= 0
            is_only_one = kept >= reference.capacity(job.type) and not is_of_class(running)
            assert not is_ahead, f"{job.id} was taken ahead"
            assert left >= kept or is_only_one, f"{job.id} left {left} slots free, not {kept}"


def reserves_for(reference, job):
    """Return the number of slots that each reserve for *job* keeps free, each with a test for jobs of its class."""
    found = []
    for word in reference.settings.values.get("reserve", "").split():
        of_type, name, amount = re.fullmatch(r"(.*):(.*)=(.*)", word).groups()
        first, _, last = name.partition("-")

        def is_of_class(jobs, of=(name, first, last or first)):
            return any(
                other.on_demand == (of[0] == "on_demand")
                if of[0] in ("queued", "on_demand")
                else int(of[1]) <= other.priority <= int(of[2])
                for other in jobs
                if other.type == job.type
            )

        if fnmatchcase(encode_part(job.type), of_type) and is_of_class([job]):
            share = Fraction(amount.rstrip("%")) * reference.capacity(job.type) / 100
            found.append((ceil(share) if amount.endswith("%") else int(amount), is_of_class))
    return found


def is_at_its_limit(reference, type_):
    """Return True if the type's limit is reached, counted over all claims."""
    limit = re.search(
        rf"(?<!\S)type%3A{re.escape(encode_part(type_))}=([0-9]+)", reference.settings.values.get("limits", "")
    )
    return limit is not None and sum(job.type == type_ for job in claimed(reference)) >= int(limit[1])


def held_keys(reference):
    """Return the number of holders of each key."""
    return Counter(each.key for job in claimed(reference) for each in keys_of(job))


def claimed(reference):
    return [reference.jobs[job_id] for worker in reference.workers.values() for job_id in worker.claims]


def check_that_keys_are_kept(reference, granted):
    """Check that no job that was just *granted* got a key that was paused or had no capacity.

    Tasks set different limits of key "a" continually, even within one step.
    """
    held = held_keys(reference)
    for job in granted:
        for rules in keys_of(job):
            assert f"key:{rules.key}" not in reference.pauses, f"{job.id} has a paused key"
            if not isinstance(rules.stated, StatedRate) and rules.key != "a":
                assert held[rules.key] <= limit_of(reference, rules.key), f"{job.id} is one too many"


def free_slots(reference):
    workers = reference.workers.values()
    return {
        each.id: each.slots - each.other - len(each.claims)
        for each in workers
        if each.accepting and not each.stalled and each.slots
    }


def free_for(reference, type_, free):
    """Return the number of *free* slots (by worker) that serve *type_*."""
    return sum(max(0, free.get(each.id, 0)) for each in reference.workers.values() if type_ in each.types)


def idle_types(reference):
    """Return the types that a free slot serves."""
    free = free_slots(reference)
    return {type_ for each in reference.workers.values() if free.get(each.id, 0) > 0 for type_ in each.types}


def check_that_calls_merge(reference, was_claimed, now_us):
    """Check that each merged call is in one batch, whose run or report has not begun.

    *was_claimed*: the calls of each batch that was claimed at the last check.
    """
    jobs, batches_of = reference.jobs, {}
    for job in jobs.values():
        for call in {*job.callers, *job.told_callers}:
            batches_of.setdefault(call, []).append(job.id)
    for job in jobs.values():
        known_to = batches_of.get(job.id, [])
        assert known_to == ([job.into] if job.state == "merged" else []), f"{job.id} is in {known_to}"
        if is_batch(job.id):
            is_to_be_told = job.id in reference.unreported
            is_to_run = job.state in ("scheduled", "pending", "claimed")
            has_some = job.callers or not is_to_run
            assert has_some, f"{job.id} has no call"
            is_deleted = job.reason == "deleted"
            assert job.callers or not is_to_be_told or is_deleted, f"{job.id} has nobody to be told"
            assert not is_deleted or (is_to_be_told and job.told_callers), f"{job.id} is not deleted any further"
            assert job.state != "claimed" or job.primary in job.callers, f"{job.id} has nothing to run"
            assert is_to_be_told or is_to_run or not job.callers, f"{job.id} is forgotten"
            for call in [jobs[each] for each in job.callers]:
                assert job.on_demand >= call.on_demand or job.is_moved, f"{job.id} is queued, a call of it is on demand"
                assert job.priority >= call.priority or job.is_moved, f"{job.id} is of too low a priority"
                was_replayed = job.id not in reference.merging.values()
                assert job.enqueued_us <= call.enqueued_us or was_replayed, f"{job.id} is too young"
        assert not set(job.callers) - was_claimed.get(job.id, set(job.callers)), f"{job.id} was joined after its claim"
        is_patient = job.state == "scheduled" and job.patient_us is not None
        assert not is_patient or job.id in reference.merging.values() or job.due_us <= now_us, f"{job.id} waits in vain"
    for place, job_id in reference.merging.items():
        assert jobs[job_id].state in ("scheduled", "pending", "claimed"), (
            f"{place} has {job_id}, which is {jobs[job_id].state}"
        )
        assert jobs[job_id].rank_us is None, f"{job_id} had a pause, and others may join it"


def claimed_batches(reference):
    """Return the calls of each claimed batch."""
    return {job.id: set(job.callers) for job in reference.jobs.values() if job.state == "claimed" and job.callers}
