"""sync: a worker beats, and says what it holds. Only the worker itself gives a claim back."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from celery_affinity.rules.protocol import MOST_MOVES

from ..fleet import lookahead, workers
from ..jobs import claims, come_back
from ..model import Cohort, Job, Worker
from ..placing import free_slots
from ..placing.fill import fill
from ..replies import NONE, Synced
from ..types import reserves


def sync(
    cohort: Cohort,
    worker_id: str,
    named: Iterable[tuple[str, int, int]],
    *,
    slots: int,
    other: int,
    draining: bool,
    now_us: int,
) -> Synced:
    """Compare what the worker holds with what it should.

    *named*: job id, fencing number, µs since its task started (-1: not yet) of each claim it holds.
    """
    worker = cohort.workers.get(worker_id)
    if worker is None or not (worker.accepting or draining):
        return Synced(False, False, NONE, [], [], 0, now_us, 0)
    lowers_reserves = slots < worker.slots and reserves.in_force(cohort)  # those that are shares of the live slots
    worker.seen_us, worker.slots, worker.other = now_us, slots, other
    workers.say_what_is_kept(cohort, worker)
    if draining:
        workers.close(worker, now_us)

    held, void = {}, []
    for job_id, fence, running_us in named:
        held[job_id] = fence
        job = claims.held(cohort, worker_id, job_id, fence)
        if job is None:
            void.append(job_id)
        elif running_us >= 0 and job.started_us is None:
            job.started_us = now_us - running_us
    missing = _look_at_what_is_not_named(cohort, worker, held, draining, now_us)
    free_slots.recount(worker, now_us)

    ticker = workers.is_ticker(cohort, worker, now_us)
    # Other free slots are those of workers that sync as well.
    may_fill = worker.free or missing.returned or cohort.gained or lowers_reserves
    more = fill(cohort, worker.types | missing.types, now_us) if may_fill else NONE
    if not more:
        lookahead.ask(cohort, worker)
    return Synced(True, ticker, more, missing.asked, void, cohort.settings.revision, now_us, missing.returned)


class _Missing(NamedTuple):
    """*asked*: claims to be asked about. *returned*: how many jobs are pending again, of *types*."""

    asked: list[tuple[str, int]]
    returned: int
    types: set[str]


def _look_at_what_is_not_named(
    cohort: Cohort, worker: Worker, held: Mapping[str, int], draining: bool, now_us: int
) -> _Missing:
    """Take back unread claims, and all claims not named if *worker* is *draining*; ask about the others not named."""
    asked: list[tuple[str, int]] = []
    types: set[str] = set()
    looked_at = size = returned = 0
    for job_id, fence in list(worker.claims.items()):
        job = cohort.jobs[job_id]
        if held.get(job_id) == fence or not (draining or _may_have_arrived(cohort, job, now_us)):
            continue
        if looked_at == MOST_MOVES or size > cohort.most_bytes:
            break
        looked_at, size = looked_at + 1, size + claims.payload(cohort, job).size
        if claims.is_unread(cohort, worker, job) or draining:
            again = come_back.put(cohort, job, now_us, counted=False)
            types, returned = types | again, returned + len(again)
        else:
            asked.append((job_id, fence))
    return _Missing(asked, returned, types)


def _may_have_arrived(cohort: Cohort, job: Job, now_us: int) -> bool:
    """Return whether a claim is old enough for its worker to know of it; a younger one may be on its way."""
    return now_us - (job.claimed_us or 0) > int(cohort.settings.get("heartbeat_interval_us"))
