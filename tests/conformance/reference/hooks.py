"""The registry of job rules. Server functions call rules only through it, so they name no rule.

A rule is a module with some of the functions `enter`, `leave`, `hold` and `free`. Each receives the cohort, the job,
and the time; `enter` also receives True for a job that was just published.
"""

from collections.abc import Callable, Iterable
from types import ModuleType

from . import fair_share, keys, type_limits
from .model import Cohort, Job

#: The rules in the order in which a job meets them. They release a claim in the reverse order.
RULES: tuple[ModuleType, ...] = (keys, fair_share, type_limits)


def wait(cohort: Cohort, job: Job, now_us: int, *, is_fresh: bool = False) -> None:
    """Let *job* begin to wait. *is_fresh*: True if it was just published."""
    for enter in _hooks(RULES, "enter"):
        enter(cohort, job, now_us, is_fresh=is_fresh)


def leave(cohort: Cohort, job: Job, now_us: int) -> None:
    """Remove *job* from waiting, without a claim."""
    for its_leave in _hooks(RULES, "leave"):
        its_leave(cohort, job, now_us)


def hold(cohort: Cohort, job: Job, now_us: int) -> None:
    """Record the claim of *job*."""
    for its_hold in _hooks(RULES, "hold"):
        its_hold(cohort, job, now_us)


def free(cohort: Cohort, job: Job, now_us: int) -> None:
    """Record that *job* has left its slot: it has ended, or is about to wait again."""
    for its_free in _hooks(reversed(RULES), "free"):
        its_free(cohort, job, now_us)


def _hooks(rules: Iterable[ModuleType], name: str) -> list[Callable[..., None]]:
    return [getattr(rule, name) for rule in rules if hasattr(rule, name)]
