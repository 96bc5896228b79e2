"""Scenarios that run on stock Celery and on this transport; `tests/whole/test_parity.py` compares the results.

A scenario is a function of a `Side`. It returns, as plain data, what apps, users or operators can observe.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from .side import Side


class Scenario(NamedTuple):
    function: Callable[[Side], Any]
    differs: str  # the reason of a known difference, or ""
    stock_fails: str  # the reason why this version of stock Celery fails, or ""

    def __str__(self) -> str:
        return self.function.__name__


SCENARIOS: list[Scenario] = []


def scenario(function: Callable[[Side], Any] | None = None, *, differs: str = "", stock_fails: str = "") -> Any:
    """Register a scenario. With *differs* (a known difference) or *stock_fails* (a defect of this version of stock
    Celery, from `tests.support.since`), its comparison must fail.
    """

    def register(function: Callable[[Side], Any]) -> Callable[[Side], Any]:
        SCENARIOS.append(Scenario(function, differs, stock_fails))
        return function

    return register if function is None else register(function)
