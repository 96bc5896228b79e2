"""The findings of a check, and `finding`, which makes a rule of a function that yields problems with their fixes."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from inspect import getdoc
from types import ModuleType
from typing import NamedTuple, TypeVar

from .facts import AppFacts, Facts, FleetFacts, ServerFacts

T = TypeVar("T")


class Problem(NamedTuple):
    """What is wrong, and how to fix it, each in one or two sentences."""

    what: str
    todo: str


Problems = Iterator[Problem]


class Level(StrEnum):
    """Severity. Error: jobs are lost, stuck or rejected, now or later. Warning: a risk. Note: good to know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """A problem or risk, with the id and level of its rule."""

    id: str
    level: Level
    what: str
    todo: str


@dataclass(frozen=True)
class Rule:
    """The function that derives one kind of finding from facts."""

    id: str
    level: Level
    findings: Callable[[Facts], Iterator[Finding]]
    #: True if the finding is also derived for each cohort other than `default`.
    in_cohorts: bool = False
    #: What is wrong, and how to fix it, for any app: Markdown, for the reference.
    about: str = ""


def finding(
    id_: str, level: Level, needs: Callable[[Facts], T | None], *, in_cohorts: bool = False
) -> Callable[[Callable[[T], Problems]], Rule]:
    """Make a rule of a function that gets the facts that *needs* returns. Without these facts, there are no findings.

    The function's docstring is its text in the reference. The order of functions in a module is the display order.
    """

    def rule_of(problems: Callable[[T], Problems]) -> Rule:
        def findings(facts: Facts) -> Iterator[Finding]:
            needed = needs(facts)
            if needed is not None:
                yield from (Finding(id_, level, *problem) for problem in problems(needed))

        return Rule(id_, level, findings, in_cohorts, getdoc(problems) or "")

    return rule_of


def rules_of(*modules: ModuleType) -> list[Rule]:
    """Return the rules that *modules* define, in the order of their definition."""
    return [value for module in modules for value in vars(module).values() if isinstance(value, Rule)]


def all_facts(facts: Facts) -> Facts | None:
    """Return *facts*, or None if Celery cannot read the app's settings."""
    return None if facts.app.conf_refused else facts


def app_of(facts: Facts) -> AppFacts | None:
    """Return the app, or None if Celery cannot read its settings."""
    return None if facts.app.conf_refused else facts.app


def server_of(facts: Facts) -> ServerFacts | None:
    """Return the server, or None if its state is unknown."""
    return facts.server if facts.server is not None and facts.server.refused is None else None


def fleet_of(facts: Facts) -> FleetFacts | None:
    """Return the fleet, or None if it was not queried."""
    return facts.fleet


def with_full_stop(words: object) -> str:
    """Return the error text *words* with exactly one full stop at the end."""
    return f"{str(words).rstrip('.')}."


def join_names(names: Iterable[str], max_shown: int = 5) -> str:
    """Return *names* as a list for people. Names after the first *max_shown* are only counted."""
    all_names = list(names)
    shown = ", ".join(all_names[:max_shown])
    return f"{shown} and {len(all_names) - max_shown} more" if len(all_names) > max_shown else shown
