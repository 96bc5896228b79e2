"""Numbers in settings, options and requests, each of which has an upper bound. `untrusted` has those of messages."""

from collections.abc import Callable
from typing import Any, TypeGuard

from .untrusted import is_number

#: Maximum number of seconds: ten years. As µs, sums with it and the time are exact.
LONGEST_S = 3_650 * 86_400

#: Maximum number of jobs, slots, deliveries or rows.
MOST_COUNT = 10**9

#: Returns None for a value that is accepted; else what is accepted, in words.
Check = Callable[[object], str | None]


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether *value* is a whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def number(accepted: str, test: Callable[[float], bool], most: float = LONGEST_S) -> Check:
    """Return a check of numbers up to *most* that *test* accepts; *accepted*: what it accepts, in words.

    All checks of numbers are made here, so no setting is without an upper bound. `is_number` compares the value before
    anything converts it.
    """
    words = f"{accepted}, up to {most:,}"

    def check(value: Any) -> str | None:
        return None if is_number(value, most) and test(value) else words

    return check


def whole(accepted: str, test: Callable[[int], bool], most: int = MOST_COUNT) -> Check:
    """Return a check of whole numbers. Arguments as of `number`."""
    return number(accepted, lambda value: is_whole(value) and test(value), most)


COUNT = whole("a whole number above 0", lambda value: value > 0)
COUNT_OR_0 = whole("a whole number, 0 or more", lambda value: value >= 0)
SECONDS = number("a number of seconds above 0", lambda value: value > 0)
SECONDS_OR_0 = number("a number of seconds, 0 or more", lambda value: value >= 0)
SECONDS_FROM_1 = number("a number of seconds, 1 or more", lambda value: value >= 1)
