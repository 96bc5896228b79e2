"""Run times in Redis: bounded, safe from damage, and equal to the reference to the last bit."""

import random

import pytest

from celery_affinity.policy.run_times import RunTime
from celery_affinity.reports.run_times import learned_run_times, run_time_rows
from celery_affinity.scheduler.messages import TaskRuns
from celery_affinity.schema.constants import MAX_TASKS_LEARNED


@pytest.fixture
def report(fleet):
    """Return the function that reports runs of a worker."""
    fleet.join("worker", "pdf")
    pages = iter(range(1, 1_000_000))

    def report(*runs):
        assert fleet.scheduler.add_metrics("worker", next(pages), [], runs)

    return report


def test_server_computes_exactly_what_python_computes(fleet, report):
    rng, expected = random.Random(6), RunTime()
    shapes = (lambda size: 1, lambda size: size * size, lambda size: 45 - size, lambda size: 5 + size)
    for page in range(400):
        sizes = [rng.uniform(0, 40) for _ in range(rng.randint(1, 9))]
        runs = [(size, round(1_000_000 * shapes[page // 100](size) * rng.uniform(0.8, 1.2))) for size in sizes]
        if page < 100:
            runs = [(rng.choice([None, 0, 1e-9, size]), round(took * rng.lognormvariate(0, 2))) for size, took in runs]
        skipped = rng.choice([0, 0, 30])
        report(TaskRuns("shop.render", len(runs) + skipped, runs))
        for nth, run in enumerate(runs):
            expected.add(*run, skipped=0 if nth else skipped)
    stored = learned_run_times(fleet.scheduler.reader)["shop.render"]
    expected.last_us = stored.last_us
    assert stored == expected
    assert stored.last_us > 0


def test_least_recently_used_tasks_are_dropped(fleet, report):
    report(*(TaskRuns(f"old {number}", 1, [(None, 1)]) for number in range(MAX_TASKS_LEARNED - 1)))
    fleet.scheduler.advance(1)
    report(TaskRuns("old 5", 1, [(None, 1)]), TaskRuns("new 1", 1, [(None, 1)]))
    assert len(learned_run_times(fleet.scheduler.reader)) == MAX_TASKS_LEARNED
    report(TaskRuns("new 2", 1, [(None, 1)]))
    kept = learned_run_times(fleet.scheduler.reader)
    assert len(kept) == 0.9 * MAX_TASKS_LEARNED
    assert {"old 5", "new 1", "new 2"} <= kept.keys()


def test_thousands_of_foreign_fields_are_deleted(fleet, report):
    key = fleet.scheduler.keys.key("run_times")
    fleet.scheduler.client.hset(key, mapping={f"field {number}": "1" for number in range(2 * MAX_TASKS_LEARNED)})
    report(TaskRuns("shop.render", 1, [(None, 1)]))
    assert not fleet.scheduler.client.exists(key)


@pytest.mark.parametrize("value", ["", "pdf", "5 1 nan 1 1 1 1 1", "5 1 0 0 0 0 0 0", "1 1 1e999 1 1 1 1 1", "9" * 999])
def test_damaged_values_are_ignored_and_replaced(fleet, report, value):
    key = fleet.scheduler.keys.key("run_times")
    fleet.scheduler.client.hset(key, mapping={"shop.render": value, "shop.other": value})
    assert run_time_rows(fleet.scheduler.reader) == []
    report(TaskRuns("shop.render", 1, [(4.0, 2_000_000)]))
    (row,) = run_time_rows(fleet.scheduler.reader)
    assert (row.task, row.runs, row.expected_s, row.typical_error, row.mean_size) == ("shop.render", 1, 2, 1, 4)


def test_repeated_page_is_learned_only_once(fleet):
    fleet.join("worker", "pdf")
    for _ in range(2):
        fleet.scheduler.add_metrics("worker", 1, [], [TaskRuns("shop.render", 1, [(None, 5)])])
    assert learned_run_times(fleet.scheduler.reader)["shop.render"].runs == 1
