"""Tenants that nothing bounds: their jobs are all in their lanes; what happens once something does bound them."""

import pytest

from celery_affinity.clock import SECOND_US
from celery_affinity.schema.constants import MAX_OPENED, MAX_SUBLANES, REPAIRED_EVERY_US
from celery_affinity.schema.job_record import NewJob
from celery_affinity.schema.keys import Keys

from ..support.counting import Counting
from ..support.scripted_fleet import ScriptedFleet
from ..support.tenants import PDF, of, quotas

LANE = (PDF, "queued.0")

LOST = (("lane", *LANE), ("key_queue", "tenant%3Aa", *LANE), ("key_state", "tenant%3Aa"), ("waiting_keys",), ("heads",))

#: More jobs than a call keeps back.
MANY = 4 * MAX_OPENED + 50


def flood(fleet, jobs, tenant="a"):
    """Publish jobs of a tenant, the older the smaller the number."""
    for number in range(jobs):
        fleet.publish(f"{tenant}{number:03}$", PDF, rules=of(tenant))


def numbers(fleet):
    """Return how many jobs of the type are in their lane, and how many are kept back."""
    key = fleet.scheduler.keys.key
    return tuple(fleet.scheduler.client.zcard(key(name, *LANE)) for name in ("lane", "kept_back"))


def test_all_jobs_are_in_their_lane_until_something_bounds_the_tenant(fleet):
    flood(fleet, 4)
    assert numbers(fleet) == (4, 0)
    quotas(fleet, "a=max:2")
    assert numbers(fleet) == (1, 3)
    fleet.join("worker", PDF, slots=9)
    assert fleet.jobs("worker") == ["a000$", "a001$"]


def test_as_many_jobs_as_the_maximum_are_in_their_lane_and_one_more_keeps_back_all_but_the_first(fleet):
    quotas(fleet, "a=max:3")
    flood(fleet, 3)
    assert numbers(fleet) == (3, 0)
    fleet.publish("a9$", PDF, rules=of("a"))
    assert numbers(fleet) == (1, 3)
    fleet.join("worker", PDF, slots=9)
    assert fleet.jobs("worker") == ["a000$", "a001$", "a002$"]


def test_jobs_that_run_count_and_so_do_those_of_other_lanes(fleet):
    quotas(fleet, "a=max:3")
    fleet.join("worker", PDF)
    flood(fleet, 2)
    fleet.publish("a8$", PDF, rules=of("a"), priority=9)
    assert numbers(fleet) == (1, 0)
    fleet.publish("a9$", PDF, rules=of("a"))
    assert numbers(fleet) == (1, 1)


@pytest.mark.parametrize(("most", "number"), [(9, 4), (3, 1), (2, 1), ("none", 4)])
def test_another_maximum_counts_at_once(fleet, most, number):
    quotas(fleet, "a=max:4")
    flood(fleet, 4)
    quotas(fleet, f"a=max:{most}")
    assert numbers(fleet) == (number, 4 - number)
    fleet.publish("a9$", PDF, rules=of("a"))
    fleet.join("worker", PDF, slots=9)
    assert len(fleet.jobs("worker")) == (most if number == 1 else 5)


def test_in_more_lanes_than_are_counted_all_but_the_first_are_kept_back(fleet):
    quotas(fleet, "a=max:99")
    for priority in range(MAX_SUBLANES):
        fleet.publish(f"low{priority}$", PDF, rules=of("a"), priority=priority)
    fleet.publish("second$", PDF, rules=of("a"))
    assert numbers(fleet) == (2, 0)
    fleet.publish("high$", PDF, rules=of("a"), priority=9)
    assert numbers(fleet) == (1, 1)


def test_a_job_that_comes_has_a_count_that_was_in_doubt_be_none_any_more(fleet, redis_client):
    quotas(fleet, "a=max:9")
    flood(fleet, 2)
    its_key, lane = fleet.scheduler.keys.key("key_state", "tenant%3Aa"), " ".join(LANE)
    assert redis_client.hget(its_key, lane) == b"*9"
    redis_client.hset(its_key, lane, "*-")
    fleet.publish("a9$", PDF, rules=of("a"))
    assert redis_client.hget(its_key, lane) == b"*9"
    assert numbers(fleet) == (3, 0)


@pytest.fixture
def with_turn(fleet, redis_client):
    """Give a tenant without a maximum a turn of when it had one: that of type excel, whose slot is busy."""
    quotas(fleet, "a=max:1")
    fleet.scheduler.configure({"key_patience_us": "1000000"})
    fleet.join("worker", PDF)
    fleet.join("busy", "excel")
    fleet.publish("other", "excel")
    flood(fleet, 1)
    fleet.publish("e$", "excel", rules=of("a"))
    fleet.publish("next$", PDF, rules=of("a"))
    fleet.scheduler.advance(2)
    assert not fleet.end("worker", *fleet.inbox("worker")), "it is the turn of the other type"
    quotas(fleet, "a=max:none")
    its_key = fleet.scheduler.keys.key("key_state", "tenant%3Aa")
    for type_, priority in ((PDF, 9), ("excel", 5)):
        fleet.publish(f"{type_}$", type_, rules=of("a"), priority=priority)
        assert redis_client.hget(its_key, f"{type_} queued.{priority}") == b"*"
    assert redis_client.hexists(its_key, "turn")
    return its_key


def test_a_job_that_comes_ends_a_turn_whose_time_is_over(fleet, redis_client, with_turn):
    fleet.scheduler.advance(2)
    fleet.publish("high$", PDF, rules=of("a"), priority=9)
    assert not redis_client.hexists(with_turn, "turn")


@pytest.mark.parametrize("types", [("excel",), (PDF, "excel")], ids=" ".join)
def test_a_claim_ends_the_turn_of_its_type(fleet, redis_client, with_turn, types):
    """It is the first one of the tenant in its call, or not."""
    fleet.join("another", *types, slots=len(types))
    assert fleet.jobs("another") == [f"{type_}$" for type_ in types]
    assert not redis_client.hexists(with_turn, "turn")


def test_a_claim_goes_by_the_maximum_that_is_in_force_where_no_tick_has_got_to_yet(fleet, redis_client):
    quotas(fleet, "a=max:9")
    flood(fleet, 3)
    redis_client.hset(fleet.scheduler.keys.key("settings"), "tenants", "a=max:1")
    fleet.join("worker", PDF, slots=9)
    assert fleet.jobs("worker") == ["a000$"]


def test_a_claim_ends_that_its_job_goes_first_where_no_call_has_got_to_a_minimum_that_is_gone(fleet, redis_client):
    quotas(fleet, "a=max:9,min:2")
    flood(fleet, 10)
    key = fleet.scheduler.keys.key
    assert b"a000$" in redis_client.hget(key("minimum_heads"), PDF)
    redis_client.hset(key("settings"), "tenants", "a=max:9")
    fleet.join("worker", PDF)
    assert fleet.jobs("worker") == ["a000$"]
    assert b"a000$" not in (redis_client.hget(key("minimum_heads"), PDF) or b"")


def test_a_claim_goes_by_a_pause_that_no_call_has_got_to_yet(fleet, redis_client):
    quotas(fleet, "a=max:9")
    flood(fleet, 10)
    redis_client.hset(fleet.scheduler.keys.key("settings"), "has_pauses", "1")
    redis_client.hset(fleet.scheduler.keys.key("pauses"), "key:tenant%3Aa", "0 ")
    fleet.join("worker", PDF, slots=9)
    assert fleet.jobs("worker") == []


def test_a_maximum_that_goes_up_and_down_again_is_never_exceeded(fleet):
    quotas(fleet, "a=max:2")
    flood(fleet, 2)
    quotas(fleet, "a=max:5")
    flood(fleet, 3, tenant="a-")
    for number in range(3):
        fleet.publish(f"a1{number}$", PDF, rules=of("a"))
    quotas(fleet, "a=max:2")
    fleet.join("worker", PDF, slots=9)
    assert len([each for each in fleet.jobs("worker") if "-" not in each]) == 2


def test_who_was_deleted_from_the_holders_counts_again(fleet, redis_client):
    """Meanwhile jobs came that were not too many."""
    quotas(fleet, "a=max:3")
    flood(fleet, 3)
    fleet.join("worker", PDF, slots=2)
    redis_client.delete(fleet.scheduler.keys.key("held", "tenant%3Aa"))
    for number in range(2):
        fleet.publish(f"a9{number}$", PDF, rules=of("a"))
    assert numbers(fleet) == (3, 0)
    assert fleet.scheduler.repair()
    fleet.scheduler.tick()
    assert numbers(fleet) == (1, 2)
    fleet.join("another", PDF, slots=9)
    assert len(fleet.jobs("worker") + fleet.jobs("another")) == 3


@pytest.mark.parametrize("bound", [{"tenants": "a=max:9,min:1"}, {"tenant_turns": "share"}], ids=" ".join)
def test_a_minimum_or_shares_bound_it_likewise(fleet, bound):
    flood(fleet, 4)
    fleet.scheduler.configure(bound)
    assert numbers(fleet) == (1, 3)


def test_a_pause_of_the_tenant_keeps_back_all(fleet):
    flood(fleet, 4)
    fleet.scheduler.pause("key:tenant%3Aa")
    assert numbers(fleet) == (0, 4)
    fleet.join("worker", PDF, slots=9)
    fleet.publish("a4$", PDF, rules=of("a"))
    assert fleet.jobs("worker") == []
    fleet.scheduler.resume("key:tenant%3Aa")
    assert len(fleet.jobs("worker")) == 5


def test_of_very_many_jobs_a_call_keeps_back_some_and_ticks_the_others(fleet):
    fleet.join("worker", PDF, slots=3)
    flood(fleet, MANY)
    claims = fleet.inbox("worker")
    quotas(fleet, "a=max:2")
    assert numbers(fleet) == (MANY - 3 - 4 * MAX_OPENED - 1, 4 * MAX_OPENED + 1)
    flood(fleet, 3, tenant="b")
    # Who ends meanwhile gets a job of the other tenant: the claims meet jobs of the first one that are in their lane.
    assert [each.job_id for each in fleet.end("worker", claims.pop(0))] == ["b000$"]
    assert [each.job_id for each in fleet.end("worker", claims.pop(0))] == ["a003$"]
    fleet.scheduler.tick()
    assert numbers(fleet) == (2, MANY - 4)
    assert fleet.scheduler.repair() == []


def test_of_very_many_lanes_and_tenants_a_call_keeps_back_as_few(redis_client):
    """What a call may keep back is for all tenants and lanes together."""
    tenants, lanes = [f"t{number}" for number in range(5)], range(5)
    fleet = ScriptedFleet(Counting(redis_client, Keys()))
    for tenant in tenants:
        for priority in lanes:
            jobs = [
                NewJob(f"{tenant}{priority}{n:02}$", PDF, "x", rules=of(tenant), priority=priority) for n in range(20)
            ]
            fleet.scheduler.publish(*jobs)
    fleet.scheduler.calls.clear()
    fleet.scheduler.configure({"tenants": "*=max:1"})
    fleet.scheduler.tick()
    kept = sum(redis_client.zcard(each) for each in redis_client.keys("*kept:*"))
    assert kept == len(tenants) * len(lanes) * 19
    assert fleet.scheduler.most("zadd") < 5 * MAX_OPENED
    assert fleet.scheduler.repair() == []


def left(fleet):
    """Return how many of the first jobs of the lane are still to be kept back."""
    return fleet.scheduler.client.hget(fleet.scheduler.keys.key("key_state", "tenant%3Aa"), f"+{PDF} queued.0")


def test_a_tick_alone_goes_on_with_what_a_call_has_left_and_then_nothing_is_left(fleet):
    flood(fleet, MANY)
    quotas(fleet, "a=max:2")
    assert int(left(fleet)) == MANY - 4 * MAX_OPENED
    fleet.scheduler.tick()
    assert numbers(fleet) == (1, MANY - 1)
    assert left(fleet) is None


def test_several_older_jobs_that_come_in_one_call_hide_none_of_them(fleet):
    flood(fleet, MANY + 4 * MAX_OPENED)
    quotas(fleet, "a=max:2")
    fleet.scheduler.advance(-1e6)
    fleet.scheduler.publish(*fleet.made(("older0$", "older1$", "older2$"), PDF, rules=of("a")))
    while left(fleet):
        fleet.scheduler.tick()
    assert numbers(fleet) == (1, MANY + 4 * MAX_OPENED + 2)


def test_an_older_job_that_comes_meanwhile_hides_none_of_them(fleet):
    flood(fleet, MANY)
    quotas(fleet, "a=max:2")
    fleet.scheduler.advance(-1e6)
    flood(fleet, 2, tenant="a-")
    fleet.publish("older$", PDF, rules=of("a"))
    fleet.scheduler.tick()
    assert numbers(fleet) == (3, MANY)


def test_a_tenant_of_which_no_job_is_left_leaves_nothing(fleet, redis_client):
    fleet.join("worker", PDF)
    flood(fleet, 3)
    (claim,) = fleet.inbox("worker")
    while freed := fleet.end("worker", claim):
        (claim,) = freed
    assert not [*redis_client.scan_iter("*tenant*")]
    assert not redis_client.exists(fleet.scheduler.keys.key("waiting_keys"))


@pytest.mark.parametrize("lost", LOST, ids=lambda lost: lost[0])
def test_what_is_lost_is_made_again(fleet, redis_client, lost):
    fleet.join("busy", PDF)
    fleet.publish("first", PDF)
    flood(fleet, 4)
    assert fleet.scheduler.repair() == []
    assert redis_client.delete(fleet.scheduler.keys.key(*lost))
    assert fleet.scheduler.repair()
    fleet.scheduler.tick()
    assert fleet.scheduler.repair() == []
    quotas(fleet, "a=max:2")
    fleet.scheduler.tick()
    assert numbers(fleet) == (1, 3)
    fleet.join("worker", PDF, slots=9)
    assert fleet.jobs("worker") == ["a000$", "a001$"]


def test_a_lost_lane_of_which_only_the_first_job_is_there_again_is_made_again(fleet, redis_client):
    """A repair that looks at no other job than the first one sees the last one as well."""
    fleet.join("worker", PDF)
    flood(fleet, 4)
    fleet.scheduler.advance((-fleet.now_us % (4 * REPAIRED_EVERY_US)) / SECOND_US)
    redis_client.delete(fleet.scheduler.keys.key("lane", *LANE))
    fleet.scheduler.leave("worker")
    assert numbers(fleet) == (1, 0)
    assert fleet.scheduler.repair()
    fleet.scheduler.tick()
    fleet.join("worker", PDF, slots=9)
    assert fleet.jobs("worker") == ["a000$", "a001$", "a002$", "a003$"]


@pytest.mark.parametrize("lost", [LOST[1], LOST[2], ("held", "tenant%3Aa")], ids=lambda lost: lost[0])
def test_what_is_lost_starts_no_job_twice_and_stops_none(fleet, redis_client, lost):
    fleet.join("worker", PDF)
    flood(fleet, 4)
    redis_client.delete(fleet.scheduler.keys.key(*lost))
    (claim,) = fleet.inbox("worker")
    order = [claim.job_id]
    while freed := fleet.end("worker", claim):
        (claim,) = freed
        order.append(claim.job_id)
    assert order == ["a000$", "a001$", "a002$", "a003$"]
