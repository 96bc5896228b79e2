"""The jobs of a dead worker come back, whoever noticed: a tick, by silence, or the worker's guard, at once."""

from typing import NamedTuple

from celery_affinity.rules.protocol import GIVEN_UP_US
from celery_affinity.rules.slot import free_slots

from ..jobs import come_back
from ..model import Cohort, Worker
from . import workers


class TakenBack(NamedTuple):
    """*jobs*: how many came back. *workers*: how many dead ones are gone, since they hold nothing any more."""

    jobs: int
    workers: int


def take_back(cohort: Cohort, worker: Worker, most: int, types: set[str], now_us: int) -> TakenBack:
    """Take back at most *most* jobs of a dead worker, adding the types that gained a pending job to *types*.

    This counts as a delivery of the jobs that had a slot: those that were claimed last, beyond the slots, come first.
    """
    workers.close(worker, now_us)
    worker.seen_us = GIVEN_UP_US
    beyond = -free_slots(worker.slots, worker.other, len(worker.claims))
    claimed = list(worker.claims)
    if beyond > 0:
        claimed.sort(key=lambda job_id: -worker.claims[job_id])
    for nth, job_id in enumerate(claimed[:most]):
        types |= come_back.put(cohort, cohort.jobs[job_id], now_us, counted=nth >= beyond)
    if len(claimed) > most:
        return TakenBack(most, 0)
    workers.remove(cohort, worker)
    return TakenBack(len(claimed), 1)
