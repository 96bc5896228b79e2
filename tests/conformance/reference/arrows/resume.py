"""resume: a pause ends; jobs that may start now get the free slots."""

from ..keyed import standing as key_standing
from ..model import Cohort
from ..placing.fill import fill
from ..replies import Resumed
from ..types import type_changes


def resume(cohort: Cohort, what: str, *, now_us: int) -> Resumed:
    """End the pause of *what*."""
    was_paused = what in cohort.pauses
    end_pause(cohort, what, now_us)
    return Resumed(was_paused, fill(cohort, (), now_us))


def end_pause(cohort: Cohort, what: str, now_us: int) -> None:
    """Forget the pause of *what*. The next `fill` looks at what may start."""
    cohort.settings.revision += 1
    if what.startswith("key:"):
        cohort.pauses.pop(what, None)
        cohort.pause_ends.pop(what, None)
        cohort.gained |= key_standing.settle(cohort, what.removeprefix("key:"), now_us, gains=True)
    else:
        type_changes.pause(cohort, what, None)
