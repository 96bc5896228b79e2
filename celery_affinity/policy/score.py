"""Compute the score of a waiting job, and the use in a tenant's start tag. The job with the highest score runs first.

    score = priority * 1024
          + age_s * 16
          + 500 / slots_that_fit
          + on_demand ? 4096 + min(age_s, cap_s) * 32 : 0

The cap keeps on-demand load above capacity from starving a queued job: past the cap both modes gain the same 16 points
a second. With the setting ``priority_percentage`` a share of the claims takes the oldest job instead. Scores are whole
micro-points, so that Python and ``lua/matching/score.lua`` agree to the last bit.

A tenant's tag (`lua/keys/fair_share.lua`) halves its past use in each half-life (``affinity_tenant_half_life``):

    tag = log2( sum over all uses u:  u * 2 ** (time of u / half-life) )

with u in µs of slots divided by the tenant's weight, and the time since the epoch.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from ..clock import SECOND_US
from ..schema.constants import MAX_PRIORITY

#: Micro-points in a point.
MICRO = 1_000_000


@dataclass(frozen=True)
class Weights:
    """Coefficients of the score in points, of age in points a second, and the cap in µs.

    *priority_reversed*: True if 0 is the highest priority.
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

    *age_us* below 0 (the server's clock was set back) is treated as 0. *slots_that_fit* is at least 1: a job that no
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


def is_by_age(claim_number: int, priority_percentage: int) -> bool:
    """Return True if *claim_number* (from 0) takes the oldest job instead of the job with the highest score.

    The rule is deterministic: of any hundred claims with a choice, *priority_percentage* take the highest score, evenly
    spread.
    """
    return claim_number * priority_percentage % 100 >= priority_percentage


class QueueRank(NamedTuple):
    """Values that decide between two jobs, in this order: score (micro-points), enqueue time, id."""

    score: int
    enqueued_us: int
    job_id: str


def overtakes(first: QueueRank, second: QueueRank) -> bool:
    """Return True if the first of two jobs runs before the second.

    The higher score wins, then the older job, then the smaller id.
    """
    return (-first.score, first.enqueued_us, first.job_id) < (-second.score, second.enqueued_us, second.job_id)


def decayed_use_us(tag: float, half_life_us: int, now_us: int) -> float:
    """Return the use at *now_us* that *tag* represents: µs of slots divided by the weight."""
    return 2 ** min(100.0, tag - now_us / half_life_us)
