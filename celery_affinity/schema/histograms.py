"""The fields of the hash in which a type's metrics are: counts of jobs, and of the times that these took.

Times are counted by powers of two: field ``queued 11`` has the queued jobs that waited longer than 4 s and up to 8 s.

The pace of a worker in a type: moving averages of how long its jobs took, which the worker writes into its row.

The averages are of the durations' logarithms, so that a few long jobs do not make a healthy worker look slow.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from ..clock import SECOND_US
from .constants import LARGEST_BUCKET, PACE_AVERAGED_OVER, REASONS, SMALLEST_BUCKET_US
from .values import decode_number

#: Field of the jobs that were published while live workers served the type.
PUBLISHED = "published"

#: The same number once no live worker serves the type: then the metrics have no field `PUBLISHED`.
PUBLISHED_BEFORE = "published before"

#: Kinds of waits, by mode, and of times in a slot, by how the job ended there.
WAITS = ("queued", "demand")
RUNS = ("done", "failed", "revoked", "expired")

#: Ends of jobs that no slot's time is counted for, since they ended before, or are dead letters.
OTHER_ENDS = ("revoked", "expired", *(name for name, reason in REASONS.items() if not reason.is_run))

#: Longest times, s, of the buckets, the shortest first. One more bucket has all that are longer.
BOUNDS_S: tuple[float, ...] = tuple(
    SMALLEST_BUCKET_US * (1 << number) / SECOND_US for number in range(LARGEST_BUCKET + 1)
)

_LONGEST_US = int(SMALLEST_BUCKET_US * (1 << LARGEST_BUCKET))


@cache
def wait_field(kind: str, bucket: int) -> str:
    """Return the name of the field, in a type's metrics, that counts the times of *kind* in *bucket*."""
    return f"{kind} {bucket:02}"


def bucket_of(time_us: int) -> int:
    """Return the number of the bucket of a time."""
    if time_us <= SMALLEST_BUCKET_US:
        return 0
    fraction, bucket = math.frexp(time_us / SMALLEST_BUCKET_US)
    return min(bucket - (fraction == 0.5), LARGEST_BUCKET + 1)  # a bucket has its longest time


def sum_field(kind: str) -> str:
    return f"{kind} sum"


def within_us(time_us: int) -> int:
    """Return what a time adds to the sum of its kind, µs: 0 at least, the longest time of `BOUNDS_S` at most."""
    return max(0, min(time_us, _LONGEST_US))


@dataclass(frozen=True)
class TimeHistogram:
    """Times by powers of two. *counts*: of each of `BOUNDS_S`, then of all that were longer. *sum_s*: exact."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    sum_s: float = 0.0

    @property
    def number(self) -> int:
        return sum(self.counts)

    def plus(self, other: "TimeHistogram") -> "TimeHistogram":
        counts = tuple(one + another for one, another in zip(self.counts, other.counts, strict=True))
        return TimeHistogram(counts, self.sum_s + other.sum_s)

    def since(self, before: "TimeHistogram") -> "TimeHistogram":
        """Return the times that were added after *before*; all of them if the server began anew meanwhile."""
        counts = tuple(now - was for now, was in zip(self.counts, before.counts, strict=True))
        if min(counts) < 0:
            return self
        return TimeHistogram(counts, max(0.0, self.sum_s - before.sum_s))

    def quantile(self, share: float) -> float | None:
        """Return the time, s, within which *share* of the times are, guessed within its bucket; None of no times.

        As Prometheus' ``histogram_quantile`` does it: times of a bucket count as spread evenly, and those beyond the
        largest bound as long as that.
        """
        rank = share * self.number
        if not self.number:
            return None
        seen, lower = 0, 0.0
        for count, bound in zip(self.counts, BOUNDS_S, strict=False):
            if count and seen + count >= rank:
                return lower + (bound - lower) * (rank - seen) / count
            seen, lower = seen + count, bound
        return BOUNDS_S[-1]


def histogram_of(row: Mapping[str, str], *kinds: str) -> TimeHistogram:
    """Return the times of *kinds* in a hash of metrics."""
    buckets = range(LARGEST_BUCKET + 2)
    counts = (sum(max(0, decode_number(row.get(wait_field(kind, bucket)))) for kind in kinds) for bucket in buckets)
    sum_us = sum(max(0, decode_number(row.get(sum_field(kind)))) for kind in kinds)
    return TimeHistogram(tuple(counts), sum_us / SECOND_US)


#: Field of a worker's row, before the type.
FIELD = "took:"


class Pace(NamedTuple):
    """*level*: the moving average of the logarithms, in thousandths. *spread*: that of their distances from *level*.

    *number*: how many durations the averages go by, `PACE_AVERAGED_OVER` at most.
    """

    level: int
    spread: int
    number: int

    @property
    def in_words(self) -> str:
        """The pace as it stands in the row."""
        return f"{self.level} {self.spread} {self.number}"


def average_pace(before: Pace | None, duration_us: int) -> Pace:
    """Return the pace after one more job. The logarithm is straight between powers of two."""
    fraction, exponent = math.frexp(max(duration_us, 1))
    its = math.floor((exponent + 2 * fraction) * 1000)
    level, spread, number = before or (its, 0, 0)
    number = min(number + 1, PACE_AVERAGED_OVER)
    spread += (abs(its - level) - spread) // number
    return Pace(level + (its - level) // number, spread, number)
