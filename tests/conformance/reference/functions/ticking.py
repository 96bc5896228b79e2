"""tick: work without another trigger. Due jobs become pending, expired ones end, dead workers' jobs are reclaimed."""

from collections.abc import Iterable
from typing import NamedTuple

from celery_affinity.schema.constants import MAX_MOVES, MAX_TYPES, SILENCE_COUNTS_US

from .. import due_times, ends, hooks, keys, matching, merging, preemption, recurring, type_limits, workers
from ..model import Cohort, Job
from ..replies import Ticked
from . import operating


class _Recovered(NamedTuple):
    """*jobs*: number of reclaimed jobs. *workers*: names of the removed workers."""

    jobs: int
    workers: list[str]


def tick(cohort: Cohort, lists: Iterable[str] = (), *, now_us: int) -> Ticked:
    """Do the due work. The reply names the *lists* that contain messages."""
    if cohort.ticked_us is not None and now_us < cohort.ticked_us:
        recurring.clock_was_set_back(cohort, now_us)
    if cohort.ticked_us is None or not 0 <= now_us - cohort.ticked_us <= SILENCE_COUNTS_US:
        cohort.grace_us = now_us
    ticked_us, cohort.ticked_us = cohort.ticked_us, now_us

    expired = _end_expired(cohort, now_us)
    due = _promote_due(cohort, now_us)
    types = {job.type for job in due}
    taken = _recover_the_dead(cohort, types, now_us)
    ended = sorted((at_us, what) for what, at_us in cohort.pause_ends.items() if at_us <= now_us)[:MAX_MOVES]
    for _, what in ended:
        operating.end_pause(cohort, what, now_us)
    type_limits.recount(cohort)
    has_more_keys = keys.recheck(cohort, now_us)
    has_more_ended = ends.trim(cohort, now_us)
    unfilled = matching.fill(cohort, types, now_us)
    preemption.order_evictions(cohort, now_us)
    again = MAX_MOVES in (expired, len(due), taken.jobs, len(ended)) or has_more_keys or has_more_ended
    unreported = any(when_us <= now_us for when_us in cohort.unreported.values())
    filled = [each for each in lists if cohort.lists.get(each)]
    handed_out_us = [each.handed_out_us for each in cohort.recurring.values() if each.handed_out_us is not None]
    next_due_us = _until_due_us(
        [
            *(job.due_us for job in _scheduled(cohort)),
            *cohort.due_keys.values(),
            *(at_us for at_us in handed_out_us if at_us > now_us),
        ],
        now_us,
    )
    is_any_due = any(at_us <= now_us for at_us in handed_out_us)
    counts = len(due), taken.jobs, taken.workers
    return Ticked(again, next_due_us, *counts, unreported, is_any_due, filled, unfilled, now_us, ticked_us)


def _scheduled(cohort: Cohort) -> list[Job]:
    jobs = (job for job in cohort.jobs.values() if job.state == "scheduled")
    return sorted(jobs, key=lambda job: (job.due_us, job.id))


def _promote_due(cohort: Cohort, now_us: int) -> list[Job]:
    """Make scheduled jobs pending whose time has come. Return them.

    First come jobs after a merge window or a pause, so that a call at its ETA joins them.
    """
    due = [job for job in _scheduled(cohort) if job.due_us <= now_us][:MAX_MOVES]
    patient = [job for job in due if job.patient_us is not None or job.is_paused]
    for job in patient:
        job.state, job.patient_us = "pending", None
        hooks.wait(cohort, job, now_us)
    for job in [job for job in due if job not in patient]:
        if job.own_due_us is None and due_times.may_stretch(cohort):
            due_times.renew(cohort, job, job.due, stretches=True)
        if merging.enter(cohort, job, now_us):
            hooks.leave(cohort, job, now_us)  # its key may be reserved for it
        elif job.patient_us is None:
            job.state = "pending"
            hooks.wait(cohort, job, now_us)
        if job.again_us is None:
            recurring.match(cohort, job, now_us)
    return due


def _end_expired(cohort: Cohort, now_us: int) -> int:
    """End waiting jobs that have expired. Return the number of checked jobs, each job that does not wait only once."""
    expired = sorted((at_us, job_id) for job_id, at_us in cohort.expiring.items() if at_us <= now_us)[:MAX_MOVES]
    for _, job_id in expired:
        del cohort.expiring[job_id]
        ends.waiting(cohort, cohort.jobs[job_id], "expired", now_us)
    return len(expired)


def _recover_the_dead(cohort: Cohort, types: set[str], now_us: int) -> _Recovered:
    """Reclaim jobs of silent workers, up to the limits per invocation. Add their types to *types*."""
    silent_since_us = now_us - int(cohort.settings.get("worker_timeout_us"))
    if cohort.grace_us is None or cohort.grace_us > silent_since_us:
        return _Recovered(0, [])
    recovered, dead = 0, list[str]()
    silent = [each for each in cohort.workers.values() if each.seen_us <= silent_since_us]
    silent.sort(key=lambda each: (each.seen_us, each.id))
    types_left = MAX_TYPES
    for worker in silent[:MAX_MOVES]:
        types_left -= len(worker.types)
        back, gone = workers.take_back(cohort, worker, MAX_MOVES - recovered, types, now_us, "silent")
        recovered, dead = recovered + back, dead + [worker.name] * gone
        if not gone or types_left <= 0:
            break
    return _Recovered(recovered, dead)


def _until_due_us(times_us: list[int], now_us: int) -> int | None:
    return max(0, min(times_us) - now_us) if times_us else None
