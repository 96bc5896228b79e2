"""The steps of the how-to on migration, with jobs of every kind: each job runs once."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest
import redis
from celery import chain, chord, signature
from kombu import Connection

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.publishing.canvas import inheriting
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys

from ..support.apps import APP, parity
from ..support.command import affinity
from ..support.fleet import MixedFleet
from ..support.processes import ROOT, start_worker, wait_until

PAGE = (ROOT / "docs/how-to/migrate.md").read_text()


@pytest.fixture
def fleet(valkey, redis_client, tmp_path, load_app):
    return MixedFleet(valkey, redis_client, tmp_path, load_app(APP))


def status(fleet):
    run = affinity(fleet.url, "status", "--json")
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def is_drained(fleet):
    """Return True if the command of the how-to reports no jobs."""
    found = status(fleet)
    return not found["scheduled"] and not any(each["pending"] or each["claimed"] for each in found["types"])


def send_backlog(fleet, name, *before):
    """Send jobs of every priority and one with an ETA from stock Celery; return their names."""
    jobs = [f"{name}-{number}" for number in range(10)]
    calls = [("late", (job, 0.05), {"queue": "pdf", "priority": number}) for number, job in enumerate(jobs)]
    fleet.send_from_stock(*before, *calls, ("late", (f"{name}-eta", 0), {"queue": "pdf", "countdown": 6}))
    return {*jobs, f"{name}-eta"}


def send_scheduled(fleet, name):
    """Send similar jobs from this transport; return their names."""
    for number in range(5):
        fleet.send(f"{name}-{number}", "pdf", 0.05, priority=number)
    fleet.send(f"{name}-eta", "pdf", countdown=15)
    return {f"{name}-eta", *(f"{name}-{number}" for number in range(5))}


@pytest.mark.parametrize("first", ["workers", "producers"])
def test_migration_from_stock_runs_each_job_once(fleet, first):
    held = ("late", ("eta-held", 0), {"queue": "pdf", "countdown": 12})
    sent = send_backlog(fleet, "old", held, ("late", ("running", 5), {"queue": "pdf"})) | {"eta-held", "running"}
    stock = fleet.start_stock("stock", "pdf", pool="threads", worker_prefetch_multiplier=4)
    wait_until(lambda: fleet.redis.hlen("unacked") > 3, 20, f"it holds running and scheduled jobs\n{stock.log()}")
    if first == "producers":
        sent |= send_scheduled(fleet, "new")
        assert any(each["unserved"] for each in status(fleet)["types"]), "they wait for the first affinity worker"
    fleet.start("ours", "pdf", pool="threads", conf={})
    sent |= send_backlog(fleet, "meanwhile")
    stock.term()
    stock.wait(20)
    if first == "workers":
        sent |= send_scheduled(fleet, "new")
    wait_until(lambda: fleet.ledger.ends().keys() >= sent, 40, "all ran")
    assert fleet.ledger.starts() == dict.fromkeys(sent, 1)
    assert not fleet.redis.exists("unacked", "pdf"), "no keys of the stock transport remain"
    assert fleet.dead() == []


def test_migration_back_to_stock_runs_each_job_once(fleet):
    ours = fleet.start("ours", "pdf", pool="threads", conf={})
    sent = send_scheduled(fleet, "scheduled")
    assert not is_drained(fleet), "one job waits for its ETA"
    sent |= send_backlog(fleet, "stock")
    wait_until(lambda: not fleet.redis.exists("pdf"), 10, "the list is ingested")
    ours.term()
    assert ours.wait(20) == 0
    ours = fleet.start("draining", "pdf", pool="threads", conf={"affinity_ingest": False})
    of_stock = [f"backlog-{number}" for number in range(20)]
    fleet.send_from_stock(*(("late", (job, 0.01), {"queue": "pdf"}) for job in of_stock))
    wait_until(lambda: is_drained(fleet), 60, "drained")
    assert fleet.lists("pdf") == [20, 0, 0, 0], "new messages stay for stock workers"
    stock = fleet.start_stock("stock", "pdf", pool="threads")
    ours.term()
    assert ours.wait(20) == 0
    sent |= {"afterwards", *of_stock}
    fleet.send_from_stock(("late", ("afterwards", 0), {"queue": "pdf"}))
    wait_until(lambda: fleet.ledger.ends().keys() >= sent, 20, f"the stock worker runs the rest\n{stock.log()}")
    assert fleet.ledger.starts() == dict.fromkeys(sent, 1)
    assert is_drained(fleet)


def test_plain_kombu_reader_sees_only_the_stock_list(fleet):
    fleet.send("scheduled", "pdf")
    fleet.send_from_stock(("late", ("in-the-list",), {"queue": "pdf"}))
    with Connection(fleet.url) as connection, connection.SimpleQueue("pdf") as queue:
        message = queue.get(timeout=5)
        assert message.payload[0] == ["in-the-list"]
        message.ack()
        with pytest.raises(queue.Empty):
            queue.get(timeout=1)


def test_celery_migrate_moves_stock_lists_to_another_server(fleet):
    with EmbeddedServer() as old:
        env = {**os.environ, "LEDGER": str(fleet.ledger.path), "BROKER_URL": old.url}
        code = f"from {APP} import app; app.send_task('{APP}.late', ['job'], queue='pdf')"
        for transport in ("redis", "celery_affinity:Transport"):
            subprocess.run([sys.executable, "-c", code], env={**env, "TRANSPORT": transport}, check=True, timeout=30)
        migrate = [sys.executable, "-m", "celery", "-A", APP, "migrate", old.url, fleet.url, "-Q", "pdf", "-t", "2"]
        subprocess.run(migrate, env=env, check=True, timeout=30)
        with redis.Redis.from_url(old.url) as client:
            assert Reader(client, Keys()).pending("pdf") == 1, "the affinity job stays there"
    fleet.start("ours", "pdf", pool="solo", conf={})
    wait_until(lambda: fleet.ledger.ends()["job"], 10, "the moved job runs")


def test_message_without_task_becomes_a_dead_letter(fleet):
    fleet.start("ours", "pdf", pool="solo", conf={})
    with Connection(fleet.url) as connection, connection.SimpleQueue("pdf") as queue:
        queue.put({"hello": "world"})
    wait_until(lambda: fleet.dead(), 10, "it is rejected")
    fleet.send("late", "pdf").get(timeout=10)


def test_stock_worker_publishes_follow_ups_with_their_mode(fleet):
    """The process of the stock worker does not import this package."""
    app = parity.make_app(fleet.url)
    wait = signature("parity.note", ("key", "waits"), options={"queue": "routed"}, immutable=True, app=app)
    steps = [signature("parity.note", ("key", step), immutable=True, app=app) for step in "abcde"]
    canvas = inheriting(chain(steps[0], chord(steps[1:3], steps[3], app=app), wait, app=app), {"on_demand": True})
    canvas.tasks[0].link(steps[4].set(on_demand=True))
    env = {"C_FORCE_ROOT": "1"}  # the worker accepts pickle
    worker = start_worker("tests.support.apps.parity", fleet.url, ["celery"], pool="threads", name="stock", env=env)
    worker.wait_ready(30)
    try:
        canvas.apply_async()
        wait_until(lambda: fleet.redis.llen("record:key") == 5, 20, "the steps of its queue ran")
        wait_until(lambda: fleet.redis.llen("routed"), 20, "the last step is published")
        message = json.loads(fleet.redis.lindex("routed", 0))
        assert message["properties"]["on_demand"] is True, "read by an affinity worker that ingests it"
    finally:
        app.close()


def test_how_to_quotes_working_commands_and_the_warning(fleet):
    lines = re.findall(r"^ *\$ celery -A shop affinity (.*)$", PAGE, re.MULTILINE)
    assert len(lines) == 4
    for line in lines:
        run = affinity(fleet.url, *shlex.split(line, comments=True))
        assert run.returncode == 0, run.stderr
    (warning,) = re.findall(r"^ *(No live worker serves type .*)$", PAGE, re.MULTILINE)
    text = (ROOT / "celery_affinity/publishing/bulk.py").read_text()
    assert warning.replace("'pdf'", "%r") in text
