"""Unreadable messages in a stock list, or a list key of another type, do not block other lists."""

import json

import pytest
from celery import Celery
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.connection import Encoder

from celery_affinity.dispatcher.ingest import Ingest
from celery_affinity.reports import dead_letters, explain
from celery_affinity.scheduler.reader import Reader
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.job_record import NewJob
from celery_affinity.schema.keys import Keys

from ..support.from_outside import HALF, MARKED, MESSAGES, NUMBERS, nested
from ..support.messages import wire as sent
from ..support.scripted_fleet import ScriptedFleet


@pytest.fixture(scope="module")
def ingest():
    with Celery("reader", set_as_current=False) as app:
        app.conf.broker_transport = "celery_affinity:Transport"
        yield Ingest(app)


@settings(max_examples=300)
@given(message=st.binary() | st.builds(json.dumps, MESSAGES).map(str.encode))
def test_any_message_becomes_a_job_that_redis_accepts(ingest, message):
    job = ingest._as_job("pdf", message)
    assert isinstance(job, NewJob)
    assert job.message == message
    encoder = Encoder("utf-8", "strict", decode_responses=False)
    assert all(encoder.encode(value) is not None for value in job.arguments)


def changed(part, name, value):
    """Return the message of a valid call with one header or property replaced."""
    message = json.loads(sent("hostile", eta="2001-01-01T00:00:00"))
    message[part][name] = value
    return json.dumps(message).encode()


def test_hostile_value_becomes_a_job_or_dead_letter(ingest):
    values = [*MARKED, *NUMBERS, nested(90), nested(150), "x" * 20_000, "9" * 5000, [1], {"a": 1}]
    parts = {
        "headers": ("id", "task", "eta", "expires", "retries", "stamps", "timelimit", "compression"),
        "properties": ("priority", "correlation_id", "on_demand", "body_encoding", "delivery_info"),
    }
    wrong = []
    for part, names in parts.items():
        for name in names:
            for value in values:
                job = ingest._as_job("pdf", changed(part, name, value))
                if name == "priority" and value != nested(150) and not job.readable and value in MARKED[:6]:
                    wrong.append((name, value, "is a number or None, and must be used as a priority"))
                if not (0 <= job.priority <= 10 and len(job.task_id) <= 10_000 and len(job.task_name) <= 10_000):
                    wrong.append((name, value, job))
    assert not wrong


def test_priority_out_of_range_becomes_the_nearest_one(ingest):
    priorities = {
        marked["__value__"]: ingest._as_job("pdf", changed("properties", "priority", marked)).priority
        for marked in MARKED[:7]
    }
    assert priorities == {
        "1E+999999999": 10,
        "-1E+999999999": 0,
        "1E-999999999": 0,
        "NaN": 0,
        "sNaN": 0,
        "Infinity": 0,
        "3.5": 3,
    }


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
def test_poison_message_delays_no_list_and_keeps_its_bytes(redis_client, ingest, poison):
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
    (letter,) = dead_letters.find_letters(reader, dead_letters.LetterFilter(reason="unreadable"))
    assert letter.type == "pdf"
    assert redis_client.get(Keys().key("message", letter.job_id)) == raw
    assert dead_letters.show_letter(reader, letter).message_bytes == len(raw)
    assert {explain.explain(reader, task).state for task in ("next", "other")} <= {"pending", "running", "claimed"}


def test_error_in_one_list_delays_no_other(redis_client, ingest, caplog):
    jobs = ScriptedFleet(Scheduler(redis_client, Keys()))
    jobs.join("worker", "pdf", "excel", slots=1)
    jobs.publish("running", "excel")
    redis_client.set("pdf", "no list")
    redis_client.lpush("excel", sent("other"))
    mover = Ingest(ingest._app)
    mover.move(jobs.scheduler, jobs.scheduler.tick(mover.lists(jobs.scheduler)).lists)
    assert explain.explain(Reader(redis_client, Keys()), "other").state == "pending"
    assert "'pdf' is skipped" in caplog.text
    assert mover.lists(jobs.scheduler).count("pdf") == 0
