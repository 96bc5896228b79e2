"""The jobs of a dead worker come back, whoever noticed: a tick, by silence, or the worker's guard, at once."""

from typing import NamedTuple

from celery_affinity.rules.protocol import GIVEN_UP_US

from ..jobs import come_back
from ..model import Cohort, Worker
from . import workers


class TakenBack(NamedTuple):
    """*jobs*: how many came back. *workers*: how many dead ones are gone, since they hold nothing any more."""

    jobs: int
    workers: int


def take_back(cohort: Cohort, worker: Worker, most: int, types: set[str], now_us: int) -> TakenBack:
    """Take back at most *most* jobs of a dead worker, adding the types that gained a pending job to *types*."""
    workers.close(worker, now_us)
    worker.seen_us = GIVEN_UP_US
    claimed = list(worker.claims)
    for job_id in claimed[:most]:
        types |= come_back.put(cohort, cohort.jobs[job_id], now_us, counted=True)
    if len(claimed) > most:
        return TakenBack(most, 0)
    workers.remove(cohort, worker)
    return TakenBack(len(claimed), 1)
