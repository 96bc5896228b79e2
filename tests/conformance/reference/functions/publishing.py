"""A job is published and gets a slot: publish, ingest, claim."""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import cast

from celery_affinity.schema import job_record
from celery_affinity.schema.bounds import Bound
from celery_affinity.schema.constants import (
    IS_FULL,
    IS_KNOWN,
    IS_MERGED,
    IS_NOT_NEXT,
    IS_PENDING,
    IS_REFUSED,
    IS_UNREADABLE,
)

from .. import enqueue, keys, matching, max_pending, requeue, type_limits
from ..model import Cohort, Job
from ..replies import NONE, Published

# -- publish: client -> pending, or scheduled if it is not due yet.


def publish(
    cohort: Cohort,
    jobs: Sequence[job_record.NewJob | str],
    *,
    now_us: int,
    recurring: str = "",
    bounded: Mapping[str, Bound] | None = None,
) -> list[Published]:
    """Add *jobs*. A known id changes nothing. The first reply contains `unfilled`.

    They keep their order: each is enqueued 1 µs after the one before. A refused job is represented by the name of its
    invalid field. *recurring*: the call that fired them. *bounded*: bounds by type.
    """
    full = max_pending.refuses(cohort, jobs, bounded, now_us) if bounded else None
    if full is not None:
        return [Published(IS_FULL, NONE, True, full) for _ in jobs]
    published: list[Published] = []
    types: set[str] = set()
    fresh: set[str] = set()
    for nth, job in enumerate(jobs):
        if isinstance(job, str):
            published.append(Published(IS_REFUSED, NONE, True, job))
            continue
        others_wait = bool(keys.standing(cohort, {job.type}))
        reply = enqueue.insert(cohort, job, now_us + nth, now_us, recurring=recurring)
        is_to_be_placed = reply.state in (IS_PENDING, IS_MERGED) and reply.served
        has_dropped = False
        if bounded:
            state, has_dropped = max_pending.enforce_max_pending(cohort, job, reply.state, bounded, now_us)
            reply = reply._replace(state=state)
        if (is_to_be_placed and (not others_wait or type_limits.in_force(cohort))) or has_dropped:
            types.add(job.type)  # otherwise no free slot fits, or another function continues with them
        published.append(reply)
        if reply.state == IS_PENDING:
            fresh.add(job.id)
        if reply.state == IS_MERGED:
            fresh |= _batch_of_fresh(cohort, job.id, fresh)
    unfilled = matching.fill(cohort, types, now_us, only=fresh)
    return [published[0]._replace(unfilled=unfilled), *published[1:]]


def _batch_of_fresh(cohort: Cohort, job_id: str, fresh: Collection[str]) -> set[str]:
    """Return the batch that *job_id* merged into, if its first message was just published, or no batch."""
    batch = cohort.jobs[cohort.jobs[job_id].into or ""]
    return {batch.id} if next(iter(batch.callers)) in fresh else set()


# -- ingest: a list of stock Celery -> pending, or scheduled.


def ingest(cohort: Cohort, list_: str, job: job_record.NewJob, *, readable: bool, now_us: int) -> Published:
    """Move a message like `publish`. If it is not *readable*, it becomes a dead letter.

    If it is not the next one in the list, nothing changes. A message with an invalid field is not readable.
    """
    waiting = cohort.lists.get(list_, [])
    if waiting[:1] != [job.message]:
        return Published(IS_NOT_NEXT, NONE, True)
    if job.id in cohort.jobs:
        return Published(IS_KNOWN, NONE, True)
    waiting.pop(0)
    if readable:
        (published,) = publish(cohort, [job], now_us=now_us)
        return published
    unreadable = Job(job.id, job.type, False, 0, now_us, "pending", cast("str", job.message))
    cohort.jobs[job.id] = unreadable
    requeue.dead_letter(cohort, unreadable, "unreadable", now_us)
    return Published(IS_UNREADABLE, NONE, True)


# -- claim: pending -> inbox. Other functions end with the same step; this one continues where they stopped.


def claim(cohort: Cohort, types: Iterable[str], *, now_us: int) -> Set[str]:
    """Continue with the types that another function returned as `unfilled`. Return `unfilled`."""
    return matching.fill(cohort, set(types), now_us)
