"""pause: no job of a type, of a key, or of any type starts until `resume`, or until the pause ends."""

from ..keyed import standing as key_standing
from ..model import Cohort
from ..types import type_changes


def pause(cohort: Cohort, what: str, *, for_us: int | None, why: str, now_us: int) -> bool:
    """Pause *what*: "type:T" or "key:K", encoded, or "*" for all. Return whether it was not paused before."""
    is_new = what not in cohort.pauses
    cohort.settings.revision += 1
    until_us = 0 if for_us is None else now_us + for_us
    cohort.pause_ends.pop(what, None)
    if for_us is not None:
        cohort.pause_ends[what] = until_us
    words = f"{now_us} {until_us} {why}"
    if what.startswith("key:"):
        cohort.pauses[what] = words
        key_standing.settle(cohort, what.removeprefix("key:"), now_us, gains=True)
    else:
        type_changes.pause(cohort, what, words)
    for worker in cohort.workers.values():  # jobs that have not started are recalled: the sign is read before them
        worker.inbox.insert(0, f"\npaused {what} {cohort.fence}")
    return is_new
