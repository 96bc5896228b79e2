"""publish: client -> pending, or scheduled if its time is still to come."""

from collections.abc import Collection, Mapping, Sequence

from celery_affinity.rules.bounds import Bound
from celery_affinity.rules.job_fields import Job
from celery_affinity.rules.protocol import IS_FULL, IS_MERGED, IS_PENDING, IS_REFUSED

from ..jobs import bounds, enter
from ..keyed import standing as key_standing
from ..model import Cohort
from ..placing.fill import fill
from ..replies import NONE, Published
from ..types import reserves


def publish(
    cohort: Cohort,
    jobs: Sequence[Job | str],
    *,
    now_us: int,
    recurring: str = "",
    bounded: Mapping[str, Bound] | None = None,
) -> list[Published]:
    """Add *jobs*. A known id changes nothing. The first reply says `more`.

    They stay in order: each is enqueued 1 µs after the one before. In the place of a job stands the name of its field
    for which it is refused (`job_fields.bad`), if there is one. *recurring*: the call that they are firings of.
    *bounded*: how many jobs of some types may wait.
    """
    full = bounds.full(cohort, jobs, bounded, now_us) if bounded else None
    if full is not None:
        return [Published(IS_FULL, NONE, True, full) for _ in jobs]
    published: list[Published] = []
    types: set[str] = set()
    fresh: set[str] = set()
    for nth, job in enumerate(jobs):
        if isinstance(job, str):
            published.append(Published(IS_REFUSED, NONE, True, job))
            continue
        others_wait = bool(key_standing.standing(cohort, {job.type}))
        reply = enter.put(cohort, job, now_us + nth, now_us, recurring=recurring)
        is_to_be_placed = reply.state in (IS_PENDING, IS_MERGED) and reply.served
        has_dropped = False
        if bounded:
            state, has_dropped = bounds.keep(cohort, job, reply.state, bounded, now_us)
            reply = reply._replace(state=state)
        if (is_to_be_placed and (not others_wait or reserves.in_force(cohort))) or has_dropped:
            types.add(job.type)  # else no free slot fits, or somebody goes on with them
        published.append(reply)
        if reply.state == IS_PENDING:
            fresh.add(job.id)
        if reply.state == IS_MERGED:
            fresh |= _batch_of_fresh(cohort, job.id, fresh)
    more = fill(cohort, types, now_us, only=fresh)
    return [published[0]._replace(more=more), *published[1:]]


def _batch_of_fresh(cohort: Cohort, job_id: str, fresh: Collection[str]) -> set[str]:
    """Return the batch that *job_id* merged into, if its first message is one of those just published; or nothing."""
    batch = cohort.jobs[cohort.jobs[job_id].into or ""]
    return {batch.id} if next(iter(batch.callers)) in fresh else set()
