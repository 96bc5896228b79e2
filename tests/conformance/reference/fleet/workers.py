"""Who is alive, with which types and how many slots."""

from celery_affinity.rules.protocol import TICKED_LATELY_US, TICKERS

from ..jobs import memory
from ..model import Cohort, Worker
from ..placing import free_slots
from ..types import reserves


def close(worker: Worker, now_us: int) -> None:
    """Place no job on *worker* from here on; what it holds it keeps."""
    worker.accepting = False
    free_slots.recount(worker, now_us)


def stall(worker: Worker, now_us: int) -> None:
    """Place no job on *worker* until its event loop turns again."""
    worker.stalled = True
    free_slots.recount(worker, now_us)


def say_what_is_kept(cohort: Cohort, worker: Worker) -> None:
    """Have *worker* know how long jobs are known that end there, and whether those that fail are kept."""
    worker.keep_s, worker.keeps_failed = memory.keep_s(cohort), cohort.settings.get("keep_failed") == "1"


def detach(cohort: Cohort, gone: Worker) -> None:
    """Forget what was known of types that went with the last worker of a profile. The next `fill` looks at its types.

    Shares of fewer live slots are smaller reserves.
    """
    if gone.slots and reserves.in_force(cohort):
        cohort.gained |= gone.types
    others = [each for each in cohort.workers.values() if each is not gone]
    if gone.types in {each.types for each in others}:
        return
    for type_ in gone.types:
        if not sum(each.slots for each in others if type_ in each.types):
            cohort.durations_us.pop(type_, None)
            cohort.batched.pop(type_, None)
            cohort.ahead.pop(type_, None)


def remove(cohort: Cohort, worker: Worker) -> None:
    """Forget a worker that holds nothing any more."""
    detach(cohort, worker)
    del cohort.workers[worker.id]
    if cohort.names.get(worker.name) == worker.id:
        del cohort.names[worker.name]


def have_one_tick(cohort: Cohort) -> None:
    """Have one of the workers that tick for the fleet tick now, one whose event loop turns."""
    for worker in _tickers(cohort):
        if worker.accepting and not worker.stalled:
            worker.inbox.append("\ntick")
            return


def is_ticker(cohort: Cohort, worker: Worker, now_us: int) -> bool:
    """Return whether *worker* is to tick: if the last tick is old, any is."""
    first = _tickers(cohort)
    return worker in first or now_us - (cohort.ticked_us or 0) > TICKED_LATELY_US


def _tickers(cohort: Cohort) -> list[Worker]:
    return sorted(cohort.workers.values(), key=lambda each: (each.joined_us, each.id))[:TICKERS]
