"""Messages that no worker can run: unreadable messages, unknown tasks, and names that would break a keyspace.

Each message has a defined end, and the worker and all other jobs continue.
"""

import base64
import json

import pytest
from kombu.exceptions import OperationalError
from kombu.utils.json import dumps

from celery_affinity.reports import dead_letters
from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.apps import APP
from ..support.fleet import in_time
from ..support.full_server import full_server
from ..support.ledger import Ledger
from ..support.processes import start_worker, wait_until
from ..support.scripted_fleet import ScriptedFleet

STRANGE = [
    "a b",
    "{braces}",
    "line\nbreak",
    "col:on",
    "per%cent",
    "tab\tin it",
    "\x00\x1b[31m",
    "ünïcødé",
    "*?[a]",
    "x" * 255,
]


class Fleet:
    """One worker, and the ledger of its runs."""

    def __init__(self, url, redis_client, ledger, app):
        self.url, self.redis, self.ledger, self.app = url, redis_client, ledger, app
        self.scheduler = Scheduler(redis_client, Keys())
        self.reader = Reader(redis_client, Keys())

    def start(self, *queues, pool="threads"):
        worker = start_worker(APP, self.url, queues, pool=pool, env={"LEDGER": str(self.ledger.path)})
        wait_until(lambda: Report(self.reader).status().workers, 30, f"it joins\n{worker.log()}")
        return worker

    def publish(self, job, message):
        ScriptedFleet(self.scheduler).publish(job, "pdf", message=message)

    def good(self, job, **options):
        self.app.send_task(f"{APP}.pdf", (job,), **{"affinity": "pdf", **options})

    def dead(self):
        letters = dead_letters.find_letters(self.reader, dead_letters.LetterFilter())
        return {letter.job_id: letter.reason for letter in letters}

    def works(self, job):
        """Wait until a valid job has run, and every slot is free again."""
        self.good(job)
        wait_until(lambda: job in self.ledger.ends(), 20, f"{job} runs")
        wait_until(self.all_slots_are_free, 20, "no slot is leaked")

    def all_slots_are_free(self):
        return all(worker.free == worker.slots for worker in Report(self.reader).status().workers)


@pytest.fixture
def fleet(valkey, redis_client, tmp_path, load_app):
    return Fleet(valkey.url, redis_client, Ledger(tmp_path / "ledger"), load_app(APP))


def message(**changes):
    """Return a message like Celery's, with *changes* to its parts."""
    whole = {
        "body": base64.b64encode(json.dumps([["x"], {}, {}]).encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"task": f"{APP}.pdf", "id": "an-id", "lang": "py", "argsrepr": "()", "kwargsrepr": "{}"},
        "properties": {
            "delivery_info": {"exchange": "", "routing_key": "pdf"},
            "delivery_tag": "a-tag",
            "body_encoding": "base64",
            "correlation_id": "an-id",
        },
    }
    return dumps({**whole, **changes})


POISON = {
    "no-json": b"\x80\x04not json at all",
    "no-utf8": b"\xff\xfe{}",
    "empty": b"",
    "a-list": b"[1, 2, 3]",
    "a-number": b"42",
    "no-headers": b'{"body": "x"}',
    "headers-are-a-list": message(headers=["task"]),
    "properties-are-text": message(properties="none"),
    "body-is-no-base64": message(body="%%%"),
    "body-is-no-json": message(body=base64.b64encode(b"{").decode()),
    "unknown-encoding": message(**{"content-encoding": "klingon"}),
    "refused-content": message(**{"content-type": "application/x-python-serialize"}),
    "unknown-content": message(**{"content-type": "application/x-nothing"}),
    "body-of-the-wrong-shape": message(body=base64.b64encode(b'{"a": 1}').decode()),
    "unknown-task": message(headers={"task": "no.such.task", "id": "an-id", "lang": "py"}),
    "bad-eta": message(headers={"task": f"{APP}.pdf", "id": "an-id", "lang": "py", "eta": "the day after tomorrow"}),
    "bad-expiry": message(headers={"task": f"{APP}.pdf", "id": "an-id", "lang": "py", "expires": "soon"}),
    "bad-header-of-ours": message(headers={"task": f"{APP}.pdf", "id": "an-id", "lang": "py", "affinity": 7}),
}


@pytest.mark.parametrize("pool", in_time("threads", "prefork"))
def test_messages_that_cannot_run_end_and_worker_continues(fleet, pool):
    worker = fleet.start("pdf", pool=pool)
    for name, body in POISON.items():
        fleet.publish(name, body)
    fleet.works("good")
    ended = {name: fleet.reader.hash("job", name) for name in POISON}
    assert {name for name, row in ended.items() if row.get("state") not in ("dead", "failed", "done")} == set()
    assert {name for name, row in ended.items() if row["state"] == "done"} == {"bad-header-of-ours", "unknown-encoding"}
    # Celery acks readable messages that it cannot run, after it stored the failure. The rest are dead letters.
    assert {name for name, row in ended.items() if row["state"] != "done" and not row.get("why")} == set()
    assert ended["unknown-task"]["why"] == "NotRegistered: 'no.such.task'"
    assert ended["refused-content"]["why"].startswith("ContentDisallowed: ")
    assert ended["bad-eta"]["why"].startswith("InvalidTaskError: ")
    assert ended["body-is-no-json"]["why"].startswith("DecodeError: ")
    dead = fleet.dead()
    assert set(dead) >= {name for name in POISON if name.startswith(("no-", "empty", "a-", "headers-", "properties-"))}
    assert dead["unknown-task"] == "rejected"
    assert worker.is_running


def test_payload_of_50_mb_arrives(fleet):
    fleet.start("pdf")
    fleet.good("large", kwargs={"seconds": 0.0}, headers={"large": "x" * 50_000_000})
    wait_until(lambda: "large" in fleet.ledger.ends(), 60, "the large job runs")
    fleet.works("good")


#: Names that are valid for -Q; other types are refused.
STRANGE_TYPES = [name for name in STRANGE if name.isprintable()]


@pytest.mark.parametrize("name", STRANGE_TYPES)
def test_type_may_have_any_printable_name(fleet, name):
    fleet.good("job", affinity=name)
    (type_,) = Report(fleet.reader).status().types
    assert (type_.type, type_.pending) == (name, 1)
    assert all(key.startswith(Keys().base.encode()) or b"kombu" in key for key in fleet.redis.scan_iter())


def test_worker_serves_types_with_strange_names(fleet):
    fleet.start(*STRANGE_TYPES)
    for number, name in enumerate(STRANGE_TYPES):
        fleet.good(f"job{number}", affinity=name)
    wait_until(lambda: len(fleet.ledger.ends()) == len(STRANGE_TYPES), 30, "all run")


def test_task_may_have_any_id_and_name(fleet):
    fleet.start("pdf")
    for name in STRANGE:
        fleet.app.send_task(f"{APP}.pdf", (name.encode().hex(),), affinity="pdf", task_id=name)
        fleet.app.send_task(name, affinity="pdf")
    wait_until(lambda: len(fleet.ledger.ends()) == len(STRANGE), 30, "all that are known run")
    fleet.works("good")
    assert set(fleet.dead().values()) == {"rejected"}
    assert len(fleet.dead()) == len(STRANGE)


def test_unserved_types_cost_only_their_jobs(redis_client):
    """Two thousand unserved types block no call, and are deleted with their jobs."""
    scheduler = Scheduler(redis_client, Keys())
    fleet = ScriptedFleet(scheduler)
    for number in range(2_000):
        fleet.publish(f"job{number}", f"type{number}")
    assert len(Report(Reader(redis_client, Keys())).status().types) == 2_000
    for number in range(2_000):
        assert scheduler.purge(f"type{number}") == 1
    assert redis_client.keys() == [Keys().key("counters").encode()]


def test_eviction_policy_that_drops_jobs_is_reported(fleet):
    try:
        fleet.redis.config_set("maxmemory-policy", "allkeys-lru")
        fleet.start("pdf").wait_for("maxmemory-policy is allkeys-lru: when its memory is full it drops jobs", 10)
    finally:
        fleet.redis.config_set("maxmemory-policy", "noeviction")


def test_full_server_refuses_a_publish_and_runs_queued_jobs(fleet):
    fleet.start("pdf").wait_ready(30)  # before that a worker declares queues, which a full server refuses
    for number in range(3):
        fleet.good(f"job{number}", kwargs={"seconds": 1}, ignore_result=True)  # the result backend shares the server
    before = fleet.redis.dbsize()
    with full_server(fleet.redis):
        with pytest.raises(OperationalError, match="maxmemory"):
            fleet.good("refused", retry=False)
        assert fleet.redis.dbsize() <= before, "nothing is half-written"
        assert len(fleet.ledger.ends()) < 3
        wait_until(lambda: len(fleet.ledger.ends()) == 3, 20, "what was there runs")
        wait_until(fleet.all_slots_are_free, 20, "slots are freed")
    fleet.works("good")
