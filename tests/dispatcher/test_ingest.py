"""Messages of stock Celery's producers, and of programs in other languages, in scheduled queues."""

import json
import os
import sys

import pytest

from celery_affinity.dispatcher.ingest import Ingest
from celery_affinity.publishing import app_config
from celery_affinity.publishing.message import encode_stamp
from celery_affinity.scheduler.messages import JoinArguments
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.job_record import NewJob
from celery_affinity.schema.keys import Keys
from celery_affinity.settings.table import Settings
from celery_affinity.settings.wire import shared_settings

from ..support.apps import APP
from ..support.fleet import MixedFleet
from ..support.messages import wire
from ..support.processes import Process, wait_until
from ..support.scripted_fleet import ScriptedFleet


@pytest.fixture
def app(valkey, load_app):
    return load_app(APP)


@pytest.fixture
def jobs(redis_client, app):
    """A fleet of one worker for `pdf`, without a free slot: moved jobs stay pending, where a test can look at them."""
    jobs = ScriptedFleet(Scheduler(redis_client, Keys()))
    jobs.join("worker", "pdf")
    jobs.publish("running", "pdf")
    return jobs


@pytest.fixture
def fleet(valkey, redis_client, tmp_path, app):
    return MixedFleet(valkey, redis_client, tmp_path, app)


def move(jobs, app):
    """Move messages as a dispatcher does."""
    ingest = Ingest(app)
    while ingest.move(jobs.scheduler, jobs.scheduler.tick(ingest.lists(jobs.scheduler)).lists):
        pass


def lanes(jobs):
    """Return the pending tasks of `pdf` by lane, the oldest first."""
    client, keys = jobs.scheduler.client, jobs.scheduler.keys
    found = {}
    for name in client.scan_iter(keys.key("lane", "pdf", "*")):
        in_lane = [keys.key("job", job_id.decode()) for job_id in client.zrange(name, 0, -1)]
        found[name.decode().rpartition(":")[2]] = [client.hget(job, "task").decode() for job in in_lane]
    return found


def states(jobs, *tasks):
    client, keys = jobs.scheduler.client, jobs.scheduler.keys
    ids = [client.get(keys.key("task", task)).decode() for task in tasks]
    return [client.hget(keys.key("job", job_id), "state").decode() for job_id in ids]


def test_messages_are_moved_in_order_by_their_priority(jobs, redis_client, app):
    for number in range(25):
        redis_client.lpush("pdf", wire(f"t{number}"))
    redis_client.lpush("pdf\x06\x163", wire("three", priority=3), wire("five", priority=5))
    redis_client.lpush("pdf\x06\x169", wire("fifty", priority=50))
    move(jobs, app)
    assert lanes(jobs) == {
        "queued.0": [f"t{number}" for number in range(25)],
        "queued.3": ["three"],
        "queued.5": ["five"],
        "queued.10": ["fifty"],
    }
    assert not redis_client.exists("pdf", "pdf\x06\x163", "pdf\x06\x169")


def test_priorities_count_as_the_app_counts_them(jobs, redis_client, app, monkeypatch):
    monkeypatch.setitem(app_config._SETTINGS, app, Settings(priority_order="lower-first"))
    redis_client.lpush("pdf", wire("zero"))
    redis_client.lpush("pdf\x06\x169", wire("nine", priority=9))
    move(jobs, app)
    assert lanes(jobs) == {"queued.10": ["zero"], "queued.1": ["nine"]}


def test_a_producer_in_another_language_can_say_that_a_user_waits(jobs, redis_client, app):
    message = json.loads(wire("now"))
    message["properties"]["on_demand"] = True
    redis_client.lpush("pdf", json.dumps(message))
    move(jobs, app)
    assert lanes(jobs) == {"demand.0": ["now"]}


@pytest.mark.parametrize("version", [1, 2])
def test_eta_and_expiry_are_kept(jobs, redis_client, app, version):
    redis_client.lpush("pdf", wire("later", version=version, eta="2099-01-01T00:00:00+00:00"))
    redis_client.lpush("pdf", wire("expired", version=version, expires="2001-01-01T00:00:00+00:00"))
    redis_client.lpush("pdf", wire("past", version=version, eta="2001-01-01T00:00:00+00:00"))
    redis_client.lpush("pdf", wire("expires", version=version, expires="2099-01-01T00:00:00+00:00"))
    move(jobs, app)
    assert states(jobs, "later", "expired", "past", "expires") == ["scheduled", "expired", "pending", "pending"]
    assert redis_client.zcard(Keys().key("expires")) == 1


def test_what_was_revoked_before_it_was_moved_is_not_run(jobs, redis_client, app):
    jobs.scheduler.revoke(["by id"], [], keep_s=60)
    redis_client.lpush("pdf", wire("by id"), wire("by id", version=1))
    move(jobs, app)
    assert lanes(jobs) == {}
    assert redis_client.hget(Keys().key("counters"), "revoked") == b"2"
    assert redis_client.zcard(Keys().key("unreported")) == 2, "their callers are told"


def test_what_was_moved_is_revoked_by_its_stamps(jobs, redis_client, app):
    redis_client.lpush("pdf", wire("by stamp", stamps={"customer": ["7"]}, stamped_headers=["customer"], customer="7"))
    move(jobs, app)
    jobs.scheduler.revoke([], [encode_stamp("customer", "7")], keep_s=60)
    assert lanes(jobs) == {}
    assert redis_client.hget(Keys().key("counters"), "revoked") == b"1"


@pytest.mark.parametrize("garbage", ["no json", "[]", "{}"])
def test_what_nobody_can_read_is_a_dead_letter_and_holds_up_nothing(jobs, redis_client, app, garbage):
    redis_client.lpush("pdf", garbage, wire("next"))
    move(jobs, app)
    assert lanes(jobs) == {"queued.0": ["next"]}
    (dead,) = redis_client.zrange(Keys().key("dead"), 0, -1)
    assert redis_client.hget(Keys().key("job", dead.decode()), "reason") == b"unreadable"
    assert redis_client.get(Keys().key("message", dead.decode())) == garbage.encode()
    assert not redis_client.exists(Keys().key("unreported")), "it has no caller that is known"


def test_lists_of_queues_that_nobody_serves_here_are_left_alone(jobs, redis_client, app):
    redis_client.lpush("excel", wire("other"))
    move(jobs, app)
    assert redis_client.llen("excel") == 1


def test_an_app_can_leave_all_lists_alone(jobs, redis_client, app, monkeypatch):
    monkeypatch.setitem(app_config._SETTINGS, app, Settings(ingest=False))
    redis_client.lpush("pdf", wire("job"))
    move(jobs, app)
    assert redis_client.llen("pdf") == 1


def test_a_key_that_is_no_list_holds_up_no_other_queue(jobs, redis_client, app):
    jobs.join("other", "excel", "index")
    redis_client.set("excel", "of another program")
    redis_client.lpush("index", wire("job"))
    move(jobs, app)
    assert not redis_client.exists("index")
    assert redis_client.get("excel") == b"of another program"


def test_a_queue_whose_workers_wait_for_a_rate_limit_is_served(redis_client, app):
    jobs = ScriptedFleet(Scheduler(redis_client, Keys()))
    jobs.scheduler.join(
        JoinArguments("worker", "worker@host", ["excel"], 1, withdrawn=["pdf"]), shared_settings(Settings())
    )
    redis_client.lpush("pdf", wire("job"))
    move(jobs, app)
    assert lanes(jobs) == {"queued.0": ["job"]}


def test_messages_that_are_alike_are_several_jobs(jobs, redis_client, app):
    message = wire("same")
    redis_client.lpush("pdf", message, message, message)
    move(jobs, app)
    assert lanes(jobs) == {"queued.0": ["same"] * 3}


def test_two_that_look_at_the_same_messages_move_each_once(jobs, redis_client):
    messages = [wire(f"t{number}") for number in range(10)]
    redis_client.lpush("pdf", *messages)
    one, two = (
        [NewJob(f"{who}{number}", "pdf", message, task_id=f"t{number}") for number, message in enumerate(messages)]
        for who in ("one", "two")
    )
    assert jobs.scheduler.ingest("pdf", one[:4]) == 4
    assert jobs.scheduler.ingest("pdf", two) == 6, "the four that are gone change nothing"
    assert jobs.scheduler.ingest("pdf", one) == 0
    assert lanes(jobs) == {"queued.0": [f"t{number}" for number in range(10)]}


def test_a_full_server_still_moves_messages(jobs, redis_client, app):
    redis_client.lpush("pdf", wire("job"))
    redis_client.config_set("maxmemory", "1")
    try:
        move(jobs, app)
    finally:
        redis_client.config_set("maxmemory", "0")
    assert lanes(jobs) == {"queued.0": ["job"]}


def test_transport_options_say_where_the_lists_are(redis_client, app, monkeypatch):
    jobs = ScriptedFleet(Scheduler(redis_client, Keys(global_keyprefix="shop:")))
    jobs.join("worker", "pdf")
    options = {"priority_steps": [0, 5], "sep": ":", "global_keyprefix": "shop:"}
    monkeypatch.setitem(app.conf, "broker_transport_options", options)
    redis_client.lpush("shop:pdf", wire("zero"))
    redis_client.lpush("shop:pdf:5", wire("five", priority=5))
    move(jobs, app)
    assert not redis_client.exists("shop:pdf", "shop:pdf:5")


def test_each_of_many_queues_has_its_turn(redis_client, app):
    jobs = ScriptedFleet(Scheduler(redis_client, Keys()))
    types = [f"type {number}" for number in range(250)]
    jobs.join("worker", *types)
    ingest = Ingest(app)
    seen = [ingest.lists(jobs.scheduler) for _ in range(3)]
    assert {len(lists) for lists in seen} == {400}
    assert {name for lists in seen for name in lists} >= set(types)


def test_a_long_backlog_does_not_hold_up_what_is_due(jobs, redis_client, app):
    redis_client.lpush("pdf", *(wire(f"t{number}") for number in range(600)))
    ingest = Ingest(app)
    assert ingest.move(jobs.scheduler, jobs.scheduler.tick(ingest.lists(jobs.scheduler)).lists), "there is more"
    assert redis_client.llen("pdf") == 100


def test_nothing_to_move_costs_no_command_but_the_tick(jobs, redis_client, app):
    ingest = Ingest(app)
    ingest.lists(jobs.scheduler)
    before = redis_client.info("commandstats")
    for _ in range(10):
        assert not ingest.move(jobs.scheduler, jobs.scheduler.tick(ingest.lists(jobs.scheduler)).lists)
    after = redis_client.info("commandstats")
    calls = {name: row["calls"] - before.get(name, {"calls": 0})["calls"] for name, row in after.items()}
    assert calls["cmdstat_fcall"] == 10
    assert calls["cmdstat_exists"] == 30, "one look each for lists, rules, and ends that are kept, inside of the arrow"
    assert not calls.get("cmdstat_lrange")


# -- real processes


def test_a_dispatcher_that_dies_amid_a_backlog_loses_nothing_and_doubles_nothing(jobs, valkey, redis_client):
    for first in range(0, 5000, 100):
        redis_client.lpush("pdf", *(wire(f"t{number}") for number in range(first, first + 100)))
    command = [sys.executable, "-m", "celery", "-A", APP, "affinity", "dispatcher"]
    env = {"BROKER_URL": valkey.url, "LEDGER": os.devnull}
    doomed = Process("doomed", command, env)
    wait_until(lambda: redis_client.llen("pdf") < 4500, 20, "it is at work")
    doomed.kill()
    assert redis_client.llen("pdf") > 1000, "it died amid the backlog"
    others = [Process(f"other {number}", command, env) for number in range(2)]
    wait_until(lambda: not redis_client.exists("pdf"), 30, f"the others go on\n{others[0].log()}")
    assert lanes(jobs) == {"queued.0": [f"t{number}" for number in range(5000)]}


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_stock_producers_are_served(fleet, pool):
    calls = [("tally", (f"early-{number}",), {"queue": "pdf", "priority": number % 10}) for number in range(20)]
    fleet.send_from_stock(*calls, ("tally", ("soon",), {"queue": "pdf", "countdown": 1}))
    fleet.redis.lpush("pdf", wire("from-go", args=("go",)), wire("from-v1", version=1, args=("v1",)))
    fleet.start("worker", "pdf", pool=pool, conf={})
    wait_until(lambda: len(fleet.ledger.starts()) == 23, 15, "all ran")
    fleet.redis.lpush("pdf", wire("late", args=("late",)))
    wait_until(lambda: fleet.ledger.starts()["late"], 5, "what comes later is seen as well")
    assert set(fleet.ledger.starts().values()) == {1}
    wait_until(fleet.all_slots_are_free, 10, "the slots are free")
    assert fleet.dead() == []


def test_what_a_killed_stock_worker_held_is_restored_by_kombu_and_run_by_ours(fleet):
    conf = {"broker_transport_options": {"visibility_timeout": 1}}
    stock = fleet.start_stock("stock", "pdf", **conf)
    fleet.send_from_stock(("late", ("held", 60), {"queue": "pdf"}))
    wait_until(lambda: fleet.ledger.starts()["held"], 10, "it runs")
    stock.kill()
    ((_, read_at),) = fleet.redis.zrange("unacked_index", 0, -1, withscores=True)
    wait_until(lambda: fleet.redis.time()[0] > read_at + 1, 5, "the visibility timeout")
    fleet.start("ours", "pdf", pool="solo", conf=conf)
    wait_until(lambda: fleet.ledger.ends()["held"], 15, "ours runs it")
    assert fleet.ledger.starts() == {"held": 2}
    assert not fleet.redis.exists("unacked")


def test_what_others_send_merges_by_its_name(jobs, redis_client, app, monkeypatch):
    merge = {"key": "{args[0]}", "fold": "no.need.here"}
    monkeypatch.setitem(
        app_config._SETTINGS, app, Settings(task_rules={f"{APP}.*": {"merge": merge, "exclusive": "{task}"}})
    )
    redis_client.lpush("pdf", wire("one"), wire("first-protocol", version=1), wire("other", args=("x",)))
    move(jobs, app)
    client, keys = jobs.scheduler.client, jobs.scheduler.keys
    ids = {task: client.get(keys.key("task", task)).decode() for task in ("one", "first-protocol", "other")}
    into = {task: client.hget(keys.key("job", job_id), "into") for task, job_id in ids.items()}
    assert into["one"] == into["first-protocol"] is not None
    assert into["other"] is None
    assert {job_id[-2:] for job_id in ids.values()} == {"+!"}
    assert jobs.scheduler.reader.pending("pdf") == 2


def test_the_key_of_a_name_counts_for_what_others_send(jobs, redis_client, app, monkeypatch, caplog):
    named = Settings(task_rules={f"{APP}.*": {"exclusive": "job:{args[0]}"}})
    monkeypatch.setitem(app_config._SETTINGS, app, named)
    redis_client.lpush("pdf", wire("one"), wire("first-protocol", version=1), wire("no-key", args=()))
    move(jobs, app)
    client, keys = jobs.scheduler.client, jobs.scheduler.keys
    found = {task: client.get(keys.key("task", task)).decode() for task in ("one", "first-protocol", "no-key")}
    rules = {task: client.hget(keys.key("job", job_id), "rules") for task, job_id in found.items()}
    assert rules == {"one": b"key=job%3Ajob limit=1", "first-protocol": b"key=job%3Ajob limit=1", "no-key": None}
    assert {task for task, job_id in found.items() if job_id.endswith("!")} == {"one", "first-protocol"}
    assert "is scheduled without its key in affinity_task_rules" in caplog.text


def test_the_name_of_a_task_says_whether_what_others_send_may_be_stopped(jobs, redis_client, app, monkeypatch):
    named = Settings(task_rules={f"{APP}.*": {"tenant": "acme", "preemptible": True}})
    monkeypatch.setitem(app_config._SETTINGS, app, named)
    redis_client.lpush("pdf", wire("one"))
    move(jobs, app)
    client, keys = jobs.scheduler.client, jobs.scheduler.keys
    job_id = client.get(keys.key("task", "one")).decode()
    assert client.hget(keys.key("job", job_id), "rules") == b"key=tenant%3Aacme quota=settings preemptible=1"
