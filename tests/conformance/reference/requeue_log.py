"""The last jobs that left a worker unfinished, with the causes."""

from typing import NamedTuple

from celery_affinity.schema.constants import MAX_REQUEUES
from celery_affinity.schema.values import encode_part

from .model import Cohort, Job


class Entry(NamedTuple):
    """A requeue before the job left its worker: *worker* is the name, *task* the id."""

    cause: str
    how: str
    worker: str
    task: str


def entry(cohort: Cohort, job: Job, how: str, cause: str | None) -> Entry | None:
    """Return the entry about *job*, or None for the return of an unstarted job by a worker that takes more jobs."""
    worker = cohort.workers[job.worker or ""]
    if cause is None and not worker.accepting and how in ("returned", "unsettled"):
        cause = "shutdown"
    elif cause is None and how == "returned" and job.started_us is None:
        return None
    return Entry(cause or how, how, worker.name, job.task_id)


def record(cohort: Cohort, job: Job, made: Entry, now_us: int) -> None:
    """Record *made* unless the job ended meanwhile."""
    outcome = job.state if job.state in ("pending", "scheduled") else job.reason if job.state == "dead" else None
    if outcome:
        names = (made.worker, job.type, job.id, made.task)
        encoded = (encode_part(name) if name is not job.id else name for name in names)
        tokens = (str(now_us), made.cause, made.how, outcome, *(token or "-" for token in encoded))
        cohort.requeues = [" ".join(tokens), *cohort.requeues][:MAX_REQUEUES]
