"""Live workers, the workers that tick for the fleet, and the claims of dead workers."""

from typing import NamedTuple

from celery_affinity.schema.constants import GIVEN_UP_US, TICKED_LATELY_US, TICKERS

from . import ends, matching, requeue, type_limits
from .model import Cohort, Worker
from .placement import free_slots

# -- The live workers, with their types and numbers of slots.


def close(worker: Worker, now_us: int) -> None:
    """Place no more jobs on *worker*; it keeps its claims."""
    worker.accepting = False
    matching.recount(worker, now_us)


def write_retention(cohort: Cohort, worker: Worker) -> None:
    """Write to *worker* how long jobs that end there are retained, and if failed ones are kept."""
    worker.keep_s, worker.keeps_failed = ends.keep_s(cohort), cohort.settings.get("keep_failed") == "1"


def detach(cohort: Cohort, gone: Worker) -> None:
    """Delete data of types that were removed with the last worker of a profile. The next `fill` checks its types.

    Percentages of fewer live slots are smaller reserves.
    """
    if gone.slots and type_limits.in_force(cohort):
        cohort.to_fill |= gone.types
    others = [each for each in cohort.workers.values() if each is not gone]
    if gone.types in {each.types for each in others}:
        return
    for type_ in gone.types:
        if not sum(each.slots for each in others if type_ in each.types):
            cohort.durations_us.pop(type_, None)
            cohort.batched.pop(type_, None)
            cohort.ahead.pop(type_, None)


def remove(cohort: Cohort, worker: Worker) -> None:
    """Delete a worker without claims."""
    detach(cohort, worker)
    del cohort.workers[worker.id]
    if cohort.names.get(worker.name) == worker.id:
        del cohort.names[worker.name]


def trigger_tick(cohort: Cohort) -> None:
    """Request a tick from one of the ticking workers with a running event loop."""
    for worker in _tickers(cohort):
        if worker.accepting and not worker.stalled:
            worker.inbox.append("\ntick")
            return


def is_ticker(cohort: Cohort, worker: Worker, now_us: int) -> bool:
    """Return True if *worker* must tick; if the last tick is old, any worker must."""
    first = _tickers(cohort)
    return worker in first or now_us - (cohort.ticked_us or 0) > TICKED_LATELY_US


def _tickers(cohort: Cohort) -> list[Worker]:
    return sorted(cohort.workers.values(), key=lambda each: (each.joined_us, each.id))[:TICKERS]


# -- The jobs of a dead worker are reclaimed by a tick after its silence, or by its guard immediately.


class TakenBack(NamedTuple):
    """*jobs*: number of reclaimed jobs. *workers*: number of deleted dead workers, which hold nothing."""

    jobs: int
    workers: int


def take_back(cohort: Cohort, worker: Worker, max_jobs: int, types: set[str], now_us: int, death: str) -> TakenBack:
    """Reclaim at most *max_jobs* jobs of a dead worker, and add the types with pending jobs to *types*.

    This is counted as a delivery of the jobs that had a slot. Prefetched jobs, claimed last, are reclaimed first.
    """
    close(worker, now_us)
    worker.seen_us = GIVEN_UP_US
    beyond = -free_slots(worker.slots, worker.other, len(worker.claims))
    claimed = list(worker.claims)
    if beyond > 0:
        claimed.sort(key=lambda job_id: -worker.claims[job_id])
    for nth, job_id in enumerate(claimed[:max_jobs]):
        how = "unsettled" if nth >= beyond else "returned"
        types |= requeue.requeue(cohort, cohort.jobs[job_id], now_us, how=how, cause=death)
    if len(claimed) > max_jobs:
        return TakenBack(max_jobs, 0)
    remove(cohort, worker)
    return TakenBack(len(claimed), 1)
