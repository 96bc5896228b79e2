"""The examples of the page on locality are run, and what it says that `explain` prints is printed."""

import click

from celery_affinity.cli import explain_text
from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.publishing.app_config import settings_of
from celery_affinity.reports.explain import explain
from celery_affinity.schema.keys import Keys

from ..support.apps import app_for
from ..support.clocked import ClockedReader
from ..support.command import affinity
from ..support.pages import blocks, commands
from ..support.scripted_fleet import ScriptedFleet

PAGE = "docs/how-to/route-tasks.md"


def hints(client):
    """Return the hints of all jobs that wait, each as the job's rules have it; "" for none."""
    jobs = client.scan_iter(Keys().key("job", "*"))
    return sorted((client.hget(job, "rules") or b"").decode() for job in jobs)


def test_tasks_and_calls_say_their_hints(shop, redis_client):
    shop["answer"].delay("large", "why?")
    shop["answer"].delay(None, "why?")
    assert hints(redis_client) == ["", "near=model%3Alarge"]
    exec(blocks(PAGE)["call"], shop)
    assert hints(redis_client) == ["", "", "near=model%3Alarge", "near=model%3Alarge-v2"]
    assert settings_of(shop["app"]).locality_bonus == 80


def test_a_producer_without_the_code_names_them_by_a_pattern(valkey, redis_client):
    app = app_for(valkey.url)
    exec(blocks(PAGE)["by-name"], {"app": app})
    app.send_task("shop.answer", kwargs={"name": "small"}, ignore_result=True)
    app.close()
    assert hints(redis_client) == ["near=model%3Asmall"]


def test_the_command_of_the_page_succeeds(valkey, redis_client):
    for words in commands(blocks(PAGE)["at-run-time"]):
        done = affinity(valkey.url, *words[words.index("affinity") + 1 :])
        assert done.returncode == 0, done.stderr


def test_explain_prints_what_the_page_shows(redis_client):
    fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
    fleet.join("gpu", "pdf", settings={"locality_bonus": 80})
    fleet.publish("cold~", "pdf", rules="near=m")
    fleet.publish("next~", "pdf", rules="near=m")
    (claim,) = fleet.inbox("gpu")
    fleet.end("gpu", claim)
    fleet.scheduler.advance(12)
    fleet.publish("waits~", "pdf", rules="near=m")
    found = explain(ClockedReader(fleet.scheduler), "task-waits~")
    printed = click.unstyle(explain_text.explanation_text(found)).splitlines()
    assert blocks(PAGE)["explain"].strip() in printed
