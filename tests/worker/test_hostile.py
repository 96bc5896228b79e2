"""Messages that any client with write access can send: none of them ends a real worker or blocks a job."""

# Longer than 300 lines: the cases are a table, and one fleet runs them all.

import base64
import json
import uuid

import pytest

from celery_affinity.reports import dead_letters
from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys

from ..support.apps import APP
from ..support.broadcasts import TO_NOBODY, command, message
from ..support.fleet import in_time
from ..support.ledger import Ledger
from ..support.messages import wire
from ..support.processes import start_worker, wait_until, wait_until_it_listens

#: Half a surrogate pair: possible in JSON, not in UTF-8.
HALF = "\ud800"

REVOKED = [
    {"task_id": HALF},
    {"task_id": ["good", HALF, 7, None, {"a": 1}, ["nested"]]},
    {"task_id": 7},
    {"task_id": {"a": 1}},
    ["not", "a", "mapping"],
    "text",
    7,
    None,
    {"task_id": 7, "terminate": True, "signal": "NO_SUCH"},
]
STAMPS = [["foo"], "foo", 7, [7], [["a=b"]], {"a": HALF}, {HALF: "a"}, {"a": {"b": 1}}, {"a": None}, [f"a={HALF}"]]

REVOKES = [
    *(command("revoke", arguments) for arguments in REVOKED),
    *(command("revoke_by_stamped_headers", {"headers": stamps}) for stamps in STAMPS),
]

COMMANDS = [
    command(["revoke"], {}),
    command({"revoke": 1}, {}),
    command("no_such_command", {}),
    command("revoke", {"task_id": "a"}, pattern="(", matcher="pcre"),
    command("revoke", {"task_id": "a"}, destination=7),
    command("ping", {}, reply_to="somebody", ticket=[1]),
    command("ping", {}, reply_to={"exchange": 1, "routing_key": HALF}, ticket=HALF),
    command("query_task", {"ids": [HALF, 7, None, {"a": 1}]}, **TO_NOBODY),
    command("query_task", {"ids": 7}, **TO_NOBODY),
    command("scheduled", {"a": HALF}, **TO_NOBODY),
    command("affinity", {"a": HALF}, **TO_NOBODY),
    *(command("add_consumer", {"queue": queue}) for queue in (7, None, "", ["a"], {"a": 1}, HALF)),
    command("add_consumer", {"queue": "q", "exchange": 7, "routing_key": {"a": 1}}),
    command("add_consumer", {"queue": "q", "exchange_type": "no_such"}),
    *(command("cancel_consumer", {"queue": queue}) for queue in (7, ["a"], HALF)),
    *(command("pool_grow", {"n": n}) for n in ("x", None, 1.5, -7)),
    *(command("pool_shrink", {"n": n}) for n in ("x", 0.5, -7)),
    command("autoscale", {"max": "x", "min": 1.5}),
    command("time_limit", {"task_name": f"{APP}.pdf", "soft": "x", "hard": float("inf")}),
    *(command("rate_limit", {"task_name": f"{APP}.pdf", "rate_limit": limit}) for limit in (float("nan"), [1], "x/y")),
    command("election", {"id": "a", "topic": "task"}),
    command("hello", {"from_node": "x", "revoked": [[HALF, 1], 7]}),
]

NO_MESSAGES = [
    b"garbage",
    b"\xff\xfe",
    b"42",
    b"null",
    b"[1]",
    b'"text"',
    b"{}",
    b"[" * 100_000,
    b"9" * 5000,
    b'{"__type__": "bytes", "__value__": 7}',
    message({}, body=7),
    message({}, body=None),
    message({}, body=["a"]),
    message({}, body="%%%a"),
    message({}, body=HALF),
    message(b"{"),
    message([1, 2]),
    message(b"[" * 100_000),
    message({"method": "ping", "arguments": {"large": "x" * 5_000_000}}),
    message({}, properties=None),
    message({}, properties="text"),
    message({}, properties={"body_encoding": "rot13", "delivery_tag": "a"}),
    message({}, properties={"body_encoding": ["a"], "delivery_tag": ["a"]}),
    message({}, properties={"delivery_tag": "a", "delivery_info": "text"}),
    message({}, headers=[1]),
    message({}, headers="text"),
    *(message({"method": "ping"}, headers={"clock": clock}) for clock in ("x", {"a": 1}, 10**400, [1])),
    message({}, **{"content-type": ["a"]}),
    message({}, **{"content-type": "application/x-python-serialize"}),
    message({}, **{"content-encoding": 7}),
    message({"type": 7, "hostname": 7, "clock": "x"}),
]

INBOX = [
    b"garbage",
    b"",
    b"\xff\xfe",
    b"\n",
    b"\n \n",
    b"\n\xff",
    b"\nno such sign",
    b"\nback",
    b"\nback x",
    b"\nback 1.5 pdf",
    b"\nback 5 \xff",
    b"\nback " + b"9" * 5000 + b" pdf",
    b"\npaused *",
    b"\npaused type:pdf -1",
    b"\npaused * " + b"9" * 5000,
    b"\npreempt",
    b"\npreempt job 1 -5",
    b"\npreempt job x 5",
    b"\npreempt job 1 " + b"9" * 5000,
    b"\npreempt no-such-job 1 5",
    b"job x pdf 0 0\n{}",
    b"job -1 pdf 0 0\n{}",
    b"job " + b"9" * 5000 + b" pdf 0 0\n{}",
    b"job 1 pdf 0\n{}",
    b"job 1 pdf x 0\n{}",
    b"job 1 pdf 0 0 0\n{}",
    b"\xff 1 pdf 0 0\n{}",
    b"forged 1 pdf 0 0\n{}",
    b"forged 2 pdf 0 0\n\xff",
    b"forged 3 nobody 0 0\n{}",
    b"    \n",
    b"\x00",
    b"x" * 5_000_000,
]


def of_task(**headers):
    return wire(str(uuid.uuid4()), **headers)


def altered(**parts):
    return json.dumps({**json.loads(of_task()), **parts})


def with_body(body):
    return altered(body=base64.b64encode(json.dumps(body).encode()).decode())


LISTS = [
    b"garbage",
    b"",
    b"\xff",
    b"null",
    b"[" * 100_000,
    wire(f"bad{HALF}"),
    wire(f"bad{HALF}", version=1),
    wire(["unhashable"]),
    wire({"a": 1}),
    of_task(task=["unhashable"]),
    of_task(task=f"bad{HALF}"),
    *(of_task(eta=eta) for eta in ("soon", 7, [1], {"a": 1}, HALF, "0000-01-01T00:00:00")),
    *(of_task(expires=expires) for expires in ("soon", [1], {"a": 1}, 10**400, HALF)),
    *(of_task(timelimit=limit) for limit in ("x", 7, ["x", "y"], [1, 2, 3], {"a": 1}, [10**400, None])),
    of_task(stamps=["a"], stamped_headers=["a"]),
    of_task(stamps={"a": HALF}, stamped_headers=7),
    of_task(shadow=["unhashable"]),
    of_task(retries="x"),
    of_task(affinity=7),
    of_task(affinity={"type": HALF, "eta": 7, "priority": "x"}),
    of_task(compression="rar"),
    altered(headers=["task"]),
    altered(headers="task"),
    altered(properties=None),
    altered(properties="text"),
    altered(properties={"body_encoding": "rot13", "delivery_tag": "a"}),
    altered(properties={"body_encoding": "base64", "delivery_tag": "a", "delivery_info": "text"}),
    altered(properties={"body_encoding": "base64", "delivery_tag": HALF, "priority": float("inf")}),
    altered(body=None),
    altered(body=7),
    altered(body="%%%a"),
    altered(**{"content-type": ["a"]}),
    altered(**{"content-encoding": 7}),
    with_body({"a": 1}),
    with_body([["x"], {}, 7]),
    with_body([["x"], {}, {"callbacks": 7, "errbacks": "x", "chain": {"a": 1}, "chord": 7}]),
    with_body([7, [1], {}]),
]


class Fleet:
    """A worker, and the messages that it must survive."""

    def __init__(self, url, redis_client, ledger, app):
        self.url, self.redis, self.ledger, self.app = url, redis_client, ledger, app
        self.reader = Reader(redis_client, Keys())
        self.number = 0

    def start(self, pool, *queues, **conf):
        env = {"LEDGER": str(self.ledger.path), "EVENTS": "1", "CONF": json.dumps(conf)}
        worker = start_worker(APP, self.url, queues, pool=pool, concurrency=2, name="worker", env=env)
        worker.wait_ready(60)
        wait_until_it_listens(self.app, "worker")
        return worker

    def broadcast(self, *messages, exchange="celery.pidbox"):
        for each in messages:  # after an error Celery subscribes again, and misses what is published before that
            wait_until(lambda each=each: self.redis.publish(f"/0.{exchange}", each), 20, "the worker hears it")

    def works(self, worker, queue="pdf"):
        """Wait until the worker has answered and run a job, and all its slots are free."""
        self.number += 1
        self.app.send_task(f"{APP}.pdf", (f"job{self.number}",), queue=queue, affinity=queue, ignore_result=True)
        wait_until(lambda: f"job{self.number}" in self.ledger.ends() or not worker.is_running, 60, "a job runs")
        assert worker.is_running, worker.log()[-5000:]
        assert "Unrecoverable" not in worker.log()
        wait_until_it_listens(self.app, "worker")
        wait_until(self._all_slots_are_free, 30, "no slot is leaked")

    def _all_slots_are_free(self):
        (worker,) = Report(self.reader).status().workers
        return worker.free == worker.slots and not self.redis.exists(Keys().key("claims", worker.id))


@pytest.fixture
def fleet(valkey, redis_client, tmp_path, load_app):
    return Fleet(valkey.url, redis_client, Ledger(tmp_path / "ledger"), load_app(APP))


@pytest.mark.parametrize("pool", in_time("prefork", "threads", "gevent"))
def test_no_broadcast_ends_a_worker(fleet, pool):
    worker = fleet.start(pool, "pdf")
    waiting = fleet.app.send_task(f"{APP}.excel", ("waits",), affinity="excel")
    fleet.broadcast(*REVOKES)
    fleet.works(worker)
    fleet.broadcast(*COMMANDS, *NO_MESSAGES)
    fleet.broadcast(*NO_MESSAGES, exchange="celeryev/worker.heartbeat")
    fleet.works(worker)
    fleet.broadcast(command("revoke", {"task_id": [waiting.id, HALF]}))  # like stock Celery
    wait_until(lambda: Report(fleet.reader).status().counters.get("revoked"), 20, "what is good is done")


def test_revoke_accepts_everything_that_stock_celery_sends(fleet, caplog):
    control = fleet.app.control
    for ids in (HALF, 7, [HALF, None, {"a": 1}], {"a": 1}, ""):
        control.revoke(ids)
    for headers in ({"a": HALF}, {"a": None}, {HALF: 1}, {}):
        control.revoke_by_stamped_headers(headers)
    control.broadcast("revoke_by_stamped_headers", {"headers": ["foo"]})
    control.broadcast("revoke", {"task_id": None})
    assert "a stamp is revoked by name=value" in caplog.text


def test_no_inbox_item_ends_a_worker(fleet):
    worker = fleet.start("prefork", "pdf")
    (member,) = Report(fleet.reader).status().workers
    for item in INBOX:
        fleet.redis.lpush(Keys().key("inbox", member.id), item)
    fleet.works(worker)
    assert "It was: b'garbage'" in worker.log()


@pytest.mark.parametrize("pool", in_time("prefork", "threads", "solo"))
def test_no_stock_producers_message_ends_or_blocks_workers(fleet, pool):
    worker = fleet.start(pool, "pdf", "excel")
    fleet.redis.lpush("pdf", *LISTS)
    fleet.redis.lpush("excel", wire("other"))
    wait_until(lambda: not fleet.redis.exists("pdf", "excel"), 60, "all is taken from the lists")
    fleet.works(worker)
    found = dead_letters.find_letters(fleet.reader, dead_letters.LetterFilter())
    kept = [fleet.redis.get(Keys().key("message", each.job_id)) for each in found if each.reason == "unreadable"]
    assert {b"garbage", b"\xff", wire(f"bad{HALF}").encode()[:40]} <= {each[:40] for each in kept}
    refused = {each.reason for each in found}
    assert refused <= {"unreadable", "rejected"}, "none is tried again and again"
    ended = wait_until(lambda: "other" in worker.log(), 10, "the other queue moves")
    assert ended


def test_no_message_in_a_kombu_list_ends_a_worker(fleet):
    worker = fleet.start("threads", "pdf", "mail", affinity_queues=["pdf"])
    fleet.redis.lpush("mail", *LISTS)
    wait_until(lambda: not fleet.redis.exists("mail") or not worker.is_running, 60, "all is read")
    fleet.works(worker)
    fleet.redis.lpush("mail", wire("good", task=f"{APP}.tally"))
    wait_until(lambda: "tally[good]" in worker.log(), 20, "what follows is run")


def test_invalid_replies_hide_no_valid_reply(fleet):
    fleet.start("threads", "pdf")
    garbage = [b"garbage", b"{}", message({}, body="%%%a"), message({}, headers={"clock": "x"}), b"[" * 100_000]
    garbage += [message(b"{"), message({}, **{"content-type": "application/x-python-serialize"})]
    with fleet.app.connection_for_write() as connection:
        mailbox = fleet.app.control.mailbox(connection)
        fleet.redis.lpush(mailbox.reply_queue.name, *garbage)
        replies = mailbox._broadcast("ping", reply=True, timeout=3)
        assert not fleet.redis.exists(mailbox.reply_queue.name)
    assert [list(each.values()) for each in replies] == [[{"ok": "pong"}]]
