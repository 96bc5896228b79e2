"""The end of a storm: what is left in Redis is compared with what may be left, with recurring calls suspended."""

import pytest

from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.options.recurring import RecurringCall
from celery_affinity.schema.keys import KEYS, Keys

from ..support.scripted_fleet import ScriptedFleet
from .chaos import hints, remains


@pytest.fixture
def fleet(redis_client):
    return ScriptedFleet(FakeClockScheduler(redis_client, Keys()))


def test_each_kind_of_key_may_stay_or_not():
    assert set(KEYS) == remains.BUSY | remains.MAY_STAY
    assert not remains.BUSY & remains.MAY_STAY


@pytest.mark.parametrize("kind", sorted(remains.BUSY))
def test_what_may_not_stay_is_found(redis_client, kind):
    template = KEYS[kind][0]
    redis_client.set(Keys().base + template.replace("%s", "x"), "left")
    found = remains.Remains()
    remains._look_at_keys(redis_client, found)
    assert len(found.leaks) == 1


def test_a_recurring_call_is_not_due_at_the_end_of_a_storm_and_goes_on_afterwards(fleet, redis_client):
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


def test_hints_that_only_one_side_knows_or_of_a_worker_that_is_gone_are_found(fleet, redis_client):
    key = Keys().key
    fleet.join("worker", "pdf")
    fleet.publish("job~", "pdf", rules="near=model%3Aa")
    fleet.end("worker", *fleet.inbox("worker"))
    assert hints.leaks(redis_client, Keys()) == []
    redis_client.zadd(key("holders", "other"), {"worker": 1})
    assert hints.leaks(redis_client, Keys()) == ["a hint that only one side knows: ('worker', 'other')"]
    redis_client.zadd(key("hints", "worker"), {"other": 1})
    assert len(hints.leaks(redis_client, Keys())) == 1, "its row does not say so"
    redis_client.zrem(key("heartbeats"), "worker")
    assert hints.leaks(redis_client, Keys()) == ["hints of a worker that is gone: worker"]
