"""The clock by which processes measure silence and waiting."""

import time

#: µs in a second.
SECOND_US = 1_000_000

#: A clock that goes on while the machine sleeps, where there is one: to the fleet, a sleeping machine is a silent one.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_s() -> float:
    """Return the time of a clock that never goes back, s since an unknown moment."""
    return time.clock_gettime(_CLOCK)
