"""Head starts in a simulation: from due times, and from the run times learned so far.

The rule equals ``lua/jobs/due_times.lua``, operation by operation, so that both compute the same µs. A run time is
learned at the job's end, while a fleet learns it with the worker's next heartbeat. The beginning knows no run times.
"""

from collections.abc import Mapping
from math import floor, inf

from ..clock import SECOND_US
from ..policy.run_times import RunTime
from ..schema.constants import AVERAGED_OVER
from ..settings.wire import complete_settings
from .scenario import Arrival, Scenario
from .trace import MAX_DUE_NUMBER

#: Start time of the engines' clock in µs.
START_US = 1_800_000_000_000_000


def size_of(arrival: Arrival) -> float | None:
    """Return the size of the job as the server stores it, in whole millionths."""
    return None if arrival.size is None else millionths(arrival.size) / SECOND_US


def millionths(size: float) -> int:
    return min(round(size * SECOND_US), MAX_DUE_NUMBER)


class HeadStarts:
    """The head starts in one schedule. *by_number*: number of a job -> its head start in µs, if it is above 0."""

    def __init__(self, scenario: Scenario) -> None:
        settings = complete_settings(scenario.settings)
        self.target_wait_us, self._stretch = int(settings["target_wait_us"]), float(settings["stretch"])
        self.by_number: dict[int, int] = {}
        self._learned: dict[str, RunTime] = {}
        self._usual_us: dict[str, int] = {}  # type -> moving average of its slot times
        jobs = scenario.arrivals
        #: True if a run time can matter.
        self.learns = self._stretch > 0 or any(job.deadline_us is not None for job in jobs)
        #: True if head starts are possible.
        self.are_possible = self.learns or any(job.head_us or job.start_within_us is not None for job in jobs)

    def begin(self, job: Arrival) -> int:
        """Return the head start in µs of *job*, which becomes pending now."""
        if (head_us := self._head_us(job)) > 0:
            self.by_number[job.number] = head_us
        return head_us

    def _head_us(self, job: Arrival) -> int:
        target_wait_us, base_us = self.target_wait_us, START_US + job.enqueued_us
        if job.head_us is not None:
            return min(job.head_us, target_wait_us)
        due_us: float = inf
        if job.start_within_us is not None:
            due_us = base_us + job.start_within_us
        if job.deadline_us is not None:
            expected_us, typical_error = self.expected(job)
            due_us = min(due_us, base_us + job.deadline_us - (expected_us or 0) * (1 + typical_error))
        if due_us == inf and self._stretch > 0:
            expected_us, _ = self.expected(job)
            due_us = inf if expected_us is None else base_us + self._stretch * expected_us
        return 0 if due_us == inf else floor(max(0, min(target_wait_us, base_us + target_wait_us - due_us)))

    def expected(self, job: Arrival) -> tuple[float | None, float]:
        """Return the expected run time in µs, None if it is unknown, and its typical error as a fraction of it."""
        learned = self._learned.get(job.task or "")
        if learned is not None:
            return learned.expected_us(size_of(job)), learned.typical_error
        return self._usual_us.get(job.type), 0.0

    def learn(self, job: Arrival) -> tuple[RunTime | None, int]:
        """Learn the run time of *job* at its end. Return the sums of its task, and the usual time of its type in µs."""
        usual_us = self._usual_us.get(job.type)
        if usual_us is None:
            usual_us = job.took_us
        else:
            usual_us += (job.took_us - usual_us) // AVERAGED_OVER
        self._usual_us[job.type] = usual_us
        if job.task is None or not job.is_learned or job.merge is not None:
            return None, usual_us
        learned = self._learned.setdefault(job.task, RunTime())
        learned.add(size_of(job), job.took_us)
        return learned, usual_us

    def forget(self, type_: str) -> None:
        """Forget the usual time of a type: its last worker has left."""
        self._usual_us.pop(type_, None)


def rank_us(job: Arrival, head_starts: Mapping[int, int]) -> int:
    """Return the enqueue time of *job* minus its head start."""
    return job.enqueued_us - head_starts.get(job.number, 0)
