"""The users of the how-to on ACLs can do what they are for, and nothing else: on both servers, line by line."""

import json
import os
import re
import subprocess
import sys
import urllib.error
from contextlib import suppress

import pytest
import redis
from celery import Celery

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.rules.keys import Keys
from celery_affinity.rules.protocol import MOST_MOVES
from celery_affinity.rules.settings import Settings
from celery_affinity.server.replies import End, Job, Joining
from celery_affinity.server.scheduler import Scheduler
from celery_affinity.server.scripts.assembling import ARROWS, load

from ..support.acl_users import USERS
from ..support.apps import APP
from ..support.command import affinity
from ..support.flower import Flower
from ..support.ledger import Ledger
from ..support.pages import blocks
from ..support.processes import ROOT, Process, start_worker, wait_until
from ..support.scripted_fleet import ScriptedFleet

PAGE = blocks("docs/how-to/acl.md")
PAGE_TEXT = (ROOT / "docs/how-to/acl.md").read_text()


#: What only those may do who run the server: on the page as "what none of them can", and more of the kind.
FORBIDDEN = (
    *("CLIENT PAUSE 3000 ALL", "CLIENT KILL TYPE normal", "CLIENT LIST", "CLIENT NO-EVICT on", "CLIENT UNBLOCK 1"),
    *("FLUSHALL", "FLUSHDB", "SWAPDB 0 1", "KEYS *", "SCAN 0", "RANDOMKEY", "DBSIZE", "MIGRATE h 1 k 0 1", "MOVE k 1"),
    *("CONFIG GET *", "CONFIG SET maxmemory 1", "CONFIG REWRITE", "DEBUG SLEEP 1", "SHUTDOWN NOSAVE", "SAVE", "BGSAVE"),
    *("SCRIPT FLUSH", "SCRIPT KILL", "FUNCTION FLUSH", "FUNCTION LOAD x", "FUNCTION KILL", "FCALL f 0", "MONITOR"),
    *("ACL SETUSER x on", "ACL LIST", "ACL WHOAMI", "REPLICAOF h 1", "FAILOVER", "SYNC", "PSYNC ? -1", "LATENCY RESET"),
    *("SLOWLOG GET", "MEMORY PURGE", "MODULE LIST", "OBJECT FREQ k", "DUMP k", "RESTORE k 0 x", "SORT k", "LASTSAVE"),
    *(
        "GET other",
        "SET other 1",
        "DEL other",
        "LRANGE mail 0 -1",
        "LPUSH mail x",
        "PUBLISH other x",
        "SUBSCRIBE other",
    ),
    *("PSUBSCRIBE *", "PSUBSCRIBE /0.*", "SUBSCRIBE __keyspace@0__:x"),
)

#: What a producer must not, beside that: listen, read messages and results, write what it may only read.
NOT_FOR_PRODUCERS = (
    *(
        "EVAL x 0",
        "SCRIPT LOAD x",
        "SCRIPT EXISTS x",
        "INFO",
        "SUBSCRIBE /0.celery.pidbox",
        "PUBLISH /0.celery.pidbox x",
    ),
    *("PSUBSCRIBE /0.celeryev/*", "GET {base}message:1", "LRANGE {base}inbox:1 0 -1", "BRPOP {base}inbox:1 0"),
    *("RPOP {base}inbox:1", "HSET {base}settings a b", "HSET {base}capacity a 1", "SET {base}schema 9"),
    *("ZADD {base}serving:pdf 1 x", "SET {base}revoked:1 1", "ZADD {base}joined 1 x", "ZADD {base}beats 1 x"),
    *(
        "ZADD {base}dead 1 x",
        "DEL {base}heads",
        "UNLINK {base}heads",
        "GET celery-task-meta-1",
        "SET celery-task-meta-1 x",
    ),
    *(
        "LPUSH pdf x",
        "LRANGE pdf 0 -1",
        "SET _kombu.binding.pdf x",
        "DEL _kombu.binding.pdf",
        "SREM _kombu.binding.pdf x",
    ),
    *("GETDEL {base}turn", "APPEND {base}message:1 x", "EXPIRE {base}job:1 1", "HGETALL {base}worker:1"),
)

NOT_FOR_OBSERVERS = (
    *(
        "EVALSHA x 0",
        "EVAL x 0",
        "SCRIPT LOAD x",
        "GET {base}message:1",
        "LRANGE {base}inbox:1 0 -1",
        "SET {base}message:1 x",
    ),
    *("HSET {base}settings a b", "DEL {base}heads", "ZREM {base}dead x", "SADD _kombu.binding.pdf x", "LLEN pdf"),
    *("GET celery-task-meta-1", "SUBSCRIBE /0.celery.pidbox", "PUBLISH /0.celery.pidbox x", "PSUBSCRIBE /0.celeryev/*"),
)

NOT_FOR_WORKERS = ("GET {{other:default}}:schema", "GET {{affinity:other}}:schema", "SUBSCRIBE /1.celery.pidbox")


@pytest.fixture
def scheduler_of(as_user):
    """Return a function from a user's name to arrows with its rights."""
    clients = []

    def scheduler(name):
        clients.append(redis.Redis.from_url(as_user(name)))
        return Scheduler(clients[-1], Keys())

    yield scheduler
    for client in clients:
        client.close()


def run_as(url, *words, **env):
    """Run Python in a process of its own, whose broker is *url*."""
    env = {**os.environ, "BROKER_URL": url, "LEDGER": os.devnull, **env}
    return subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, timeout=60, check=False)


def publish(url):
    call = f"app.send_task('{APP}.pdf', ('job',), queue='pdf', ignore_result=True)"
    return run_as(url, "-c", f"from {APP} import app; {call}")


def version_of(client):
    return tuple(map(int, client.info("server")["redis_version"].split(".")))


def refused(client):
    return [(entry["username"], entry["object"], entry["reason"]) for entry in client.acl_log()]


# -- what each can


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
    wait_until(lambda: redis_client.zcard(Keys().key("beats")) == 2, 30, "both join")
    producers = (
        "app.send_task(pdf.name, ('due',), queue='pdf', ignore_result=True, countdown=1)",
        "app.send_task(pdf.name, ('later',), queue='pdf', ignore_result=True, countdown=60, expires=90)",
        "app.send_task(pdf.name, ('ended',), queue='pdf', ignore_result=True, countdown=60, task_id='to-be-revoked')",
        "app.send_task(pdf.name, ('gone',), queue='pdf', ignore_result=True, expires=-1)",
        "app.send_task(pdf.name, ('marked',), queue='pdf', ignore_result=True, stamped_headers=['a'], a='b')",
        "publish_many(pdf, [(f'job-{n}',) for n in range(60)], queue='pdf', ignore_result=True)",
        "pdf.apply_async(('waited-for',), queue='pdf').get(timeout=20)",
        "chord([pdf.s('one').set(queue='pdf'), pdf.s('two').set(queue='pdf')])(pdf.si('all')).get(timeout=20)",
    )
    imports = [f"from {APP} import app, pdf", "from celery import chord", "from celery_affinity import publish_many"]
    run = run_as(as_user("producer"), "-c", "\n".join([*imports, *producers]))
    assert run.returncode == 0, run.stderr
    call = f"from {APP} import app; app.send_task('{APP}.pdf', ('stock',), queue='pdf', ignore_result=True)"
    assert run_as(as_user("worker"), "-c", call, TRANSPORT="redis").returncode == 0
    expected = {"stock", "due", "marked", "waited-for", "one", "two", "all", *(f"job-{n}" for n in range(60))}
    wait_until(lambda: set(ledger.ends()) == expected, 20, f"all run\n{workers[0].log()}")
    stats = run_as(as_user("worker"), "-m", "celery", "-A", APP, "inspect", "stats", "--json")
    assert len(json.loads(stats.stdout)) == 2, stats.stderr
    with Celery("operator", broker=as_user("worker"), set_as_current=False) as operator:
        operator.conf.broker_transport = "celery_affinity:Transport"
        operator.control.revoke("to-be-revoked")
        operator.control.purge()
    said.wait_for("task succeeded", 20)
    said.end()
    for words in (["status"], ["pending"], ["explain", "nobody"], ["settings"], ["dead", "list"]):
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
        except urllib.error.HTTPError:  # it does not know the worker yet
            return None

    assert wait_until(lengths, 60, "Flower asks for the queues of the worker") == {"drawing": 1, "pdf": 0}
    assert flower.metrics()[("unserved_jobs", "drawing")] == 1


def needs(name):
    """Return what a script calls: (command, the part of a key that is always the same, or its whole)."""
    found = set()
    for command, rest in re.findall(r'redis\.p?call\("([A-Z]+)"(.*)', load(name).source):
        for part in re.findall(r'\(base \.\. "([^"]+)"', rest) or [""]:
            found.add((command.lower(), part))
    return found


def test_a_worker_has_the_rights_that_all_scripts_need():
    called = {command for name in ARROWS for command, _ in needs(name)}
    assert called <= set(re.findall(r"\+(\S+)", PAGE["worker"]))


def test_a_producer_has_the_rights_that_its_script_needs_and_no_others(as_user, redis_client):
    called = needs("publish")
    root, *selectors = re.split(r"\s\(", PAGE["producer"])
    own = {"evalsha", "ping", "hello", "auth", "select", "client|setname", "multi", "exec", "hscan"}  # the last to warn
    assert set(re.findall(r"\+(\S+)", root)) - own == {command for command, _ in called}
    patterns = {
        mode + pattern.rstrip("*") for mode, pattern in re.findall(r"(%[RW]|)~\{affinity:default\}:(\S*)", root)
    }
    parts = {re.sub(r"^%[RW]", "", pattern) for pattern in patterns}
    assert parts - {"", "schema"} == {part for _, part in called if part} - {"lane:leaders", "task:jobs:"}
    assert not [selector for selector in selectors if "affinity" in selector]
    both, reads = {"incr", "hincrby"}, {"get", "hget", "hmget", "zrange", "zscore", "pttl"}
    writes = {"set", "hset", "hdel", "lpush", "ltrim", "zadd", "zrem"}
    assert {command for command, _ in called} == both | reads | writes | {"exists", "hlen", "time"}
    for part in parts - {"", "schema"}:
        commands = {command for command, each in called if each.startswith(part)} - {"exists", "hlen"}
        if part == "message:":
            commands -= {"get"}  # of jobs that others published
        expected = "%R" if commands <= reads else "%W" if commands <= writes else ""
        assert expected + part in patterns, commands


# -- what none of them can


@pytest.mark.parametrize(
    ("user", "commands"),
    [
        ("producer", (*FORBIDDEN, *NOT_FOR_PRODUCERS)),
        ("worker", (*FORBIDDEN, *NOT_FOR_WORKERS)),
        ("observer", (*FORBIDDEN, *NOT_FOR_OBSERVERS)),
    ],
)
def test_the_server_refuses_all_else(as_user, redis_client, user, commands):
    def answer(command):
        words = command.format(base=Keys().base).split() if "{" in command else command.split()
        return redis_client.execute_command("ACL", "DRYRUN", user, *words)

    allowed = [command for command in commands if answer(command) in (b"OK", "OK")]
    assert not allowed
    with redis.Redis.from_url(as_user(user)) as client:
        for command in (
            "CLIENT PAUSE 3000 ALL",
            "CLIENT KILL TYPE normal",
            "KEYS *",
            "SCAN 0",
            "SCRIPT FLUSH",
            "FLUSHALL",
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command.split())


def test_a_producer_that_calls_another_arrow_is_refused_and_no_message_is_lost(scheduler_of, redis_client):
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    fleet.join("worker", "pdf")
    for job in ("job", "waiting", "other"):
        fleet.publish(job, "pdf")
    for arrow in ARROWS:
        redis_client.script_load(load(arrow).source)
    producer = scheduler_of("producer")
    before = {key: redis_client.dump(key) for key in redis_client.scan_iter()}
    for arrow in (
        lambda: producer.join(Joining("mine", "mine@host", ["pdf"], 1), Settings().shared()),
        lambda: producer.purge("pdf"),
        lambda: producer.configure({"age_weight": "1"}),
        lambda: producer.drop(["job"]),
        lambda: producer.replay(["job"]),
        lambda: producer.revoke(["task-waiting"], [], keep_s=60),
        lambda: producer.leave("worker"),
        lambda: producer.recover("worker"),
        lambda: producer.ingest("pdf", [Job("more", "pdf", "message")]),
        lambda: producer.tell_ends("worker", acks=[("job", "1")], ends=[], sequence=1, inline=False),
        lambda: producer.tell_ends("worker", acks=[], ends=[End("job", "1", "acked")], sequence=1, inline=True),
        lambda: producer.requeue("worker", [("job", "1")], counted=False),
        lambda: producer.sync("worker", [], slots=1, other=0, draining=False),
        lambda: producer.beat("worker", turns=False),
        lambda: producer.tick(),
        lambda: producer.announce("app", again_s=1),
        lambda: producer.told(["job"]),
        lambda: producer._run(load("claim"), rest=["pdf"]),
    ):
        with pytest.raises(redis.exceptions.NoPermissionError):
            arrow()
    changed = {key for key, value in before.items() if redis_client.dump(key) != value}
    assert not [key for key in changed if b":message:" in key or b":inbox:" in key]


def test_an_observer_cannot_change_anything(as_user, scheduler_of, redis_client):
    ScriptedFleet(Scheduler(redis_client, Keys())).publish("job", "pdf")
    before = {key: redis_client.dump(key) for key in redis_client.scan_iter()}
    observer = scheduler_of("observer")
    for forbidden in (
        lambda: ScriptedFleet(observer).publish("other", "pdf"),
        lambda: observer.purge("pdf"),
        lambda: observer.drop(["job"]),
        lambda: observer.client.delete(Keys().key("heads")),
    ):
        with pytest.raises(redis.exceptions.NoPermissionError):
            forbidden()
    assert affinity(as_user("observer"), "settings", "set", "age_weight", "1").returncode == 1
    assert before == {key: redis_client.dump(key) for key in redis_client.scan_iter()}


def test_an_observer_sees_arguments_where_that_is_its_right(as_user, redis_client, lines):
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    message = json.dumps({"headers": {"argsrepr": "('secret',)"}, "body": ""})
    fleet.join("worker", "pdf", "excel", slots=2)
    fleet.publish("job", "pdf", message=message)
    fleet.publish("unread", "excel")
    (claim,) = [each for each in fleet.inbox("worker") if each.job_id == "job"]
    fleet.end("worker", claim, outcome="rejected")
    fleet.publish("unread-too", "excel")

    def looked():
        shown = affinity(as_user("observer"), "dead", "show", "job").stdout
        return shown, affinity(as_user("observer"), "explain", "task-unread-too").stdout

    shown, explained = looked()
    assert f"{len(message)} bytes" in shown
    assert "it has no right to read messages" in shown
    assert "secret" not in shown
    assert "no right to inboxes" in explained
    lines("messages")
    shown, explained = looked()
    assert "('secret',)" in shown
    assert "in the worker's inbox, which it has not read yet" in explained


# -- the script of producers


def test_a_producer_calls_the_script_that_a_worker_loads_when_it_joins(scheduler_of, redis_client):
    redis_client.script_flush()
    producer, worker = scheduler_of("producer"), scheduler_of("worker")
    with pytest.raises(redis.ConnectionError, match=r"does not have the script of publish, and .* may not load it"):
        ScriptedFleet(producer).publish("job", "pdf")
    ScriptedFleet(worker).join("worker", "pdf")
    assert ScriptedFleet(producer).publish("job", "pdf")


def test_a_fleet_at_work_gives_producers_their_script_again(scheduler_of, redis_client):
    producer, worker = scheduler_of("producer"), scheduler_of("worker")
    ScriptedFleet(worker).join("worker", "pdf")
    redis_client.script_flush()
    worker.tick()
    assert ScriptedFleet(producer).publish("job", "pdf")


def test_a_producer_with_the_right_to_load_needs_nobody(scheduler_of, redis_client):
    redis_client.execute_command("ACL", "SETUSER", "producer", "+script|load")
    redis_client.script_flush()
    assert ScriptedFleet(scheduler_of("producer")).publish("job", "pdf")


def test_a_caller_is_told_that_nobody_has_loaded_its_script(as_user, redis_client):
    redis_client.script_flush()
    run = publish(as_user("producer"))
    assert run.returncode == 1
    said = re.search(r"^the server does not have .*this version", PAGE_TEXT, re.MULTILINE)
    assert said[0] in run.stderr


def test_a_dispatcher_loads_the_script_of_producers(as_user, redis_client):
    redis_client.script_flush()
    command = [sys.executable, "-m", "celery", "-A", APP, "affinity", "dispatcher"]
    dispatcher = Process("dispatcher", command, {"BROKER_URL": as_user("worker"), "LEDGER": os.devnull})
    dispatcher.wait_for("dispatcher ready", 20)
    assert publish(as_user("producer")).returncode == 0


def test_what_a_producer_may_not_place_a_workers_sync_does(scheduler_of, redis_client):
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    slots = 2 * MOST_MOVES
    fleet.join("worker", "pdf", slots=slots)
    jobs = [Job(f"job-{number}", "pdf", "message") for number in range(slots)]
    assert all(each.fresh for each in scheduler_of("producer").publish(*jobs))
    assert len(fleet.claims("worker")) == MOST_MOVES
    fleet.sync("worker", slots=slots)
    assert len(fleet.claims("worker")) == slots


# -- the page


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
    """What the page says of who may load scripts."""
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


def test_a_missing_right_is_named(as_user, redis_client):
    redis_client.script_load(load("publish").source)
    redis_client.execute_command("ACL", "SETUSER", "producer", "-hset")
    run = publish(as_user("producer"))
    assert run.returncode == 1
    assert "the broker's user has no right to publish" in run.stderr
    assert ("hset" in run.stderr) == (version_of(redis_client) >= (7, 2))
