"""The calls that merged into a batch, and the calls or batches open for further calls."""

from typing import Literal

from celery_affinity.schema.rules_codec import decode_rules

from . import hooks, recurring
from .model import Cohort, Job


def place(job: Job) -> tuple[str, str, str, str]:
    """Return the attributes that calls must share to merge."""
    merge = decode_rules(job.rules).merge
    return job.type, merge.key if merge else "", decode_rules(job.rules).text_of_keys, job.task_name


def published_us(call: Job) -> int:
    """Return the publish time of *call*; for a retry, the publish time of its first attempt."""
    times_us = (call.again_us, call.published_us, call.enqueued_us)
    return next(each for each in times_us if each is not None)


def close(cohort: Cohort, job: Job) -> None:
    """Close *job*, a merging call or a batch, for further calls."""
    if decode_rules(job.rules).merge and cohort.merging.get(place(job)) == job.id:
        del cohort.merging[place(job)]


def let_go(cohort: Cohort, caller: Job, how: Literal["revoked", "expired"], now_us: int) -> bool:
    """Remove an ending call from its batch. Return False if the call must wait for the result of the current run.

    While the batch is claimed, its primary belongs to the worker, and a call whose expiry is later than the claim does
    not expire. The last removed call ends the batch.
    """
    batch = cohort.jobs[caller.into or ""]
    if batch.state == "claimed":
        is_its_workers = caller.id == batch.primary
        if is_its_workers or (how == "expired" and not caller.has_expired(batch.claimed_us or 0)):
            return False
        caller.ran_in = f"{batch.id}:{batch.fence}"
    elif batch.state not in ("pending", "scheduled"):
        return False
    remove(cohort, caller)
    if not batch.callers:
        vanish(cohort, batch, now_us)
        hooks.leave(cohort, batch, now_us)
    return True


def remove(cohort: Cohort, caller: Job) -> None:
    del cohort.jobs[caller.into or ""].callers[caller.id]
    caller.into = None


def vanish(cohort: Cohort, batch: Job, now_us: int) -> None:
    """Delete a batch without calls."""
    recurring.take_back(cohort, batch, now_us)
    close(cohort, batch)
    del cohort.jobs[batch.id]
