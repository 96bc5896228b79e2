"""What stock Celery's producers, and programs in other languages, send to scheduled queues."""

import base64
import json
import uuid

import pytest

from celery_affinity import stamping
from celery_affinity.ingest import Ingest
from celery_affinity.keys import Keys
from celery_affinity.scheduler import Scheduler
from celery_affinity.settings import Settings

from .clocked import Fleet as Jobs
from .test_queues import APP, MixedFleet
from .workers import wait_until


@pytest.fixture
def app(valkey, load_app):
    return load_app(APP)


@pytest.fixture
def jobs(redis_client, app):
    """A fleet of one worker that serves `pdf`, and has no slot free: what is moved waits where it can be looked at."""
    jobs = Jobs(Scheduler(redis_client, Keys()))
    jobs.join("worker", "pdf")
    jobs.publish("running", "pdf")
    return jobs


@pytest.fixture
def fleet(valkey, redis_client, tmp_path, app):
    return MixedFleet(valkey, redis_client, tmp_path, app)


def wire(task_id="t", *, priority=0, version=2, args=("job",), **headers):
    """Return a message as a producer in another language would write it: no more than Celery needs."""
    if version == 1:
        body = {"id": task_id, "task": f"{APP}.tally", "args": args, "kwargs": {}, **headers}
        headers = None
    else:
        body = [args, {}, {}]
        headers = {"id": task_id, "task": f"{APP}.tally", "lang": "go", **headers}
    message = {
        "body": base64.b64encode(json.dumps(body).encode()).decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "properties": {"body_encoding": "base64", "delivery_tag": str(uuid.uuid4()), "priority": priority},
    }
    return json.dumps(message if headers is None else {**message, "headers": headers})


def lanes(jobs):
    """Return the waiting tasks of `pdf` by lane, the oldest first."""
    client, keys = jobs.scheduler.client, jobs.scheduler.keys
    found = {}
    for name in client.scan_iter(keys.key("lane", "pdf", "*")):
        in_lane = [keys.key("job", job_id.decode()) for job_id in client.zrange(name, 0, -1)]
        found[name.decode().rpartition(":")[2]] = [client.hget(job, "task").decode() for job in in_lane]
    return found


def test_messages_are_moved_in_order_by_their_priority(jobs, redis_client, app):
    for number in range(25):
        redis_client.lpush("pdf", wire(f"t{number}"))
    redis_client.lpush("pdf\x06\x163", wire("three", priority=3), wire("five", priority=5))
    redis_client.lpush("pdf\x06\x169", wire("fifty", priority=50))
    assert Ingest(app).run(jobs.scheduler) == 28
    assert lanes(jobs) == {
        "queued.0": [f"t{number}" for number in range(25)],
        "queued.3": ["three"],
        "queued.5": ["five"],
        "queued.10": ["fifty"],
    }
    assert not redis_client.exists("pdf", "pdf\x06\x163", "pdf\x06\x169")
    assert Ingest(app).run(jobs.scheduler) == 0


def test_priorities_count_as_the_app_counts_them(jobs, redis_client, app, monkeypatch):
    monkeypatch.setitem(stamping._SETTINGS, app, Settings(priority_order="lower-first"))
    redis_client.lpush("pdf", wire("zero"))
    redis_client.lpush("pdf\x06\x169", wire("nine", priority=9))
    Ingest(app).run(jobs.scheduler)
    assert lanes(jobs) == {"queued.10": ["zero"], "queued.1": ["nine"]}


@pytest.mark.parametrize("version", [1, 2])
def test_eta_and_expiry_are_kept(jobs, redis_client, app, version):
    redis_client.lpush("pdf", wire("later", version=version, eta="2099-01-01T00:00:00+00:00"))
    redis_client.lpush("pdf", wire("expired", version=version, expires="2001-01-01T00:00:00+00:00"))
    redis_client.lpush("pdf", wire("past", version=version, eta="2001-01-01T00:00:00+00:00"))
    assert Ingest(app).run(jobs.scheduler) == 3
    keys = jobs.scheduler.keys
    states = {
        task: redis_client.hget(keys.key("job", redis_client.get(keys.key("task", task)).decode()), "state")
        for task in ("later", "expired", "past")
    }
    assert states == {"later": b"scheduled", "expired": b"expired", "past": b"pending"}


@pytest.mark.parametrize("garbage", ["no json", "[]", "{}"])
def test_what_nobody_can_read_is_a_dead_letter_and_holds_up_nothing(jobs, redis_client, app, garbage):
    redis_client.lpush("pdf", garbage, wire("next"))
    assert Ingest(app).run(jobs.scheduler) == 2
    assert lanes(jobs) == {"queued.0": ["next"]}
    (dead,) = redis_client.zrange(Keys().key("dead"), 0, -1)
    assert redis_client.hget(Keys().key("job", dead.decode()), "reason") == b"unreadable"
    assert redis_client.get(Keys().key("message", dead.decode())) == garbage.encode()
    assert not redis_client.exists(Keys().key("untold")), "it has no caller that is known"


def test_lists_of_queues_that_nobody_serves_here_are_left_alone(jobs, redis_client, app):
    redis_client.lpush("excel", wire("other"))
    assert Ingest(app).run(jobs.scheduler) == 0
    assert redis_client.llen("excel") == 1


def test_messages_that_are_alike_are_several_jobs(jobs, redis_client, app):
    message = wire("same")
    redis_client.lpush("pdf", message, message, message)
    assert Ingest(app).run(jobs.scheduler) == 3
    assert lanes(jobs) == {"queued.0": ["same"] * 3}


def test_two_that_look_at_the_same_messages_move_each_once(jobs, redis_client, app):
    for number in range(10):
        redis_client.lpush("pdf", wire(f"t{number}"))
    one, two = Ingest(app), Ingest(app)
    (seen_by_one,) = one._batches(jobs.scheduler, {"pdf": "pdf"})
    (seen_by_two,) = two._batches(jobs.scheduler, {"pdf": "pdf"})
    assert jobs.scheduler.ingest(seen_by_one[:4]) == 4
    assert jobs.scheduler.ingest(seen_by_two) == 6, "the four that are gone change nothing"
    assert jobs.scheduler.ingest(seen_by_one) == 0
    assert lanes(jobs) == {"queued.0": [f"t{number}" for number in range(10)]}


def test_a_full_server_still_moves_messages(jobs, redis_client, app):
    redis_client.lpush("pdf", wire("job"))
    redis_client.config_set("maxmemory", "1")
    try:
        assert Ingest(app).run(jobs.scheduler) == 1
    finally:
        redis_client.config_set("maxmemory", "0")
    assert lanes(jobs) == {"queued.0": ["job"]}


def test_transport_options_say_where_the_lists_are(redis_client, app, monkeypatch):
    jobs = Jobs(Scheduler(redis_client, Keys(global_keyprefix="shop:")))
    jobs.join("worker", "pdf")
    options = {"priority_steps": [0, 5], "sep": ":", "global_keyprefix": "shop:"}
    monkeypatch.setitem(app.conf, "broker_transport_options", options)
    redis_client.lpush("shop:pdf", wire("zero"))
    redis_client.lpush("shop:pdf:5", wire("five", priority=5))
    assert Ingest(app).run(jobs.scheduler) == 2


def test_nothing_to_move_costs_one_command(jobs, redis_client, app):
    ingest = Ingest(app)
    ingest.run(jobs.scheduler)
    before = redis_client.info("commandstats")
    for _ in range(10):
        ingest.run(jobs.scheduler)
    after = redis_client.info("commandstats")
    calls = {name: row["calls"] - before.get(name, {"calls": 0})["calls"] for name, row in after.items()}
    assert {name: count for name, count in calls.items() if count and name != "cmdstat_info"} == {"cmdstat_exists": 10}


# -- real workers


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
