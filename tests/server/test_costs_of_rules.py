"""The work of one call is bounded with any number of limits and sub-lanes; what a call leaves is taken up by others."""

import pytest

from celery_affinity.rules.keys import Keys
from celery_affinity.rules.protocol import MOST_CLAIMS, MOST_GAINED
from celery_affinity.server.scripts.assembling import load

from ..support.counting import Counting
from ..support.scripted_fleet import ScriptedFleet

TYPES = [f"type{number:03}" for number in range(1_000)]

#: Commands of a call that takes well under 5 ms: a command takes 2 to 4 µs.
MOST_COMMANDS = 800


@pytest.fixture
def fleet(redis_client):
    return ScriptedFleet(Counting(redis_client, Keys()))


def limits(number, types=TYPES):
    return {"limits": " ".join(f"type%3A{type_}={number}" for type_ in types)}


def rule(fleet, type_):
    return (fleet.scheduler.client.hget(Keys().key("type_rules"), type_) or b"").decode()


def tick_once(fleet):
    """Tick as a dispatcher that is killed after one call. Return whether there was more to do."""
    again, *_ = fleet.scheduler._run(load("tick"))
    return bool(again)


# -- limits of very many types


def test_limits_of_very_many_types_are_set_at_once_and_opened_some_at_a_time(fleet):
    fleet.scheduler.configure(limits(3))
    assert fleet.scheduler.most() < 40
    assert {rule(fleet, type_) for type_ in TYPES} == {"limit=3 counting"}
    fleet.scheduler.tick()
    assert fleet.scheduler.most() < MOST_COMMANDS
    assert {rule(fleet, type_) for type_ in TYPES} == {"limit=3"}
    ticks = [name for name, *_ in fleet.scheduler.calls].count("tick")
    assert ticks == len(TYPES) / MOST_GAINED + 1
    assert not fleet.scheduler.client.exists(Keys().key("recount"))


def test_what_a_killed_dispatcher_leaves_closed_another_one_opens(fleet):
    fleet.join("worker", TYPES[-1])
    fleet.scheduler.configure(limits(1))
    fleet.publish("job", TYPES[-1])
    assert tick_once(fleet)
    assert fleet.jobs("worker") == []
    assert rule(fleet, TYPES[0]) == "limit=1"
    assert rule(fleet, TYPES[-1]) == "limit=1 counting"
    fleet.scheduler.tick()
    assert fleet.jobs("worker") == ["job"]


def test_limits_that_change_while_types_are_being_opened_leave_none_closed(fleet):
    fleet.scheduler.configure(limits(1))
    assert tick_once(fleet)
    fleet.scheduler.configure(limits(1, TYPES[:10] + TYPES[500:]))  # the places in the setting are others
    fleet.scheduler.tick()
    assert {rule(fleet, type_) for type_ in TYPES[:10] + TYPES[500:]} == {"limit=1"}
    assert {rule(fleet, type_) for type_ in TYPES[10:500]} == {""}


def test_very_many_limits_that_change_are_in_force_at_once_for_some_types_and_closed_for_others(fleet):
    fleet.scheduler.configure(limits(1))
    fleet.scheduler.tick()
    fleet.scheduler.configure(limits(2))
    assert fleet.scheduler.most() < 200
    rules = [rule(fleet, type_) for type_ in TYPES]
    assert rules.count("limit=2") == MOST_GAINED
    assert rules.count("limit=2 counting") == len(TYPES) - MOST_GAINED
    fleet.scheduler.tick()
    assert {rule(fleet, type_) for type_ in TYPES} == {"limit=2"}


def test_repair_has_claims_counted_for_types_that_would_stay_closed(fleet):
    fleet.scheduler.configure(limits(1))
    fleet.scheduler.client.delete(Keys().key("recount"))
    assert any("without which the limit of type" in found for found in fleet.scheduler.repair())
    fleet.scheduler.tick()
    assert {rule(fleet, type_) for type_ in TYPES} == {"limit=1"}


def test_very_many_limits_that_go_cost_little_and_their_types_go_on(fleet):
    fleet.join("worker", *TYPES[:30], slots=30)
    fleet.scheduler.configure(limits(0))
    fleet.scheduler.tick()
    for type_ in TYPES[:30]:
        fleet.publish(f"job-of-{type_}", type_)
    assert fleet.jobs("worker") == []
    fleet.scheduler.configure({"limits": ""})
    assert len(fleet.jobs("worker")) == 30
    assert fleet.scheduler.most() < MOST_COMMANDS
    assert not fleet.scheduler.client.exists(Keys().key("type_rules"))


@pytest.mark.parametrize("workers", [1, 3, 40], ids=["of one worker", "of some", "of many"])
def test_very_many_claims_are_counted_some_at_a_time(fleet, workers):
    claims = 1_200
    for number in range(workers):
        fleet.join(f"worker{number}", "pdf", slots=claims // workers)
    fleet.scheduler.publish(*fleet.made([f"job{number}" for number in range(claims)], "pdf"))
    fleet.scheduler.configure(limits(claims, ["pdf"]))
    fleet.scheduler.calls.clear()
    calls = 1
    while tick_once(fleet):
        calls += 1
    assert fleet.scheduler.most() < MOST_COMMANDS
    assert calls >= claims / (2 * MOST_CLAIMS)
    assert fleet.scheduler.client.zcard(Keys().key("limited", "pdf")) == claims
    assert rule(fleet, "pdf") == f"limit={claims} full"


def test_claims_of_a_worker_that_leaves_while_they_are_counted_are_not_counted(fleet):
    for worker in ("first", "second"):
        fleet.join(worker, "pdf", slots=300)
    fleet.scheduler.publish(*fleet.made([f"job{number}" for number in range(600)], "pdf"))
    fleet.scheduler.configure(limits(600, ["pdf"]))
    assert tick_once(fleet)
    fleet.scheduler.client.delete(Keys().key("heads"))
    fleet.scheduler.leave("first")
    fleet.scheduler.tick()
    assert fleet.scheduler.client.zcard(Keys().key("limited", "pdf")) == len(fleet.claims("second"))
