"""Input from outside: each reader returns a value as promised, or raises the error promised."""

# Longer than 300 lines: one reader after the other, fed with the same spoiled input.

import json
import socket
import threading
from types import SimpleNamespace

import pytest
from celery import Celery
from hypothesis import given, settings
from hypothesis import strategies as st
from kombu.transport.virtual import Channel
from redis.connection import Encoder

from celery_affinity.cli import text as render
from celery_affinity.client import revokes
from celery_affinity.dispatcher.ingest import Ingest
from celery_affinity.errors import SchemaError
from celery_affinity.guard import redis_client as wire
from celery_affinity.observe import dead_letters, explain, inspect_lists
from celery_affinity.observe.claim_order import next_jobs
from celery_affinity.observe.status import Report
from celery_affinity.rules.keys import Keys
from celery_affinity.rules.settings import Settings, complete, weights
from celery_affinity.server import instance, runtime_settings
from celery_affinity.server.reader import Reader
from celery_affinity.server.replies import Claim, Ending, Job
from celery_affinity.server.scheduler import Scheduler
from celery_affinity.transport.checked_message import Message, UnreadableError, check_control
from celery_affinity.worker.following import Following

from ..support.apps import APP
from ..support.members import claims_of
from ..support.messages import wire as sent
from ..support.scripted_fleet import ScriptedFleet

#: Half a surrogate pair: possible in JSON, not in UTF-8.
HALF = "\ud800"

TEXTS = st.text(st.characters(exclude_categories=())) | st.sampled_from(["pdf", "a=b", "foo", HALF, "", "9" * 5000])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
VALUES = st.recursive(SCALARS, lambda each: st.lists(each, max_size=3) | st.dictionaries(TEXTS, each, max_size=3))


def some(**parts):
    """Return a mapping: some of the *parts* are as they should be, others are anything, and others are missing."""
    return st.fixed_dictionaries({}, optional={name: good | VALUES for name, good in parts.items()})


def written(body):
    return st.builds(lambda each: json.dumps(each).encode().hex(), body)


HEADERS = some(
    task=st.just(f"{APP}.tally"),
    id=TEXTS,
    eta=st.just("2099-01-01T00:00:00"),
    expires=st.just("2099-01-01T00:00:00"),
    stamps=some(customer=TEXTS),
    stamped_headers=st.just(["customer"]),
    clock=st.integers(),
    compression=TEXTS,
    timelimit=st.just([1, 2]),
)
PROPERTIES = some(
    body_encoding=st.just("base64"),
    delivery_tag=TEXTS,
    delivery_info=some(exchange=TEXTS, routing_key=TEXTS),
    priority=st.integers(),
    correlation_id=TEXTS,
)
MESSAGES = (
    some(
        **{"content-type": st.just("application/json"), "content-encoding": st.just("utf-8")},
        body=TEXTS,
        headers=HEADERS,
        properties=PROPERTIES,
    )
    | VALUES
)
COMMANDS = (
    some(
        method=st.sampled_from(["revoke", "revoke_by_stamped_headers"]),
        arguments=some(task_id=TEXTS | st.lists(TEXTS), headers=st.lists(TEXTS) | st.dictionaries(TEXTS, VALUES)),
        destination=st.none(),
    )
    | VALUES
)


def broadcast(command):
    return {"body": json.dumps(command), "content-type": "application/json", "content-encoding": "utf-8"}


# -- broadcasts


@given(COMMANDS)
def test_a_broadcast_revokes_names_that_redis_can_have_or_nothing(command):
    revoked = revokes.read("celery.pidbox", broadcast(command))
    assert revoked is None or all(name.encode() for name in (*revoked.task_ids, *revoked.stamps) if name)


@given(MESSAGES)
def test_a_broadcast_that_is_no_message_revokes_nothing(message):
    assert revokes.read("celery.pidbox", message) is None


@pytest.mark.parametrize(
    ("arguments", "revoked"),
    [
        ({"task_id": ["good", HALF, {"a": 1}, None, True, 7]}, ["good", "7"]),
        ({"task_id": 7}, ["7"]),
        ({"task_id": HALF}, []),
        ({"task_id": None}, []),
        (["good"], None),
        ("good", None),
    ],
)
def test_what_can_be_no_id_is_left_out_of_a_revoke(caplog, arguments, revoked):
    found = revokes.read("celery.pidbox", broadcast({"method": "revoke", "arguments": arguments}))
    assert (found.task_ids if found else None) == revoked
    assert bool(caplog.records) == (arguments not in ({"task_id": 7}, {"task_id": None})), "and that is said"


@pytest.mark.parametrize(
    ("headers", "stamps"),
    [
        (["customer=7", "region=a=b"], ["customer:7", "region:a%3Db"]),
        (["customer"], None),
        ("customer=7", []),
        ([7], None),
        ({"customer": ["7", HALF, {}], HALF: "x", "none": None}, ["customer:7"]),
    ],
)
def test_what_can_be_no_stamp_is_left_out_of_a_revoke(headers, stamps):
    command = {"method": "revoke_by_stamped_headers", "arguments": {"headers": headers}}
    found = revokes.read("celery.pidbox", broadcast(command))
    assert (found.stamps if found else None) == stamps


@given(HEADERS)
def test_the_stamps_of_a_message_are_texts_that_redis_can_have(headers):
    assert all(stamp.encode() for stamp in revokes.stamps_of(headers))


@given(MESSAGES)
def test_a_message_of_kombu_is_one_or_cannot_be_read(payload):
    try:
        message = Message(payload, channel=SimpleNamespace(decode_body=Channel.decode_body.__get__(Channel)))
    except UnreadableError:
        return
    assert isinstance(message.headers, dict)
    assert isinstance(message.delivery_info, dict)
    assert message.delivery_tag.encode()


@given(MESSAGES)
def test_what_remote_control_takes_on_trust_is_checked(payload):
    try:
        check_control(payload)
    except UnreadableError:
        return
    headers = payload.get("headers") or {}
    assert max(1, headers.get("clock") or 0) + 1 < 2**63
    assert {headers.get("ticket"): 1}


@pytest.mark.parametrize("clock", [2**62, -(2**62), 10**400, float("inf"), float("nan"), "x", [1], {"a": 1}])
def test_a_clock_that_celery_would_go_on_with_for_ever_is_refused(clock):
    with pytest.raises(UnreadableError, match="clock"):
        check_control({"headers": {"clock": clock}})


# -- the inbox


@given(st.binary() | st.builds(lambda *words: " ".join(map(str, words)).encode("utf-8", "replace"), *[SCALARS] * 5))
def test_a_claim_is_one_or_a_value_error(payload):
    try:
        claim = Claim.parse(payload)
    except ValueError:
        return
    claims = claims_of()
    assert claims.hold(claim)
    assert claims.void_up_to(2**63)


@pytest.mark.parametrize("fence", ["x", "", "0", "-1", "1_0", "٣", "9" * 20, "9" * 5000])
def test_a_fencing_number_is_one_that_redis_counts(fence):
    with pytest.raises(ValueError, match="fencing number"):
        Claim.parse(f"job {fence} pdf 0 0\n{{}}".encode())


@given(st.lists(TEXTS | st.sampled_from(["tick", "back", "5", "pdf"])))
def test_a_sign_is_one_or_is_logged(words):
    did = []
    following = Following.__new__(Following)
    following._members = SimpleNamespace(tick=lambda: did.append("tick"))
    following._lookahead = SimpleNamespace(give_back=lambda types, at_most: did.append(at_most) or [])
    following.obey(words)
    is_back = words[:1] == ["back"] and len(words) > 1 and words[1].isdecimal() and len(words[1]) < 10
    assert did == (["tick"] if words == ["tick"] else [int(words[1])] if is_back else [])


# -- what stock producers send


@pytest.fixture(scope="module")
def ingest():
    with Celery("reader", set_as_current=False) as app:
        app.conf.broker_transport = "celery_affinity:Transport"
        yield Ingest(app)


@settings(max_examples=300)
@given(message=st.binary() | st.builds(json.dumps, MESSAGES).map(str.encode))
def test_every_message_is_a_job_that_redis_can_have(ingest, message):
    job = ingest._as_job("pdf", message)
    assert isinstance(job, Job)
    assert job.message == message
    encoder = Encoder("utf-8", "strict", decode_responses=False)
    assert all(encoder.encode(value) is not None for value in job.arguments)


@pytest.mark.parametrize(
    "poison",
    [
        sent(f"bad{HALF}"),
        sent(task=f"bad{HALF}"),
        sent(f"bad{HALF}", version=1),
        b"[" * 100_000,
        b"9" * 5000,
        b"\xff\xfe",
        sent().replace('"headers"', '"Headers"').replace('"properties"', '"Properties"'),
    ],
)
def test_a_poison_message_holds_up_no_list_and_its_bytes_are_kept(redis_client, ingest, poison):
    jobs = ScriptedFleet(Scheduler(redis_client, Keys()))
    jobs.join("worker", "pdf", "excel")
    raw = poison if isinstance(poison, bytes) else poison.encode()
    redis_client.lpush("pdf", raw, sent("next"))
    redis_client.lpush("excel", sent("other"))
    mover = Ingest(ingest._app)
    while mover.move(jobs.scheduler, jobs.scheduler.tick(mover.lists(jobs.scheduler)).lists):
        pass
    assert not redis_client.exists("pdf", "excel")
    reader = Reader(redis_client, Keys())
    (letter,) = dead_letters.find(reader, dead_letters.Filter(reason="unreadable"))
    assert letter.type == "pdf"
    assert redis_client.get(Keys().key("message", letter.job_id)) == raw
    assert dead_letters.show(reader, letter).message_bytes == len(raw)
    assert {explain.explain(reader, task).state for task in ("next", "other")} <= {"pending", "running", "claimed"}


def test_an_error_of_one_list_holds_up_no_other(redis_client, ingest, caplog):
    jobs = ScriptedFleet(Scheduler(redis_client, Keys()))
    jobs.join("worker", "pdf", "excel", slots=1)
    jobs.publish("running", "excel")
    redis_client.set("pdf", "no list")
    redis_client.lpush("excel", sent("other"))
    mover = Ingest(ingest._app)
    mover.move(jobs.scheduler, jobs.scheduler.tick(mover.lists(jobs.scheduler)).lists)
    assert explain.explain(Reader(redis_client, Keys()), "other").state == "pending"
    assert "'pdf' is left alone" in caplog.text
    assert mover.lists(jobs.scheduler).count("pdf") == 0


# -- rows


@given(st.binary(), st.lists(st.none() | st.integers() | st.binary() | st.just(b"7"), max_size=9))
def test_an_end_is_read_from_any_row(job_id, row):
    ending = Ending.parse([job_id, *row])
    assert isinstance(ending.task_id, str)
    assert ending.job_id.encode(errors="surrogateescape") == job_id


@given(st.dictionaries(st.sampled_from([*Settings().shared(), "priority_reversed", "revision", "other"]), TEXTS))
def test_settings_in_redis_that_are_none_count_for_nothing(found):
    in_force = complete(found)
    weights(found)
    assert int(in_force["heartbeat_interval_us"]) > 0
    scheduler = SimpleNamespace(reader=SimpleNamespace(settings=lambda: (found, found)))
    own = Settings()
    for each in runtime_settings.read(scheduler, own):
        assert type(each.value) in (int, float, str)
        assert isinstance(each.value, str) == isinstance(each.own, str)


def test_settings_that_are_none_do_not_reach_the_lease(redis_client, caplog):
    scheduler = Scheduler(redis_client, Keys())
    ScriptedFleet(scheduler).join("worker", "pdf")
    redis_client.hset(Keys().key("settings"), "worker_timeout_us", "half an hour")
    runtime_settings._warn_of_no_value.cache_clear()
    log = runtime_settings.SettingsLog(Settings())
    log.update(scheduler, revision=1)
    assert log.worker_timeout_s == 30
    assert "affinity_worker_timeout in Redis is none" in caplog.text


@pytest.mark.parametrize("found", ["abc", b"\xff", "", "-1", "1.0"])
def test_a_schema_that_is_none_is_refused_with_what_is_there(redis_client, found):
    redis_client.set(Keys().key("schema"), found)
    with pytest.raises(SchemaError, match="must hold the number of a schema"):
        instance.check_schema(redis_client, Keys())


SPOILED = [b"", b"\xff\xfe", b"x", b"1 2", b"-1", b"9" * 400, b"queued.0 " + b"9" * 400 + b" job", b"9" * 18]


@pytest.fixture
def spoiled(redis_client):
    """A fleet with a spoiled row beside the good row, in every kind of row."""
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    fleet.join("worker", "pdf")
    fleet.publish("running", "pdf")
    fleet.publish("waits", "pdf")
    fleet.publish("later", "pdf", delay_s=1000, message=sent("task-later"))
    fleet.publish("buried", "xls", message=sent("task-buried"))
    fleet.join("other", "xls")
    redis_client.hset(Keys().key("job", "buried"), mapping={"state": "dead", "reason": "rejected", "ended": 7})
    redis_client.zadd(Keys().key("dead"), {"buried": 7})
    return fleet


def _spoil(client, garbage):
    key, text = Keys().key, garbage.decode(errors="replace")
    for name in ("capacity", "profiles", "free_slots", "slots", "members", "heads", "durations"):
        client.hset(key(name), garbage or b"-", garbage)
    client.hset(key("counters"), "odd", garbage)
    client.hset(key("clock"), "ticked", garbage)
    client.hset(key("settings"), "heartbeat_interval_us", garbage)
    for name in ("beats", "joined", "dead", "scheduled"):
        client.zadd(key(name), {garbage: 1})
    for name in ("worker", "job"):
        client.hset(key(name, text), mapping={"state": garbage, "slots": garbage, "name": garbage})
        client.hset(key(name, "half"), mapping={"state": "dead", "slots": garbage, "ended": garbage})
    for name in ("dead", "beats", "joined", "scheduled"):
        client.zadd(key(name), {"half": 2, "a text": 3, "list": 4})
    client.set(key("job", "a text"), garbage)
    client.set(key("worker", "a text"), garbage)
    client.set(key("message", "half"), garbage)
    client.rpush(key("message", "list"), "x")
    client.rpush(key("task", "list"), "x")
    client.set(key("task", "bytes"), garbage)
    client.set(key("task", "half"), "half")
    client.set(key("lane", garbage.decode(errors="replace"), "x"), "no sorted set")


@pytest.mark.parametrize("garbage", SPOILED, ids=repr)
def test_a_spoiled_row_does_not_hide_the_others(redis_client, spoiled, garbage):
    reader = Reader(redis_client, Keys())
    _spoil(redis_client, garbage)
    status = Report(reader).status()
    assert {each.name for each in status.workers} >= {"worker@host", "other@host"}
    assert {each.type: each.pending for each in status.types}["pdf"] == 1
    assert [each.job_id for each in next_jobs(reader, None, 100)] != []
    assert [each.job_id for each in next_jobs(reader, ["pdf"], 5)] == ["waits"]
    found = dead_letters.find(reader, dead_letters.Filter())
    assert {each.job_id for each in found} >= {"buried", "half"}
    assert render.letters(found)
    assert all(render.letter(dead_letters.show(reader, each)) for each in found)
    assert render.status(status)
    assert render.upcoming(next_jobs(reader, None, 100))
    assert dead_letters.find(reader, dead_letters.Filter(ids=["task-buried", "list", "bytes"]))
    assert explain.explain(reader, "task-waits").state == "pending"
    for task in ("task-later", "task-buried", "half", "bytes", "list", "unknown"):
        assert render.explanation(explain.explain(reader, task))
    shown = inspect_lists.scheduled(reader, lambda message: ([], {}), "host")
    assert "task-later" in [each["request"]["id"] for each in shown]
    tasks = inspect_lists.of_tasks(reader, ["task-later", "list", "bytes", "half"], lambda message: ([], {}), "host")
    assert tasks["task-later"][1]["id"] == "task-later"
    inspect_lists.spokesman(reader)


# -- the guard


@pytest.mark.parametrize(
    "reply", [b"garbage\r\n", b"$x\r\n", b":x\r\n", b"*x\r\n", b"*1\r\n" * 3000, b"$99999999999999999999\r\n"]
)
def test_what_is_no_reply_is_a_lost_connection_to_a_guard(reply):
    listener = socket.create_server(("127.0.0.1", 0))

    def answer():
        peer, _ = listener.accept()
        with peer:
            peer.recv(1000)
            peer.sendall(reply)

    threading.Thread(target=answer, daemon=True).start()
    server = dict.fromkeys(("path", "tls", "username", "password", "db", "client_name"))
    connection = wire.Connection({**server, "host": "127.0.0.1", "port": listener.getsockname()[1]}, 5)
    try:
        if reply.startswith(b"garbage"):
            assert connection.call("PING") == b"arbage"
        else:
            with pytest.raises(OSError):  # any kind of OSError: the guard takes another connection
                connection.call("PING")
    finally:
        connection.close()
        listener.close()
