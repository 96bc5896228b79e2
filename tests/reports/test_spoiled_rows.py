"""A spoiled row beside a good one, in every kind of row: reports show the good one."""

import pytest

from celery_affinity.cli import dead, explain_text
from celery_affinity.reports import celery_inspect, dead_letters, explain
from celery_affinity.reports.fleet_status import status_text
from celery_affinity.reports.queue_order import NEXT_JOBS, next_jobs
from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.messages import wire as sent
from ..support.scripted_fleet import ScriptedFleet

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
    for name in ("heartbeats", "joined", "dead", "scheduled"):
        client.zadd(key(name), {garbage: 1})
    for name in ("worker", "job"):
        client.hset(key(name, text), mapping={"state": garbage, "slots": garbage, "name": garbage})
        client.hset(key(name, "half"), mapping={"state": "dead", "slots": garbage, "ended": garbage})
    for name in ("dead", "heartbeats", "joined", "scheduled"):
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
    found = dead_letters.find_letters(reader, dead_letters.LetterFilter())
    assert {each.job_id for each in found} >= {"buried", "half"}
    assert dead_letters.LETTERS.text(found)
    assert all(dead.letter_text(dead_letters.show_letter(reader, each)) for each in found)
    assert status_text(status)
    assert NEXT_JOBS.text(next_jobs(reader, None, 100))
    assert dead_letters.find_letters(reader, dead_letters.LetterFilter(ids=["task-buried", "list", "bytes"]))
    assert explain.explain(reader, "task-waits").state == "pending"
    for task in ("task-later", "task-buried", "half", "bytes", "list", "unknown"):
        assert explain_text.explanation_text(explain.explain(reader, task))
    shown = celery_inspect.scheduled_tasks(reader, lambda message: ([], {}), "host")
    assert "task-later" in [each["request"]["id"] for each in shown]
    tasks = celery_inspect.queried_tasks(
        reader, ["task-later", "list", "bytes", "half"], lambda message: ([], {}), "host"
    )
    assert tasks["task-later"][1]["id"] == "task-later"
    celery_inspect.responder_id(reader)
