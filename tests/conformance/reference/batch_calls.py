"""The calls that merged into a batch, and what is open for further ones."""

from typing import Literal

from celery_affinity.schema.rules_codec import decode_rules

from . import hooks, recurring
from .model import Cohort, Job


def place(job: Job) -> tuple[str, str, str, str]:
    """Return what calls merge by that are alike in it."""
    merge = decode_rules(job.rules).merge
    return job.type, merge.key if merge else "", decode_rules(job.rules).text_of_keys, job.task_name


def published_us(call: Job) -> int:
    """Return when *call* was published, a retry as its first try was."""
    times_us = (call.again_us, call.published_us, call.enqueued_us)
    return next(each for each in times_us if each is not None)


def close(cohort: Cohort, job: Job) -> None:
    """Let no further call join *job*, which may be one that merges, or a batch."""
    if decode_rules(job.rules).merge and cohort.merging.get(place(job)) == job.id:
        del cohort.merging[place(job)]


def let_go(cohort: Cohort, caller: Job, how: Literal["revoked", "expired"], now_us: int) -> bool:
    """Take a call that is to end out of its batch. Return False if the run is under way that its result comes from.

    While the batch is claimed, the call whose message the worker has is the worker's, and no other expires whose time
    came after the claim. The last call that leaves ends the batch.
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
    """Take *caller* out of its batch."""
    del cohort.jobs[caller.into or ""].callers[caller.id]
    caller.into = None


def vanish(cohort: Cohort, batch: Job, now_us: int) -> None:
    """Forget a batch that has no call left."""
    recurring.take_back(cohort, batch, now_us)
    close(cohort, batch)
    del cohort.jobs[batch.id]
