"""The metric of the overtaking bound: its value, and that it is infinite while a rule lets any job pass."""

import math

import pytest

from celery_affinity.reports.metrics import metrics_text, read_metrics
from celery_affinity.scheduler.reader import Reader
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import ALL, Keys

from ..support.scripted_fleet import ScriptedFleet

#: s, with the default weights: (1024 * (10 - priority) + 500) / 16, and for queued jobs (4096 + 32 * 256) / 16 more.
QUEUED_5, ON_DEMAND_9 = 1_119.25, 95.25

OF_ACME = "key=tenant%3Aacme quota=settings"


@pytest.fixture
def fleet(redis_client):
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    fleet.join("worker", "pdf")
    fleet.publish("runs", "pdf")
    return fleet


def bound(fleet, type_="pdf"):
    return read_metrics(Reader(fleet.scheduler.client, Keys())).bounds_s.get(type_)


def test_the_bound_is_that_of_the_job_which_is_bounded_least(fleet):
    assert bound(fleet) is None
    fleet.publish("urgent", "pdf", on_demand=True, priority=9)
    assert bound(fleet) == ON_DEMAND_9
    fleet.publish("queued", "pdf", priority=5)
    assert bound(fleet) == QUEUED_5


def test_a_bonus_for_locality_makes_the_bound_longer_by_its_worth_in_age(fleet):
    fleet.publish("queued", "pdf", priority=5)
    fleet.scheduler.configure({"locality_bonus": "80"})
    assert bound(fleet) == QUEUED_5 + 5
    fleet.scheduler.configure({"tenant_turns": "share"})
    assert bound(fleet) == math.inf, "tenants take turns, and jobs without a tenant are one of them"


@pytest.mark.parametrize(
    ("changes", "rules"),
    [
        ({"limits": "type%3Apdf=1"}, ""),
        ({"reserve": "pdf:queued=1"}, ""),
        ({"tenants": "acme=max:none,min:1"}, OF_ACME),
        ({"tenants": "acme=max:0"}, OF_ACME),
        ({"tenant_turns": "share"}, OF_ACME),
    ],
    ids=["limit", "reserve", "minimum", "maximum", "share"],
)
def test_there_is_no_bound_while_a_rule_lets_any_job_pass(fleet, changes, rules):
    fleet.publish(f"queued{'$' if rules else ''}", "pdf", priority=5, rules=rules)
    assert bound(fleet) == QUEUED_5
    fleet.scheduler.configure(changes)
    fleet.scheduler.tick()
    assert bound(fleet) == math.inf
    text = metrics_text(read_metrics(Reader(fleet.scheduler.client, Keys())))
    assert 'celery_affinity_overtaking_bound_seconds{type="pdf"} +Inf' in text.splitlines()


@pytest.mark.parametrize("what", ["type:pdf", ALL])
def test_there_is_no_bound_in_a_pause(fleet, what):
    fleet.publish("queued", "pdf", priority=5)
    fleet.scheduler.pause(what)
    assert bound(fleet) == math.inf
    fleet.scheduler.resume(what)
    assert bound(fleet) == QUEUED_5


@pytest.mark.parametrize("rules", ["key=k limit=1", "key=rate%3Ak rate=1/60000000"], ids=["exclusive", "rate"])
def test_a_key_that_keeps_a_job_back_leaves_no_bound(fleet, rules):
    fleet.publish("keyed0!", "pdf", priority=5, rules=rules)
    assert bound(fleet) == QUEUED_5, "it waits for a slot alone"
    fleet.publish("keyed1!", "pdf", priority=5, rules=rules)
    assert bound(fleet) == math.inf


def test_a_paused_key_leaves_no_bound(fleet):
    fleet.publish("keyed!", "pdf", priority=5, rules="key=k limit=1")
    fleet.scheduler.pause("key:k")
    assert bound(fleet) == math.inf


def test_what_keeps_back_another_type_leaves_the_bound(fleet):
    fleet.join("other", "excel")
    fleet.publish("queued", "pdf", priority=5)
    for number in range(3):
        fleet.publish(f"keyed{number}!", "excel", rules="key=k limit=1")
    assert bound(fleet) == QUEUED_5
    assert bound(fleet, "excel") == math.inf


def test_claims_by_age_alone_leave_the_bound(fleet):
    fleet.publish("queued", "pdf", priority=5)
    fleet.scheduler.configure({"priority_percentage": "50"})
    assert bound(fleet) == QUEUED_5


def test_a_reserve_with_patience_makes_the_bound_longer(fleet):
    fleet.publish("queued", "pdf", priority=5)
    fleet.scheduler.configure({"reserve": "pdf:queued=1", "reserve_patience_us": "2000000000"})
    assert bound(fleet) == 2_005
