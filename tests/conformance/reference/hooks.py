"""The registry of rules of jobs. A moment of a job asks all rules here, so that no file of such a moment names a rule.

A rule is a module with those of the functions `enter`, `leave`, `hold` and `free` that it needs. Each gets the cohort,
the job, and the time; `enter` also gets whether the job was published just now.
"""

from collections.abc import Callable, Iterable
from types import ModuleType

from . import keys, type_limits
from .model import Cohort, Job

#: The rules, in the order in which a job meets them. What a claim holds is freed in the reverse order.
RULES: tuple[ModuleType, ...] = (keys, type_limits)


def wait(cohort: Cohort, job: Job, now_us: int, *, is_fresh: bool = False) -> None:
    """*job* begins to wait. *is_fresh*: whether it was published just now."""
    for enter in _hooks(RULES, "enter"):
        enter(cohort, job, now_us, is_fresh=is_fresh)


def leave(cohort: Cohort, job: Job, now_us: int) -> None:
    """*job* waits no more, and no worker has it."""
    for its_leave in _hooks(RULES, "leave"):
        its_leave(cohort, job, now_us)


def hold(cohort: Cohort, job: Job, now_us: int) -> None:
    """*job* was claimed."""
    for its_hold in _hooks(RULES, "hold"):
        its_hold(cohort, job, now_us)


def free(cohort: Cohort, job: Job, now_us: int) -> None:
    """*job* has left its slot: it has ended, or is about to wait again."""
    for its_free in _hooks(reversed(RULES), "free"):
        its_free(cohort, job, now_us)


def _hooks(rules: Iterable[ModuleType], name: str) -> list[Callable[..., None]]:
    return [getattr(rule, name) for rule in rules if hasattr(rule, name)]
