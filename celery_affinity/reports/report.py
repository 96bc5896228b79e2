"""Declare a report: its command, its JSON, its HTTP route with the description, and its parameters.

A declaration is a function that reads the report, with the decorator `report`. `cli.framework` makes the command from
it, and `web.report_routes` the route. `REPORTS` in this package's `__init__` names the modules with declarations.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Generic, TypeVar, get_args, get_type_hints

from ..scheduler.cohorts import CohortAnswers, CohortRow, Cohorts
from ..scheduler.scheduler import Scheduler
from ..schema.keys import StockLists
from ..settings.table import Settings
from . import REPORTS

R = TypeVar("R", bound=CohortRow)
T = TypeVar("T")


@dataclass(frozen=True)
class Answer(Generic[T]):
    """A report, and the reasons why cohorts are *down* and missing in it."""

    report: T
    down: Mapping[str, str]
    #: What the command prints if the report has no rows; "" for the text of its table.
    if_empty: str = ""


@dataclass(frozen=True)
class Source:
    """What reports are read from, and the app's settings."""

    fleet: Cohorts
    settings: Settings
    #: Returns the Redis lists to which stock Celery's producers of the app publish.
    stock_lists: Callable[[], StockLists]
    #: Why the reader of the report does not see arguments of calls, or None if he does.
    hidden_reason: str | None = None

    def rows(self, read: Callable[[Scheduler], list[R]]) -> Answer[list[R]]:
        """Return the rows of all cohorts, with the cohort's name if there are several."""
        answers = self.fleet.each(read)
        return Answer(rows_of_all(answers), answers.down)


def rows_of_all(replies: CohortAnswers[list[R]]) -> list[R]:
    """Return the rows of all cohorts, with the cohort's name if there are several."""
    named = replies.answers.items()
    return [row for name, rows in named for row in (with_cohort_name(rows, name) if replies.is_split else rows)]


def with_cohort_name(rows: Iterable[R], cohort: str) -> list[R]:
    return [replace(row, cohort=cohort) for row in rows]


@dataclass(frozen=True)
class Param:
    """A parameter, in the annotation of a report's function: an option of the command, and in the query of the route.

    A parameter whose name ends in ``_s`` is a time: 90s, 30m, 2h or 1d for the command, seconds over HTTP.
    """

    help: str = ""
    #: The limits of a number. *above*: a limit that is not accepted itself.
    least: int | None = None
    above: int | None = None
    most: int | None = None
    #: The maximum over HTTP, if it is lower.
    most_over_http: int | None = None
    #: The accepted texts; none: any text.
    choices: tuple[str, ...] = ()
    #: True if the command has no name before the value.
    is_argument: bool = False
    over_http: bool = True
    #: Set from the signature of the function.
    name: str = ""
    type: Any = None
    default: Any = None


@dataclass(frozen=True)
class ReportDefinition(Generic[T]):
    """A declared report. *name*: the words of the command, if there is one."""

    name: str
    read: Callable[..., Answer[T]]
    params: tuple[Param, ...]
    #: Type of the JSON.
    type: Any
    #: Path and summary of the HTTP route; "" without one.
    path: str = ""
    summary: str = ""
    #: Name of the JSON's type in the description of HTTP, if it differs from the class.
    type_name: str | None = None
    #: Returns the text that the command prints; None without a command.
    text: Callable[[T], str] | None = None

    def printed(self, answer: Answer[T]) -> str:
        """Return *answer* as text for people."""
        assert self.text is not None
        return answer.if_empty if answer.if_empty and not answer.report else self.text(answer.report)


def report(
    name: str,
    path: str = "",
    summary: str = "",
    *,
    type_name: str | None = None,
    text: Callable[[Any], str] | None = None,
) -> Callable[[Callable[..., Answer[T]]], ReportDefinition[T]]:
    """Declare the report that the decorated function reads. Its docstring is the help of the command."""

    def declare(read: Callable[..., Answer[T]]) -> ReportDefinition[T]:
        hints = get_type_hints(read, include_extras=True)
        (type_,) = get_args(hints["return"])
        params: list[Param] = []
        for param_name, parameter in list(inspect.signature(read).parameters.items())[1:]:  # after the source
            param_type, param = get_args(hints[param_name])
            params.append(replace(param, name=param_name, type=param_type, default=parameter.default))
        return ReportDefinition(name, read, tuple(params), type_, path, summary, type_name, text)

    return declare


def find_report(name: str) -> ReportDefinition[Any]:
    """Return the report *name* of `REPORTS`. Imports its module."""
    values = vars(import_module(f".{REPORTS[name]}", __package__)).values()
    return next(value for value in values if isinstance(value, ReportDefinition) and value.name == name)
