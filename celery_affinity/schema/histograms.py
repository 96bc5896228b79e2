"""Fields of the metrics hash of a type: counts of jobs, and histograms of their times; and the pace of workers.

Times are counted by powers of two: field ``queued 11`` counts the queued jobs that waited more than 4 s and up to 8 s.
The pace of a worker in a type is a moving average of the logarithms of its jobs' durations, stored in the worker's
hash. With logarithms, a few long jobs do not make a healthy worker appear slow.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from ..clock import SECOND_US
from .constants import LARGEST_BUCKET, PACE_AVERAGED_OVER, REASONS, SMALLEST_BUCKET_US
from .values import decode_number

#: Field that counts the jobs published while live workers served the type.
PUBLISHED = "published"
#: Field that replaces `PUBLISHED` when no live worker serves the type any longer.
PUBLISHED_BEFORE = "published before"
#: Kinds of waiting times (by mode), and of slot-times (by the job's end).
WAITS = ("queued", "demand")
RUNS = ("done", "failed", "revoked", "expired")
#: Kind of the lateness of starts after a job's own due time, and the field that counts the starts in time.
LATE, IN_TIME = "late", "in time"
#: Ends of jobs without a recorded slot-time: they never started, or became dead letters.
OTHER_ENDS = ("revoked", "expired", *(name for name, reason in REASONS.items() if not reason.is_run))

#: Upper bounds of the buckets in seconds, in ascending order. One more bucket counts all longer times.
BOUNDS_S: tuple[float, ...] = tuple(
    SMALLEST_BUCKET_US * (1 << number) / SECOND_US for number in range(LARGEST_BUCKET + 1)
)

_MAX_US = int(SMALLEST_BUCKET_US * (1 << LARGEST_BUCKET))


#: Number of digits of a bucket in the name of a field.
BUCKET_DIGITS = 2


@cache
def wait_field(kind: str, bucket: int) -> str:
    """Return the metrics field that counts the times of *kind* in *bucket*."""
    return f"{kind} {bucket:0{BUCKET_DIGITS}}"


def bucket_of(time_us: int) -> int:
    """Return the bucket number of a time in µs."""
    if time_us <= SMALLEST_BUCKET_US:
        return 0
    fraction, bucket = math.frexp(time_us / SMALLEST_BUCKET_US)
    return min(bucket - (fraction == 0.5), LARGEST_BUCKET + 1)  # a bucket includes its upper bound


def sum_field(kind: str) -> str:
    return f"{kind} sum"


def within_us(time_us: int) -> int:
    """Return the amount in µs that a time adds to the sum of its kind: the time clamped to the range of `BOUNDS_S`."""
    return max(0, min(time_us, _MAX_US))


@dataclass(frozen=True)
class TimeHistogram:
    """A histogram of times, with powers of two as bucket bounds."""

    #: Number of times per bucket of `BOUNDS_S`, then the number of longer times.
    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    #: Exact sum of all times in seconds.
    sum_s: float = 0.0

    @property
    def number(self) -> int:
        return sum(self.counts)

    def plus(self, other: "TimeHistogram") -> "TimeHistogram":
        counts = tuple(count + added for count, added in zip(self.counts, other.counts, strict=True))
        return TimeHistogram(counts, self.sum_s + other.sum_s)

    def since(self, before: "TimeHistogram") -> "TimeHistogram":
        """Return the times added after *before*, or all times if the server has lost its data since then."""
        counts = tuple(now - was for now, was in zip(self.counts, before.counts, strict=True))
        if min(counts) < 0:
            return self
        return TimeHistogram(counts, max(0.0, self.sum_s - before.sum_s))

    def quantile(self, share: float) -> float | None:
        """Return the quantile *share* in seconds, interpolated within its bucket, or None without times.

        Like Prometheus' ``histogram_quantile``: times are assumed to be evenly spread within a bucket. Times beyond the
        largest bound are assumed to be equal to that bound.
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
    """Return the histogram of *kinds* in a metrics hash."""
    buckets = range(LARGEST_BUCKET + 2)
    counts = (sum(max(0, decode_number(row.get(wait_field(kind, bucket)))) for kind in kinds) for bucket in buckets)
    sum_us = sum(max(0, decode_number(row.get(sum_field(kind)))) for kind in kinds)
    return TimeHistogram(tuple(counts), sum_us / SECOND_US)


#: Prefix of a field in a worker's hash, before the type.
FIELD = "took:"


class Pace(NamedTuple):
    """Moving averages of a worker's job durations, on a logarithmic scale."""

    #: Average of the logarithms, in thousandths.
    level: int
    #: Average distance of the logarithms from `level`, in thousandths.
    spread: int
    #: Number of averaged durations, at most `PACE_AVERAGED_OVER`.
    number: int

    @property
    def in_words(self) -> str:
        """The pace as stored in the worker's hash."""
        return f"{self.level} {self.spread} {self.number}"


def average_pace(before: Pace | None, duration_us: int) -> Pace:
    """Return the pace after one more job. The logarithm is interpolated linearly between powers of two."""
    fraction, exponent = math.frexp(max(duration_us, 1))
    logarithm = math.floor((exponent + 2 * fraction) * 1000)
    level, spread, number = before or (logarithm, 0, 0)
    number = min(number + 1, PACE_AVERAGED_OVER)
    spread += (abs(logarithm - level) - spread) // number
    return Pace(level + (logarithm - level) // number, spread, number)
