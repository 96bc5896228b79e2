"""A call recurs: recur, due, leave_due, fire, stop, suspend."""

from collections.abc import Iterable, Sequence

from celery_affinity.options.recurring import RecurringCall
from celery_affinity.schema.constants import (
    IS_KNOWN,
    IS_REFUSED,
    MAX_ALIKE,
    MAX_DUE_LOOKED_AT,
    OTHERS_HAVE_US,
    TICK_US,
)
from celery_affinity.schema.job_record import NewJob
from celery_affinity.schema.values import encode_part

from .. import recurring
from ..model import Cohort, Recurring
from ..replies import DueCall, Published
from . import publishing

# -- recur: recurring calls are declared, by an app.conf or at run time.


def declare_recurring(
    cohort: Cohort, calls: Sequence[RecurringCall], *, app: str = "", now_us: int
) -> tuple[list[str], list[str]]:
    """Declare *calls*. *app*: that whose app.conf has them; "": made at run time.

    A call that the app.conf had before, and alike, changes nothing: what changed last counts. Return the names of calls
    that another app, or somebody at run time, had declared otherwise; and of those that are refused, since too many
    match the same calls.
    """
    replaced, refused = [], []
    for call in calls:
        old = cohort.recurring.get(call.name)
        if app and cohort.recurring_of.get(app, {}).get(call.name) == call.digest:
            continue
        if not (old and _place(old.call) == _place(call)) and _alike(cohort, call) >= MAX_ALIKE:
            refused.append(call.name)
            continue
        if app:
            cohort.recurring_of.setdefault(app, {})[call.name] = call.digest
        if old and old.call != call and old.app != app:
            replaced.append(call.name)
        _declare(cohort, call, app, old, now_us)
    return replaced, refused


def _declare(cohort: Cohort, call: RecurringCall, app: str, old: Recurring | None, now_us: int) -> None:
    """Declare *call*. Calls that matched the *old* one count, if they match this one too."""
    due_us = now_us + call.stale_after_us
    if old and _place(old.call) == _place(call):
        old.due_us = _due_us(old, call, now_us)
        if old.handed_out_us is not None and old.call.stale_after_us != call.stale_after_us:
            old.handed_out_us = old.due_us
        old.call, old.app = call, app
        return
    handed_out_us = None if old and old.handed_out_us is None else due_us
    cohort.recurring[call.name] = Recurring(call, app, due_us, handed_out_us)


def _due_us(old: Recurring, call: RecurringCall, now_us: int) -> int:
    if old.call.stale_after_us == call.stale_after_us:
        return old.due_us
    return max(now_us, old.due_us - old.call.stale_after_us + call.stale_after_us)


def _place(call: RecurringCall) -> tuple[str, str, str]:
    return call.type, call.merge_key, call.task


def _alike(cohort: Cohort, call: RecurringCall) -> int:
    return sum(_place(each.call) == _place(call) for each in cohort.recurring.values())


# -- due: a recurring call that is to be made now is handed out. If nobody makes it, it is handed out again.


def due_recurring(cohort: Cohort, *, app: str, again_us: int, now_us: int) -> DueCall | None:
    """Return a call that is due; None if there is none. If it is not made, it comes again *again_us* later.

    What *app* has left to others comes to it again only after a while.
    """
    due = [(each.handed_out_us, encode_part(name)) for name, each in cohort.recurring.items() if _is_due(each, now_us)]
    by_name = {encode_part(name): each for name, each in cohort.recurring.items()}
    for _, name in sorted(due)[:MAX_DUE_LOOKED_AT]:
        entry = by_name[name]
        if _is_under_way(cohort, entry):
            entry.handed_out_us = now_us + TICK_US
            continue
        if app in entry.left and 0 <= now_us - entry.left_us < OTHERS_HAVE_US:
            continue
        entry.handed_out_us = now_us + again_us
        return DueCall(entry.call.name, str(entry.due_us), entry.call.task, entry.call.signature)
    return None


def _is_due(entry: Recurring, now_us: int) -> bool:
    return entry.handed_out_us is not None and entry.handed_out_us <= now_us


def _is_under_way(cohort: Cohort, entry: Recurring) -> bool:
    """Return whether the last job of a call that counts from the end of its runs has not come to its own yet."""
    made = cohort.jobs.get(entry.made) if entry.call.since == "end" else None
    return made is not None and made.state in ("scheduled", "pending", "merged", "claimed")


# -- leave_due: an app does not know the task of a recurring call that was handed out to it.


def decline_recurring(cohort: Cohort, name: str, *, app: str, now_us: int) -> bool:
    """Let others have the call at once. Return whether it is due still."""
    entry = cohort.recurring.get(name)
    if entry is None or entry.handed_out_us is None or entry.due_us > now_us:
        return False
    left = entry.left if 0 <= now_us - entry.left_us < OTHERS_HAVE_US else ()
    entry.left = left if app in left else (*left, app)
    entry.left_us = entry.handed_out_us = now_us
    return True


# -- fire: a recurring call that is due -> pending, or scheduled. Publishes its job, and sets the next time.


def fire_recurring(cohort: Cohort, name: str, due: str, job: NewJob | str, *, now_us: int) -> Published | None:
    """Publish *job*, as `publish` does, if the call is due at *due* still; "": whenever it is due. None: it is not."""
    entry = cohort.recurring.get(name)
    if entry is None or (due and (due != str(entry.due_us) or entry.handed_out_us is None)):
        return None
    if due and entry.due_us > now_us:
        return None
    (published,) = publishing.publish(cohort, [job], now_us=now_us, recurring=name)
    if published.state == IS_REFUSED:
        return published
    recurring.set_due(entry, now_us + entry.call.stale_after_us)
    if published.state != IS_KNOWN:
        assert isinstance(job, NewJob), "else it is refused"
        entry.made = job.id
        cohort.counters["recurring_fired"] += 1
    return published


# -- stop: recurring calls are made no more.


def remove_recurring(cohort: Cohort, names: Iterable[str], *, app: str = "") -> int:
    """Forget recurring calls. *app*: that whose app.conf has them no more; "": a person asks for it.

    What another app, or somebody at run time, declared since goes on. Return how many calls there were.
    """
    stopped = 0
    for name in names:
        if app:
            cohort.recurring_of.get(app, {}).pop(name, None)
        if name in cohort.recurring and (not app or cohort.recurring[name].app == app):
            del cohort.recurring[name]
            stopped += 1
    return stopped


# -- suspend: a recurring call is kept, and never due; or it is due again as before.


def pause_recurring(cohort: Cohort, name: str, *, suspended: bool, now_us: int) -> bool:
    """Suspend a recurring call, or let it go on. Return whether there is one."""
    entry = cohort.recurring.get(name)
    if entry is None:
        return False
    if suspended:
        entry.handed_out_us = None
    elif entry.handed_out_us is None:
        entry.handed_out_us = entry.due_us
        recurring.set_due(entry, max(now_us, entry.due_us))
    return True
