"""The end of a storm: what is left in Redis is compared with what may be left, with recurring calls suspended."""

import pytest

from celery_affinity.rules.recurring_call import RecurringCall
from celery_affinity.rules.redis_keys import KEYS, Keys

from ..support.clocked import ClockedScheduler
from ..support.scripted_fleet import ScriptedFleet
from .chaos import remains


@pytest.fixture
def fleet(redis_client):
    return ScriptedFleet(ClockedScheduler(redis_client, Keys()))


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
    fleet.scheduler.recur([RecurringCall("hh", "proj.plan", "route", "HH", 1_000_000)])
    assert remains.suspend_recurring(redis_client) == ["hh"]
    assert remains.suspend_recurring(redis_client) == []
    fleet.scheduler.advance(5)
    assert not fleet.scheduler.tick().recurring
    found = remains.Remains()
    remains._look_at_keys(redis_client, found)
    assert [each for each in found.leaks if "the-time-passed-in" not in each] == []
    remains.resume_recurring(redis_client, ["hh"])
    assert fleet.scheduler.tick().recurring
