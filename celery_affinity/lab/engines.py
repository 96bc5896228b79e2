"""Which engine schedules a scenario: the twin if it knows the rules, else the judge."""

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, cast

from . import judge, twin
from .known_rules import unknown_rule
from .scenario import Scenario
from .schedule import Schedule

Engine = Literal["auto", "twin", "judge"]

#: All of these, for an option.
ENGINES: tuple[Engine, ...] = ("auto", "twin", "judge")


class Scheduled(NamedTuple):
    """A schedule, and the *engine* that made it: "twin" or "judge"."""

    schedule: Schedule
    engine: str


def scheduled(scenario: Scenario, engine: Engine = "auto", progress: Iterable[object] | None = None) -> Scheduled:
    """Return what comes of *scenario*. *progress*: stepped for each job that arrives.

    Raises UnknownRuleError if *engine* is "twin" and there is a rule that it does not know.
    """
    chosen = of(scenario) if engine == "auto" else engine
    run = cast(Callable[[Scenario, Iterable[object] | None], Schedule], {"twin": twin, "judge": judge}[chosen].schedule)
    return Scheduled(run(scenario, progress), chosen)


def of(scenario: Scenario) -> Literal["twin", "judge"]:
    """Return the engine for *scenario*."""
    return "twin" if unknown_rule(scenario) is None else "judge"
