"""The score of a waiting job, which says which job goes first.

    score = priority * 1024
          + age_s * 16
          + 500 / slots_that_fit
          + on_demand ? 4096 + min(age_s, cap_s) * 32 : 0

The cap keeps on-demand load above capacity from starving a queued job for ever: past the cap both modes gain the same
16 points a second. With the setting ``priority_percentage`` a share of the claims goes by age alone. Scores are whole
micro-points, so that Python and ``lua/matching/score.lua`` agree to the last bit.

The tag of a tenant whose use of before counts less, by half in each half-life (``affinity_tenant_half_life``).

    tag = log2( sum over all parts of use u:  u * 2 ** (time at which u was used / half-life) )

with u in µs of slots, divided by the weight of the tenant, and the time since the epoch. All parts halve alike as time
goes by, so the order of tags stays, and a tag changes only when its tenant uses more. ``lua/keys/half_life.lua`` is
this in Redis: both are sums and products alone, in one order, so that they agree to the last bit.
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


def is_by_age(claim_number: int, priority_percentage: int) -> bool:
    """Return whether *claim_number* (from 0) takes the oldest job instead of the one with the highest score.

    The claims are counted, not drawn by lot: of any hundred claims that have a choice *priority_percentage* go by
    score, evenly spread.
    """
    return claim_number * priority_percentage % 100 >= priority_percentage


class QueueRank(NamedTuple):
    """The values that decide between two jobs, in this order: score (micro-points), enqueue time, id."""

    score: int
    enqueued_us: int
    job_id: str


def overtakes(first: QueueRank, second: QueueRank) -> bool:
    """Return whether the first of two jobs runs before the second.

    The higher score wins; then the older job; then the smaller id.
    """
    return (-first.score, first.enqueued_us, first.job_id) < (-second.score, second.enqueued_us, second.job_id)


_LOG2_OF_E = 1.4426950408889634
_LN_2 = 0.6931471805599453
_ROOT_OF_HALF = 0.7071067811865476
_FORGOTTEN_AFTER = 10
_LEAST_EXPONENT = -1000


def log2(number: float) -> float:
    """Return the logarithm of *number*, above 0, to the base 2."""
    mantissa, exponent = math.frexp(number)
    if mantissa < _ROOT_OF_HALF:
        mantissa, exponent = mantissa * 2, exponent - 1
    y = (mantissa - 1) / (mantissa + 1)
    square, total = y * y, 0.0
    for n in range(21, 0, -2):
        total = total * square + 1 / n
    return exponent + 2 * y * total * _LOG2_OF_E


def exp2(number: float) -> float:
    """Return 2 to the power of *number*, which is at most 0."""
    whole = math.floor(number)
    x, total = (number - whole) * _LN_2, 1.0
    for n in range(20, 0, -1):
        total = 1 + total * x / n
    return 0.0 if whole < _LEAST_EXPONENT else math.ldexp(total, whole)


def decayed(tag: float, us: int, half_life_us: int, now_us: int) -> float:
    """Return the tag after *us* by weight, more than 0, were used at *now_us*. *tag*: that of before, 0 for none."""
    added = log2(us) + now_us / half_life_us
    if tag == 0:  # of a half-life of many years a tag may be as small as the logarithm of an hour
        return added
    more = max(tag, added)
    return more + log2(1 + exp2(min(tag, added) - more))


def least_used(half_life_us: int, now_us: int) -> float:
    """Return the tag of who used the slot-time of a half-life ten half-lives ago: a lower tag is forgotten."""
    return log2(half_life_us) + now_us / half_life_us - _FORGOTTEN_AFTER


def decayed_use_us(tag: float, half_life_us: int, now_us: int) -> float:
    """Return what is left, at *now_us*, of the use that *tag* stands for: µs of slots by weight."""
    return 2 ** min(100.0, tag - now_us / half_life_us)
