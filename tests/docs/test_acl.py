"""The users of the how-to on ACLs can do their work and nothing else: on both servers, line by line."""

import json
import os
import re
import sys
import urllib.error
from contextlib import suppress

import pytest
import redis

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.lua.library import FUNCTION_NAMES
from celery_affinity.scheduler.messages import JoinArguments
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.acl_users import PAGE, USERS, publish, refused, run_as, version_of
from ..support.apps import APP, app_for
from ..support.called_by import needs
from ..support.command import affinity
from ..support.flower import Flower
from ..support.ledger import Ledger
from ..support.processes import Process, start_worker, wait_until
from ..support.scripted_fleet import ScriptedFleet


def test_a_fleet_with_results_chords_events_and_remote_control_works(as_user, redis_client, lines, tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    lines("results")
    lines("chords")
    env = {"LEDGER": str(ledger.path)}
    workers = [
        start_worker(APP, as_user("worker"), ["pdf"], pool=pool, concurrency=2, extra=["-E"], env=env)
        for pool in ("prefork", "threads")
    ]
    said = Process(
        "events",
        [sys.executable, "-m", "celery", "-A", APP, "events", "--dump"],
        {"BROKER_URL": as_user("worker"), "LEDGER": os.devnull},
    )
    for worker in workers:
        worker.wait_ready(30)
    wait_until(lambda: redis_client.zcard(Keys().key("heartbeats")) == 2, 30, "both join")
    producers = (
        "app.send_task(pdf.name, ('due',), queue='pdf', ignore_result=True, countdown=1)",
        "app.send_task(pdf.name, ('later',), queue='pdf', ignore_result=True, countdown=600, expires=900)",
        "app.send_task(pdf.name, ('ended',), queue='pdf', ignore_result=True, countdown=600, task_id='to-be-revoked')",
        "app.send_task(pdf.name, ('gone',), queue='pdf', ignore_result=True, expires=-1)",
        "app.send_task(pdf.name, ('marked',), queue='pdf', ignore_result=True, stamped_headers=['a'], a='b')",
        "[pdf.apply_async((f'keyed-{n}',), queue='pdf', ignore_result=True, exclusive='one') for n in range(5)]",
        "chain(pdf.si('in-time').set(queue='pdf'), pdf.si('second').set(queue='pdf')).apply_async(deadline=60)",
        "publish_many(pdf, [(f'job-{n}',) for n in range(60)], queue='pdf', ignore_result=True)",
        "pdf.apply_async(('waited-for',), queue='pdf').get(timeout=20)",
        "chord([pdf.s('one').set(queue='pdf'), pdf.s('two').set(queue='pdf')])(pdf.si('all')).get(timeout=20)",
    )
    imports = [
        f"from {APP} import app, pdf",
        "from celery import chain, chord",
        "from celery_affinity import publish_many",
    ]
    run = run_as(as_user("producer"), "-c", "\n".join([*imports, *producers]))
    assert run.returncode == 0, run.stderr
    call = f"from {APP} import app; app.send_task('{APP}.pdf', ('stock',), queue='pdf', ignore_result=True)"
    assert run_as(as_user("worker"), "-c", call, TRANSPORT="redis").returncode == 0
    expected = {"stock", "due", "marked", "waited-for", "one", "two", "all", *(f"job-{n}" for n in range(60))}
    expected |= {"in-time", "second", *(f"keyed-{n}" for n in range(5))}
    wait_until(lambda: set(ledger.ends()) == expected, 20, f"all run\n{workers[0].log()}")
    stats = run_as(as_user("worker"), "-m", "celery", "-A", APP, "inspect", "stats", "--json")
    assert len(json.loads(stats.stdout)) == 2, stats.stderr
    with app_for(as_user("worker")) as operator:
        operator.control.revoke("to-be-revoked")
        operator.control.purge()
    said.wait_for("task succeeded", 20)
    said.end()
    for words in (["status"], ["pending"], ["explain", "nobody"], ["settings"], ["dead", "list"], ["keys"], ["tasks"]):
        looked = affinity(as_user("observer"), *words)
        assert looked.returncode == (1 if "nobody" in words else 0), looked.stderr  # no such task
    assert "scheduled for later: 1" in affinity(as_user("observer"), "status").stdout
    assert affinity(as_user("worker"), "settings", "set", "age_weight", "8").returncode == 0
    for worker in workers:
        worker.term()
    for worker in workers:
        assert worker.wait(20) == 0
    assert publish(as_user("producer")).returncode == 0, "it waits, with nobody to take it"
    assert not refused(redis_client), "somebody tried what it may not"


def test_an_observers_check_names_the_jobs_that_workers_over_http_leave_to_others(as_user, redis_client):
    scheduler = Scheduler(redis_client, Keys())
    fleet = ScriptedFleet(scheduler)
    scheduler.join(JoinArguments("http", "http", (), 1, withdrawn=("pdf",)), {})
    fleet.publish("pickled", "pdf")
    redis_client.hset(scheduler.keys.key("left_to_celery", "http"), "pickled", "pdf its body must be JSON")
    run = affinity(as_user("observer"), "check", "--json")
    found = {each["id"]: each["what"] for each in json.loads(run.stdout)["findings"]}
    assert "cannot run pickled of type 'pdf': its body must be JSON" in found["left-to-celery"]


def test_check_says_to_each_what_it_may_not_look_at(as_user, redis_client):
    ScriptedFleet(Scheduler(redis_client, Keys())).publish("job", "pdf")
    found = {}
    for user in ("worker", "observer"):
        said = json.loads(affinity(as_user(user), "check", "--json", "--ignore", "no-workers").stdout)
        found[user] = {each["id"] for each in said["findings"]}
    assert "remote-control" in found["observer"] - found["worker"]
    assert "server-unknown" not in found["observer"] | found["worker"]


def test_flower_works_with_the_rights_of_a_worker(as_user, redis_client):
    worker = start_worker(APP, as_user("worker"), ["pdf"], env={"LEDGER": os.devnull})
    worker.wait_ready(30)
    ScriptedFleet(Scheduler(redis_client, Keys())).publish("unserved", "drawing")
    flower = Flower(as_user("worker"))

    def lengths():
        try:
            return {name: row["messages"] for name, row in flower.lengths().items() if name != "celery"}
        except urllib.error.HTTPError:  # the server does not know the worker yet
            return None

    assert wait_until(lengths, 60, "Flower asks for the queues of the worker") == {"drawing": 1, "pdf": 0}
    assert flower.metrics()[("unserved_jobs", "drawing")] == 1


def test_a_worker_has_the_rights_that_all_arrows_need():
    called = {command for name in FUNCTION_NAMES for command, _ in needs(name)}
    assert called <= set(re.findall(r"\+(\S+)", PAGE["worker"]))


def test_a_producer_has_the_rights_that_its_arrow_needs_and_no_others(as_user, redis_client):
    called = needs("publish")
    root, *selectors = re.split(r"\s\(", PAGE["producer"])
    own = {"fcall", "ping", "hello", "auth", "select", "client|setname", "multi", "exec", "hscan"}  # the last to warn
    assert set(re.findall(r"\+(\S+)", root)) - own == {command for command, _ in called}
    patterns = {
        mode + pattern.rstrip("*") for mode, pattern in re.findall(r"(%[RW]|)~\{affinity:default\}:(\S*)", root)
    }
    parts = {re.sub(r"^%[RW]", "", pattern) for pattern in patterns}
    needed = {part for _, part in called if part}
    within = {part for part in needed if part.startswith(("lane:", "task:"))} - {"lane:", "task:"}
    assert parts - {"", "schema"} == needed - within
    assert not [selector for selector in selectors if "affinity" in selector]
    both, reads = {"incr", "hincrby"}, {"get", "hget", "hmget", "zrange", "zscore", "zmscore", "pttl"}
    reads |= {"hexists", "hgetall", "zcard", "zrangebyscore"}
    writes = {"set", "msetnx", "hset", "hsetnx", "hdel", "lpush", "ltrim", "zadd", "zrem"}
    assert {command for command, _ in called} == both | reads | writes | {"exists", "hlen", "time"}
    for part in parts - {"", "schema"}:
        commands = {command for command, each in called if each.startswith(part)} - {"exists", "hlen"}
        if part == "message:":
            commands -= {"get"}  # of jobs that others published
        expected = "%R" if commands <= reads else "%W" if commands <= writes else ""
        assert expected + part in patterns, commands


def test_the_line_on_the_clients_name_is_for_servers_that_know_it(as_user, redis_client, lines):
    if version_of(redis_client) < (7, 2):
        with pytest.raises(redis.ResponseError, match="Unknown command"):
            lines("since-7.2")
        return
    redis_client.acl_log_reset()
    for user in USERS:
        with redis.Redis.from_url(as_user(user)) as client:
            client.ping()
    assert not refused(redis_client)
    redis_client.execute_command("ACL", "SETUSER", "observer", "-client|setinfo")
    with redis.Redis.from_url(as_user("observer")) as client:
        client.ping()
    assert {each[1] for each in refused(redis_client)} == {"client|setinfo"}


def test_a_script_without_an_end_that_has_written_cannot_be_killed():
    """The page warns of users who may load scripts with this."""
    endless = "redis.call('SET', KEYS[1], 1) while true do end"
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as client:
        client.config_set("busy-reply-threshold", 1)
        with redis.Redis.from_url(server.url, socket_timeout=0.2, retry=None) as its, pytest.raises(redis.TimeoutError):
            its.eval(endless, 1, "k")
        with pytest.raises(redis.ResponseError, match="BUSY"):
            client.get("k")
        with pytest.raises(redis.ResponseError, match="UNKILLABLE"):
            client.script_kill()
        with suppress(redis.ConnectionError):
            client.execute_command("SHUTDOWN", "NOSAVE")
        wait_until(lambda: not server.is_running, 10, "it ends")
