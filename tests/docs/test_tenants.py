"""The examples of the page on tenants are run, and what it says that `explain` prints is printed."""

import click
import pytest

from celery_affinity import Tenant
from celery_affinity.cli import explain_text
from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.publishing.app_config import settings_of
from celery_affinity.reports.explain import explain
from celery_affinity.reports.key_usage import find_keys
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys
from celery_affinity.settings.table import Settings

from ..support.apps import app_for
from ..support.clocked import ClockedReader
from ..support.command import affinity
from ..support.pages import blocks, commands
from ..support.scripted_fleet import ScriptedFleet

PAGE = "docs/how-to/tenants.md"
OF_ACME = "key=tenant%3Aacme quota=settings"


def waiting_of(client):
    return {each.key: each.waiting for each in find_keys(Reader(client, Keys()), "*", 100).keys}


def test_tasks_and_calls_name_their_tenants(shop, redis_client):
    for customer in ("acme", "acme", "other", None):
        shop["render"].delay(customer)
    assert waiting_of(redis_client) == {"tenant:acme": 2, "tenant:other": 1}
    exec(blocks(PAGE)["call"], shop)
    assert waiting_of(redis_client) == {"tenant:acme": 3, "tenant:other": 1}


def test_a_producer_without_the_code_names_them_by_a_pattern_and_the_last_catches_strays(valkey, redis_client):
    app = app_for(valkey.url)
    exec(blocks(PAGE)["by-name"], {"app": app})
    app.send_task("shop.mail.send", kwargs={"customer": "acme"}, ignore_result=True)
    app.send_task("shop.clean", ignore_result=True)
    app.close()
    assert waiting_of(redis_client) == {"tenant:acme": 1, "tenant:other": 1}


def test_the_quotas_of_the_page_are_accepted(shop):
    quotas = Settings(tenants=shop["app"].conf.affinity_tenants).tenants
    assert quotas == {"acme": Tenant(max=10), "*": Tenant(max=20)}


def test_the_shares_of_the_page_are_accepted(shop):
    exec(blocks(PAGE)["shares"] + blocks(PAGE)["half-life"], shop)
    found = settings_of(shop["app"])
    assert found.tenants["acme"].weight == 3
    assert (found.tenant_turns, found.tenant_half_life) == ("share", 3600)


@pytest.mark.parametrize("block", ["at-run-time", "promise", "weights", "flood", "look"])
def test_the_commands_of_the_page_succeed(valkey, redis_client, block):
    fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
    fleet.join("worker", "pdf")
    for number in range(3):
        fleet.publish(f"{number}$", "pdf", rules=OF_ACME)
    for words in commands(blocks(PAGE)[block]):
        done = affinity(valkey.url, *words[words.index("affinity") + 1 :])
        assert done.returncode == 0, done.stderr


def test_explain_prints_what_the_page_shows(redis_client):
    fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
    fleet.scheduler.configure({"tenants": "acme=max:10"})
    fleet.join("worker", "pdf", slots=11)
    for number in range(10 + 214):
        fleet.publish(f"{number:03}$", "pdf", rules=OF_ACME)
    found = explain(ClockedReader(fleet.scheduler), "task-022$")
    printed = click.unstyle(explain_text.explanation_text(found)).splitlines()
    for line in blocks(PAGE)["explain"].splitlines():
        assert line in printed


def test_of_a_tenant_without_a_maximum_a_job_has_its_rank_and_its_bound(redis_client):
    fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
    fleet.join("worker", "pdf")
    for number in range(5):
        fleet.publish(f"{number}$", "pdf", rules=OF_ACME)
    found = explain(ClockedReader(fleet.scheduler), "task-3$")
    assert (found.waiting.rank, found.waiting.kept_back, found.waiting.bound_s is None) == (3, False, False)
    assert [each.rule for each in found.waiting.blocked_by] == ["slots"]
    printed = click.unstyle(explain_text.explanation_text(found))
    assert "tenant      acme: 1 slot, no maximum; waiting: 4 jobs" in printed.splitlines()


def test_explain_prints_the_turn_of_a_tenant_as_the_page_does(redis_client):
    fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
    fleet.scheduler.configure({"tenant_turns": "share"})
    fleet.join("worker", "pdf")
    for number, tenant in enumerate(("acme", "acme", "other", "other", "acme")):
        job = f"{tenant}{number}$"
        fleet.publish(job, "pdf", rules=f"key=tenant%3A{tenant} quota=settings", task_id=job)
        fleet.scheduler.advance(0.001)
    (first,) = fleet.inbox("worker")
    fleet.scheduler.advance(3.995)
    fleet.end("worker", first)
    printed = click.unstyle(
        explain_text.explanation_text(explain(ClockedReader(fleet.scheduler), "acme4$"))
    ).splitlines()
    assert blocks(PAGE)["turn"].rstrip() in printed
    assert any(line.startswith("overtaken   no time limit: tenants take turns") for line in printed)


def test_the_minima_of_the_page_are_accepted(shop):
    exec(blocks(PAGE)["promised"], shop)
    quotas = Settings(tenants=shop["app"].conf.affinity_tenants).tenants
    assert (quotas["acme"].min, quotas["big"].min, quotas["big"].max) == (2, 4, 10)


def test_explain_says_who_goes_first_as_the_page_does(redis_client):
    fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
    fleet.scheduler.configure({"tenants": "acme=max:none,min:2"})
    fleet.join("worker", "pdf")
    fleet.publish("busy", "pdf")
    fleet.publish("other", "pdf", priority=9, task_id="other")
    for type_, priority in (("pdf", 0), ("pdf", 1), ("pdf", 2)):
        job = f"acme{priority}$"
        fleet.publish(job, type_, priority=priority, rules=OF_ACME, task_id=job)

    def printed(task):
        found = explain(ClockedReader(fleet.scheduler), task)
        return found.waiting, click.unstyle(explain_text.explanation_text(found)).splitlines()

    waiting, lines = printed("acme1$")
    assert (waiting.rank, waiting.rank_in_type, [group.priority for group in waiting.ahead]) == (2, 2, [2])
    for line in blocks(PAGE)["promised-line"].splitlines():
        assert line in lines
    waiting, lines = printed("other")
    assert (waiting.rank, waiting.rank_in_type, waiting.ahead) == (4, 4, [])
    assert blocks(PAGE)["passed-line"].rstrip() in lines
