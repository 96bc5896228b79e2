"""The pace of a worker in a type: moving averages of how long its jobs took, which the worker writes into its row.

The averages are of the durations' logarithms, so that a few long jobs do not make a healthy worker look slow.
"""

import math
from typing import NamedTuple

from .protocol import PACE_AVERAGED_OVER

#: Field of a worker's row, before the type.
FIELD = "took:"


class Pace(NamedTuple):
    """*level*: the moving average of the logarithms, in thousandths. *spread*: that of their distances from *level*.

    *number*: how many durations the averages go by, `PACE_AVERAGED_OVER` at most.
    """

    level: int
    spread: int
    number: int

    @property
    def in_words(self) -> str:
        """The pace as it stands in the row."""
        return f"{self.level} {self.spread} {self.number}"


def averaged(before: Pace | None, duration_us: int) -> Pace:
    """Return the pace after one more job. The logarithm is straight between powers of two."""
    fraction, exponent = math.frexp(max(duration_us, 1))
    its = math.floor((exponent + 2 * fraction) * 1000)
    level, spread, number = before or (its, 0, 0)
    number = min(number + 1, PACE_AVERAGED_OVER)
    spread += (abs(its - level) - spread) // number
    return Pace(level + (its - level) // number, spread, number)
