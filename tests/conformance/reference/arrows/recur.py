"""recur: recurring calls are declared, by an app.conf or at run time."""

from collections.abc import Sequence

from celery_affinity.rules.protocol import MOST_ALIKE
from celery_affinity.rules.recurring_call import RecurringCall

from ..model import Cohort, Recurring


def recur(cohort: Cohort, calls: Sequence[RecurringCall], *, app: str = "", now_us: int) -> tuple[list[str], list[str]]:
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
        if not (old and _place(old.call) == _place(call)) and _alike(cohort, call) >= MOST_ALIKE:
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
