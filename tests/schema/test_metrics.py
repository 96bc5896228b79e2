"""Histograms whose bucket bounds are powers of two: the bucket of a time, the sum and the quantiles."""

import pytest

from celery_affinity.schema.histograms import (
    BOUNDS_S,
    TimeHistogram,
    bucket_of,
    histogram_of,
    sum_field,
    wait_field,
    within_us,
)


@pytest.mark.parametrize(
    ("time_us", "bound_s"),
    [(-5, 1 / 256), (0, 1 / 256), (3_906, 1 / 256), (3_907, 1 / 128), (1_000_000, 1), (1_000_001, 2), (2_000_000, 2)],
)
def test_time_is_in_the_bucket_with_the_next_bound(time_us, bound_s):
    assert BOUNDS_S[bucket_of(time_us)] == bound_s


def test_last_bucket_contains_all_longer_times():
    last_bound_us = int(BOUNDS_S[-1] * 1e6)
    assert bucket_of(last_bound_us) == len(BOUNDS_S) - 1
    assert bucket_of(last_bound_us + 1) == bucket_of(10**18) == len(BOUNDS_S)


def written(times_us, kind="queued"):
    row = {}
    for time_us in times_us:
        for name, by in ((wait_field(kind, bucket_of(time_us)), 1), (sum_field(kind), within_us(time_us))):
            row[name] = row.get(name, 0) + by
    return {name: str(value) for name, value in row.items()}


def test_sum_is_exact_and_clamps_times_outside_the_buckets():
    assert histogram_of(written([1_500_000] * 30 + [60_000_000]), "queued").sum_s == 105
    assert histogram_of(written([-5, 10**18]), "queued").sum_s == BOUNDS_S[-1]


def test_quantile_is_within_its_bucket():
    times = histogram_of(written([100_000] * 90 + [3_000_000] * 10), "queued")
    assert 0.06 < times.quantile(0.5) <= 0.125
    assert 2 < times.quantile(0.95) <= 4
    assert TimeHistogram().quantile(0.5) is None


def test_since_returns_the_difference_or_everything_after_a_reset():
    before, now = (histogram_of(written([1_000_000] * number), "queued") for number in (3, 8))
    assert now.since(before).number == 5
    assert before.since(now) == before
