"""Classes of jobs of one type, one weight and about one length: the linear program counts each class as a whole."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .scenario import Arrival
from .weighing import Weight, since_us

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class JobClass:
    """*since_s*, *took_s*: of each job, in the order of arrival. *weight*: the lowest of its jobs."""

    type: str
    weight: float
    since_s: Numbers
    took_s: Numbers

    @cached_property
    def shortest_s(self) -> float:
        return float(self.took_s.min())

    @cached_property
    def longest_s(self) -> float:
        return float(self.took_s.max())

    def come(self, at_s: Numbers) -> Numbers:
        """Return how many jobs have come by each time."""
        return np.searchsorted(self.since_s, at_s, side="right").astype(float)

    def come_area(self, at_s: Numbers) -> Numbers:
        """Return the area under `come` until each time: the time that jobs would have waited if none had started."""
        return _area(self.since_s, at_s)

    def most_work(self, at_s: Numbers) -> Numbers:
        """Return how much work, s, would be done by each time if each job started as it comes."""
        return _area(self.since_s, at_s) - _area(np.sort(self.since_s + self.took_s), at_s)


def _area(steps_s: Numbers, at_s: Numbers) -> Numbers:
    """Return the sum, over *steps_s* (sorted), of the time since each step: for each time in *at_s*."""
    sums = np.concatenate(([0.0], np.cumsum(steps_s)))
    passed = np.searchsorted(steps_s, at_s, side="right")
    return passed * at_s - sums[passed]


def classes_of(arrivals: Sequence[Arrival], weight: Weight, by_length: int) -> list[JobClass]:
    """Return the jobs by type and weight, and those of a type and weight by length: *by_length* classes at most."""
    groups: dict[tuple[str, float], list[Arrival]] = {}
    for each in arrivals:
        groups.setdefault((each.type, weight(each)), []).append(each)
    found = []
    for (type_, weighs), jobs in sorted(groups.items()):
        for part in _by_length(jobs, by_length):
            part.sort(key=since_us)
            since = np.array([since_us(job) for job in part]) / 1e6
            found.append(JobClass(type_, weighs, since, np.array([job.took_us for job in part]) / 1e6))
    return found


def _by_length(jobs: list[Arrival], most: int) -> list[list[Arrival]]:
    """Return *jobs* in parts of like length: equal steps on a scale of powers, since errors are shares of a length."""
    lengths = np.log(np.array([max(1, job.took_us) for job in jobs], dtype=float))
    span = float(lengths.max() - lengths.min())
    if span < 1e-9 or most == 1:
        return [jobs]
    steps = np.minimum(most - 1, ((lengths - lengths.min()) / span * most).astype(int))
    return [[job for job, step in zip(jobs, steps, strict=True) if step == each] for each in sorted({*steps.tolist()})]
