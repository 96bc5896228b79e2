"""Unbounded tenants: all their jobs are in their lanes, until something bounds the tenant."""

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

#: More jobs than one invocation blocks.
MANY = 4 * MAX_OPENED + 50


def flood(fleet, jobs, tenant="a"):
    """Publish jobs of a tenant, in the order of their numbers."""
    for number in range(jobs):
        fleet.publish(f"{tenant}{number:03}$", PDF, rules=of(tenant))


def numbers(fleet):
    """Return the numbers of admitted and of blocked jobs of the type."""
    key = fleet.scheduler.keys.key
    return tuple(fleet.scheduler.client.zcard(key(name, *LANE)) for name in ("lane", "kept_back"))


def test_all_jobs_are_admitted_until_the_tenant_is_bounded(fleet):
    flood(fleet, 4)
    assert numbers(fleet) == (4, 0)
    quotas(fleet, "a=max:2")
    assert numbers(fleet) == (1, 3)
    fleet.join("worker", PDF, slots=9)
    assert fleet.jobs("worker") == ["a000$", "a001$"]


def test_jobs_above_the_maximum_block_all_but_the_first(fleet):
    quotas(fleet, "a=max:3")
    flood(fleet, 3)
    assert numbers(fleet) == (3, 0)
    fleet.publish("a9$", PDF, rules=of("a"))
    assert numbers(fleet) == (1, 3)
    fleet.join("worker", PDF, slots=9)
    assert fleet.jobs("worker") == ["a000$", "a001$", "a002$"]


def test_running_jobs_and_other_lanes_count(fleet):
    quotas(fleet, "a=max:3")
    fleet.join("worker", PDF)
    flood(fleet, 2)
    fleet.publish("a8$", PDF, rules=of("a"), priority=9)
    assert numbers(fleet) == (1, 0)
    fleet.publish("a9$", PDF, rules=of("a"))
    assert numbers(fleet) == (1, 1)


@pytest.mark.parametrize(("most", "number"), [(9, 4), (3, 1), (2, 1), ("none", 4)])
def test_changed_maximum_applies_immediately(fleet, most, number):
    quotas(fleet, "a=max:4")
    flood(fleet, 4)
    quotas(fleet, f"a=max:{most}")
    assert numbers(fleet) == (number, 4 - number)
    fleet.publish("a9$", PDF, rules=of("a"))
    fleet.join("worker", PDF, slots=9)
    assert len(fleet.jobs("worker")) == (most if number == 1 else 5)


def test_jobs_in_more_lanes_than_counted_are_blocked(fleet):
    quotas(fleet, "a=max:99")
    for priority in range(MAX_SUBLANES):
        fleet.publish(f"low{priority}$", PDF, rules=of("a"), priority=priority)
    fleet.publish("second$", PDF, rules=of("a"))
    assert numbers(fleet) == (2, 0)
    fleet.publish("high$", PDF, rules=of("a"), priority=9)
    assert numbers(fleet) == (1, 1)


def test_published_job_corrects_an_uncertain_count(fleet, redis_client):
    quotas(fleet, "a=max:9")
    flood(fleet, 2)
    tenant_key, lane = fleet.scheduler.keys.key("key_state", "tenant%3Aa"), " ".join(LANE)
    assert redis_client.hget(tenant_key, lane) == b"*9"
    redis_client.hset(tenant_key, lane, "*-")
    fleet.publish("a9$", PDF, rules=of("a"))
    assert redis_client.hget(tenant_key, lane) == b"*9"
    assert numbers(fleet) == (3, 0)


@pytest.fixture
def with_turn(fleet, redis_client):
    """An unbounded tenant with an old turn for type excel, whose slot is busy."""
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
    tenant_key = fleet.scheduler.keys.key("key_state", "tenant%3Aa")
    for type_, priority in ((PDF, 9), ("excel", 5)):
        fleet.publish(f"{type_}$", type_, rules=of("a"), priority=priority)
        assert redis_client.hget(tenant_key, f"{type_} queued.{priority}") == b"*"
    assert redis_client.hexists(tenant_key, "turn")
    return tenant_key


def test_published_job_ends_an_expired_turn(fleet, redis_client, with_turn):
    fleet.scheduler.advance(2)
    fleet.publish("high$", PDF, rules=of("a"), priority=9)
    assert not redis_client.hexists(with_turn, "turn")


@pytest.mark.parametrize("types", [("excel",), (PDF, "excel")], ids=" ".join)
def test_claim_ends_the_turn_of_its_type(fleet, redis_client, with_turn, types):
    """The claim is the tenant's first in its invocation, or not."""
    fleet.join("another", *types, slots=len(types))
    assert fleet.jobs("another") == [f"{type_}$" for type_ in types]
    assert not redis_client.hexists(with_turn, "turn")


def test_claim_uses_a_new_maximum_before_the_first_tick(fleet, redis_client):
    quotas(fleet, "a=max:9")
    flood(fleet, 3)
    redis_client.hset(fleet.scheduler.keys.key("settings"), "tenants", "a=max:1")
    fleet.join("worker", PDF, slots=9)
    assert fleet.jobs("worker") == ["a000$"]


def test_claim_removes_its_job_from_a_removed_minimum(fleet, redis_client):
    quotas(fleet, "a=max:9,min:2")
    flood(fleet, 10)
    key = fleet.scheduler.keys.key
    assert b"a000$" in redis_client.hget(key("minimum_heads"), PDF)
    redis_client.hset(key("settings"), "tenants", "a=max:9")
    fleet.join("worker", PDF)
    assert fleet.jobs("worker") == ["a000$"]
    assert b"a000$" not in (redis_client.hget(key("minimum_heads"), PDF) or b"")


def test_claim_respects_a_pause_that_was_not_yet_applied(fleet, redis_client):
    quotas(fleet, "a=max:9")
    flood(fleet, 10)
    redis_client.hset(fleet.scheduler.keys.key("settings"), "has_pauses", "1")
    redis_client.hset(fleet.scheduler.keys.key("pauses"), "key:tenant%3Aa", "0 ")
    fleet.join("worker", PDF, slots=9)
    assert fleet.jobs("worker") == []


def test_maximum_raised_and_lowered_again_is_never_exceeded(fleet):
    quotas(fleet, "a=max:2")
    flood(fleet, 2)
    quotas(fleet, "a=max:5")
    flood(fleet, 3, tenant="a-")
    for number in range(3):
        fleet.publish(f"a1{number}$", PDF, rules=of("a"))
    quotas(fleet, "a=max:2")
    fleet.join("worker", PDF, slots=9)
    assert len([each for each in fleet.jobs("worker") if "-" not in each]) == 2


def test_deleted_holder_is_counted_again(fleet, redis_client):
    """Before the repair, jobs were published that did not exceed the maximum."""
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
def test_minimum_or_shares_bound_a_tenant_too(fleet, bound):
    flood(fleet, 4)
    fleet.scheduler.configure(bound)
    assert numbers(fleet) == (1, 3)


def test_pause_of_the_tenant_blocks_all_jobs(fleet):
    flood(fleet, 4)
    fleet.scheduler.pause("key:tenant%3Aa")
    assert numbers(fleet) == (0, 4)
    fleet.join("worker", PDF, slots=9)
    fleet.publish("a4$", PDF, rules=of("a"))
    assert fleet.jobs("worker") == []
    fleet.scheduler.resume("key:tenant%3Aa")
    assert len(fleet.jobs("worker")) == 5


def test_many_jobs_are_blocked_in_parts_by_ticks(fleet):
    fleet.join("worker", PDF, slots=3)
    flood(fleet, MANY)
    claims = fleet.inbox("worker")
    quotas(fleet, "a=max:2")
    assert numbers(fleet) == (MANY - 3 - 4 * MAX_OPENED - 1, 4 * MAX_OPENED + 1)
    flood(fleet, 3, tenant="b")
    # A slot that is freed now gets a job of the other tenant: claims meet jobs of the first tenant still in their lane.
    assert [each.job_id for each in fleet.end("worker", claims.pop(0))] == ["b000$"]
    assert [each.job_id for each in fleet.end("worker", claims.pop(0))] == ["a003$"]
    fleet.scheduler.tick()
    assert numbers(fleet) == (2, MANY - 4)
    assert fleet.scheduler.repair() == []


def test_many_lanes_and_tenants_are_blocked_in_parts(redis_client):
    """The limit per invocation applies to all tenants and lanes together."""
    tenants, lanes = [f"t{number}" for number in range(5)], range(5)
    fleet = ScriptedFleet(Counting(redis_client, Keys()))
    for tenant in tenants:
        for priority in lanes:
            jobs = [
                NewJob(f"{tenant}{priority}{n:02}$", PDF, "x", rules=of(tenant), priority=priority) for n in range(20)
            ]
            fleet.scheduler.publish(*jobs)
    fleet.scheduler.calls.clear()
    fleet.configure_and_tick({"tenants": "*=max:1"})
    kept = sum(redis_client.zcard(each) for each in redis_client.keys("*kept:*"))
    assert kept == len(tenants) * len(lanes) * 19
    assert fleet.scheduler.most("zadd") < 5 * MAX_OPENED
    assert fleet.scheduler.repair() == []


def left(fleet):
    """Return the number of the lane's first jobs that must still be blocked."""
    return fleet.scheduler.client.hget(fleet.scheduler.keys.key("key_state", "tenant%3Aa"), f"+{PDF} queued.0")


def test_ticks_block_the_remaining_jobs_without_further_changes(fleet):
    flood(fleet, MANY)
    quotas(fleet, "a=max:2")
    assert int(left(fleet)) == MANY - 4 * MAX_OPENED
    fleet.scheduler.tick()
    assert numbers(fleet) == (1, MANY - 1)
    assert left(fleet) is None


def test_older_jobs_published_together_are_blocked_too(fleet):
    flood(fleet, MANY + 4 * MAX_OPENED)
    quotas(fleet, "a=max:2")
    fleet.scheduler.advance(-1e6)
    fleet.scheduler.publish(*fleet.made(("older0$", "older1$", "older2$"), PDF, rules=of("a")))
    while left(fleet):
        fleet.scheduler.tick()
    assert numbers(fleet) == (1, MANY + 4 * MAX_OPENED + 2)


def test_older_job_published_in_between_is_blocked_too(fleet):
    flood(fleet, MANY)
    quotas(fleet, "a=max:2")
    fleet.scheduler.advance(-1e6)
    flood(fleet, 2, tenant="a-")
    fleet.publish("older$", PDF, rules=of("a"))
    fleet.scheduler.tick()
    assert numbers(fleet) == (3, MANY)


def test_tenant_without_jobs_leaves_no_data(fleet, redis_client):
    fleet.join("worker", PDF)
    flood(fleet, 3)
    (claim,) = fleet.inbox("worker")
    while freed := fleet.end("worker", claim):
        (claim,) = freed
    assert not [*redis_client.scan_iter("*tenant*")]
    assert not redis_client.exists(fleet.scheduler.keys.key("waiting_keys"))


@pytest.mark.parametrize("lost", LOST, ids=lambda lost: lost[0])
def test_lost_keys_are_repaired(fleet, redis_client, lost):
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


def test_lane_with_only_its_first_job_is_repaired(fleet, redis_client):
    """A repair that checks only the first job sees the last one as well."""
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
def test_lost_keys_start_no_job_twice_and_stop_none(fleet, redis_client, lost):
    fleet.join("worker", PDF)
    flood(fleet, 4)
    redis_client.delete(fleet.scheduler.keys.key(*lost))
    (claim,) = fleet.inbox("worker")
    order = [claim.job_id]
    while freed := fleet.end("worker", claim):
        (claim,) = freed
        order.append(claim.job_id)
    assert order == ["a000$", "a001$", "a002$", "a003$"]
