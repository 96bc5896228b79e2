"""beat: a worker's guard says that the worker lives, and whether its event loop turns."""

from celery_affinity.rules.protocol import GIVEN_UP_US, MOST_MOVES

from ..fleet import workers
from ..jobs import claims, come_back
from ..model import Cohort, Worker
from ..placing import free_slots
from ..placing.fill import fill
from ..replies import NONE, Beaten


def beat(cohort: Cohort, worker_id: str, *, turns: bool, now_us: int) -> Beaten:
    """Keep a worker alive. While its event loop does not turn, it gets no job, and the unread ones go back."""
    worker = cohort.workers.get(worker_id)
    if worker is None or worker.seen_us == GIVEN_UP_US:
        return Beaten(False, False, NONE)
    worker.seen_us = now_us
    types: set[str] = set()
    if not turns:
        workers.stall(worker, now_us)
        types = _return_unread(cohort, worker, now_us)
    elif worker.stalled:
        worker.stalled = False
        types = set(worker.types)
        free_slots.recount(worker, now_us)
    more = fill(cohort, types, now_us)
    return Beaten(True, bool(worker.inbox) and not turns, more)


def _return_unread(cohort: Cohort, worker: Worker, now_us: int) -> set[str]:
    """Take back the jobs in the inbox, which were never read. Return the types that gained a pending job."""
    types: set[str] = set()
    unread = size = 0
    while worker.inbox and unread < MOST_MOVES and size <= cohort.most_bytes:
        delivery = worker.inbox.pop(0)
        unread += 1
        if isinstance(delivery, str):
            continue  # a sign is no job
        size += delivery.size
        job = claims.held(cohort, worker.id, delivery.job_id, delivery.fence)
        if job:
            types |= come_back.put(cohort, job, now_us, counted=False)
    return types
