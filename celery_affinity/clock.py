"""The process's clock for durations, and detection of steps of the server's clock.

Every due time refers to the server's clock. If that clock is set, or a failover promotes a server with another clock,
all jobs become due earlier or later. `ClockWatch` detects such steps by comparing the server's time with this machine's
monotonic clock, which cannot be set. A slow correction (NTP slews by at most 0.05 %) is not reported as a step.
"""

import time
from dataclasses import dataclass
from typing import NamedTuple

#: µs in a second.
SECOND_US = 1_000_000

#: A clock that includes suspend time, where available: for the fleet, a suspended machine is silent.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_s() -> float:
    """Return the time of a monotonic clock, in seconds since an unspecified moment."""
    return time.clock_gettime(_CLOCK)


#: Minimum size of a reported step, in seconds. ETAs are rarely planned more precisely.
SMALLEST_S = 5.0

#: Maximum rate at which NTP slews two clocks, in seconds per second.
_SLEW = 0.001

#: Maximum size of a plausible step, in µs. A damaged key can contain any number.
_MAX_STEP_US = 100 * 366 * 86_400 * SECOND_US

#: How long `check` reports a step, in seconds.
SHOWN_FOR_S = 86_400.0


@dataclass(frozen=True)
class ClockStep:
    """A step of the server's clock."""

    #: Size in µs, positive for a step forward.
    size_us: int
    #: Time of the server's clock after the step, in µs.
    at_us: int

    @property
    def direction(self) -> str:
        return "forward" if self.size_us > 0 else "back"

    @property
    def text(self) -> str:
        """The step as a field value of the key `clock`."""
        return f"{self.at_us} {self.size_us}"

    @classmethod
    def parse(cls, text: str) -> "ClockStep | None":
        """Return the step in *text*, an untrusted field value of the key `clock`, or None if *text* is not valid."""
        at, _, size = text[:100].partition(" ")
        if not (at.isdecimal() and size.removeprefix("-").isdecimal()):
            return None
        at_us, size_us = int(at), int(size)
        return cls(size_us, at_us) if max(at_us, abs(size_us)) <= _MAX_STEP_US else None


class ServerTime(NamedTuple):
    """The server's time in the reply to a tick, with the local times around it."""

    #: The server's time, in µs.
    now_us: int
    #: Local monotonic time before the call, in seconds. The server reads its clock between `began_s` and `ended_s`.
    began_s: float
    #: Local monotonic time after the reply, in seconds.
    ended_s: float
    #: The server's time at the previous tick of any process, in µs, or None if there was none.
    ticked_us: int | None = None


class ClockWatch:
    """Detects steps of one server's clock from the times of ticks.

    The server reads its clock at an unknown moment between call and reply, so a slow reply or a suspended process is
    not a step. After a suspend that also stopped the monotonic clock, the server's time seems to jump forward. A step
    forward is therefore reported only if no other process has ticked since this process' last tick. Exactly one process
    reports each step: the first process that ticks after the step.
    """

    def __init__(self) -> None:
        self._last: ServerTime | None = None

    def step(self, time: ServerTime) -> ClockStep | None:
        """Return the step between the previous call and *time*, or None if there was none."""
        last, self._last = self._last, time
        since_tick_us = None if time.ticked_us is None else time.now_us - time.ticked_us
        if last is None:
            is_behind = since_tick_us is not None and -_MAX_STEP_US < since_tick_us < -SMALLEST_S * SECOND_US
            return ClockStep(since_tick_us or 0, time.now_us) if is_behind else None
        passed_us = time.now_us - last.now_us
        min_us = passed_us - round((time.ended_s - last.began_s) * SECOND_US)
        max_us = passed_us - round((time.began_s - last.ended_s) * SECOND_US)
        tolerance_us = max(SMALLEST_S, (time.ended_s - last.began_s) * _SLEW) * SECOND_US
        size_us = (min_us + max_us) // 2
        if abs(size_us) > _MAX_STEP_US or since_tick_us is None:
            return None
        is_forward = min_us > tolerance_us and since_tick_us >= min_us
        is_back = max_us < -tolerance_us and since_tick_us < 0
        return ClockStep(size_us, time.now_us) if is_forward or is_back else None
