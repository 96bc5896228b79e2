"""move: a job that waits gets another type, mode or priority, because a person asked for it."""

from collections.abc import Iterable

from celery_affinity.rules.keys import withdrawn

from ..keyed import keyed
from ..merging import callers, merging, patience
from ..model import Cohort, Job
from ..placing.fill import fill
from ..replies import Moved, WasFound


def move(
    cohort: Cohort,
    job_ids: Iterable[str],
    *,
    type_: str | None = None,
    on_demand: bool | None = None,
    priority: int | None = None,
    now_us: int,
) -> Moved:
    """Move jobs that are pending or scheduled, or the batches that they were merged into; None leaves as it is.

    They keep their enqueue times. A claimed job is its worker's, and one that has ended stays as it is.
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
    is_served = type_ is None or bool(cohort.capacity(type_) or cohort.capacity(withdrawn(type_)))
    return Moved(fill(cohort, types, now_us), is_served, found)


def _change(cohort: Cohort, job: Job, type_: str, on_demand: bool, priority: int, now_us: int) -> None:
    former_place, is_pending = callers.place(job), job.state == "pending"
    if is_pending:
        job.state = "merged"  # in no place
        keyed.leave(cohort, job, now_us)
    job.type, job.on_demand, job.priority, job.is_moved = type_, on_demand, priority, True
    if is_pending:
        job.state = "pending"
        keyed.enter(cohort, job, now_us)
    if callers.place(job) != former_place and cohort.merging.get(former_place) == job.id:
        del cohort.merging[former_place]
        merging.open_if_none_is(cohort, job)
        if cohort.merging[callers.place(job)] != job.id:
            patience.finish(cohort, job)
    if job.is_patient and on_demand:
        patience.finish(cohort, job)
