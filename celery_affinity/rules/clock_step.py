"""Steps of the server's clock: its time compared with this machine's monotonic clock, which nobody sets.

Every due time is a time of the server's clock. A clock that is set, or a failover to a server with another clock, makes
all of them due earlier or later. A slow correction (NTP slews by 0.05 % at most) is no step.
"""

from dataclasses import dataclass
from typing import NamedTuple

from ..clock import SECOND_US

#: Smallest step, in seconds, that is reported: nobody plans an ETA more exactly.
SMALLEST_S = 5.0

#: Fastest slow correction of two clocks, in seconds per second.
_SLEW = 0.001

#: Largest step, in µs, that is believed: a damaged key may contain any number.
_LARGEST_US = 100 * 366 * 86_400 * SECOND_US

#: Seconds for which `check` shows a step.
SHOWN_FOR_S = 86_400.0


@dataclass(frozen=True)
class ClockStep:
    """A step of the server's clock."""

    #: Length in µs: above 0 for a step forward.
    size_us: int
    #: Time after the step by the server's clock, in µs.
    at_us: int

    @property
    def direction(self) -> str:
        return "forward" if self.size_us > 0 else "back"

    @property
    def text(self) -> str:
        """The field of the key `clock`."""
        return f"{self.at_us} {self.size_us}"

    @classmethod
    def parse(cls, text: str) -> "ClockStep | None":
        """Return the step in a field of the key `clock`; None if it has none. Anybody may have written the field."""
        at, _, size = text[:100].partition(" ")
        if not (at.isdecimal() and size.removeprefix("-").isdecimal()):
            return None
        at_us, size_us = int(at), int(size)
        return cls(size_us, at_us) if max(at_us, abs(size_us)) <= _LARGEST_US else None


class ServerTime(NamedTuple):
    """A time of the server, in the reply to a tick."""

    #: The server's time, in µs.
    now_us: int
    #: Local monotonic time before the call, in seconds: the server read its clock after it.
    began_s: float
    #: Local monotonic time after the reply, in seconds.
    ended_s: float
    #: The server's time at the tick before, of any process, in µs; None if there was none.
    ticked_us: int | None = None


class ClockWatch:
    """Finds the steps of one server's clock in the times of ticks.

    A local time is only known to lie between the call and its reply, so a slow reply, or a process that was suspended
    in between, is no step. A machine whose monotonic clock was suspended too sees the server's time jump forward; so a
    step forward counts only if no other process ticked meanwhile. One process finds each step: the first that ticks.
    """

    def __init__(self) -> None:
        self._last: ServerTime | None = None

    def step(self, time: ServerTime) -> ClockStep | None:
        """Return the step between the time of the last call and *time*; None if there was none."""
        last, self._last = self._last, time
        since_tick_us = None if time.ticked_us is None else time.now_us - time.ticked_us
        if last is None:
            is_behind = since_tick_us is not None and -_LARGEST_US < since_tick_us < -SMALLEST_S * SECOND_US
            return ClockStep(since_tick_us or 0, time.now_us) if is_behind else None
        passed_us = time.now_us - last.now_us
        least_us = passed_us - round((time.ended_s - last.began_s) * SECOND_US)
        most_us = passed_us - round((time.began_s - last.ended_s) * SECOND_US)
        tolerance_us = max(SMALLEST_S, (time.ended_s - last.began_s) * _SLEW) * SECOND_US
        size_us = (least_us + most_us) // 2
        if abs(size_us) > _LARGEST_US or since_tick_us is None:
            return None
        is_forward = least_us > tolerance_us and since_tick_us >= least_us
        is_back = most_us < -tolerance_us and since_tick_us < 0
        return ClockStep(size_us, time.now_us) if is_forward or is_back else None
