"""How many slots a part of the fleet should have, so that what waits has started within a target time."""

import math
from collections.abc import Sequence
from typing import NamedTuple

#: Target wait, s, if nobody says one, and the longest one that is accepted.
TARGET_WAIT_S, MOST_TARGET_WAIT_S = 30.0, 1_000_000_000

#: Time in a slot, s, of a job of a type of which none has ended yet.
UNKNOWN_AVERAGE_S = 1.0


class Load(NamedTuple):
    """The load of one type. *waiting*: pending jobs that could start if a slot were free. *average_s*: of a run."""

    waiting: float
    running: float
    average_s: float | None

    @property
    def jobs(self) -> float:
        return self.waiting + self.running

    @property
    def work_s(self) -> float:
        return self.jobs * (UNKNOWN_AVERAGE_S if self.average_s is None else self.average_s)


def wanted_slots(loads: Sequence[Load], running: int, target_wait_s: float) -> int:
    """Return (work waiting + work running) / *target_wait_s*, rounded up; no more than there are jobs.

    Never below *running*, the slots in use: a slot that is taken away while its task runs loses the run. More slots
    than jobs help nobody: ten tasks of an hour need ten slots, however short the target.
    """
    work_s = sum(each.work_s for each in loads)
    jobs = sum(each.jobs for each in loads)
    return max(running, _up(min(jobs, work_s / target_wait_s)))  # the quotient may be infinite


def _up(number: float) -> int:
    return math.ceil(round(number, 6))  # a third of a job, three times, is one job
