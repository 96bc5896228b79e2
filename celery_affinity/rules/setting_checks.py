"""What settings accept: each check returns None for a value that is accepted; else what is accepted, in words.

`numbers` makes the checks of numbers.
"""

from collections.abc import Mapping

from .keyed.key_limits import NONE
from .numbers import COUNT, COUNT_OR_0, SECONDS, SECONDS_FROM_1, SECONDS_OR_0, Check, number, whole
from .type_name import ACCEPTED, is_type

__all__ = ["COUNT", "COUNT_OR_0", "SECONDS", "SECONDS_FROM_1", "SECONDS_OR_0", "Check", "number", "whole"]

#: Value of ``affinity_lookahead``: by how long tasks take.
AUTO = "auto"

#: Maximum number of points of a weight.
_MOST_POINTS = 10**6


def one_of(*names: str) -> Check:
    accepted = " or ".join(repr(name) for name in names)
    return lambda value: None if value in names else accepted


def auto_or_jobs(value: object) -> str | None:
    return None if value == AUTO or not JOBS(value) else f"'auto', or {JOBS(None)}"


def yes_or_no(value: object) -> str | None:
    return None if isinstance(value, bool) else "True or False"


def task_types(value: object) -> str | None:
    good = isinstance(value, Mapping) and all(
        isinstance(pattern, str) and pattern and is_type(type_) for pattern, type_ in value.items()
    )
    return (
        None
        if good
        else f"a mapping of task name patterns to types, such as {{'proj.pdf.*': 'pdf'}}; a type is {ACCEPTED}"
    )


def task_rules(value: object) -> str | None:
    good = isinstance(value, Mapping) and all(isinstance(pattern, str) and pattern for pattern in value)
    return (
        None if good else "a mapping of task name patterns to rules, such as {'proj.route.*': {'exclusive': '{city}'}}"
    )


def recurring_calls(value: object) -> str | None:
    good = isinstance(value, Mapping) and all(isinstance(name, str) and name for name in value)
    return None if good else "a mapping of names to calls, such as {'hh': {'task': 'proj.plan', 'stale_after': 300}}"


def queues(value: object) -> str | None:
    good = isinstance(value, list | tuple) and all(isinstance(each, str) and each for each in value)
    return None if good else "a list of queue name patterns, such as ['pdf', 'reports.*']"


def seconds_or_none(value: object) -> str | None:
    return None if value in (None, NONE) or not SECONDS(value) else f"None, or {SECONDS(None)}"


JOBS = whole("a whole number, 0 or more", lambda value: value >= 0, 1000)
PERCENTAGE = whole("a whole number, 0 or more", lambda value: value >= 0, 100)
HALF_LIFE = number("0, or a number of seconds, 1 or more", lambda value: value == 0 or value >= 1)
POINTS = number(f"a number of points, -{_MOST_POINTS:,} or more", lambda _: True, _MOST_POINTS)
BONUS = number("a number of points, 0 or more", lambda value: value >= 0, _MOST_POINTS)
POINTS_A_SECOND = number("a number of points a second, above 0", lambda value: value > 0, _MOST_POINTS)
MILLISECONDS = number("a number of milliseconds, 0 or more", lambda value: value >= 0, 500)
