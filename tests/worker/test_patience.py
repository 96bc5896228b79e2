"""Merge windows on real workers that are otherwise idle."""

import time

import pytest

from celery_affinity.reports.explain import explain

from ..support.merging import SOON_S


@pytest.fixture
def merging(merging):
    merging.go()
    return merging


def test_burst_at_an_idle_worker_is_one_run(merging):
    merging.start("threads")
    results = []
    for number in range(50):
        results.append(merging.task("patient").delay("HH", [number]))
        time.sleep(0.02)
    assert [each.get(timeout=SOON_S) for each in results] == [[*range(50)]] * 50
    assert merging.runs("patient") == [["HH", [*range(50)]]]
    merging.leaves_nothing()


def test_on_demand_call_ends_the_merge_window(merging):
    merging.start("threads")
    results = [merging.task("very_patient").delay("HH", [number]) for number in range(3)]
    assert {explain(merging.scheduler.reader, each.id).state for each in results} == {"scheduled"}
    results.append(merging.task("very_patient").apply_async(("HH", [3]), on_demand=True))
    assert [each.get(timeout=SOON_S) for each in results] == [[0, 1, 2, 3]] * 4
    alone = merging.task("very_patient").apply_async(("HH", [4]), on_demand=True)
    assert alone.get(timeout=SOON_S) == [4]
    merging.leaves_nothing()


def test_retry_has_a_merge_window_again(merging):
    merging.start("threads")
    assert merging.task("patient_again").delay("HH").get(timeout=SOON_S) == "HH"
    (_, first_s), (_, again_s) = merging.runs("patient_again")
    assert again_s - first_s > 1.9, "of 2 s, by another clock"
