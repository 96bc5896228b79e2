"""The sentences of `explain`, `jobs` and the web UI: why a job waits, what blocks it, and why it is a dead letter.

Other modules of the package find the facts. Commands, HTTP and the web UI show these sentences unchanged.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from ..schema.constants import MAX_PRIORITY, REASONS
from ..schema.values import decode_part
from .render import time_text

if TYPE_CHECKING:
    from ..settings.reserves import Reserve
    from .blockers import OverdueJob, ReservedSlots
    from .job_rows import JobRow
    from .key_usage import KeyWait
    from .keys import KeyName
    from .stock_messages import StockMessage
    from .type_limits import PauseInForce

NOT_TOLD = "unknown whether its worker has read it: this Redis user has no right to read inboxes"
UNREAD = "in the worker's inbox, which it has not read yet"
NOT_STARTED = (
    "its worker has it and has not started it: a rate limit, a full pool, or a buffer of its task (celery-batches)"
)
NO_TICKS = "no dispatcher ticks: start a worker, or `celery affinity dispatcher`"


def requeue_pause_sentence(requeues: int, deliveries: int, remaining_s: float) -> str:
    """Describe the pause of a requeued or aborted job: the numbers of requeues and deliveries, and the next start."""
    times = [
        f"{event} {number} {'time' if number == 1 else 'times'}"
        for event, number in (("requeued", requeues), ("ended unfinished", deliveries))
        if number
    ]
    return f"{', '.join(times) or 'requeued'}, starts again in {max(0.0, remaining_s):,.0f} s"


def in_a_list_sentence(message: "StockMessage", *, is_scheduled: bool, ingests: bool) -> str:
    """Explain why a message is in its list, and what to do. *ingests*: setting ``affinity_ingest``."""
    where = f"its message is in stock Celery's list {message.list!r}: its producer does not have this transport"
    if not is_scheduled:
        return f"{where}, or left queue {message.queue!r} to kombu (affinity_queues), whose rules apply"
    if not message.is_served:
        return (
            f"{where}, so `affinity=` had no effect, and no live worker of this fleet serves queue {message.queue!r}. "
            'Set broker_transport = "celery_affinity:Transport" in the producer, for its next calls. Workers take over '
            f"the messages in the list once one of them serves the queue: -Q {message.queue}, or `celery -A ... "
            f"control add_consumer {message.queue}`"
        )
    if not ingests:
        return f"{where}, and workers leave such messages to stock workers (affinity_ingest = False)"
    return f"{where}. A worker takes it over within seconds; if it stays there, the workers' log says why"


def dead_sentence(reason: str, deliveries: int) -> str | None:
    """Return why a job is a dead letter without a message of a worker, or None for other *reasons*."""
    text = REASONS[reason].if_untold if reason in REASONS else ""
    return text.format(deliveries=deliveries) or None


LIMITED_IN_WORKERS = "a rate limit, or a full buffer (celery-batches): enough jobs wait in the workers of the type"


def unserved_sentence(type_: str) -> str:
    """Return the text for a *type_* that no live worker serves, with the remedy."""
    return f"no live worker serves type {type_!r}: start one with -Q {type_}"


def all_busy_sentence(slots: int) -> str:
    """Return the text for *slots* fitting slots that are all busy."""
    return "its slot is busy" if slots == 1 else f"all {slots} slots that fit are busy or draining"


def overdue_sentence(jobs: Sequence["OverdueJob"]) -> str:
    """Return which job has taken a slot far too long, to follow `all_busy_sentence`, or ""."""
    if not jobs:
        return ""
    first = jobs[0]
    others = f", and {len(jobs) - 1} more" if len(jobs) > 1 else ""
    return (
        f"; {first.task_id} ({first.task}) on {first.worker} has had its slot for {first.ran_s:,.0f} s, usually "
        f"{first.usual_s:,.1f} s{others}"
    )


def for_tenant_clause(tenant: str, minimum: int) -> str:
    """Return the tenant that a job is preempted for. *minimum*: its current minimum, which may have changed."""
    return f"for tenant {tenant}, below its minimum of {minimum}" if minimum else f"for tenant {tenant}"


def stops_nothing_sentence(tenants: Sequence[str], above: Sequence[str]) -> str:
    """Return why no job is preempted. *tenants*: with preemptible jobs. *above*: those above their minimum."""
    if not tenants:
        return "no job: no preemptible job (preemptible=True) has a slot"
    if not above:
        return f"no job: the tenants of preemptible jobs have no more slots than their minimum ({_some(tenants)})"
    return (
        f"no job so far: no preemptible job ({_some(above)}) runs in a slot that serves the type, "
        "or each was stopped too recently or too often, or runs in a pool that cannot stop it"
    )


def _some(names: Sequence[str], limit: int = 3) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def blocked_by_reserve_sentence(shown: "ReservedSlots", live: int, free: int, running: int) -> str:
    """Return the text for a reserve that blocks a job.

    *live*, *free*: numbers of fitting slots and of free fitting slots. *running*: running jobs of the class, used if
    the reserve is too large.
    """
    if shown.is_too_large:
        others = f"only one other job may run at a time, and {running} {'runs' if running == 1 else 'run'}"
        return f"reserve: all {live} slots that fit are kept for {shown.for_whom}: {others}"
    of_slots = f"{shown.kept} of {live} slots that fit {'is' if shown.kept == 1 else 'are'} kept"
    return f"reserve: {of_slots} for {shown.for_whom}, {free} {'is' if free == 1 else 'are'} free"


def others_than_clause(reserve: "Reserve") -> str:
    """Return the jobs that a reserve keeps slots for: all jobs outside its class."""
    if reserve.mode is not None:
        return "queued jobs" if reserve.mode == "on_demand" else "on-demand jobs"
    if (reserve.first, reserve.last) == (0, MAX_PRIORITY):
        return "no other jobs"
    if reserve.first == 0:
        return f"priorities above {reserve.last}"
    if reserve.last == MAX_PRIORITY:
        return f"priorities below {reserve.first}"
    return f"priorities other than {reserve.of_class}"


def pause_sentence(pause: "PauseInForce") -> str:
    """Return a pause without its start time, because the clocks of readers differ."""
    until = "" if pause.until is None else f", for {max(0, round(pause.until - pause.since))} s in all"
    return f"{pause} {pause.verb} paused{until}" + (f": {pause.why}" if pause.why else "")


def blocked_by_key_sentence(wait: "KeyWait", type_: str, first: "JobRow | None" = None) -> str:
    """Return why a key blocks a job of *type_* (encoded). *first*: the next job, if the key has capacity."""
    key, before = wait.key, _before(wait.before)
    if key.tenant is not None:
        return _kept_by_tenant(key, key.tenant, wait.before)
    if key.limit == 0:
        return f"key {key.key!r} is closed: its limit is 0"
    if key.starts and not key.has_room:
        rate = f"{key.starts.most} may start in {key.starts.period_s:,.0f} s"
        return f"key {key.key!r}: {rate}, the next in {key.starts.next_s:,.1f} s; {before}"
    if key.kept_for is not None:
        return f"key {key.key!r} is kept for the retry of {key.kept_for}; {before}"
    if key.is_kept_from(decode_part(type_)):
        return f"key {key.key!r} is kept for type {key.turn!r}, which has waited for it longest; {before}"
    if not key.has_room:
        return f"key {key.key!r}: {key.held} of {key.limit} held{_holder(key)}; {before}"
    who = f": {first.task_id} ({first.task})" if first and first.task_id else ""
    held = "" if key.starts else f" ({key.held} of {key.limit} held)"
    return f"key {key.key!r} has capacity{held}, but another job of the key starts first{who}; {before}"


def _kept_by_tenant(key: "KeyName", name: str, before: int) -> str:
    others = f"{key.waiting} of its jobs wait, {before} of them before this one"
    if key.limit == 0:
        return f"tenant {name!r} is closed: its maximum is 0; {others}"
    if not key.has_room:
        return f"tenant {name!r} has {key.held} of {key.limit} slots, its maximum; {others}"
    return f"tenant {name!r} has {key.held} slots and is below its maximum; {others}"


def deadline_sentence(name: str, deadline_s: float) -> str:
    """Return that a job cannot meet its deadline. *name*: the job as text."""
    return f"{name}: its deadline {_clock_text(deadline_s)} cannot be met, its run time is longer"


def no_start_sentence(name: str, due_s: float, why: str) -> str:
    """Return when a job is due, and *why* its start is not expected."""
    return f"{name} is due to start at {_clock_text(due_s)}: {why}"


def late_sentence(name: str, due_s: float, expected_s: float, slots: int, jobs_before: int, work_s: float) -> str:
    """Return when a job is due and expected to start, and why that is late.

    Args:
        name: the job as text.
        due_s: when it is due.
        expected_s: when it is expected to start.
        slots: number of slots that fit it.
        jobs_before: number of jobs that start before it on these slots.
        work_s: sum of the run times of *jobs_before*.
    """
    begin = f"{name} is due to start at {_clock_text(due_s)}, expected at {_clock_text(expected_s)}"
    fitting = f"{expected_s - due_s:,.0f} s late: {slots} {'slot fits' if slots == 1 else 'slots fit'}"
    if not jobs_before:
        return f"{begin}, {fitting}, busy until then"
    jobs = f"{jobs_before:,} {'job ranks' if jobs_before == 1 else 'jobs rank'} before it"
    work = f"{work_s:,.1f} s" if work_s < 60 else f"{work_s / 60:,.1f} min"
    return f"{begin}, {fitting}, {jobs} with {work} of work"


def _clock_text(unix_s: float) -> str:
    return _clock_text_of_second(int(unix_s))


@lru_cache(maxsize=10_000)
def _clock_text_of_second(unix_s: int) -> str:
    return time_text(unix_s).partition(" ")[2] or "?"


def _holder(key: "KeyName") -> str:
    holder = key.holder
    if holder is None:
        return ""
    others = f" and {key.held - 1} more" if key.held > 1 else ""
    return f" by {holder.task_id} ({holder.task}) on {holder.worker} for {holder.held_s:,.1f} s{others}"


def _before(jobs: int) -> str:
    if not jobs:
        return "no other job of this key is before it"
    return f"{jobs} {'job' if jobs == 1 else 'jobs'} of this key {'is' if jobs == 1 else 'are'} before it"
