"""Merged calls: the batch that a call joins, and the call of a batch that runs."""

from celery_affinity.schema import job_record
from celery_affinity.schema.constants import MAX_MOVES
from celery_affinity.schema.rules_codec import BATCH, MERGES, StatedMerge, decode_rules

from . import batch_calls, ends, hooks, merge_window
from .model import Cohort, Job

# -- Waiting calls of one task with one merge key are one run. The second call makes a batch of the two. The batch
# waits, is claimed and requeued like a job. A single call is a plain job. Calls join when they would begin to wait, and
# only jobs that wait themselves and were never delivered.


def enter(cohort: Cohort, job: Job, now_us: int) -> bool:
    """Let *job* join an open job with the same merge attributes. Return True if it joined; otherwise it is open itself.

    Then *job* is scheduled if it collects others, or must still be placed (`merge_window`).

    The batch keeps the oldest enqueue time, and the best mode and priority, of all calls that ever joined.
    """
    merge = decode_rules(job.rules).merge
    if merge is None:
        return False
    other = _open(cohort, job, merge)
    if other is None:
        before = cohort.jobs.get(cohort.merging.get(batch_calls.place(job), ""))
        if before is not None:
            merge_window.finish(cohort, before)
        cohort.merging[batch_calls.place(job)] = job.id
        merge_window.begin(cohort, job, merge, now_us)
        return False
    job.state = "merged"
    batch = other if job_record.is_batch(other.id) else _batch_of(cohort, other, now_us)
    assert batch.calls is not None
    assert batch.bytes is not None
    batch.calls += 1
    batch.bytes += job.bytes or 0
    _add(job, batch, batch.calls)
    on_demand, priority = batch.on_demand or job.on_demand, max(batch.priority, job.priority)
    enqueued_us = min(batch.enqueued_us, job.enqueued_us)
    head_us = enqueued_us - min(batch.order_us, job.order_us)
    if job.own_due_us is not None and (batch.own_due_us is None or job.own_due_us < batch.own_due_us):
        batch.due, batch.own_due_us = job.due, job.own_due_us
    if batch.state == "scheduled":
        batch.on_demand, batch.priority, batch.enqueued_us, batch.head_us = on_demand, priority, enqueued_us, head_us
        merge_window.restart(cohort, batch, merge, now_us)
    elif (on_demand, priority, enqueued_us, head_us) != (
        batch.on_demand,
        batch.priority,
        batch.enqueued_us,
        batch.head_us,
    ):
        batch.state = "merged"  # in no lane
        hooks.leave(cohort, batch, now_us)
        batch.on_demand, batch.priority, batch.enqueued_us, batch.head_us = on_demand, priority, enqueued_us, head_us
        batch.state = "pending"
        hooks.wait(cohort, batch, now_us)
    return True


def _add(call: Job, batch: Job, number: int) -> None:
    call.into, call.bytes = batch.id, None
    rules = decode_rules(call.rules)
    call.has_rules_of_its_own = number <= MAX_MOVES or bool(rules.keys or rules.hint)
    batch.callers[call.id] = number


def open_unless_open(cohort: Cohort, batch: Job) -> None:
    """Open *batch* for further calls, unless they have another open job."""
    other = cohort.jobs.get(cohort.merging.get(batch_calls.place(batch), ""))
    if other is None or other.state not in ("pending", "scheduled") or other.deliveries:
        cohort.merging[batch_calls.place(batch)] = batch.id


def _open(cohort: Cohort, job: Job, merge: StatedMerge) -> Job | None:
    """Return the call or batch that *job* can join, or None if none is open or has space."""
    other = cohort.jobs.get(cohort.merging.get(batch_calls.place(job), ""))
    if other is None or other.state not in ("pending", "scheduled") or other.deliveries:
        return None
    bytes_in_all = (other.bytes or 0) + (job.bytes or 0)
    if (other.calls or 1) >= merge.most or bytes_in_all > merge.most_bytes:
        return None
    is_free = job_record.is_batch(other.id) or batch_id(other.id) not in cohort.jobs
    return other if is_free else None


def batch_id(first: str) -> str:
    """Return the id of the batch whose first call has the id *first*."""
    mark = job_record.key_suffix(first)
    return first.removesuffix(mark).removesuffix(MERGES) + BATCH + mark


def _batch_of(cohort: Cohort, first: Job, now_us: int) -> Job:
    """Return a new batch that replaces *first*, its first call."""
    batch = Job(
        id=batch_id(first.id),
        type=first.type,
        on_demand=first.on_demand,
        priority=first.priority,
        enqueued_us=first.enqueued_us,
        state=first.state,
        message=None,
        task_name=first.task_name,
        rules=first.rules,
        bytes=first.bytes,
        calls=1,
        is_moved=first.is_moved,
        due=first.due if first.own_due_us is not None else "",
        own_due_us=first.own_due_us,
        head_us=first.head_us,
    )
    batch.patient_us, first.patient_us = first.patient_us, None
    first.state = "merged"
    _add(first, batch, 1)
    hooks.leave(cohort, first, now_us)
    cohort.jobs[batch.id] = batch
    cohort.merging[batch_calls.place(batch)] = batch.id
    if batch.state == "pending":
        hooks.wait(cohort, batch, now_us)
    return batch


# -- The primary: the call of a batch that runs.


def choose(cohort: Cohort, batch: Job, now_us: int) -> Job | None:
    """Choose the primary: the first call that has not expired. End those before it. Return None if no call remains.

    One invocation chooses among at most `MAX_MOVES` calls. If all of these have expired, the worker checks the next
    one.
    """
    for job_id in list(batch.callers)[:MAX_MOVES]:
        caller = cohort.jobs[job_id]
        if not caller.has_expired(now_us):
            break
        batch_calls.remove(cohort, caller)
        ends.record(cohort, caller, "expired", now_us)
    if not batch.callers:
        batch_calls.vanish(cohort, batch, now_us)
        return None
    primary = cohort.jobs[next(iter(batch.callers))]
    batch.primary, batch.task_id, batch.size = primary.id, primary.task_id, len(batch.callers)
    return primary
