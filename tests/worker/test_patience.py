"""Calls that wait for others, on real workers that have nothing else to do."""

import time

import pytest

from celery_affinity.observe.explain import explain
from celery_affinity.rules.keys import Keys
from celery_affinity.server.reader import Reader

from ..support.merging import APP, SOON_S, Merging
from ..support.processes import wait_until


@pytest.fixture
def merging(load_app, valkey, redis_client, tmp_path):
    merging = Merging(load_app(APP), valkey, redis_client, tmp_path / "ledger")
    merging.go()
    return merging


def test_a_burst_at_an_idle_worker_is_one_run(merging):
    merging.start("threads")
    results = []
    for number in range(50):
        results.append(merging.task("patient").delay("HH", [number]))
        time.sleep(0.02)
    assert [each.get(timeout=SOON_S) for each in results] == [[*range(50)]] * 50
    assert merging.runs("patient") == [["HH", [*range(50)]]]
    merging.leaves_nothing()


def test_a_call_on_demand_starts_the_run_at_once(merging):
    merging.start("threads")
    results = [merging.task("very_patient").delay("HH", [number]) for number in range(3)]
    assert {explain(Reader(merging.redis, Keys()), each.id).state for each in results} == {"scheduled"}
    results.append(merging.task("very_patient").apply_async(("HH", [3]), on_demand=True))
    assert [each.get(timeout=SOON_S) for each in results] == [[0, 1, 2, 3]] * 4
    alone = merging.task("very_patient").apply_async(("HH", [4]), on_demand=True)
    assert alone.get(timeout=SOON_S) == [4]
    merging.leaves_nothing()


def test_a_retry_is_patient_again(merging):
    merging.start("threads")
    first = merging.task("very_patient").delay("HH", [0], True)
    waiting = explain(Reader(merging.redis, Keys()), first.id)
    merging.task("very_patient").apply_async(("HH", [1], True), on_demand=True)
    wait_until(lambda: merging.runs("very_patient"), SOON_S, "it runs")

    def is_patient_again():
        found = explain(Reader(merging.redis, Keys()), first.id)
        return found.job_id != waiting.job_id and found.state == "scheduled" and found.patient_until_s

    wait_until(is_patient_again, SOON_S, "the retry of the first one waits")
