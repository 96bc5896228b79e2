"""The end of a storm: the remaining keys in Redis are checked, with recurring calls suspended."""

import pytest

from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.options.recurring import RecurringCall
from celery_affinity.schema.keys import KEYS, Keys

from ..support.scripted_fleet import ScriptedFleet
from .chaos import hints, remains


@pytest.fixture
def fleet(redis_client):
    return ScriptedFleet(FakeClockScheduler(redis_client, Keys()))


def test_each_kind_of_key_has_one_class():
    assert set(KEYS) == remains.BUSY | remains.MAY_STAY
    assert not remains.BUSY & remains.MAY_STAY


@pytest.mark.parametrize("kind", sorted(remains.BUSY))
def test_remaining_busy_key_is_reported(redis_client, kind):
    template = KEYS[kind][0]
    redis_client.set(Keys().base + template.replace("%s", "x"), "left")
    found = remains.Remains()
    remains._look_at_keys(redis_client, found)
    assert len(found.leaks) == 1


def test_recurring_calls_are_suspended_and_resumed(fleet, redis_client):
    fleet.scheduler.declare_recurring([RecurringCall("hh", "proj.plan", "route", "HH", 1_000_000)])
    assert remains.suspend_recurring(redis_client) == ["hh"]
    assert remains.suspend_recurring(redis_client) == []
    fleet.scheduler.advance(5)
    assert not fleet.scheduler.tick().recurring
    found = remains.Remains()
    remains._look_at_keys(redis_client, found)
    assert [each for each in found.leaks if "the-time-passed-in" not in each] == []
    remains.resume_recurring(redis_client, ["hh"])
    assert fleet.scheduler.tick().recurring


def test_inconsistent_hints_are_reported(fleet, redis_client):
    key = Keys().key
    fleet.join("worker", "pdf")
    fleet.publish("job~", "pdf", rules="near=model%3Aa")
    fleet.end("worker", *fleet.inbox("worker"))
    assert hints.leaks(redis_client, Keys()) == []
    redis_client.zadd(key("holders", "other"), {"worker": 1})
    assert hints.leaks(redis_client, Keys()) == ["a hint in only one of both keys: ('worker', 'other')"]
    redis_client.zadd(key("hints", "worker"), {"other": 1})
    assert len(hints.leaks(redis_client, Keys())) == 1, "the worker's row lacks the hint"
    redis_client.zrem(key("heartbeats"), "worker")
    assert hints.leaks(redis_client, Keys()) == ["hints of a worker that left: worker"]
