"""Prefetched jobs: a worker holds jobs beyond its slots (``affinity_lookahead``), to start them in free slots."""

from collections.abc import Set

from celery_affinity.policy.slot_math import PrefetchLimit
from celery_affinity.schema import job_record
from celery_affinity.schema.constants import AT_ONCE_US, MAX_MOVES
from celery_affinity.schema.rules_codec import TENANTED, decode_rules
from celery_affinity.schema.values import encode_part

from . import claims, keys, matching, type_limits
from .model import Cohort, Delivery, Job, Worker
from .placement import free_slots


def fill(cohort: Cohort, worker: Worker, may_hold: PrefetchLimit, now_us: int, inline: list[Delivery]) -> None:
    """Give *worker*, whose slots are all busy, pending jobs of its types up to *may_hold* beyond its slots.

    A worker limited by an amount of work yields to on-demand jobs: it takes none, and returns its prefetched ones.
    """
    beyond = -free_slots(worker.slots, worker.other, len(worker.claims))
    if not worker.takes_jobs or beyond < 0:
        return
    by_free = cohort.settings.get("rarity") == "free"
    types = {type_ for type_ in worker.types if type_limits.open(cohort, type_)}
    if may_hold.costs and any(job.on_demand for job in keys.standing(cohort, types)):
        if beyond:
            request_return(worker, beyond, worker.types)
        return
    costs = may_hold.costs or dict.fromkeys(types, 1)
    room = may_hold.work_us if may_hold.costs else may_hold.jobs - beyond
    has_choice = matching.has_choice(cohort, types)
    kept = any(type_limits.concerning(cohort, job.type) for job in keys.standing(cohort, types))
    size = 0
    for _ in range(MAX_MOVES):
        fits = {
            type_: 1 if by_free else matching.slots_that_fit(cohort, type_)
            for type_ in types & costs.keys()
            if costs[type_] <= room
        }
        job = matching.first(cohort, fits, now_us, counts=has_choice, is_ahead=True, worker=None if kept else worker)
        if job is None or not may_be_ahead(cohort, job) or type_limits.limit_of(cohort, job.type) is not None:
            return  # a prefetched job would hold its key, or count, while it waits for a slot
        delivery = claims.grant(cohort, job, worker, now_us)
        if delivery is not None:
            inline.append(delivery)
            cohort.ahead[job.type] = worker.id
            room -= costs[job.type]
            size += delivery.size
        if size > cohort.most_bytes:
            return


def note_return(cohort: Cohort, worker: Worker, again: set[str]) -> None:
    """*worker* returned jobs of the types in *again*: request more if it still holds too many."""
    if free_slots(worker.slots, worker.other, len(worker.claims)) < 0:
        cohort.ahead |= {type_: worker.id for type_ in again if cohort.capacity(type_)}


def request_jobs(cohort: Cohort, worker: Worker) -> None:
    """Request jobs from the last worker that prefetched the types of *worker*, one per free slot."""
    if not worker.free:
        return
    for type_ in sorted(worker.types & cohort.ahead.keys(), key=encode_part):
        holder = cohort.workers.get(cohort.ahead.pop(type_))
        if holder and holder is not worker:
            request_return(holder, worker.free, worker.types)
            return


def request_return(holder: Worker, number: int, types: Set[str]) -> None:
    """Request *number* unstarted jobs of *types* back from *holder*."""
    holder.inbox.append(f"\nback {number} {' '.join(sorted(map(encode_part, types)))}")


def may_be_ahead(cohort: Cohort, job: Job) -> bool:
    """Return True if *job* may be prefetched: turns are by age, and it has no key except a tenant's.

    A job left to a tick may fit a free slot.
    """
    if cohort.settings.half_life_us is not None:
        return False
    is_left = any(cohort.due_keys.get(each.key) == AT_ONCE_US for each in decode_rules(job.rules).keys)
    return not job_record.has_key(job.id) or (job.id.endswith(TENANTED) and not is_left)
