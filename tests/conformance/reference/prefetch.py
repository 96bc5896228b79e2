"""Jobs that a worker holds beyond its slots (``affinity_lookahead``), to start them when its slots are free."""

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
    """Give *worker*, whose slots all have a job, pending jobs of its types that it *may_hold* beyond its slots.

    A worker that holds an amount of work gives way to jobs on demand: it takes none, and is asked for those it holds.
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
            return  # a job ahead would hold its key, or count, while it waits for a slot
        delivery = claims.grant(cohort, job, worker, now_us)
        if delivery is not None:
            inline.append(delivery)
            cohort.ahead[job.type] = worker.id
            room -= costs[job.type]
            size += delivery.size
        if size > cohort.most_bytes:
            return


def note_return(cohort: Cohort, worker: Worker, again: set[str]) -> None:
    """Have *worker*, which gave back jobs of the types in *again*, be asked once more if it holds too many still."""
    if free_slots(worker.slots, worker.other, len(worker.claims)) < 0:
        cohort.ahead |= {type_: worker.id for type_ in again if cohort.capacity(type_)}


def request_jobs(cohort: Cohort, worker: Worker) -> None:
    """Ask who took jobs of the types of *worker* ahead last for as many as it has free slots."""
    if not worker.free:
        return
    for type_ in sorted(worker.types & cohort.ahead.keys(), key=encode_part):
        holder = cohort.workers.get(cohort.ahead.pop(type_))
        if holder and holder is not worker:
            request_return(holder, worker.free, worker.types)
            return


def request_return(holder: Worker, number: int, types: Set[str]) -> None:
    """Ask *holder* for *number* jobs of *types* that have not started."""
    holder.inbox.append(f"\nback {number} {' '.join(sorted(map(encode_part, types)))}")


def may_be_ahead(cohort: Cohort, job: Job) -> bool:
    """Return whether *job* may wait for a slot in a worker: it holds no key, but that of a tenant that goes by age.

    What is left to a tick may fit a slot that is free.
    """
    is_left = any(cohort.due_keys.get(each.key) == AT_ONCE_US for each in decode_rules(job.rules).keys)
    goes_by_age = cohort.settings.half_life_us is None and not is_left
    return not job_record.has_key(job.id) or (job.id.endswith(TENANTED) and goes_by_age)
