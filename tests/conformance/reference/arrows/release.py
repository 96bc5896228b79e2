"""release: claimed -> done, failed, revoked, expired, dead or pending. The slots are free again."""

from collections.abc import Iterable

from celery_affinity.rules import ahead, marks
from celery_affinity.rules.ahead import Ahead

from ..fleet import lookahead
from ..jobs import claims, come_back, finished
from ..jobs.outcomes import STATE_AFTER, read_outcome
from ..merging import batch_release
from ..model import Cohort, Delivery, Outcome, Worker
from ..placing import free_slots, which_slot
from ..placing.fill import fill
from ..recurring import recurring
from ..replies import NONE, Released


def release(
    cohort: Cohort,
    worker_id: str,
    sequence: str,
    ends: Iterable[tuple[str, int, Outcome]],
    *,
    inline: bool,
    now_us: int,
    may_hold: Ahead = ahead.NOTHING,
) -> Released:
    """End claims (job id, fencing number, outcome). A call that is repeated gets the jobs of the first reply once more.

    *sequence*: the number of the call, with a minus before it if the call is repeated.

    *inline*: whether the caller takes its next jobs from the reply. *may_hold*: what it may hold beyond its slots.
    """
    worker = cohort.workers.get(worker_id)
    if worker is None:
        return Released(NONE, [])
    before: list[Delivery] = []
    if sequence.startswith("-"):
        sequence = sequence[1:]
        before = [
            claims.payload(cohort, cohort.jobs[job_id])
            for job_id in worker.claims
            if cohort.jobs[job_id].by == sequence
        ]
    if inline:
        worker.stalled = False  # only the event loop takes jobs inline, so it turns
    again = _take_ends(cohort, worker, ends, now_us)
    lookahead.gave_back(cohort, worker, again)
    fits_others = again or any(which_slot.best(cohort, type_) for type_ in cohort.gained)  # before the slots are free
    if not fits_others:
        cohort.gained = set()
    free_slots.recount(worker, now_us)
    deliveries: list[Delivery] = []
    more = fill(cohort, again | worker.types, now_us, worker, deliveries if inline else None, alone=not fits_others)
    if not more:
        if inline and may_hold != ahead.NOTHING:
            lookahead.fill(cohort, worker, may_hold, now_us, deliveries)
        lookahead.ask(cohort, worker)
    for delivery in deliveries:
        cohort.jobs[delivery.job_id].by = sequence
    return Released(more, before + deliveries)


def _take_ends(cohort: Cohort, worker: Worker, ends: Iterable[tuple[str, int, Outcome]], now_us: int) -> set[str]:
    """Record how claims ended. Return the types of those that are pending again."""
    again: set[str] = set()
    for job_id, fence, outcome in ends:
        job = claims.held(cohort, worker.id, job_id, fence)
        if job is None:
            continue
        how, why = read_outcome(outcome)
        if (how == "rejected" and not job.acked) or (how == "failed" and worker.keeps_failed):
            come_back.drop(cohort, job, now_us)
            come_back.bury(cohort, job, "rejected" if how == "rejected" else "failed", now_us, why)
        elif marks.is_batch(job.id):
            again |= batch_release.release(cohort, job, how, why, now_us)
        elif how in STATE_AFTER or job.acked:
            finished.on_worker(cohort, job, STATE_AFTER.get(how, "done"), why if how in STATE_AFTER else "", now_us)
            if how == "acked":
                recurring.run(cohort, job, job, now_us)
        else:
            again |= come_back.put(cohort, job, now_us, counted=how == "unsettled", why=why)
    return again
