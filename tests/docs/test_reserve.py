"""The examples of the page on reserves are accepted, and what it says that `explain` prints is printed."""

import re

import click
import pytest
from celery import Celery

from celery_affinity.cli import explain_text
from celery_affinity.errors import SettingError
from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.reports.explain import explain
from celery_affinity.reports.fleet_status import status_text
from celery_affinity.reports.status import Report
from celery_affinity.schema.keys import Keys
from celery_affinity.settings.loader import load_settings
from celery_affinity.settings.table import Settings
from celery_affinity.settings.wire import shared_settings

from ..support.clocked import ClockedReader
from ..support.command import affinity
from ..support.pages import blocks, commands
from ..support.processes import ROOT
from ..support.scripted_fleet import ScriptedFleet

PAGE = "docs/how-to/urgent-tasks.md"


@pytest.fixture
def fleet(redis_client):
    return ScriptedFleet(FakeClockScheduler(redis_client, Keys()))


def settings_in(block):
    app = Celery("shop", set_as_current=False)
    exec(blocks(PAGE)[block], {"app": app})
    return load_settings(app.conf, app.conf.keys())


@pytest.mark.parametrize("block", ["video", "classes", "patience"])
def test_the_settings_of_the_page_are_accepted(block):
    assert settings_in(block) != Settings()


def test_the_commands_of_the_page_work(valkey, redis_client):
    for words in commands(blocks(PAGE)["at-run-time"]):
        run = affinity(valkey.url, *words[words.index("affinity") + 1 :])
        assert run.returncode == 0, f"{words}: {run.stderr}"
        in_force = redis_client.hget(Keys().key("settings"), "reserve") or b""
        assert (in_force.strip() != b"") == ("pdf" in words[-1])


def test_the_page_shows_what_explain_and_status_print(fleet):
    fleet.scheduler.configure({"reserve": shared_settings(Settings(reserve={"pdf": {"queued": 2}}))["reserve"]})
    fleet.join("worker", "pdf", slots=8)
    for number in range(8):
        fleet.publish(f"job{number}", "pdf")
    reader = ClockedReader(fleet.scheduler)
    found = click.unstyle(explain_text.explanation_text(explain(reader, "task-job7")))
    assert blocks(PAGE)["explain"] in found + "\n"
    status = click.unstyle(status_text(Report(reader).status()))
    (said,) = re.findall(r"`(kept free: .*?)`", (ROOT / PAGE).read_text())
    assert said in status


def test_a_slot_of_the_versatile_worker_is_left_to_the_report(fleet):
    fleet.scheduler.configure({"reserve": shared_settings(settings_in("video"))["reserve"]})
    fleet.join("videos", "video", slots=2)
    fleet.join("versatile", "video", "report")
    for number in range(6):
        fleet.publish(f"video{number}", "video")
    fleet.publish("report", "report", on_demand=True)
    assert fleet.jobs("versatile") == ["report"]
    assert fleet.jobs("videos") == ["video0", "video1"]


def test_the_limit_per_priority_of_the_page_is_that_reserve(fleet):
    fleet.scheduler.configure({"reserve": "work:1=3"})
    fleet.join("worker", "work", slots=4)
    fleet.publish("other", "work")
    fleet.publish("first", "work", priority=1)
    (claim,) = fleet.inbox("worker")
    assert [each.job_id for each in fleet.end("worker", claim)] == ["first"]
    fleet.publish("second", "work", priority=1)
    assert fleet.jobs("worker") == []


def test_priority_above_10_is_not_a_class():
    with pytest.raises(SettingError, match=re.escape("'0-11' is not a class, got: {'pdf': {'0-11': 1}}")):
        Settings(reserve={"pdf": {"0-11": 1}})
