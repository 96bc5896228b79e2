"""leave_due: an app does not know the task of a recurring call that was handed out to it."""

from celery_affinity.rules.protocol import OTHERS_HAVE_US

from ..model import Cohort


def leave_due(cohort: Cohort, name: str, *, app: str, now_us: int) -> bool:
    """Let others have the call at once. Return whether it is due still."""
    entry = cohort.recurring.get(name)
    if entry is None or entry.handed_out_us is None or entry.due_us > now_us:
        return False
    left = entry.left if 0 <= now_us - entry.left_us < OTHERS_HAVE_US else ()
    entry.left = left if app in left else (*left, app)
    entry.left_us = entry.handed_out_us = now_us
    return True
