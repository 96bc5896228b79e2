"""The examples of the page on recurring calls are run."""

import json

import pytest

from celery_affinity.reports.recurring import recurring_rows
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.command import affinity_process
from ..support.pages import blocks
from ..support.processes import start_worker, wait_until

PAGE = "docs/how-to/recurring-calls.md"


@pytest.fixture
def shop(valkey, redis_client, tmp_path):
    urls = f"\napp.conf.update(broker_url={valkey.url!r}, result_backend={valkey.url!r})\n"
    (tmp_path / "shop.py").write_text(blocks(PAGE)["shop.py"].replace('"stale_after": 300', '"stale_after": 2') + urls)
    names = {"__name__": "shop"}
    exec((tmp_path / "shop.py").read_text(), names)
    yield names
    names["app"].close()


def test_the_plan_is_made_again_and_again(shop, valkey, redis_client, tmp_path):
    start_worker("shop", valkey.url, ["route"], pool="threads", env={"PYTHONPATH": str(tmp_path)})
    reader = Scheduler(redis_client, Keys()).reader

    def fired():
        return int(redis_client.hget("{affinity:default}:counters", "recurring_fired") or 0)

    wait_until(lambda: fired() > 1, 20, "it fires, and fires again")
    (row,) = recurring_rows(reader)
    assert (row.name, row.task, row.merge_key, row.stale_after_s) == ("plan-hamburg", "shop.plan", "Hamburg", 2.0)
    shown = affinity_process(valkey.url, "recurring", "--json", app="shop", PYTHONPATH=str(tmp_path))
    assert json.loads(shown.stdout)[0]["name"] == "plan-hamburg"


def test_a_call_recurs_from_run_time_until_it_is_stopped(shop, redis_client):
    exec(blocks(PAGE)["at-run-time"].partition("\nstop(")[0], shop)
    (row,) = recurring_rows(Scheduler(redis_client, Keys()).reader)
    assert (row.name, row.stale_after_s, row.app) == ("plan-bremen", 300.0, "")
    exec(blocks(PAGE)["at-run-time"], shop)
    assert recurring_rows(Scheduler(redis_client, Keys()).reader) == []
