"""Times by powers of two: in which bucket each is, and what is read of them."""

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
    ("time_us", "longest_s"),
    [(-5, 1 / 256), (0, 1 / 256), (3_906, 1 / 256), (3_907, 1 / 128), (1_000_000, 1), (1_000_001, 2), (2_000_000, 2)],
)
def test_a_bucket_has_its_longest_time(time_us, longest_s):
    assert BOUNDS_S[bucket_of(time_us)] == longest_s


def test_the_last_bucket_has_all_that_is_longer():
    longest_us = int(BOUNDS_S[-1] * 1e6)
    assert bucket_of(longest_us) == len(BOUNDS_S) - 1
    assert bucket_of(longest_us + 1) == bucket_of(10**18) == len(BOUNDS_S)


def written(times_us, kind="queued"):
    row = {}
    for time_us in times_us:
        for name, by in ((wait_field(kind, bucket_of(time_us)), 1), (sum_field(kind), within_us(time_us))):
            row[name] = row.get(name, 0) + by
    return {name: str(value) for name, value in row.items()}


def test_times_have_an_exact_sum():
    assert histogram_of(written([1_500_000] * 30 + [60_000_000]), "queued").sum_s == 105


def test_a_time_below_zero_or_beyond_all_buckets_adds_its_bound_to_the_sum():
    assert histogram_of(written([-5, 10**18]), "queued").sum_s == BOUNDS_S[-1]


def test_a_quantile_is_in_its_bucket():
    times = histogram_of(written([100_000] * 90 + [3_000_000] * 10), "queued")
    assert 0.06 < times.quantile(0.5) <= 0.125
    assert 2 < times.quantile(0.95) <= 4
    assert TimeHistogram().quantile(0.5) is None


def test_what_came_since_a_look_is_a_difference_unless_the_server_began_anew():
    before, now = (histogram_of(written([1_000_000] * number), "queued") for number in (3, 8))
    assert now.since(before).number == 5
    assert before.since(now) == before
