"""The server refuses everything else to the users of the how-to on ACLs, and their attempts change and lose nothing."""

import json

import pytest
import redis

from celery_affinity.scheduler.messages import EndArguments, JoinArguments
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.job_record import NewJob
from celery_affinity.schema.keys import Keys
from celery_affinity.settings.table import Settings
from celery_affinity.settings.wire import shared_settings

from ..support.acl_users import publish, version_of
from ..support.command import affinity
from ..support.scripted_fleet import ScriptedFleet

#: Commands for the server's operators alone: on the page as "what none of them can", and more of the kind.
FORBIDDEN = (
    *("CLIENT PAUSE 3000 ALL", "CLIENT KILL TYPE normal", "CLIENT LIST", "CLIENT NO-EVICT on", "CLIENT UNBLOCK 1"),
    *("FLUSHALL", "FLUSHDB", "SWAPDB 0 1", "KEYS *", "SCAN 0", "RANDOMKEY", "DBSIZE", "MIGRATE h 1 k 0 1", "MOVE k 1"),
    *("CONFIG GET *", "CONFIG SET maxmemory 1", "CONFIG REWRITE", "DEBUG SLEEP 1", "SHUTDOWN NOSAVE", "SAVE", "BGSAVE"),
    *("SCRIPT FLUSH", "SCRIPT KILL", "FUNCTION FLUSH", "FUNCTION KILL", "FUNCTION RESTORE x", "MONITOR"),
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

#: Commands that a producer may not call either: to listen, to read messages and results, to write read-only keys.
NOT_FOR_PRODUCERS = (
    *(
        "EVAL x 0",
        "SCRIPT LOAD x",
        "FUNCTION LOAD x",
        "SCRIPT EXISTS x",
        "INFO",
        "SUBSCRIBE /0.celery.pidbox",
        "PUBLISH /0.celery.pidbox x",
    ),
    *("PSUBSCRIBE /0.celeryev/*", "GET {base}message:1", "LRANGE {base}inbox:1 0 -1", "BRPOP {base}inbox:1 0"),
    *("RPOP {base}inbox:1", "HSET {base}settings a b", "HSET {base}capacity a 1", "SET {base}schema 9"),
    *("ZADD {base}serving:pdf 1 x", "SET {base}revoked:1 1", "ZADD {base}joined 1 x", "ZADD {base}heartbeats 1 x"),
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
    *("GETDEL {base}turn", "APPEND {base}message:1 x", "EXPIRE {base}job:1 1"),
)

NOT_FOR_OBSERVERS = (
    *(
        "FCALL x 0",
        "EVALSHA x 0",
        "EVAL x 0",
        "SCRIPT LOAD x",
        "FUNCTION LOAD x",
        "GET {base}message:1",
        "LRANGE {base}inbox:1 0 -1",
        "SET {base}message:1 x",
    ),
    *("HSET {base}settings a b", "DEL {base}heads", "ZREM {base}dead x", "SADD _kombu.binding.pdf x", "LRANGE pdf 0 0"),
    *("GET celery-task-meta-1", "SUBSCRIBE /0.celery.pidbox", "PUBLISH /0.celery.pidbox x", "PSUBSCRIBE /0.celeryev/*"),
)

NOT_FOR_WORKERS = ("GET {{other:default}}:schema", "GET {{affinity:other}}:schema", "SUBSCRIBE /1.celery.pidbox")


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
    producer = scheduler_of("producer")
    before = {key: redis_client.dump(key) for key in redis_client.scan_iter()}
    for call in (
        lambda: producer.join(JoinArguments("mine", "mine@host", ["pdf"], 1), shared_settings(Settings())),
        lambda: producer.purge("pdf"),
        lambda: producer.configure({"age_weight": "1"}),
        lambda: producer.drop(["job"]),
        lambda: producer.replay(["job"]),
        lambda: producer.revoke(["task-waiting"], [], keep_s=60),
        lambda: producer.leave("worker"),
        lambda: producer.recover("worker"),
        lambda: producer.ingest("pdf", [NewJob("more", "pdf", "message")]),
        lambda: producer.release_and_claim("worker", acks=[("job", "1")], ends=[], sequence=1, inline=False),
        lambda: producer.release_and_claim(
            "worker", acks=[], ends=[EndArguments("job", "1", "acked")], sequence=1, inline=True
        ),
        lambda: producer.requeue("worker", [("job", "1")], counted=False),
        lambda: producer.sync("worker", [], slots=1, other=0, draining=False),
        lambda: producer.heartbeat("worker", loop_runs=False),
        lambda: producer.tick(),
        lambda: producer.next_report("app", again_s=1),
        lambda: producer.ack_report(["job"]),
        lambda: producer._run("claim", ["pdf"]),
    ):
        with pytest.raises(redis.exceptions.NoPermissionError):
            call()
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
    assert "this Redis user has no right to read messages" in shown
    assert "secret" not in shown
    assert "no right to read inboxes" in explained
    asked = affinity(as_user("observer"), "jobs", "--argument", "customer=secret")
    assert (asked.returncode, "argument: the broker's user has no right to read messages" in asked.stderr) == (1, True)
    lines("messages")
    shown, explained = looked()
    assert "('secret',)" in shown
    assert "in the worker's inbox, which it has not read yet" in explained
    assert affinity(as_user("observer"), "jobs", "--argument", "customer=secret").returncode == 0


def test_a_missing_right_is_named(as_user, redis_client):
    Scheduler(redis_client, Keys()).load()
    redis_client.execute_command("ACL", "SETUSER", "producer", "-hset")
    run = publish(as_user("producer"))
    assert run.returncode == 1
    assert "the broker's user has no right to publish" in run.stderr
    assert ("hset" in run.stderr) == (version_of(redis_client) >= (7, 2))
