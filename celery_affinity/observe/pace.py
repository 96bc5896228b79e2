"""How long the jobs of a worker take beside the jobs of the same type on other workers.

A worker is compared with others of one type at a time, by the average logarithm of durations in its row (`rules.pace`).
What differs between the jobs of a type, such as the task or the size of its arguments, meets all workers alike, unless
somebody sends the long jobs to one of them. The report cannot know that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import hypot, modf, sqrt
from statistics import median
from typing import NamedTuple

from ..rules.encoding import decode
from ..rules.pace import FIELD
from ..rules.protocol import PACE_AVERAGED_OVER
from ..rules.rows import number_of

#: Times as long as on other workers that the jobs of a type take on a worker that is called slow.
SLOW_TIMES = 2.0

#: Number of durations of a type below which nothing is said of a worker's pace.
FEWEST = 10

#: Standard errors by which a slow worker differs: durations that vary make a healthy worker look slow, by chance.
_SURE = 3.0

#: Largest average logarithm: of 2 ** 64 microseconds.
_LARGEST = 66_000


@dataclass(frozen=True)
class ComparedPace:
    """The type of which a worker's jobs take longest beside those of other workers: *times* as long.

    *is_slow*: whether they take at least `SLOW_TIMES` as long, and by more than chance explains.
    """

    type: str
    times: float
    is_slow: bool


class _Average(NamedTuple):
    """The average logarithm of durations, in thousandths, and its standard error."""

    level: float
    error: float


def paces(rows: Mapping[str, Mapping[str, str]]) -> dict[str, ComparedPace]:
    """Return the pace of each worker, of which *rows* has the row by id.

    A worker is left out if it, or every other worker of its types, has not ended enough jobs.
    """
    of_types: dict[str, dict[str, _Average]] = {}
    for worker, row in rows.items():
        for name, text in row.items():
            average = _read(text) if name.startswith(FIELD) else None
            if average is not None:
                of_types.setdefault(name.removeprefix(FIELD), {})[worker] = average
    found: dict[str, ComparedPace] = {}
    for type_, of_workers in of_types.items():
        for worker, own in of_workers.items():
            others = [average for other, average in of_workers.items() if other != worker]
            if others:
                pace = _beside(decode(type_), own, others)
                known = found.get(worker)
                if known is None or (pace.is_slow, pace.times) > (known.is_slow, known.times):
                    found[worker] = pace
    return found


def _read(text: str) -> _Average | None:
    """Return the average in a worker's row: its level, the mean distance from that, and the number of durations."""
    numbers = [number_of(each, -1) for each in text.split()]
    if len(numbers) != 3 or min(numbers) < 0 or max(numbers) > _LARGEST or numbers[2] < FEWEST:
        return None
    level, spread, number = numbers
    # A moving average is as good as one of 2n - 1. The distance from it is 0.8 standard deviations, if that is normal.
    durations = number if number < PACE_AVERAGED_OVER else 2 * number - 1
    return _Average(level, 1.25 * spread / sqrt(durations - 1))


def _beside(type_: str, own: _Average, others: list[_Average]) -> ComparedPace:
    """Return the pace of a worker beside the middle one of *others*."""
    level = median(each.level for each in others)
    error = hypot(own.error, median(each.error for each in others))
    times = _duration_us(own.level) / _duration_us(level)
    return ComparedPace(type_, times, times >= SLOW_TIMES and own.level - level > _SURE * error)


def _duration_us(level: float) -> float:
    """Return the duration of which *level* is the logarithm, which is straight between powers of two (`rules.pace`)."""
    fraction, whole = modf(level / 1000)
    return float((1 + fraction) * 2 ** (whole - 2))
