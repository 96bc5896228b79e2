"""tick: what no event triggers. Due jobs become pending, expired ones end, the jobs of dead workers come back."""

from collections.abc import Iterable

from ...rules.protocol import MOST_MOVES, MOST_TYPES, SILENCE_COUNTS_US
from ..fleet import take_back
from ..jobs import ends
from ..model import Cohort, Job
from ..placing.fill import fill
from ..replies import Ticked


def tick(cohort: Cohort, lists: Iterable[str] = (), *, now_us: int) -> Ticked:
    """Do what is due. The reply names those of *lists* that hold messages."""
    if cohort.ticked_us is None or not 0 <= now_us - cohort.ticked_us <= SILENCE_COUNTS_US:
        cohort.grace_us = now_us
    cohort.ticked_us = now_us

    expired = _end_expired(cohort, now_us)
    scheduled = sorted(
        (job for job in cohort.jobs.values() if job.state == "scheduled"), key=lambda job: (job.enqueued_us, job.id)
    )
    due = [job for job in scheduled if job.enqueued_us <= now_us][:MOST_MOVES]
    for job in due:
        job.state = "pending"

    types = {job.type for job in due}
    taken = _recover_the_dead(cohort, types, now_us)
    more = fill(cohort, types, now_us)
    again = MOST_MOVES in (expired, len(due), taken.jobs)
    untold = any(when_us <= now_us for when_us in cohort.untold.values())
    filled = [each for each in lists if cohort.lists.get(each)]
    next_due_us = _until_due_us(scheduled[len(due) :], now_us)
    return Ticked(again, next_due_us, len(due), taken.jobs, taken.workers, untold, filled, more)


def _end_expired(cohort: Cohort, now_us: int) -> int:
    """End waiting jobs that have expired. Return how many jobs were looked at; a job that does not wait, only once."""
    expired = sorted((at_us, job_id) for job_id, at_us in cohort.expiring.items() if at_us <= now_us)[:MOST_MOVES]
    for _, job_id in expired:
        del cohort.expiring[job_id]
        ends.waiting(cohort, cohort.jobs[job_id], "expired", now_us)
    return len(expired)


def _recover_the_dead(cohort: Cohort, types: set[str], now_us: int) -> take_back.TakenBack:
    """Put back the jobs of silent workers, adding to *types*: as many jobs, and workers, as one call moves."""
    silent_since_us = now_us - int(cohort.settings.get("worker_timeout_us"))
    if cohort.grace_us is None or cohort.grace_us > silent_since_us:
        return take_back.TakenBack(0, 0)
    recovered = dead = 0
    silent = [each for each in cohort.workers.values() if each.seen_us <= silent_since_us]
    silent.sort(key=lambda each: (each.seen_us, each.id))
    types_left = MOST_TYPES
    for worker in silent[:MOST_MOVES]:
        types_left -= len(worker.types)
        back, gone = take_back.recover(cohort, worker, MOST_MOVES - recovered, types, now_us)
        recovered, dead = recovered + back, dead + gone
        if not gone or types_left <= 0:
            break
    return take_back.TakenBack(recovered, dead)


def _until_due_us(scheduled: list[Job], now_us: int) -> int | None:
    return max(0, scheduled[0].enqueued_us - now_us) if scheduled else None
