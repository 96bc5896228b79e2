"""The jobs of a task: most tasks have one. One that has ended is kept for a while, if it was the last."""

from ..model import Cohort, Job


def add(cohort: Cohort, job: Job) -> bool:
    """Add *job* to those of its task. Return whether there are others that have not ended."""
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


def remove(cohort: Cohort, job: Job) -> None:
    left = cohort.tasks.get(job.task_id, {})
    left.pop(job.id, None)
    if len(left) == 1:
        cohort.tasks[job.task_id] = dict.fromkeys(left, 1)
    elif not left:
        cohort.tasks.pop(job.task_id, None)
