"""A worker is slow if jobs of a type take longer there than on other workers, by more than chance explains."""

import math
import random
from statistics import median

import pytest

from celery_affinity.reports.status import MIN_JOBS, SLOW_TIMES, paces
from celery_affinity.schema.constants import PACE_AVERAGED_OVER
from celery_affinity.schema.histograms import average_pace


def rows(**of_workers):
    """Return rows of workers that ran jobs of the given durations, s, by worker and type."""
    found = {}
    for name, of_types in of_workers.items():
        found[name] = {}
        for type_, durations_s in of_types.items():
            took = None
            for each in durations_s:
                took = average_pace(took, round(each * 1e6))
            if took is not None:
                found[name][f"took:{type_}"] = took.in_words
    return found


def steady(seconds, number=PACE_AVERAGED_OVER):
    return [seconds] * number


def varying(dice, times=1.0, number=200):
    """Durations of a type with two kinds of tasks, of which one takes a hundred times as long."""
    return [times * dice.choice((10, 0.1)) * math.exp(dice.gauss(0, 0.5)) for _ in range(number)]


@pytest.mark.parametrize("times", [1.5, 1.99, 2.01, 4, 30])
def test_the_pace_is_how_many_times_as_long_the_jobs_take(times):
    found = paces(rows(a={"pdf": steady(1)}, b={"pdf": steady(1)}, slow={"pdf": steady(times)}))
    assert found["slow"].times == pytest.approx(times, rel=0.002)
    assert found["slow"].is_slow == (times >= SLOW_TIMES)
    assert not found["a"].is_slow


def test_a_slow_worker_beside_a_slow_one_is_compared_with_the_middle_of_the_others():
    others = {name: {"pdf": steady(1)} for name in "abc"}
    found = paces(rows(**others, slow={"pdf": steady(5)}, slower={"pdf": steady(9)}))
    assert [name for name, each in found.items() if each.is_slow] == ["slow", "slower"]
    found = paces(rows(**others, quick={"pdf": steady(0.1)}))
    assert not any(each.is_slow for each in found.values())


def test_a_worker_is_compared_type_by_type():
    long = {"pdf": steady(100), "mail": steady(0.1)}
    found = paces(rows(a=long, b=long, c={"pdf": steady(100)}, d={"mail": steady(0.3)}))
    assert {name: each.type for name, each in found.items() if each.is_slow} == {"d": "mail"}
    found = paces(rows(a=long, slow={"pdf": steady(300), "mail": steady(0.4)}))
    assert (found["slow"].type, found["slow"].times) == ("mail", pytest.approx(4, rel=0.01))


@pytest.mark.parametrize("few", [MIN_JOBS - 1, 0])
def test_nothing_is_said_of_few_jobs_nor_beside_few(few):
    assert paces(rows(a={"pdf": steady(1)}, b={"pdf": steady(9, few)})) == {}
    assert paces(rows(a={"pdf": steady(1)}, b={"mail": steady(9)})) == {}
    assert paces({}) == {}


def test_a_few_very_long_jobs_make_no_worker_slow():
    found = paces(rows(a={"pdf": steady(1, 200)}, b={"pdf": [*steady(1, 200), 3_600, *steady(1, 5), 600]}))
    assert not found["b"].is_slow


@pytest.mark.parametrize("number", [MIN_JOBS, 25, 200])
def test_durations_that_vary_make_almost_no_healthy_worker_slow(number):
    dice = random.Random(3)
    healthy = [
        each.is_slow
        for _ in range(500)
        for each in paces(rows(a={"pdf": varying(dice, 1, number)}, b={"pdf": varying(dice, 1, number)})).values()
    ]
    assert sum(healthy) <= 10, sum(healthy)  # of 1,000


def test_durations_that_vary_hide_no_worker_that_is_much_slower():
    dice = random.Random(3)
    slow = [
        paces(rows(a={"pdf": varying(dice)}, b={"pdf": varying(dice)}, slow={"pdf": varying(dice, 16)}))["slow"].is_slow
        for _ in range(100)
    ]
    assert median(slow) == 1


@pytest.mark.parametrize(
    "text", ["", "x", "1 2", "-1 0 32", "1 2 3 4", "9" * 400 + " 1 32", "9" * 12 + " 1 32", "nan 1 32", "1 2 9"]
)
def test_a_spoiled_average_does_not_hide_the_others(text):
    good = rows(a={"pdf": steady(1)}, b={"pdf": steady(1)}, slow={"pdf": steady(5)})
    found = paces({**good, "spoiled": {"took:pdf": text, "took:": text, "name": "x"}})
    assert found["slow"].is_slow
