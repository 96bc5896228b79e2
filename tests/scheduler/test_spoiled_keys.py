"""Another client deletes the holders and the waiting jobs of a key: a repair rebuilds them from the jobs."""

import pytest
import redis

from celery_affinity.lua.library import function_call

RULES = "key=k limit=1"


@pytest.fixture
def fleet(fleet):
    """A fleet with one job that holds key k, and two jobs that wait for it."""
    fleet.join("worker", "pdf", slots=3)
    for job in ("holds!", "second!", "third!"):
        fleet.publish(job, "pdf", rules=RULES)
    return fleet


def lose(fleet, *key):
    assert fleet.scheduler.client.delete(fleet.scheduler.keys.key(*key))


def runs(fleet):
    """Run all jobs one after another. Return their order."""
    order = []
    while claims := fleet.inbox("worker"):
        (claim,) = claims
        order.append(claim.job_id)
        fleet.end("worker", claim, inline=False)
        fleet.scheduler.tick()
    return order


@pytest.mark.parametrize(
    "key",
    [("held", "k"), ("key_queue", "k", "pdf", "queued.0"), ("key_state", "k"), ("kept_lanes",), ("waiting_keys",)],
    ids=lambda key: key[0],
)
def test_jobs_of_one_key_still_run_one_after_another(fleet, key):
    lose(fleet, *key)
    assert fleet.scheduler.repair()
    assert runs(fleet) == ["holds!", "second!", "third!"]
    assert not fleet.scheduler.repair()


RATE = "key=rate%3Ar rate=99/99000000"
OF_TENANT = "key=tenant%3Aa quota=settings"
LANE = ("pdf", "queued.0")


@pytest.mark.parametrize(
    "rules",
    [f"{RULES} {RATE}", f"{RATE} {RULES}", f"{RATE} {RULES} {OF_TENANT}"],
    ids=["key first", "rate first", "of a tenant"],
)
@pytest.mark.parametrize(
    "key",
    [
        *(("held", "k"), ("key_state", "k"), ("key_state", "rate%3Ar"), ("kept_lanes",), ("waiting_keys",)),
        *(("key_queue", "k", "pdf", "queued.0"), ("key_queue", "rate%3Ar", "pdf", "queued.0")),
        *(("second_key_jobs", "k"), ("second_key_jobs", "rate%3Ar"), ("key_queue", "tenant%3Aa", "pdf", "queued.0")),
        *(("turns", *LANE), ("minimum_lane", *LANE), ("minimum_heads",)),
    ],
    ids=" ".join,
)
def test_jobs_of_several_keys_still_run_in_order(fleet, rules, key):
    runs(fleet)
    fleet.scheduler.configure({"tenants": "a=max:none,min:1", "tenant_turns": "share"})
    for job in ("1&", "2&", "3&"):
        fleet.publish(job, "pdf", rules=rules)
    if fleet.scheduler.client.delete(fleet.scheduler.keys.key(*key)):
        assert fleet.scheduler.repair()
    assert runs(fleet) == ["1&", "2&", "3&"]
    assert not fleet.scheduler.repair()


@pytest.mark.parametrize("name", ["recover", "release"])
def test_claim_stays_until_its_job_is_queued_again(fleet, name):
    client, key = fleet.scheduler.client, fleet.scheduler.keys.key
    (claim,) = fleet.inbox("worker")
    lose(fleet, "waiting_keys")
    lose(fleet, "key_queue", "k", *LANE)
    client.set(key("key_queue", "k", *LANE), "another type")
    values = {"worker": "worker"}
    if name == "release":
        values |= {"sequence": 1, "caller": False, "may_hold": 0}
    ends = [claim.job_id, claim.fence, "unsettled"] if name == "release" else []
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        fleet.scheduler._attempt([function_call(name, ends, **values)])
    assert client.hkeys(key("claims", "worker")) == [b"holds!"]
    fleet.scheduler.recover("worker")
    assert fleet.state("holds!") == "pending"
    assert client.hget(key("job", "holds!"), "deliveries") == b"1"
    fleet.join("next", "pdf")
    fleet.scheduler.tick()
    order = []
    while claims := fleet.inbox("next"):
        order += [each.job_id for each in claims]
        fleet.end("next", *claims, inline=False)
        fleet.scheduler.tick()
    assert sorted(order) == ["holds!", "second!", "third!"]
