"""Lists of stock producers with messages that nobody can read, and a key that is no list: other lists go on."""

import json

import pytest
from celery import Celery
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.connection import Encoder

from celery_affinity.dispatcher.ingest import Ingest
from celery_affinity.observe import dead_letters, explain
from celery_affinity.rules.new_job import NewJob
from celery_affinity.rules.redis_keys import Keys
from celery_affinity.server.reader import Reader
from celery_affinity.server.scheduler import Scheduler

from ..support.from_outside import HALF, MESSAGES
from ..support.messages import wire as sent
from ..support.scripted_fleet import ScriptedFleet


@pytest.fixture(scope="module")
def ingest():
    with Celery("reader", set_as_current=False) as app:
        app.conf.broker_transport = "celery_affinity:Transport"
        yield Ingest(app)


@settings(max_examples=300)
@given(message=st.binary() | st.builds(json.dumps, MESSAGES).map(str.encode))
def test_every_message_is_a_job_that_redis_can_have(ingest, message):
    job = ingest._as_job("pdf", message)
    assert isinstance(job, NewJob)
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
    (letter,) = dead_letters.find(reader, dead_letters.LetterFilter(reason="unreadable"))
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
