"""What holds of a cohort after every arrow, whatever it did before."""

from collections import Counter

from .mirror import KEYS

#: Beginnings of the keys in which a job can be. Inboxes are left out: a job there is claimed. A job that is done is in
#: no place.
_PLACES = tuple(KEYS.base + name for name in ("scheduled", "lane:", "claims:", "dead"))

#: States of jobs that have ended and are in no place.
_NOWHERE = ("done", "failed", "revoked", "expired")


def check_that_each_job_is_in_one_place(reference, state):
    places = Counter()
    for name, members in state.items():
        if name.startswith(_PLACES):
            places.update(members.keys())
    for job in reference.jobs.values():
        is_somewhere = job.state not in _NOWHERE and job.is_listed
        assert places.pop(job.id, 0) == is_somewhere, f"{job.id} is in no place, or in several"
    assert not places, f"only a place knows of {places}"


def check_placements(reference, granted):
    """Go back through the claims that were just *granted*, the last first: each went to the most specialised slot.

    What a worker took ahead fitted no free slot at all.
    """
    free = free_slots(reference)
    for job in reversed(granted):
        worker = reference.workers[job.worker]
        free[worker.id] += 1
        ahead = free[worker.id] <= 0
        assert not ahead or reference.ahead[job.type] == worker.id, f"{worker.id} got {job.id} with no slot free"
        for each in reference.workers.values():
            idle = free.get(each.id, 0) > 0 and job.type in each.types
            better = ahead or len(each.types) < len(worker.types)
            assert not (idle and better), f"{job.id} would have fitted {each.id}"


def check_that_no_slot_is_idle(reference):
    idle = idle_types(reference)
    for job in reference.jobs.values():
        assert job.state != "pending" or job.type not in idle, f"{job.id} waits beside a free slot"


def free_slots(reference):
    workers = reference.workers.values()
    return {
        each.id: each.slots - each.other - len(each.claims)
        for each in workers
        if each.accepting and not each.stalled and each.slots
    }


def idle_types(reference):
    """Return the types that a free slot serves."""
    free = free_slots(reference)
    return {type_ for each in reference.workers.values() if free.get(each.id, 0) > 0 for type_ in each.types}
