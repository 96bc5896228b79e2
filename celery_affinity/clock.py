"""The clock by which processes measure silence and waiting."""

import time

#: A machine that sleeps is as silent as one that is cut off: a clock of this kind goes on, where there is one.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_s() -> float:
    """Return the time of a clock that only grows, s."""
    return time.clock_gettime(_CLOCK)
