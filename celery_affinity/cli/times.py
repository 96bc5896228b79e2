"""Times that a person writes: 90s, 30m, 2h, 1d."""

import math
import re
from typing import Any

import click

from ..rules.numbers import LONGEST_S

_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class SecondsRange(click.FloatRange):
    """A number of seconds. NaN, which is neither below nor above a limit, is outside of every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            low = "" if self.min is None else f"{self.min}{'<' if self.min_open else '<='}"
            high = "" if self.max is None else f"{'<' if self.max_open else '<='}{self.max}"
            self.fail(f"{value} is not in the range {low}x{high}.", param, ctx)
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
