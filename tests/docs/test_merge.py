"""The examples of the page on merging are run, and what it says that `explain` prints is printed."""

import re

import click
import pytest

from celery_affinity.cli import explain_text
from celery_affinity.reports.explain import explain
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys

from ..support.pages import blocks
from ..support.processes import start_worker

PAGE = "docs/how-to/merge.md"


@pytest.fixture
def shop(valkey, redis_client, tmp_path):
    urls = f"\napp.conf.update(broker_url={valkey.url!r}, result_backend={valkey.url!r})\n"
    (tmp_path / "shop.py").write_text(blocks(PAGE)["shop.py"] + urls)
    names = {"__name__": "shop"}
    exec((tmp_path / "shop.py").read_text(), names)
    yield names
    names["app"].close()


def test_each_caller_gets_the_result_of_the_run(shop, valkey, tmp_path):
    last = [shop["reroute"].delay("HH", hour) for hour in ("noon", "one", "two")]
    folded = [shop["apply_changes"].delay("HH", changes=[number]) for number in range(3)]
    every = [shop["geocode"].delay(place) for place in ("here", "there")]
    exec(blocks(PAGE)["call"], shop)
    start_worker("shop", valkey.url, ["route", "geo"], pool="threads", env={"PYTHONPATH": str(tmp_path)})
    assert [each.get(timeout=30) for each in last] == ["HH by traffic of two"] * 3
    assert [each.get(timeout=30) for each in folded] == [3] * 3
    assert [each.get(timeout=30) for each in every] == ["position of here", "position of there"]


def test_a_burst_at_an_idle_worker_is_one_run_with_a_little_patience(shop, redis_client, valkey, tmp_path):
    with (tmp_path / "shop.py").open("a") as code:
        code.write(blocks(PAGE)["patience"])
    exec(blocks(PAGE)["patience"], shop)
    start_worker("shop", valkey.url, ["route"], pool="threads", env={"PYTHONPATH": str(tmp_path)})
    soon = [shop["apply_soon"].delay("HH", [number]) for number in range(3)]
    shown = click.unstyle(explain_text.explanation_text(explain(Reader(redis_client, Keys()), soon[0].id)))
    assert re.search(r"^waits for +more calls until \d", shown, re.MULTILINE), shown
    assert [each.get(timeout=30) for each in soon] == [3] * 3


def test_calls_that_do_not_fit_are_the_next_run(shop, valkey, tmp_path):
    with (tmp_path / "shop.py").open("a") as code:
        code.write(blocks(PAGE)["overlaps"])
    exec(blocks(PAGE)["overlaps"], shop)
    spans = [shop["close"].delay("T1", span) for span in ([1, 3], [2, 5], [9, 9])]
    start_worker("shop", valkey.url, ["route"], pool="threads", env={"PYTHONPATH": str(tmp_path)})
    assert [each.get(timeout=30) for each in spans] == [[1, 5], [1, 5], [9, 9]]


def test_explain_says_what_the_page_says(shop, redis_client):
    *_, last = [shop["reroute"].delay("HH", hour) for hour in range(3)]
    shown = click.unstyle(explain_text.explanation_text(explain(Reader(redis_client, Keys()), last.id)))
    assert blocks(PAGE)["explain"].strip() in shown


def test_names_of_tasks_merge_as_the_page_says(shop, redis_client):
    exec(blocks(PAGE)["by-name"], shop)
    far = [shop["app"].send_task("shop.plan.far", kwargs={"city": "HH"}) for _ in range(2)]
    far += [shop["app"].send_task("shop.index") for _ in range(2)]
    reader = Reader(redis_client, Keys())
    assert [explain(reader, each.id).note for each in far] == [
        "merged with 1 other call(s) of 'HH'",
        "merged with 1 other call(s) of 'HH'",
        "merged with 1 other call(s) of 'all'",
        "merged with 1 other call(s) of 'all'",
    ]
