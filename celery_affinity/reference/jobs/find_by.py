"""What finds a job besides its lane: its task id, its stamps, the time at which it expires."""

from collections.abc import Collection

from ..model import Cohort, Job


def add(cohort: Cohort, job: Job, expires_us: int | None, stamps: Collection[str], now_us: int) -> None:
    _add_to_task(cohort, job)
    job.expires_us, job.stamps = expires_us, tuple(stamps)
    for stamp in stamps:
        cohort.stamped.setdefault(stamp, {})[job.id] = now_us
    if expires_us is not None:
        cohort.expiring[job.id] = expires_us


def fade(cohort: Cohort, job: Job) -> None:
    """Have nothing find *job* that ends waiting jobs: it waits no more."""
    for stamp in job.stamps:
        cohort.stamped.get(stamp, {}).pop(job.id, None)
    cohort.expiring.pop(job.id, None)


def remove(cohort: Cohort, job: Job, *, keeps_last: bool) -> None:
    """Have nothing find *job*, but its task for a while if *keeps_last* and the task has no other."""
    fade(cohort, job)
    if not keeps_last or len(cohort.tasks.get(job.task_id, ())) > 1:
        _take_from_task(cohort, job)


def is_revoked(cohort: Cohort, job: Job) -> bool:
    """Return whether the job's task was revoked or, since its enqueue time, one of its stamps."""
    return is_task_revoked(cohort, job) or any(
        cohort.revoked_stamps.get(each, -1) >= job.enqueued_us for each in job.stamps
    )


def is_task_revoked(cohort: Cohort, job: Job) -> bool:
    return bool(job.task_id) and job.task_id in cohort.revoked


def _add_to_task(cohort: Cohort, job: Job) -> None:
    if not job.task_id:
        return
    jobs = cohort.tasks.setdefault(job.task_id, {})
    if any(cohort.is_fading(cohort.jobs[each]) for each in jobs):
        jobs.clear()
    jobs[job.id] = max(jobs.values(), default=0) + 1


def _take_from_task(cohort: Cohort, job: Job) -> None:
    left = cohort.tasks.get(job.task_id, {})
    left.pop(job.id, None)
    if len(left) == 1:
        cohort.tasks[job.task_id] = dict.fromkeys(left, 1)
    elif not left:
        cohort.tasks.pop(job.task_id, None)
