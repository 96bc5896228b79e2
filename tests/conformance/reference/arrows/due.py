"""due: a recurring call that is to be made now is handed out. If nobody makes it, it is handed out again."""

from celery_affinity.rules.keys import encode
from celery_affinity.rules.protocol import MOST_DUE_LOOKED_AT, OTHERS_HAVE_US, TICK_US

from ..model import Cohort, Recurring
from ..replies import DueCall


def due(cohort: Cohort, *, app: str, again_us: int, now_us: int) -> DueCall | None:
    """Return a call that is due; None if there is none. If it is not made, it comes again *again_us* later.

    What *app* has left to others comes to it again only after a while.
    """
    due = [(each.handed_out_us, encode(name)) for name, each in cohort.recurring.items() if _is_due(each, now_us)]
    by_name = {encode(name): each for name, each in cohort.recurring.items()}
    for _, name in sorted(due)[:MOST_DUE_LOOKED_AT]:
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
