"""The examples of the page on bounds are run, and what it says that commands print is printed."""

from types import SimpleNamespace

import click
import pytest
from celery import Celery

from celery_affinity.publishing.app_config import settings_of
from celery_affinity.reports.explain import explain
from celery_affinity.reports.fleet_status import status_text
from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.bounds import Bound
from celery_affinity.schema.keys import Keys
from celery_affinity.settings.loader import load_settings
from celery_affinity.settings.table import Settings

from ..support.pages import blocks
from ..support.processes import ROOT

PAGE = "docs/how-to/queue-length.md"


@pytest.fixture
def shop(valkey, redis_client):
    app = Celery("shop", broker=valkey.url, set_as_current=False)
    app.conf.update(broker_transport="celery_affinity:Transport", task_ignore_result=True)
    app.conf.affinity_max_pending = {"pdf": 4, "crawl.*": Bound(2, full="drop-oldest")}

    @app.task(name="render", affinity="pdf", shared=False)
    def render(path):
        return path

    yield SimpleNamespace(app=app, render=render, reader=Reader(redis_client, Keys()), redis=redis_client)
    app.close()


def test_the_settings_of_the_page_are_accepted():
    app = Celery("shop", set_as_current=False)
    exec(blocks(PAGE)["bounds"], {"app": app})
    assert load_settings(app.conf, app.conf.keys()) != Settings()


def test_a_caller_that_is_refused_tries_later(shop, capsys):
    for _ in range(5):
        exec(blocks(PAGE)["refused"], {"render": shop.render})
    assert capsys.readouterr().out == "try later: 4 of 4 wait\n"


def test_the_rest_of_many_calls_is_published_later(shop, capsys):
    again = "    publish_many(render, calls, resume"
    rest = blocks(PAGE)["rest"].replace(again, f"    free()\n{again}")
    exec(rest, {"render": shop.render, "calls": [(number,) for number in range(7)], "free": shop.redis.flushall})
    assert capsys.readouterr().out == "4 calls were published\n"
    assert shop.reader.pending("pdf") == 3


def test_what_status_and_explain_print(shop):
    page = (ROOT / PAGE).read_text()
    for number in range(3):
        shop.render.delay(number)
    results = [shop.render.apply_async((number,), affinity="crawl.a") for number in range(4)]
    found = Report(shop.reader, settings_of(shop.app).max_pending).status()
    said = click.unstyle(status_text(found))
    assert "75 % full: 4 may wait, further calls are refused" in said
    assert "100 % full: 2 may wait, then the oldest job is dropped" in said
    assert " % full: 10,000 may wait, further calls are refused" in page
    assert (found.refused, found.dropped) == ({}, {"crawl.a": 2})
    why = explain(shop.reader, results[0].id).why
    assert why == "dropped: 2 jobs of its type waited"
    assert why.replace("2", "5000") in page
