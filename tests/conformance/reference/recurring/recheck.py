"""The times of recurring calls, after the server's clock was set back."""

from ..model import Cohort


def recheck(cohort: Cohort, now_us: int) -> None:
    """Have nothing be due later than if it were put off now."""
    for entry in cohort.recurring.values():
        latest_us = now_us + entry.call.stale_after_us
        entry.due_us = min(entry.due_us, latest_us)
        if entry.handed_out_us is not None:
            entry.handed_out_us = min(entry.handed_out_us, latest_us)
