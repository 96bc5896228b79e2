"""Recurring calls: declare, due, decline, fire, remove, pause."""

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

# -- declare_recurring: an app.conf or a process at run time declares recurring calls.


def declare_recurring(
    cohort: Cohort, calls: Sequence[RecurringCall], *, app: str = "", now_us: int
) -> tuple[list[str], list[str]]:
    """Declare *calls*. *app*: the app whose app.conf has them, or "" at run time.

    A call equal to the app.conf's previous one changes nothing: the last change wins. Return the names of calls with a
    conflicting declaration by another app or at run time, and the refused calls, because too many match alike.
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
    """Declare *call*. Earlier matches of the *old* one apply if they match this one too."""
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


# -- due_recurring: hands out a due recurring call, repeatedly until it is made.


def due_recurring(cohort: Cohort, *, app: str, again_us: int, now_us: int) -> DueCall | None:
    """Return a due call, or None. If it is not made, it is handed out again after *again_us*.

    A call that *app* declined is handed out to it again only after a while.
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
    """Return True if the last job of a call with ``since="end"`` has not ended."""
    made = cohort.jobs.get(entry.made) if entry.call.since == "end" else None
    return made is not None and made.state in ("scheduled", "pending", "merged", "claimed")


# -- decline_recurring: an app does not know the task of the recurring call that it got.


def decline_recurring(cohort: Cohort, name: str, *, app: str, now_us: int) -> bool:
    """Let other apps have the call immediately. Return True if it is still due."""
    entry = cohort.recurring.get(name)
    if entry is None or entry.handed_out_us is None or entry.due_us > now_us:
        return False
    left = entry.left if 0 <= now_us - entry.left_us < OTHERS_HAVE_US else ()
    entry.left = left if app in left else (*left, app)
    entry.left_us = entry.handed_out_us = now_us
    return True


# -- fire_recurring: a due recurring call -> pending, or scheduled. Publishes its job, and sets the next time.


def fire_recurring(cohort: Cohort, name: str, due: str, job: NewJob | str, *, now_us: int) -> Published | None:
    """Publish *job* like `publish` if the call is still due at *due*, or "" for any time. Return None if it is not."""
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


# -- remove_recurring: recurring calls are deleted.


def remove_recurring(cohort: Cohort, names: Iterable[str], *, app: str = "") -> int:
    """Delete recurring calls. *app*: the app whose app.conf no longer has them, or "" for an operator.

    A later declaration by another app or at run time remains. Return the number of deleted calls.
    """
    stopped = 0
    for name in names:
        if app:
            cohort.recurring_of.get(app, {}).pop(name, None)
        if name in cohort.recurring and (not app or cohort.recurring[name].app == app):
            del cohort.recurring[name]
            stopped += 1
    return stopped


# -- pause_recurring: a recurring call is suspended, or due again as before.


def pause_recurring(cohort: Cohort, name: str, *, suspended: bool, now_us: int) -> bool:
    """Suspend or resume a recurring call. Return True if it exists."""
    entry = cohort.recurring.get(name)
    if entry is None:
        return False
    if suspended:
        entry.handed_out_us = None
    elif entry.handed_out_us is None:
        entry.handed_out_us = entry.due_us
        recurring.set_due(entry, max(now_us, entry.due_us))
    return True
