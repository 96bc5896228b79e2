"""Operators' functions: revoke, purge, move, replay, drop, pause, resume, configure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar, cast

from celery_affinity.schema import job_record
from celery_affinity.schema.constants import MAX_PURGED, MAX_REVOKED
from celery_affinity.schema.values import withdrawn_mark

from .. import (
    batch_calls,
    batches,
    due_times,
    ends,
    fair_share,
    hooks,
    job_index,
    keys,
    matching,
    merge_window,
    merging,
    recurring,
    requeue,
    type_limits,
)
from ..model import Cohort, Job
from ..replies import Configured, Moved, Purged, Replayed, Resumed, Revoked, WasFound

_P, _R = ParamSpec("_P"), TypeVar("_R")


def _filling_nothing(arrow: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return the function *arrow*, followed by a tick that fills slots with jobs that others blocked."""

    @wraps(arrow)
    def call(*args: _P.args, **options: _P.kwargs) -> _R:
        reply = arrow(*args, **options)
        keys.leave_to_tick(cast("Cohort", args[0]))
        return reply

    return call


# -- revoke: waiting jobs end immediately; jobs published later under these names end, too.


@_filling_nothing
def revoke(cohort: Cohort, task_ids: Sequence[str], *, now_us: int, after: int = 0) -> Revoked:
    """End the waiting jobs of these tasks. *after*: the value in the last reply."""
    with keys.stop_waiting(cohort, now_us):
        return _revoke(cohort, task_ids, now_us, after)


def _revoke(cohort: Cohort, task_ids: Sequence[str], now_us: int, after: int) -> Revoked:
    for task_id in task_ids:
        job_index.revoke(cohort, task_id, now_us)
    ended = looked_at = 0
    others: list[str] = []
    for nth, task_id in enumerate(task_ids):
        if looked_at == MAX_REVOKED:
            return Revoked(ended, len(task_ids) - nth, 0, others)
        jobs = cohort.tasks.get(task_id, {})
        passed = after if nth == 0 and len(jobs) > 1 else 0
        page = [job_id for job_id, number in jobs.items() if number > passed][: MAX_REVOKED - looked_at]
        looked_at += len(page)
        ended += _end(cohort, task_id, page, others, now_us)
        if looked_at == MAX_REVOKED and len(jobs) > 1:
            return Revoked(ended, len(task_ids) - nth, jobs[page[-1]], others)
    return Revoked(ended, 0, 0, others)


def _end(cohort: Cohort, name: str, job_ids: Sequence[str], others: list[str], now_us: int) -> int:
    """End the waiting jobs of *name*. Return their number. If there are others, or no jobs, add it to *others*."""
    ended = sum([ends.waiting(cohort, cohort.jobs[job_id], "revoked", now_us) for job_id in job_ids])
    if ended < len(job_ids) or not job_ids:
        others.append(name)
    return ended


@_filling_nothing
def revoke_stamped(cohort: Cohort, stamps: Sequence[str], *, now_us: int) -> Revoked:
    """End the waiting jobs with one of these stamps."""
    with keys.stop_waiting(cohort, now_us):
        return _revoke_stamped(cohort, stamps, now_us)


def _revoke_stamped(cohort: Cohort, stamps: Sequence[str], now_us: int) -> Revoked:
    cohort.revoked_stamps |= dict.fromkeys(stamps, now_us)
    ended = looked_at = 0
    others: list[str] = []
    for nth, stamp in enumerate(stamps):
        bearing = sorted((at_us, job_id) for job_id, at_us in cohort.stamped.get(stamp, {}).items())
        page = [job_id for _, job_id in bearing[: MAX_REVOKED - looked_at]]
        for job_id in page:
            del cohort.stamped[stamp][job_id]
        looked_at += len(page)
        ended += _end(cohort, stamp, page, others, now_us)
        if looked_at == MAX_REVOKED:
            return Revoked(ended, len(stamps) - nth, 0, others)
    return Revoked(ended, 0, 0, others)


# -- purge: deletes waiting jobs of a type for an operator.


@_filling_nothing
def purge(cohort: Cohort, type_: str, scheduled: Iterable[str] = (), *, now_us: int) -> Purged:
    """Delete pending jobs of a type, and the named scheduled ones.

    The order of the pending jobs is not defined. A server deletes fewer per invocation if they have keys or many calls.
    """
    named = [cohort.jobs[job_id] for job_id in dict.fromkeys(scheduled) if job_id in cohort.jobs]
    waiting = [job for job in named if job.state == "scheduled" and job.type == type_]
    pending = cohort.pending({type_})
    for job in [*(job for job in waiting if job.is_patient or job.is_paused), *pending[:MAX_PURGED]]:
        recurring.take_back(cohort, job, now_us)
    for job in waiting + pending[:MAX_PURGED]:
        requeue.delete(cohort, job, now_us)
    keys.many_leave(cohort, waiting + pending[:MAX_PURGED], now_us)
    return Purged(len(waiting) + min(len(pending), MAX_PURGED), len(pending) > MAX_PURGED)


# -- move: changes type, mode or priority of a waiting job for an operator.


def move(
    cohort: Cohort,
    job_ids: Iterable[str],
    *,
    type_: str | None = None,
    on_demand: bool | None = None,
    priority: int | None = None,
    now_us: int,
) -> Moved:
    """Move pending or scheduled jobs, or the batches they merged into. None leaves a value unchanged.

    They keep their enqueue times. A claimed job belongs to its worker, and an ended job does not change.
    """
    found: list[WasFound] = []
    types: set[str] = set()
    for job_id in job_ids:
        job = cohort.jobs.get(job_id)
        if job is None:
            found.append(WasFound("", 1))
            continue
        if job.state == "merged":
            job = cohort.jobs[job.into or ""]
        found.append(WasFound(job.state, len(job.callers) if job.calls else 1))
        to = (
            job.type if type_ is None else type_,
            job.on_demand if on_demand is None else on_demand,
            job.priority if priority is None else priority,
        )
        if job.state in ("pending", "scheduled") and to != (job.type, job.on_demand, job.priority):
            _change(cohort, job, *to, now_us)
            types |= {job.type} if job.state == "pending" else set()
    is_served = type_ is None or bool(cohort.capacity(type_) or cohort.capacity(withdrawn_mark(type_)))
    return Moved(matching.fill(cohort, types, now_us), is_served, found)


def _change(cohort: Cohort, job: Job, type_: str, on_demand: bool, priority: int, now_us: int) -> None:
    former_place, is_pending = batch_calls.place(job), job.state == "pending"
    if is_pending:
        job.state = "merged"  # in no lane
        hooks.leave(cohort, job, now_us)
    job.type, job.on_demand, job.priority, job.is_moved = type_, on_demand, priority, True
    if is_pending:
        job.state = "pending"
        hooks.wait(cohort, job, now_us)
    if batch_calls.place(job) != former_place and cohort.merging.get(former_place) == job.id:
        del cohort.merging[former_place]
        merging.open_unless_open(cohort, job)
        if cohort.merging[batch_calls.place(job)] != job.id:
            merge_window.finish(cohort, job)
    if job.is_patient and on_demand:
        merge_window.finish(cohort, job)


# -- replay: dead -> pending for an operator, like a new publish.


def replay(cohort: Cohort, job_ids: Iterable[str], *, now_us: int) -> Replayed:
    """Replay dead letters that still have their message, without their former expiry and revocation."""
    replayed = [job for job in cohort.dead(job_ids) if job.message is not None or job_record.is_batch(job.id)]
    for job in replayed:
        job.state, job.enqueued_us, job.deliveries, job.reason, job.ended_us = "pending", now_us, 0, None, None
        job.acked, job.left, job.tries, job.is_listed, job.why = False, (), 0, True, ""
        job.rank_us, job.requeues, job.pauses = None, 0, 0
        due_times.renew(cohort, job, job.due, stretches=True)
        cohort.unreported.pop(job.id, None)
        job_index.fade(cohort, job)
        job.expires_us, job.stamps = None, ()
        if job_record.is_batch(job.id):
            batches.wait_again(cohort, job)
        hooks.wait(cohort, job, now_us)
    return Replayed(matching.fill(cohort, {job.type for job in replayed}, now_us), [job.id for job in replayed])


# -- drop: deletes dead letters for an operator.


def drop(cohort: Cohort, job_ids: Iterable[str], *, now_us: int) -> int:
    """Delete dead letters. Return their number. A batch is deleted once all of its callers have a report."""
    dead = cohort.dead(job_ids)
    for job in dead:
        if job_record.is_batch(job.id) and job.id in cohort.unreported:
            job.is_listed = False
        else:
            requeue.delete(cohort, job, now_us)
    return len(dead)


# -- pause: no job of a type, of a key, or of any type starts until `resume`, or until the pause ends.


def pause(cohort: Cohort, what: str, *, for_us: int | None, why: str, now_us: int) -> bool:
    """Pause *what*: "type:T" or "key:K", encoded, or "*" for all. Return True if it was not paused."""
    is_new = what not in cohort.pauses
    cohort.settings.revision += 1
    until_us = 0 if for_us is None else now_us + for_us
    cohort.pause_ends.pop(what, None)
    if for_us is not None:
        cohort.pause_ends[what] = until_us
    words = f"{now_us} {until_us} {why}"
    if what.startswith("key:"):
        cohort.pauses[what] = words
        keys.reevaluate(cohort, {what.removeprefix("key:")}, now_us, fills=True)
    else:
        type_limits.pause(cohort, what, words)
    # Unstarted jobs are recalled: the worker reads the control message before them.
    for worker in cohort.workers.values():
        worker.inbox.insert(0, f"\npaused {what} {cohort.fence}")
    return is_new


# -- resume: a pause ends; jobs that may start get the free slots.


def resume(cohort: Cohort, what: str, *, now_us: int) -> Resumed:
    """End the pause of *what*."""
    was_paused = what in cohort.pauses
    end_pause(cohort, what, now_us)
    return Resumed(was_paused, matching.fill(cohort, (), now_us))


def end_pause(cohort: Cohort, what: str, now_us: int) -> None:
    """Delete the pause of *what*. The next `fill` checks which jobs may start."""
    cohort.settings.revision += 1
    if what.startswith("key:"):
        cohort.pauses.pop(what, None)
        cohort.pause_ends.pop(what, None)
        cohort.to_fill |= keys.reevaluate(cohort, {what.removeprefix("key:")}, now_us, fills=True)
    else:
        type_limits.pause(cohort, what, None)


# -- configure: settings change at run time, or are reset to app.conf. They apply to the next claim.


def configure(cohort: Cohort, changes: Mapping[str, str], *, now_us: int) -> Configured:
    """Change settings; "" resets one to the last value in app.conf."""
    before = dict(cohort.settings.values)
    revision = cohort.settings.change(changes)
    fair_share.change_shares(cohort)
    type_limits.change(cohort, before)
    keys.recheck(cohort, now_us)
    return Configured(revision, matching.fill(cohort, (), now_us))
