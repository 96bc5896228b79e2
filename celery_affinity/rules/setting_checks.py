"""What settings accept: each check returns None for a value that is accepted; else what is accepted, in words."""

import math
from collections.abc import Callable, Mapping

from .keyed.key_limits import NONE
from .numbers import is_whole
from .type_name import ACCEPTED, is_type

#: Returns None for a value that is accepted; else what is accepted, in words.
Check = Callable[[object], str | None]

#: Value of ``affinity_lookahead``: by how long tasks take.
AUTO = "auto"

#: About 3,000 years: in µs it has fewer digits than a number that arrows read.
_LONGEST_HALF_LIFE_S = 10**11


def number(accepted: str, test: Callable[[float], bool]) -> Check:
    def check(value: object) -> str | None:
        good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and test(value)
        return None if good else accepted

    return check


def whole(accepted: str, test: Callable[[int], bool]) -> Check:
    def check(value: object) -> str | None:
        good = is_whole(value) and test(value)
        return None if good else accepted

    return check


def one_of(*names: str) -> Check:
    accepted = " or ".join(repr(name) for name in names)
    return lambda value: None if value in names else accepted


def auto_or_jobs(value: object) -> str | None:
    return None if value == AUTO or not JOBS(value) else "'auto', or a whole number from 0 to 1000"


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
    return None if value in (None, NONE) or not SECONDS(value) else "a number of seconds above 0, or None"


JOBS = whole("a whole number from 0 to 1000", lambda value: 0 <= value <= 1000)
SECONDS = number("a number of seconds above 0", lambda value: value > 0)
SECONDS_OR_0 = number("a number of seconds, 0 or more", lambda value: value >= 0)
POINTS = number("a number of points from -1000000 to 1000000", lambda value: abs(value) <= 10**6)
BONUS = number("a number of points from 0 to 1000000", lambda value: 0 <= value <= 10**6)
WEIGHT = number("a number of points, 0 or more", lambda value: value >= 0)
HALF_LIFE = number(
    "0, or a number of seconds, 1 or more", lambda value: value == 0 or 1 <= value <= _LONGEST_HALF_LIFE_S
)
MILLISECONDS = number("a number of milliseconds from 0 to 500", lambda value: 0 <= value <= 500)
PERCENTAGE = whole("a whole number from 0 to 100", lambda value: 0 <= value <= 100)
