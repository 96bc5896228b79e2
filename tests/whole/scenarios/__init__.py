"""The deeds of apps, once on stock Celery, once on ours; `tests/whole/test_parity.py` compares the results.

A scenario is a function of a `Side` that returns what an app, its users or its operators can see, as plain data.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from .side import Side


class Scenario(NamedTuple):
    function: Callable[[Side], Any]
    differs: str  # the reason why ours is known to differ, or ""
    stock_fails: str  # the reason why this version of stock Celery fails, or ""

    def __str__(self) -> str:
        return self.function.__name__


SCENARIOS: list[Scenario] = []


def scenario(function: Callable[[Side], Any] | None = None, *, differs: str = "", stock_fails: str = "") -> Any:
    """Register a scenario. *differs* marks a known difference, which is then expected to show; *stock_fails* a fault of
    this version of stock Celery (`tests.support.since`), likewise.
    """

    def register(function: Callable[[Side], Any]) -> Callable[[Side], Any]:
        SCENARIOS.append(Scenario(function, differs, stock_fails))
        return function

    return register if function is None else register(function)
