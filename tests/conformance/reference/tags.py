"""Compute the start tag of a tenant, which halves its past use in each half-life (``affinity_tenant_half_life``).

    tag = log2( sum over all uses u:  u * 2 ** (time of u / half-life) )

with u in µs of slots divided by the tenant's weight, and the time since the epoch. All uses decay alike, so the order
of tags stays, and a tag changes only when its tenant uses more. `lua/keys/fair_share.lua` computes the same tags. Both
use only sums and products in one order, so that they agree to the last bit.
"""

import math

_LOG2_OF_E = 1.4426950408889634
_LN_2 = 0.6931471805599453
_ROOT_OF_HALF = 0.7071067811865476
_MIN_EXPONENT = -1000


def log2(number: float) -> float:
    """Return the base-2 logarithm of *number*, which is above 0."""
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
    return 0.0 if whole < _MIN_EXPONENT else math.ldexp(total, whole)


def decayed(tag: float, us: int, half_life_us: int, now_us: int) -> float:
    """Return the tag after a use of *us* > 0 (divided by the weight) at *now_us*.

    *tag*: the previous tag, 0 if the tenant has none.
    """
    added = log2(us) + now_us / half_life_us
    if tag == 0:  # a tag is close to 0 only if its half-life is many years
        return added
    larger = max(tag, added)
    return larger + log2(1 + exp2(min(tag, added) - larger))
