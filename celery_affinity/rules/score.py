"""The score of a waiting job, which says which job goes first.

    score = priority * 1024
          + age_s * 16
          + 500 / slots_that_fit
          + on_demand ? 4096 + min(age_s, cap_s) * 32 : 0

The cap keeps on-demand load above capacity from starving a queued job for ever: past the cap both modes gain the same
16 points a second. With the setting ``priority_percentage`` a share of the claims goes by age alone. Scores are whole
micro-points, so that Python and ``lua/placing/score.lua`` agree to the last bit.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from ..clock import SECOND_US
from .protocol import MAX_PRIORITY

#: Micro-points in a point.
MICRO = 1_000_000


@dataclass(frozen=True)
class Weights:
    """The coefficients of the score, in points; those of age in points a second, the cap in µs.

    *priority_reversed*: priorities are read the other way round, 0 as the highest.
    """

    priority: float = 1024
    age: float = 16
    rarity: float = 500
    on_demand: float = 4096
    on_demand_age: float = 32
    on_demand_age_cap_us: int = 256 * SECOND_US
    priority_reversed: bool = False

    def read(self, priority: int) -> int:
        """Return *priority* with 10 as the highest."""
        return MAX_PRIORITY - priority if self.priority_reversed else priority


@dataclass(frozen=True)
class Terms:
    """The four terms of a score, in micro-points."""

    priority: int
    age: int
    rarity: int
    on_demand: int

    @property
    def total(self) -> int:
        return self.priority + self.age + self.rarity + self.on_demand


def score(priority: int, on_demand: bool, age_us: int, slots_that_fit: int, weights: Weights) -> Terms:
    """Return the terms of a job's score.

    *age_us* below 0 (the server's clock was set back) counts as 0. *slots_that_fit* is at least 1: a job that no
    slot fits is not a candidate.
    """
    age_us = max(0, age_us)
    urgency = 0
    if on_demand:
        capped_us = min(age_us, weights.on_demand_age_cap_us)
        urgency = math.floor(weights.on_demand * MICRO) + math.floor(capped_us * weights.on_demand_age)
    return Terms(
        priority=math.floor(weights.read(priority) * weights.priority * MICRO),
        age=math.floor(age_us * weights.age),
        rarity=math.floor(weights.rarity * MICRO / slots_that_fit),
        on_demand=urgency,
    )


def goes_by_age(claim_number: int, priority_percentage: int) -> bool:
    """Return whether *claim_number* (from 0) takes the oldest job instead of the one with the highest score.

    The claims are counted, not drawn by lot: of any hundred claims that have a choice *priority_percentage* go by
    score, evenly spread.
    """
    return claim_number * priority_percentage % 100 >= priority_percentage


class Rank(NamedTuple):
    """The values that decide between two jobs, in this order: score (micro-points), enqueue time, id."""

    score: int
    enqueued_us: int
    job_id: str


def overtakes(first: Rank, second: Rank) -> bool:
    """Return whether the first of two jobs runs before the second.

    The higher score wins; then the older job; then the smaller id.
    """
    return (-first.score, first.enqueued_us, first.job_id) < (-second.score, second.enqueued_us, second.job_id)
