"""Recurring calls: what postpones them, and their times after a clock reset."""

from celery_affinity.schema.rules_codec import decode_rules

from .model import Cohort, Job, Recurring

# -- Postponements: a call fires when no matching call arrived in time.


def match(cohort: Cohort, job: Job, now_us: int) -> None:
    """*job* has become pending and is not a retry: it postpones matching calls."""
    for entry in _matching(cohort, job, "enqueue"):
        _reset(cohort, entry, job, job.task_id, now_us)


def run(cohort: Cohort, job: Job, ran: Job, now_us: int) -> None:
    """Postpone calls with ``since="end"``: the run of *job* has succeeded. *ran*: the job, or the primary of a batch.

    A retried run has not ended: its task has another job.
    """
    if ran.task_id and [*cohort.tasks.get(ran.task_id, ())] != [ran.id]:
        return
    for entry in _matching(cohort, job, "end"):
        _reset(cohort, entry, job, ran.task_id, now_us)


def take_back(cohort: Cohort, job: Job, now_us: int) -> None:
    """The pending *job* ends without a run: the calls that it postponed are due as if it had never been published."""
    for entry in _matching(cohort, job, "enqueue"):
        due_us = max(now_us + 1, job.enqueued_us + entry.call.stale_after_us)  # a past firing may have been made
        if due_us < entry.due_us:
            set_due(entry, due_us)


def set_due(entry: Recurring, due_us: int) -> None:
    entry.due_us = due_us
    if entry.handed_out_us is not None:
        entry.handed_out_us = due_us


def names_of(cohort: Cohort, job: Job) -> list[str]:
    """Return the names of the calls that *job* matches."""
    merge = decode_rules(job.rules).merge
    place = merge and (job.type, merge.key, job.task_name)
    calls = [entry.call for entry in cohort.recurring.values()] if place else []
    return [call.name for call in calls if (call.type, call.merge_key, call.task) == place]


def _matching(cohort: Cohort, job: Job, since: str) -> list[Recurring]:
    entries = [cohort.recurring[name] for name in names_of(cohort, job)]
    return [entry for entry in entries if entry.call.since == since]


def _reset(cohort: Cohort, entry: Recurring, job: Job, task_id: str, now_us: int) -> None:
    entry.matched_us, entry.matched_by = now_us, task_id
    set_due(entry, now_us + entry.call.stale_after_us)
    if job.recurring != entry.call.name:
        cohort.counters["recurring_reset"] += 1


# -- Times of recurring calls after a clock reset.


def clock_was_set_back(cohort: Cohort, now_us: int) -> None:
    """Limit each due time to the time after a postponement now."""
    for entry in cohort.recurring.values():
        latest_us = now_us + entry.call.stale_after_us
        entry.due_us = min(entry.due_us, latest_us)
        if entry.handed_out_us is not None:
            entry.handed_out_us = min(entry.handed_out_us, latest_us)
