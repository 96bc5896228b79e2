"""How far waits are from their targets."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .targets import Target

#: Wait, s, below which all waits count as equally long: a wait is compared by its logarithm.
_LEAST_S = 1e-3


@dataclass(frozen=True)
class Reached:
    """A target, its wait as the fleet is, s, with the advice, and the lowest and highest of the days drawn again.

    A wait of infinity is None: so many jobs were never claimed.
    """

    target: str
    below_s: float
    now_s: float | None
    then_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    is_reached: bool = False


def far_from(targets: Sequence[Target], waits_s: Sequence[float]) -> float:
    """Return how far the *waits_s* are from all *targets*, 0 if each is below its own: the sum of the logarithms."""
    return sum(_far(each, wait_s) for each, wait_s in zip(targets, waits_s, strict=True))


def _far(target: Target, wait_s: float) -> float:
    if wait_s < target.below_s:
        return 0.0
    if wait_s == math.inf:
        return 100.0
    return 1e-9 + math.log(max(wait_s, _LEAST_S) / max(target.below_s, _LEAST_S))


def reached(
    targets: Sequence[Target],
    now_s: Sequence[float],
    then_s: Sequence[float] | None = None,
    days_s: Sequence[Sequence[float]] = (),
) -> list[Reached]:
    found = []
    for number, (target, now) in enumerate(zip(targets, now_s, strict=True)):
        then = None if then_s is None else then_s[number]
        over_days = [each[number] for each in days_s]
        found.append(
            Reached(
                target=target.text,
                below_s=target.below_s,
                now_s=_finite(now),
                then_s=None if then is None else _finite(then),
                low_s=_finite(min(over_days)) if over_days else None,
                high_s=_finite(max(over_days)) if over_days else None,
                is_reached=(now if then is None else then) < target.below_s,
            )
        )
    return found


def _finite(wait_s: float) -> float | None:
    return None if wait_s == math.inf else wait_s
