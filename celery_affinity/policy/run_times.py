"""Learn the run time of a task from its runs: decayed sums, and a line of run time over size if sizes explain it.

A run that is 20 runs old counts half. The sums are those of a least-squares line with the weights 1 / size, because
run times scatter more for large sizes. `lua/workers/run_times.lua` computes the same numbers in Redis, operation by
operation, so that both sides agree to the last bit.
"""

import re
from dataclasses import dataclass
from math import inf

from ..schema.constants import (
    MAX_COUNTED_RUNS,
    MAX_RUN_US,
    MAX_TIMES_EXPECTED,
    MIN_RELATIVE_SIZE,
    MIN_RUNS,
    MIN_SIZE,
    MIN_SPREAD,
    RUN_DECAY,
)

_VALUE = re.compile(r"[0-9]{1,18} [0-9]{1,18}(?: [0-9.e+-]{1,30}){6}")


@dataclass
class RunTime:
    """What is learned of one task. Times are in µs. The mean size of a task without sizes is 1."""

    #: Number of counted runs.
    runs: int = 0
    #: Server time of the last run in µs.
    last_us: int = 0
    #: Decayed sums: 1, the sizes, the run times, 1 / size, run time / size, and the errors of the predictions.
    n: float = 0.0
    x: float = 0.0
    y: float = 0.0
    q: float = 0.0
    r: float = 0.0
    a: float = 0.0

    def add(self, size: float | None, took_us: float, *, skipped: int = 0) -> None:
        """Count a run. A run without a *size* has the mean size. *skipped*: runs before it that are only counted.

        A size counts as at least 1 % of the mean size. After 8 runs, a run time counts as at most 8 times the
        prediction. The first run has no prediction, so its whole time is an error.
        """
        used, predicted = self._used_size(size), 0.0
        took = min(max(took_us, 1), MAX_RUN_US)
        if self.runs:
            predicted = self._predicted(used)
        if self.runs >= MIN_RUNS:
            took = min(took, MAX_TIMES_EXPECTED * predicted)
        self.runs = min(self.runs + skipped + 1, MAX_COUNTED_RUNS)
        self.n = RUN_DECAY * self.n + 1
        self.x = RUN_DECAY * self.x + used
        self.y = RUN_DECAY * self.y + took
        self.q = RUN_DECAY * self.q + 1 / used
        self.r = RUN_DECAY * self.r + took / used
        self.a = RUN_DECAY * self.a + abs(took - predicted)

    def expected_us(self, size: float | None = None) -> float:
        """Return the expected run time for *size*, or for the mean size. There must be a run."""
        return self._predicted(self._used_size(size))

    @property
    def typical_error(self) -> float:
        """The mean error of the predictions, as a fraction of the mean run time."""
        return self.a / self.y

    @property
    def mean_size(self) -> float:
        return self.x / self.n

    @property
    def line(self) -> tuple[float, float]:
        """The run time for size 0, and the additional run time per unit of size (0 if sizes explain nothing)."""
        products, squares = self.q * self.x, self.n * self.n
        if self.n < MIN_RUNS or products < MIN_SPREAD * squares:
            return self.y / self.n, 0.0
        slope = (self.q * self.y - self.n * self.r) / (products - squares)
        base = (self.r * self.x - self.n * self.y) / (products - squares)
        if base < 0:
            return 0.0, self.y / self.x
        if slope < 0:
            return self.y / self.n, 0.0
        return base, slope

    def _used_size(self, size: float | None) -> float:
        if self.n == 0:
            return size if size is not None and size >= MIN_SIZE else 1.0
        mean = self.x / self.n
        return max(mean if size is None else size, MIN_RELATIVE_SIZE * mean, MIN_SIZE)

    def _predicted(self, used_size: float) -> float:
        base, slope = self.line
        return base + slope * used_size

    @property
    def text(self) -> str:
        """The value in Redis."""
        sums = " ".join(f"{value:.17g}" for value in (self.n, self.x, self.y, self.q, self.r, self.a))
        return f"{self.runs} {self.last_us} {sums}"

    @classmethod
    def parse(cls, text: str) -> "RunTime | None":
        """Return the value in Redis, or None if it is damaged."""
        if not _VALUE.fullmatch(text):
            return None
        runs, last_us, *sums = text.split(" ")
        try:
            learned = cls(int(runs), int(last_us), *map(float, sums))
        except ValueError:
            return None
        positive = (learned.n, learned.x, learned.y, learned.q, learned.r)
        is_valid = 0 < learned.runs <= MAX_COUNTED_RUNS and all(0 < value < inf for value in positive)
        return learned if is_valid and 0 <= learned.a < inf else None
