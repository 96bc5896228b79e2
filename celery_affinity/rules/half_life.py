"""The tag of a tenant whose use of before counts less, by half in each half-life (``affinity_tenant_half_life``).

    tag = log2( sum over all parts of use u:  u * 2 ** (time at which u was used / half-life) )

with u in µs of slots, divided by the weight of the tenant, and the time since the epoch. All parts halve alike as time
goes by, so the order of tags stays, and a tag changes only when its tenant uses more. ``lua/keyed/half_life.lua`` is
this in Redis: both are sums and products alone, in one order, so that they agree to the last bit.
"""

import math

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


def after(tag: float, us: int, half_life_us: int, now_us: int) -> float:
    """Return the tag after *us* by weight, more than 0, were used at *now_us*. *tag*: that of before, 0 for none."""
    added = log2(us) + now_us / half_life_us
    if tag == 0:  # of a half-life of many years a tag may be as small as the logarithm of an hour
        return added
    more = max(tag, added)
    return more + log2(1 + exp2(min(tag, added) - more))


def least(half_life_us: int, now_us: int) -> float:
    """Return the tag of who used the slot-time of a half-life ten half-lives ago: a lower tag is forgotten."""
    return log2(half_life_us) + now_us / half_life_us - _FORGOTTEN_AFTER


def used_us(tag: float, half_life_us: int, now_us: int) -> float:
    """Return what is left, at *now_us*, of the use that *tag* stands for: µs of slots by weight."""
    return 2 ** min(100.0, tag - now_us / half_life_us)
