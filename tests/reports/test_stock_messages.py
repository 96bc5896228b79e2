"""Messages in stock Celery's lists: reports show the lists without a worker, and find the message of a task."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings

from celery_affinity.reports import cohorts
from celery_affinity.reports.fleet_status import status_of_all
from celery_affinity.reports.stock_messages import StockMessage, StockMessages, StockQueue
from celery_affinity.scheduler.cohorts import Cohorts
from celery_affinity.scheduler.reader import Reader
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import MOST_QUEUES, Keys
from celery_affinity.transport.app_api import stock_lists_of

from ..support.apps import APP, app_for
from ..support.command import affinity
from ..support.from_outside import MESSAGES
from ..support.messages import wire
from ..support.scripted_fleet import ScriptedFleet

STEP = "\x06\x16"


@pytest.fixture
def fleet(redis_client):
    return ScriptedFleet(Scheduler(redis_client, Keys()))


@pytest.fixture
def lists_of():
    """Return a function that creates an app with the given settings and returns the app's lists."""
    apps = []

    def lists(**conf):
        apps.append(app_for("redis://", **conf))
        return stock_lists_of(apps[-1])

    yield lists
    for app in apps:
        app.close()


def messages(redis_client, lists, prefix="", types=()):
    return StockMessages(Reader(redis_client, Keys()), lists, prefix, types)


def test_lists_without_a_worker_are_found_with_their_oldest_message(redis_client, lists_of):
    now_s = int(redis_client.time()[0])
    lists = lists_of(
        task_routes={"x.*": {"queue": "routed"}}, task_default_queue="usual", affinity_task_types={"a": "t"}
    )
    redis_client.lpush("celery", wire(task="shop.oldest"), wire())
    redis_client.lpush(f"routed{STEP}6", json.dumps({"properties": {"timestamp": now_s - 90}, "headers": {}}))
    for queue in ("usual", "t", "of a type", "served"):
        redis_client.lpush(queue, wire())
    redis_client.set("no list", "x")
    redis_client.sadd("_kombu.binding.celery", f"x{STEP}{STEP}bound", f"x{STEP}{STEP}empty")
    redis_client.lpush("bound", b"\xff no JSON")
    found = messages(redis_client, lists, types=["of a type", "served", "no list"]).unserved({"served"})
    by_queue = {each.queue: each for each in found}
    assert by_queue.keys() == {"celery", "usual", "routed", "t", "of a type", "bound"}
    assert by_queue["celery"] == StockQueue("celery", ["celery"], 2, None, "shop.oldest")
    assert by_queue["routed"].lists == [f"routed{STEP}6"]
    assert by_queue["routed"].oldest_s == pytest.approx(90, abs=5)
    assert by_queue["bound"].oldest_task is None


def test_prefix_steps_and_separator_of_the_app_name_the_lists(redis_client, lists_of):
    lists = lists_of(broker_transport_options={"priority_steps": [0, 5], "sep": ":"})
    redis_client.lpush("shop.celery:5", wire(), wire())
    redis_client.lpush("celery", wire())
    found = messages(redis_client, lists, "shop.").unserved(())
    assert [(each.queue, each.lists, each.messages) for each in found] == [("celery", ["celery:5"], 2)]
    assert messages(redis_client, lists, "shop.").find("t", ()).list == "celery:5"


def test_queues_served_by_kombu_are_not_reported(redis_client, lists_of):
    redis_client.lpush("celery", wire())
    assert messages(redis_client, lists_of(affinity_queues=["pdf"])).unserved(()) == []


def test_number_of_queues_and_bindings_is_bounded(redis_client, lists_of):
    redis_client.sadd("_kombu.binding.celery", *(f"x{STEP}{STEP}q{number}" for number in range(1001)))
    redis_client.lpush("q7", wire())
    assert messages(redis_client, lists_of()).are_all
    found = messages(redis_client, lists_of(), types=[f"q{number}" for number in range(MOST_QUEUES)])
    assert not found.are_all
    assert [each.queue for each in found.waiting()] == ["q7"]


@pytest.mark.parametrize(("at", "is_found"), [(0, True), (99, True), (150, False), (200, True), (299, True)])
def test_message_of_a_task_is_found_at_both_ends_of_a_list(redis_client, lists_of, at, is_found):
    redis_client.rpush("celery", *(wire(f"t{number}", task="shop.x") for number in range(300)))
    found = messages(redis_client, lists_of()).find(f"t{at}", ())
    assert found == (StockMessage("celery", "celery", "shop.x", False) if is_found else None)


def test_message_that_only_mentions_a_task_is_not_its_message(redis_client, lists_of):
    redis_client.lpush("celery", wire("other", root_id="t", parent_id="t"))
    assert messages(redis_client, lists_of()).find("t", ()) is None


def test_message_of_protocol_1_is_found_by_its_correlation_id(redis_client, lists_of):
    old = json.loads(wire(version=1))
    old["properties"]["correlation_id"] = "old"
    redis_client.lpush("celery", json.dumps(old))
    assert messages(redis_client, lists_of()).find("old", ()) == StockMessage("celery", "celery", None, False)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(MESSAGES)
def test_untrusted_messages_do_not_break_reports(redis_client, lists_of, message):
    redis_client.delete("celery")
    raw = json.dumps(message).encode(errors="replace")
    redis_client.lpush("celery", raw)
    found = messages(redis_client, lists_of())
    (one,) = found.unserved(())
    assert one.messages == 1
    json.dumps([one.oldest_task, one.oldest_s], allow_nan=False, ensure_ascii=False).encode()
    found.find("t", ())


def test_status_and_explain_find_a_call_without_a_worker(redis_client, fleet, lists_of):
    fleet.join("worker", "pdf")
    redis_client.lpush("celery", wire("lost", task="shop.render"))
    redis_client.lpush("pdf", wire("taken over"))
    whole = Cohorts.alone(fleet.scheduler)
    status = status_of_all(whole, None, lists_of())
    assert [(each.queue, each.messages, each.oldest_task) for each in status.unserved_lists] == [
        ("celery", 1, "shop.render")
    ]
    lost = cohorts.explain_in_all(whole, "lost", lists_of())
    assert (lost.state, lost.task) == ("unknown", "shop.render")
    assert "no live worker of this fleet serves queue 'celery'" in lost.note
    assert "-Q celery" in lost.note
    assert "A worker takes it over within seconds" in cohorts.explain_in_all(whole, "taken over", lists_of()).note
    assert "affinity_ingest" in cohorts.explain_in_all(whole, "taken over", lists_of(affinity_ingest=False)).note
    assert "affinity_queues" in cohorts.explain_in_all(whole, "lost", lists_of(affinity_queues=["pdf"])).note
    assert cohorts.explain_in_all(whole, "nowhere", lists_of()).in_list is None


def test_call_of_a_producer_without_the_transport_is_shown_by_the_commands(valkey, redis_client, fleet):
    fleet.join("worker", "pdf")
    code = f"from {APP} import late; late.apply_async(('job',), task_id='lost')"
    env = {**os.environ, "BROKER_URL": valkey.url, "LEDGER": os.devnull, "TRANSPORT": "redis"}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=30)
    assert redis_client.llen("celery") == 1, "the affinity of the task has no effect"
    status = affinity(valkey.url, "status")
    assert f"celery      1         -       {APP}.late  no live worker serves it" in status.stdout
    (row,) = json.loads(affinity(valkey.url, "status", "--json").stdout)["unserved_lists"]
    assert row == {
        "queue": "celery", "lists": ["celery"], "messages": 1, "oldest_s": None, "oldest_task": f"{APP}.late",
    }  # fmt: skip
    explained = affinity(valkey.url, "explain", "lost")
    assert explained.returncode == 1
    assert "no job: in stock Celery's list 'celery'" in explained.stdout
    found = json.loads(affinity(valkey.url, "check", "--json", "--timeout", "0.2").stdout)["findings"]
    (said,) = [each for each in found if each["id"] == "stock-messages"]
    assert "list of queue 'celery'" in said["what"]
    assert f"the oldest: {APP}.late" in said["what"]
    assert "control add_consumer celery" in said["todo"]
