"""Run times are learned from decayed sums: the recursion, and what it predicts for tasks of many kinds."""

import random

import numpy as np
import pytest

from celery_affinity.policy.run_times import RunTime
from celery_affinity.schema.constants import MIN_RUNS, RUN_DECAY

SECOND = 1_000_000


def learned_from(runs):
    learned = RunTime()
    for size, took_us in runs:
        learned.add(size, took_us)
    return learned


def batch_sums(sizes, times_us):
    """Return the decayed sums after each run, as a convolution: weights of runs 1,200 ago are below 1e-18."""
    weights = RUN_DECAY ** np.arange(1_200)

    def decayed(values):
        return np.convolve(values, weights)[: len(values)]

    return [decayed(values) for values in (np.ones(len(sizes)), sizes, times_us, 1 / sizes, times_us / sizes)]


def batch_predictions(sizes, times_us):
    """Return the prediction before each run, 0 before the first, from `batch_sums` alone."""
    n, x, y, q, r = (sums[:-1] for sums in batch_sums(sizes, times_us))
    spread = q * x - n * n
    with np.errstate(divide="ignore", invalid="ignore"):
        slope, base = (q * y - n * r) / spread, (r * x - n * y) / spread
    is_flat = (n < 8) | (q * x < 1.25 * n * n)
    is_proportional = ~is_flat & (base < 0)
    is_flat |= ~is_proportional & (slope < 0)
    base = np.where(is_flat, y / n, np.where(is_proportional, 0, base))
    slope = np.where(is_flat, 0, np.where(is_proportional, y / x, slope))
    return np.concatenate([[0], base + slope * sizes[1:]])


def test_recursion_equals_batch_computation_of_100000_samples():
    rng = np.random.default_rng(7)
    count = 100_000
    phase = np.arange(count) // 10_000  # ten kinds of tasks, among them constant sizes and falling run times
    sizes = np.where(phase % 5 == 0, 3.0, rng.uniform(1, 20, count))
    base, slope = np.array([[5, 0.5], [0, 1.5], [5, 1], [5, 0.2], [20, -0.5]]).T
    times_us = SECOND * (base[phase % 5] + slope[phase % 5] * sizes) * rng.uniform(0.7, 1.4, count)
    predictions = batch_predictions(sizes, times_us)
    errors = np.convolve(np.abs(times_us - predictions), RUN_DECAY ** np.arange(1_200))
    learned, worst = RunTime(), 0.0
    for index, (size, took_us, predicted) in enumerate(zip(sizes, times_us, predictions, strict=True)):
        if index:
            worst = max(worst, abs(learned.expected_us(size) / predicted - 1))
        if index > MIN_RUNS:
            assert took_us < 8 * predicted, "the batch computation has no limit of run times"
        learned.add(size, took_us)
    assert worst < 1e-6
    sums = [float(values[-1]) for values in batch_sums(sizes, times_us)]
    assert [learned.n, learned.x, learned.y, learned.q, learned.r] == pytest.approx(sums, rel=1e-9)
    assert learned.typical_error == pytest.approx(errors[count - 1] / sums[2], rel=1e-6)
    assert learned.runs == count


def test_doubled_run_time_is_within_a_tenth_after_50_runs():
    learned = learned_from([(None, 10 * SECOND)] * 1_000 + [(None, 20 * SECOND)] * 50)
    assert learned.expected_us() == pytest.approx(20 * SECOND, rel=0.1)


def test_doubled_time_per_unit_is_learned_equally_fast():
    """With sizes, one sequence differs from another: the mean of many is within a tenth."""
    estimates = []
    for seed in range(100):
        rng = random.Random(seed)
        sizes = [rng.uniform(1, 20) for _ in range(250)]
        runs = [(size, size * SECOND * (1 if nth < 200 else 2)) for nth, size in enumerate(sizes)]
        estimates.append(learned_from(runs).expected_us(10))
    assert sum(estimates) / len(estimates) == pytest.approx(20 * SECOND, rel=0.1)


def test_line_recovers_base_and_time_per_unit():
    rng = random.Random(2)
    sizes = [rng.uniform(0, 30) for _ in range(400)]
    learned = learned_from((size, (2 + 0.5 * size) * SECOND * rng.uniform(0.9, 1.1)) for size in sizes)
    base_us, slope_us = learned.line
    assert base_us == pytest.approx(2 * SECOND, rel=0.25)
    assert slope_us == pytest.approx(0.5 * SECOND, rel=0.15)
    assert learned.typical_error < 0.1
    without = learned_from((None, (2 + 0.5 * size) * SECOND) for size in sizes)
    assert without.typical_error > 3 * learned.typical_error


def test_outlier_counts_as_eight_times_the_prediction():
    runs = [(None, SECOND)] * 100
    learned = learned_from([*runs, (None, 3_600 * SECOND)])
    assert learned.expected_us() == pytest.approx(SECOND * (1 + 7 * (1 - RUN_DECAY)), rel=0.01)
    early = learned_from([*runs[: MIN_RUNS - 1], (None, 100 * SECOND)])
    assert early.expected_us() > 10 * SECOND, "there is no limit before eight runs"


def test_task_that_is_always_longer_overcomes_the_limit():
    learned = learned_from([(None, 0)] * 100 + [(None, 60 * SECOND)] * 200)
    assert learned.expected_us() == pytest.approx(60 * SECOND, rel=0.1)


def test_bimodal_task_has_mean_and_large_typical_error():
    rng = random.Random(3)
    learned = learned_from((None, SECOND * rng.choice([1, 10])) for _ in range(2_000))
    assert 3 * SECOND < learned.expected_us() < 8 * SECOND
    assert 0.6 < learned.typical_error < 1.2


def test_falling_run_times_ignore_the_size():
    rng = random.Random(4)
    learned = learned_from((size, (45 - size) * SECOND) for size in (rng.uniform(1, 40) for _ in range(500)))
    base_us, slope_us = learned.line
    assert slope_us == 0
    assert base_us == pytest.approx(learned.y / learned.n)


def test_negative_base_becomes_a_proportional_run_time():
    rng = random.Random(5)
    learned = learned_from((size, size * size * SECOND) for size in (rng.uniform(1, 40) for _ in range(500)))
    assert learned.line == (0, learned.y / learned.x)
    assert learned.expected_us(0) > 0


@pytest.mark.parametrize("sizes", [[0], [0, 5], [5, 0], [0, 1e12], [1e12, 0], [1e-300, 7]])
def test_sizes_of_zero_and_extremes_give_finite_predictions(sizes):
    learned = learned_from((sizes[number % len(sizes)], SECOND) for number in range(30_000))
    for size in (None, 0, *sizes):
        assert learned.expected_us(size) == pytest.approx(SECOND, rel=1e-3)
    assert RunTime.parse(learned.text) == learned


def test_unknown_size_counts_as_mean_size():
    learned = learned_from([(10, SECOND), (None, SECOND)])
    assert learned.mean_size == pytest.approx(10)
    assert learned_from([(None, SECOND)] * 3).mean_size == pytest.approx(1)


def test_first_run_is_an_error_of_its_whole_time():
    assert learned_from([(None, SECOND)]).typical_error == 1
    assert learned_from([(None, SECOND)] * 40).typical_error < 0.02


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pdf",
        "5 1 1 1 1 1 1",
        "5 1 1 1 1 1 1 1 1",
        "0 1 1 1 1 1 1 1",
        "5 1 0 1 1 1 1 1",
        "5 1 1 -1 1 1 1 1",
        "5 1 1 1 1e999 1 1 1",
        "5 1 1 1 nan 1 1 1",
        "5 1 1 1 1 1 1 --",
        "99999999999999999 1 1 1 1 1 1 1",
    ],
)
def test_damaged_value_is_not_parsed(text):
    assert RunTime.parse(text) is None
    assert RunTime.parse("5 1 1 1 1 1 1 0") is not None
