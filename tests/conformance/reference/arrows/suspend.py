"""suspend: a recurring call is kept, and never due; or it is due again as before."""

from ..model import Cohort
from ..recurring import recurring


def suspend(cohort: Cohort, name: str, *, suspended: bool, now_us: int) -> bool:
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
