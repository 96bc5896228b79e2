"""Indexes of jobs, in addition to lanes: by task id, by stamp, and by expiry."""

from collections.abc import Collection

from .model import Cohort, Job


def add(cohort: Cohort, job: Job, expires_us: int | None, stamps: Collection[str], now_us: int) -> bool:
    """Add *job* to all indexes. Return True if its task has other jobs that have not ended."""
    job.expires_us, job.stamps = expires_us, tuple(stamps)
    for stamp in stamps:
        cohort.stamped.setdefault(stamp, {})[job.id] = now_us
    if expires_us is not None:
        cohort.expiring[job.id] = expires_us
    is_again = _add_to_task(cohort, job)
    job.has_more = job.has_more or is_again or bool(stamps) or expires_us is not None
    return is_again


def fade(cohort: Cohort, job: Job) -> None:
    """Remove *job*, which no longer waits, from the indexes that end waiting jobs."""
    for stamp in job.stamps:
        cohort.stamped.get(stamp, {}).pop(job.id, None)
    cohort.expiring.pop(job.id, None)


def remove(cohort: Cohort, job: Job, *, keeps_last: bool) -> None:
    """Remove *job* from all indexes. *keeps_last*: its task still finds it for a while, if it is the last one."""
    fade(cohort, job)
    if not keeps_last or len(cohort.tasks.get(job.task_id, ())) > 1:
        _remove_from_task(cohort, job)


def revoke(cohort: Cohort, task_id: str, now_us: int) -> None:
    """Let jobs of a task end immediately if they are published after this."""
    cohort.revoked[task_id] = now_us
    for job_id in cohort.tasks.get(task_id, {}):
        cohort.jobs[job_id].has_more = True


def is_revoked(cohort: Cohort, task_id: str, stamps: Collection[str] = (), enqueued_us: int = 0) -> bool:
    """Return True if a job's task was revoked, or one of its stamps after its enqueue time."""
    return (task_id != "" and task_id in cohort.revoked) or any(
        cohort.revoked_stamps.get(each, -1) >= enqueued_us for each in stamps
    )


# -- The jobs of a task: most tasks have one. The last ended job is kept for a while.


def _add_to_task(cohort: Cohort, job: Job) -> bool:
    """Add *job* to the jobs of its task. Return True if others have not ended."""
    if not job.task_id:
        return False
    jobs = cohort.tasks.setdefault(job.task_id, {})
    if any(cohort.is_fading(cohort.jobs[each]) for each in jobs):
        jobs.clear()
    for each in jobs:
        cohort.jobs[each].has_more = True
    has_others = bool(jobs)
    jobs[job.id] = max(jobs.values(), default=0) + 1
    return has_others


def _remove_from_task(cohort: Cohort, job: Job) -> None:
    left = cohort.tasks.get(job.task_id, {})
    left.pop(job.id, None)
    if len(left) == 1:
        cohort.tasks[job.task_id] = dict.fromkeys(left, 1)
    elif not left:
        cohort.tasks.pop(job.task_id, None)
