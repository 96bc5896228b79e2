"""Times that a person writes: 90s, 30m, 2h, 1d. Each number of a command has an upper bound."""

import math
import re
from typing import Any

import click

from ..rules.numbers import LONGEST_S, MOST_COUNT

_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


#: A number of rows, or of repetitions.
COUNT = click.IntRange(1, MOST_COUNT)


class SecondsRange(click.FloatRange):
    """A number of seconds. NaN, which is neither below nor above a limit, is outside of every range."""

    def __init__(self, min: float, max: float = LONGEST_S, min_open: bool = False) -> None:
        super().__init__(min, max, min_open)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is not a number from {self.min} to {self.max}.", param, ctx)
        return found


def seconds(_ctx: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """Return the time in *text*, s. Raises BadParameter."""
    if text is None:
        return None
    said = re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", text)
    found = int(said[1]) * _UNITS_S[said[2]] if said else 0
    if not 0 < found <= LONGEST_S:
        accepted = "a whole number above 0 of s, m, h or d is accepted, such as 30m, up to 3650d"
        raise click.BadParameter(f"{accepted}, got: {text!r}")
    return found
