"""The dispatcher ingests messages of stock Celery and of programs in other languages from scheduled queues."""

import json
import os
import sys

import pytest

from celery_affinity.dispatcher.ingest import Ingest
from celery_affinity.publishing import app_config, option_resolution
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
    """A fleet with one worker for `pdf` that has no free slot, so moved jobs stay pending and visible."""
    jobs = ScriptedFleet(Scheduler(redis_client, Keys()))
    jobs.join("worker", "pdf")
    jobs.publish("running", "pdf")
    return jobs


@pytest.fixture
def fleet(valkey, redis_client, tmp_path, app):
    return MixedFleet(valkey, redis_client, tmp_path, app)


def move(jobs, app):
    """Move messages like a dispatcher."""
    ingest = Ingest(app)
    while ingest.move(jobs.scheduler, jobs.scheduler.tick(ingest.lists(jobs.scheduler)).lists):
        pass


def lanes(jobs):
    """Return the pending tasks of `pdf` by lane, the oldest first."""
    client, keys = jobs.scheduler.client, jobs.scheduler.keys
    ids = {}
    for name in client.scan_iter(keys.key("lane", "pdf", "*")):
        in_lane = [keys.key("job", job_id.decode()) for job_id in client.zrange(name, 0, -1)]
        ids[name.decode().rpartition(":")[2]] = [client.hget(job, "task").decode() for job in in_lane]
    return ids


def job_ids(jobs, *tasks):
    client, keys = jobs.scheduler.client, jobs.scheduler.keys
    return {task: client.get(keys.key("task", task)).decode() for task in tasks}


def fields(jobs, name, *tasks):
    """Return a field of each task's job."""
    client, keys = jobs.scheduler.client, jobs.scheduler.keys
    return {task: client.hget(keys.key("job", job_id), name) for task, job_id in job_ids(jobs, *tasks).items()}


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


def test_ingest_uses_the_apps_priority_order(jobs, redis_client, app, monkeypatch):
    monkeypatch.setitem(app_config._SETTINGS, app, Settings(priority_order="lower-first"))
    redis_client.lpush("pdf", wire("zero"))
    redis_client.lpush("pdf\x06\x169", wire("nine", priority=9))
    move(jobs, app)
    assert lanes(jobs) == {"queued.10": ["zero"], "queued.1": ["nine"]}


def test_foreign_message_can_be_on_demand(jobs, redis_client, app):
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
    expected = {"later": b"scheduled", "expired": b"expired", "past": b"pending", "expires": b"pending"}
    assert fields(jobs, "state", *expected) == expected
    assert redis_client.zcard(Keys().key("expires")) == 1


def test_task_revoked_before_its_move_does_not_run(jobs, redis_client, app):
    jobs.scheduler.revoke(["by id"], [], keep_s=60)
    redis_client.lpush("pdf", wire("by id"), wire("by id", version=1))
    move(jobs, app)
    assert lanes(jobs) == {}
    assert redis_client.hget(Keys().key("counters"), "revoked") == b"2"
    assert redis_client.zcard(Keys().key("unreported")) == 2, "their ends will be reported"


def test_moved_job_is_revoked_by_its_stamps(jobs, redis_client, app):
    redis_client.lpush("pdf", wire("by stamp", stamps={"customer": ["7"]}, stamped_headers=["customer"], customer="7"))
    move(jobs, app)
    jobs.scheduler.revoke([], [encode_stamp("customer", "7")], keep_s=60)
    assert lanes(jobs) == {}
    assert redis_client.hget(Keys().key("counters"), "revoked") == b"1"


@pytest.mark.parametrize("garbage", ["no json", "[]", "{}"])
def test_unreadable_message_is_dead_lettered_and_delays_none(jobs, redis_client, app, garbage):
    redis_client.lpush("pdf", garbage, wire("next"))
    move(jobs, app)
    assert lanes(jobs) == {"queued.0": ["next"]}
    (dead,) = redis_client.zrange(Keys().key("dead"), 0, -1)
    assert redis_client.hget(Keys().key("job", dead.decode()), "reason") == b"unreadable"
    assert redis_client.get(Keys().key("message", dead.decode())) == garbage.encode()
    assert not redis_client.exists(Keys().key("unreported")), "its caller is unknown"


def test_lists_of_unserved_queues_are_left_alone(jobs, redis_client, app):
    redis_client.lpush("excel", wire("other"))
    move(jobs, app)
    assert redis_client.llen("excel") == 1


def test_app_without_ingest_moves_no_message(jobs, redis_client, app, monkeypatch):
    monkeypatch.setitem(app_config._SETTINGS, app, Settings(ingest=False))
    redis_client.lpush("pdf", wire("job"))
    move(jobs, app)
    assert redis_client.llen("pdf") == 1


def test_key_of_wrong_type_delays_no_other_queue(jobs, redis_client, app):
    jobs.join("other", "excel", "index")
    redis_client.set("excel", "of another program")
    redis_client.lpush("index", wire("job"))
    move(jobs, app)
    assert not redis_client.exists("index")
    assert redis_client.get("excel") == b"of another program"


def test_queue_with_rate_limited_workers_is_ingested(redis_client, app):
    jobs = ScriptedFleet(Scheduler(redis_client, Keys()))
    jobs.scheduler.join(
        JoinArguments("worker", "worker@host", ["excel"], 1, withdrawn=["pdf"]), shared_settings(Settings())
    )
    redis_client.lpush("pdf", wire("job"))
    move(jobs, app)
    assert lanes(jobs) == {"queued.0": ["job"]}


def test_equal_messages_become_separate_jobs(jobs, redis_client, app):
    message = wire("same")
    redis_client.lpush("pdf", message, message, message)
    move(jobs, app)
    assert lanes(jobs) == {"queued.0": ["same"] * 3}


def test_two_dispatchers_move_each_message_once(jobs, redis_client):
    messages = [wire(f"t{number}") for number in range(10)]
    redis_client.lpush("pdf", *messages)
    one, two = (
        [NewJob(f"{who}{number}", "pdf", message, task_id=f"t{number}") for number, message in enumerate(messages)]
        for who in ("one", "two")
    )
    assert jobs.scheduler.ingest("pdf", one[:4]) == 4
    assert jobs.scheduler.ingest("pdf", two) == 6, "the four moved messages change nothing"
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


def test_transport_options_set_the_names_of_lists(redis_client, app, monkeypatch):
    jobs = ScriptedFleet(Scheduler(redis_client, Keys(global_keyprefix="shop:")))
    jobs.join("worker", "pdf")
    options = {"priority_steps": [0, 5], "sep": ":", "global_keyprefix": "shop:"}
    monkeypatch.setitem(app.conf, "broker_transport_options", options)
    redis_client.lpush("shop:pdf", wire("zero"))
    redis_client.lpush("shop:pdf:5", wire("five", priority=5))
    move(jobs, app)
    assert not redis_client.exists("shop:pdf", "shop:pdf:5")


def test_many_queues_are_read_in_turn(redis_client, app):
    jobs = ScriptedFleet(Scheduler(redis_client, Keys()))
    types = [f"type {number}" for number in range(250)]
    jobs.join("worker", *types)
    ingest = Ingest(app)
    seen = [ingest.lists(jobs.scheduler) for _ in range(3)]
    assert {len(lists) for lists in seen} == {400}
    assert {name for lists in seen for name in lists} >= set(types)


def test_long_backlog_is_moved_in_limited_steps(jobs, redis_client, app):
    redis_client.lpush("pdf", *(wire(f"t{number}") for number in range(600)))
    ingest = Ingest(app)
    assert ingest.move(jobs.scheduler, jobs.scheduler.tick(ingest.lists(jobs.scheduler)).lists), "there is more"
    assert redis_client.llen("pdf") == 100


def test_empty_queues_cost_only_the_tick(jobs, redis_client, app):
    ingest = Ingest(app)
    ingest.lists(jobs.scheduler)
    before = redis_client.info("commandstats")
    for _ in range(10):
        assert not ingest.move(jobs.scheduler, jobs.scheduler.tick(ingest.lists(jobs.scheduler)).lists)
    after = redis_client.info("commandstats")
    calls = {name: row["calls"] - before.get(name, {"calls": 0})["calls"] for name, row in after.items()}
    assert calls["cmdstat_fcall"] == 10
    assert calls["cmdstat_exists"] == 30, "one each for lists, rules and stored ends, inside the server function"
    assert not calls.get("cmdstat_lrange")


# -- real processes


def test_killed_dispatcher_loses_and_duplicates_no_message(jobs, valkey, redis_client):
    for first in range(0, 5000, 100):
        redis_client.lpush("pdf", *(wire(f"t{number}") for number in range(first, first + 100)))
    command = [sys.executable, "-m", "celery", "-A", APP, "affinity", "dispatcher"]
    env = {"BROKER_URL": valkey.url, "LEDGER": os.devnull}
    doomed = Process("doomed", command, env)
    wait_until(lambda: redis_client.llen("pdf") < 4500, 20, "it is at work")
    doomed.kill()
    assert redis_client.llen("pdf") > 1000, "it died amid the backlog"
    others = [Process(f"other {number}", command, env) for number in range(2)]
    wait_until(lambda: not redis_client.exists("pdf"), 30, f"the others continue\n{others[0].log()}")
    assert lanes(jobs) == {"queued.0": [f"t{number}" for number in range(5000)]}


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_messages_of_stock_producers_run(fleet, pool):
    calls = [("tally", (f"early-{number}",), {"queue": "pdf", "priority": number % 10}) for number in range(20)]
    fleet.send_from_stock(*calls, ("tally", ("soon",), {"queue": "pdf", "countdown": 1}))
    fleet.redis.lpush("pdf", wire("from-go", args=("go",)), wire("from-v1", version=1, args=("v1",)))
    fleet.start("worker", "pdf", pool=pool, conf={})
    wait_until(lambda: len(fleet.ledger.starts()) == 23, 15, "all ran")
    fleet.redis.lpush("pdf", wire("late", args=("late",)))
    wait_until(lambda: fleet.ledger.starts()["late"], 5, "a later message runs as well")
    assert set(fleet.ledger.starts().values()) == {1}
    wait_until(fleet.all_slots_are_free, 10, "the slots are free")
    assert fleet.dead() == []


def test_killed_stock_workers_message_runs_on_our_worker(fleet):
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


def test_stock_messages_merge_by_task_rules(jobs, redis_client, app, monkeypatch):
    merge = {"key": "{args[0]}", "fold": "no.need.here"}
    monkeypatch.setitem(
        app_config._SETTINGS, app, Settings(task_rules={f"{APP}.*": {"merge": merge, "exclusive": "{task}"}})
    )
    redis_client.lpush("pdf", wire("one"), wire("first-protocol", version=1), wire("other", args=("x",)))
    move(jobs, app)
    tasks = ("one", "first-protocol", "other")
    into = fields(jobs, "into", *tasks)
    assert into["one"] == into["first-protocol"] is not None
    assert into["other"] is None
    assert {job_id[-2:] for job_id in job_ids(jobs, *tasks).values()} == {"+!"}
    assert jobs.scheduler.reader.pending("pdf") == 2


def test_stock_messages_get_the_key_of_task_rules(jobs, redis_client, app, monkeypatch, caplog):
    named = Settings(task_rules={f"{APP}.*": {"exclusive": "job:{args[0]}"}})
    monkeypatch.setitem(app_config._SETTINGS, app, named)
    redis_client.lpush("pdf", wire("one"), wire("first-protocol", version=1), wire("no-key", args=()))
    move(jobs, app)
    rules = {**dict.fromkeys(("one", "first-protocol"), b"key=job%3Ajob limit=1"), "no-key": None}
    assert fields(jobs, "rules", *rules) == rules
    assert {task for task, job_id in job_ids(jobs, *rules).items() if job_id.endswith("!")} == {"one", "first-protocol"}
    assert "is scheduled without its key in affinity_task_rules" in caplog.text


def test_stock_messages_get_preemptible_from_task_rules(jobs, redis_client, app, monkeypatch):
    named = Settings(task_rules={f"{APP}.*": {"tenant": "acme", "preemptible": True}})
    monkeypatch.setitem(app_config._SETTINGS, app, named)
    redis_client.lpush("pdf", wire("one"))
    move(jobs, app)
    assert fields(jobs, "rules", "one") == {"one": b"key=tenant%3Aacme quota=settings preemptible=1"}


def test_stock_messages_get_due_times_from_properties_task_and_task_rules(jobs, redis_client, app, monkeypatch, caplog):
    named = Settings(task_rules={f"{APP}.*": {"start_within": 5, "size": "{job}"}, "go.*": {"size": "{pages}"}})
    monkeypatch.setitem(app_config._SETTINGS, app, named)
    words, ingest = {}, jobs.scheduler.ingest

    def record(name, new_jobs):
        words.update({job.task_id: job.due for job in new_jobs})
        return ingest(name, new_jobs)

    monkeypatch.setattr(jobs.scheduler, "ingest", record)

    def with_properties(task_id, args=("7.5",), **properties):
        message = json.loads(wire(task_id, args=args))
        return json.dumps({**message, "properties": {**message["properties"], **properties}})

    option_resolution._SIZES.clear()
    sent = [
        wire("named", args=("7.5",)),
        wire("first-protocol", version=1, args=(3,)),
        wire("unsized", args=("x",)),
        with_properties("own", start_within=1, deadline=60),
        with_properties("absolute", deadline="2020-01-01T00:00:00+00:00"),
        with_properties("invalid", start_within=-1, deadline="2020-01-01"),
        with_properties("huge", start_within=1e300, deadline=[[1]]),
        wire("unknown", task="go.render"),
    ]
    for message in sent:
        redis_client.lpush("pdf", message)
    move(jobs, app)
    option_resolution._SIZES.clear()
    own, absolute = words.pop("own").split(), words.pop("absolute").split()
    assert [own[0], own[2]] == ["w1000000", "s7500000"]
    assert 0 < int(own[1].removeprefix("d")) <= 60_000_000
    assert [absolute[0], absolute[2]] == ["w5000000", "s7500000"]
    assert int(absolute[1].removeprefix("d")) < -(10**14), "the year 2020 is over"
    assert words == {
        "named": "w5000000 s7500000",
        "first-protocol": "w5000000 s3000000",
        "unsized": "w5000000",
        "invalid": "w5000000 s7500000",
        "huge": "w5000000 s7500000",
        "unknown": "",
    }
    assert "The size of a call of task" in caplog.text
