"""Recurring calls: what puts them off, and their times after a clock was set back."""

from celery_affinity.schema.rules_codec import decode_rules

from .model import Cohort, Job, Recurring

# -- Recurring calls: what puts one off, and what does so no more. A call is made when none that matches came in time.


def match(cohort: Cohort, job: Job, now_us: int) -> None:
    """*job* has become pending, and is no retry: it puts off what it matches."""
    for entry in _matching(cohort, job, "enqueue"):
        _reset(cohort, entry, job, job.task_id, now_us)


def run(cohort: Cohort, job: Job, ran: Job, now_us: int) -> None:
    """The run of *job* has succeeded: it puts off what counts from there. *ran*: the job, or the call of a batch.

    A run that was retried has come to no end yet: then its task has another job.
    """
    if ran.task_id and [*cohort.tasks.get(ran.task_id, ())] != [ran.id]:
        return
    for entry in _matching(cohort, job, "end"):
        _reset(cohort, entry, job, ran.task_id, now_us)


def take_back(cohort: Cohort, job: Job, now_us: int) -> None:
    """*job*, which was pending, ends without a run: what it put off is due as if no call had come since *job* did."""
    for entry in _matching(cohort, job, "enqueue"):
        due_us = max(now_us + 1, job.enqueued_us + entry.call.stale_after_us)  # what is past may have been made
        if due_us < entry.due_us:
            set_due(entry, due_us)


def set_due(entry: Recurring, due_us: int) -> None:
    """Have *entry* be due at another time."""
    entry.due_us = due_us
    if entry.handed_out_us is not None:
        entry.handed_out_us = due_us


def _matching(cohort: Cohort, job: Job, since: str) -> list[Recurring]:
    merge = decode_rules(job.rules).merge
    return [
        entry
        for entry in cohort.recurring.values()
        if merge
        and entry.call.since == since
        and (entry.call.type, entry.call.merge_key, entry.call.task) == (job.type, merge.key, job.task_name)
    ]


def _reset(cohort: Cohort, entry: Recurring, job: Job, task_id: str, now_us: int) -> None:
    entry.matched_us, entry.matched_by = now_us, task_id
    set_due(entry, now_us + entry.call.stale_after_us)
    if job.recurring != entry.call.name:
        cohort.counters["recurring_reset"] += 1


# -- The times of recurring calls, after the server's clock was set back.


def clock_was_set_back(cohort: Cohort, now_us: int) -> None:
    """Have nothing be due later than if it were put off now."""
    for entry in cohort.recurring.values():
        latest_us = now_us + entry.call.stale_after_us
        entry.due_us = min(entry.due_us, latest_us)
        if entry.handed_out_us is not None:
            entry.handed_out_us = min(entry.handed_out_us, latest_us)
