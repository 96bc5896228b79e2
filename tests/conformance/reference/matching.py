"""Matching of jobs and slots: which job is first, which slot it gets, and which slots are free."""

from collections.abc import Collection, Iterable, Mapping, Set
from functools import cache

from celery_affinity.policy.score import QueueRank, is_by_age, overtakes, score
from celery_affinity.scheduler.messages import JoinArguments
from celery_affinity.schema.constants import MAX_MOVES
from celery_affinity.settings.wire import complete_settings

from . import claims, fair_share, keys, locality, type_limits
from .model import Cohort, Delivery, Job, Worker
from .placement import FreeWorker, choose_by_points, choose_worker, free_slots, parse_placement
from .replies import NONE

# -- fill: pending -> inbox. The only place that matches jobs and slots: the best job first, then its best slot.


def fill(
    cohort: Cohort,
    types: Collection[str],
    now_us: int,
    caller: Worker | None = None,
    inline: list[Delivery] | None = None,
    *,
    alone: bool = False,
    only: Collection[str] | None = None,
) -> Set[str]:
    """Place the best job of *types* and of newly admitted types on its best slot, until none fits.

    Return `unfilled`: types that this invocation did not reach.

    An expired job that no tick has seen ends when it is chosen, and takes no slot.

    The jobs of *caller* are added to *inline* instead of its inbox. *alone*: only the caller's slots are filled,
    because every other free slot was offered to the pending jobs before, unless a reserve blocked them. *only*: ids of
    the jobs that may be moved: those just published, because a publisher may have no right to read other messages.
    """
    may_fit = cohort.may_fit & keys.standing_ids(cohort) if cohort.may_fit else set()
    types = {*types, *cohort.to_fill, *(cohort.jobs[each].type for each in may_fit)}
    cohort.to_fill, cohort.may_fit = set(), set()
    types = {job.type for job in keys.standing(cohort, types) if type_limits.open(cohort, job.type)}
    alone = alone and not any(type_limits.concerning(cohort, job.type) for job in keys.standing(cohort, types))
    may_choose = has_choice(cohort, types)
    size = 0
    for _ in range(MAX_MOVES):
        is_over = alone and not (caller and caller.free)
        types = {type_ for type_ in types if type_limits.open(cohort, type_)}
        fitting = [type_ for type_ in types if not is_over and best(cohort, type_)]
        fits = {type_: slots_that_fit(cohort, type_) for type_ in fitting}
        job = first(cohort, fits, now_us, counts=may_choose, worker=caller if alone else None)
        worker = caller if alone else best(cohort, job.type, job) if job else None
        if job is None or worker is None:
            cohort.may_fit = set()  # jobs that were blocked by jobs that expired here; no free slot fits their types
            return NONE
        if only is not None and job.id not in only:
            break
        delivery = claims.grant(cohort, job, worker, now_us)
        if delivery is None:
            continue
        if worker is caller and inline is not None:
            inline.append(delivery)
        else:
            worker.inbox.append(delivery)
        size += delivery.size
        if size > cohort.most_bytes:
            break
    cohort.may_fit = set()  # jobs that were blocked by jobs that expired here; the caller continues with their types
    return {job.type for job in keys.standing(cohort, types) if type_limits.open(cohort, job.type)}


# -- Which job: by score, or by age.


def has_choice(cohort: Cohort, types: Collection[str]) -> bool:
    """Return True if jobs in more than one lane of *types* wait."""
    return len({(job.type, job.on_demand, job.priority) for job in keys.standing(cohort, types)}) > 1


def slots_that_fit(cohort: Cohort, type_: str) -> int:
    """Return the slots that determine the rarity of *type_*: free or all slots, by the setting ``rarity``."""
    if cohort.settings.get("rarity") == "free":
        return free_for(cohort, type_)
    return cohort.capacity(type_)


def first(
    cohort: Cohort,
    fits: Mapping[str, int],
    now_us: int,
    *,
    counts: bool,
    is_ahead: bool = False,
    worker: Worker | None = None,
) -> Job | None:
    """Return the first job that no reserve blocks, or None.

    Jobs of tenants below their minimum precede all others, by score and without turns. Claims by age ignore turns, too.

    *fits*: type -> number of slots that fit it. *counts*: True if the claim had a choice among lanes. Only such claims
    are numbered for the percentage by age. *is_ahead*: True if the job is prefetched. *worker*: the only worker whose
    slots are filled; its hints give jobs a bonus, unless the claim is by age.
    """
    percentage = int(cohort.settings.get("priority_percentage"))
    standing = keys.standing(cohort, fits)
    may_start = [each for each in standing if type_limits.may_start(cohort, each, now_us, is_ahead=is_ahead)]
    cohort.turn_start = None
    below_minimum = _of_open_lanes([each for each in standing if keys.goes_first(cohort, each)], may_start)
    if below_minimum:
        return _best(cohort, below_minimum, fits, now_us, by_age=False)
    by_age = is_by_age(cohort.claim_number, percentage)
    bonus = 0 if counts and by_age else locality.bonus(cohort)
    hints = worker.hints if worker and bonus else {}
    jobs = _of_open_lanes(standing, may_start)
    job = _best(cohort, jobs, fits, now_us, by_age=by_age, near={*hints}, bonus=bonus)
    cohort.claim_number += counts and job is not None and percentage < 100
    if job is None or (counts and by_age):
        return job
    candidates, cohort.turn_start = fair_share.turn(cohort, job, may_start)
    return _best(cohort, candidates, fits, now_us, by_age=False)


def _of_open_lanes(jobs: Iterable[Job], may_start: Collection[Job]) -> list[Job]:
    """Return the *jobs* in *may_start* of lanes whose first job may start: one that may not blocks those behind it.

    Without head starts, a job behind it has waited for a shorter time, so it may not start either.
    """
    lanes: dict[object, list[Job]] = {}
    for job in sorted(jobs, key=lambda each: (each.order_us, each.id)):
        lanes.setdefault((job.type, job.on_demand, job.priority), []).append(job)
    ids = {job.id for job in may_start}
    return [job for lane in lanes.values() if lane[0].id in ids for job in lane if job.id in ids]


def _best(
    cohort: Cohort,
    jobs: Iterable[Job],
    fits: Mapping[str, int],
    now_us: int,
    *,
    by_age: bool,
    near: Collection[str] = (),
    bonus: int = 0,
) -> Job | None:
    coefficients = cohort.settings.weights
    best: QueueRank | None = None
    for job in jobs:
        terms = score(job.priority, job.on_demand, now_us - job.order_us, fits[job.type], coefficients)
        more = bonus if locality.hint_of(job) in near else 0
        candidate = QueueRank(0 if by_age and not bonus else terms.total + more, job.order_us, job.id)
        if best is None or overtakes(candidate, best):
            best = candidate
    return cohort.jobs[best.job_id] if best else None


# Applies `policy.placement` to a cohort's workers. The scripts compare only `MAX_COMPARED` of many profiles, and
# `MAX_FREE_HOLDERS` of many holders of a hint.


def best(cohort: Cohort, type_: str, job: Job | None = None) -> Worker | None:
    """Return the worker for *job*, or for any job of *type_*, or None if no free slot fits."""
    free = [
        FreeWorker(each.id, each.types, each.free_since_us, each.free, each.priority, _profile(each.types))
        for each in cohort.workers.values()
        if each.free
    ]
    by = parse_placement(complete_settings(cohort.settings.values)) if job and free else None
    if job and by:
        chosen = choose_by_points(type_, free, job.id, by, locality.holders(cohort, job))
    else:
        chosen = choose_worker(type_, free)
    return cohort.workers[chosen.id] if chosen else None


_WORDS = ("placement_priority_weight", "placement_locality_weight", "placement_free_weight", "sample_size")


def words(cohort: Cohort) -> str:
    """Return the locality bonus and the placement weights in the scripts' format, or ""."""
    settings = complete_settings(cohort.settings.values)
    bonus = settings["locality_bonus"] if locality.bonus(cohort) else ""
    return " ".join((bonus or "0", *(settings[name] for name in _WORDS))) if parse_placement(settings) else bonus


@cache
def _profile(types: frozenset[str]) -> str:
    """Return the short name of a set of types."""
    return JoinArguments("", "", [*types], 1).profile


# -- Free slots: computed from a worker's claims, so that no sequence of invocations can leak one.


def count(worker: Worker) -> int:
    """Return the number of slots of *worker* that are free for jobs."""
    return max(0, free_slots(worker.slots, worker.other, len(worker.claims))) if worker.takes_jobs else 0


def recount(worker: Worker, now_us: int) -> None:
    """Recompute the free slots of *worker* from its claims."""
    free = count(worker)
    if free != worker.free:
        worker.free, worker.free_since_us = free, now_us


def free_for(cohort: Cohort, type_: str) -> int:
    """Return the number of free slots that fit *type_*."""
    return sum(worker.free for worker in cohort.workers.values() if type_ in worker.types)
