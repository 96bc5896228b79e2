"""Flower, started as users start it, beside a real worker: the page of each caller of a merged run names its end."""

import json
import urllib.error

import pytest

from ..support.flower import Flower
from ..support.merging import APP, SOON_S, Merging
from ..support.processes import wait_until


@pytest.fixture
def merging(load_app, valkey, redis_client, tmp_path):
    return Merging(load_app(APP), valkey, redis_client, tmp_path / "ledger")


def test_flower_shows_the_end_of_each_caller_and_the_run_it_merged_into(merging):
    merging.start("threads", extra=["-E"])
    flower = Flower(merging.url, command=("-m", "celery", "-A", APP, "flower"))
    wait_until(lambda: "flower_worker_online{" in flower.get("/metrics"), 60, "Flower hears of events")
    results = [merging.task("fold").delay("HH", [n]) for n in range(3)]
    failures = [merging.task("fails").delay("HH", n) for n in range(2)]
    alone = merging.task("fold").delay("B", [3])

    def info(result):
        try:
            return json.loads(flower.get(f"/api/task/info/{result.id}"))
        except urllib.error.HTTPError:  # it has heard nothing of the task
            return {"state": None}

    def ends(results):
        return [info(each)["state"] for each in results]

    merging.go()
    wait_until(lambda: ends([*results, alone]) == ["SUCCESS"] * 4, SOON_S, "the ends of a run that succeeds")
    wait_until(lambda: ends(failures) == ["FAILURE"] * 2, SOON_S, "the ends of a run that fails")
    assert [info(each)["merged_into"] for each in results] == [None, results[0].id, results[0].id]
    assert [info(each)["merged_into"] for each in failures] == [None, failures[0].id]
    assert info(results[1])["result"] == info(results[0])["result"] == "[0, 1, 2]"
    assert info(alone)["merged_into"] is None
    page = flower.get(f"/task/{results[1].id}")
    assert "SUCCESS" in page
    assert results[0].id in page
    assert "merged" not in flower.get(f"/task/{alone.id}").lower()
