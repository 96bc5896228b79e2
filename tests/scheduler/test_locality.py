"""Locality on a real server: jobs run on the worker that holds their hint, within the bound that the bonus leaves."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_affinity.clock import SECOND_US
from celery_affinity.policy.slot_math import PrefetchLimit
from celery_affinity.schema.constants import MAX_NEAR_BYTES
from celery_affinity.schema.job_record import NewJob
from celery_affinity.settings.reserves import encoded_reserves
from celery_affinity.settings.table import Settings
from celery_affinity.settings.wire import shared_settings
from tests.conformance.reference.reference import Reference

BONUS = {"locality_bonus": 80}


def publish(fleet, job, hint, type_="pdf", **options):
    fleet.publish(f"{job}~", type_, rules=f"near={hint}", **options)


def warm(fleet, worker, *hints, type_="pdf"):
    """Let *worker*, the only one of *type_* with a free slot, succeed with a job for each of *hints*."""
    for number, hint in enumerate(hints):
        publish(fleet, f"{worker}-{number}", hint, type_)
        (claim,) = fleet.inbox(worker)
        fleet.scheduler.advance(1)
        fleet.end(worker, claim)


def busy(fleet, worker, type_="pdf"):
    """Give a job to the slot of *worker*. Return its claim."""
    fleet.publish(f"busy-{worker}", type_)
    (claim,) = fleet.inbox(worker)
    return claim


def busy_with_hints(fleet, *hints, settings=BONUS):
    """Join "worker", which then holds *hints* and runs a job. Return the job's claim."""
    fleet.join("worker", "pdf", settings=settings)
    warm(fleet, "worker", *hints)
    return busy(fleet, "worker")


def hints(fleet, worker):
    key = fleet.scheduler.keys.key("hints", worker)
    return [hint.decode() for hint in fleet.scheduler.client.zrevrange(key, 0, -1)]


def test_first_job_of_a_type_is_in_its_hint_lane(fleet):
    publish(fleet, "job", "h")
    assert fleet.scheduler.client.zcard(fleet.scheduler.keys.key("hint_lane", "h", "pdf", "queued.0")) == 1


def test_free_slot_gets_the_job_with_its_workers_hint(fleet):
    claim = busy_with_hints(fleet, "m")
    for job, hint in (("other", "x"), ("near", "m")):
        publish(fleet, job, hint)
        fleet.scheduler.advance(4)
    (following,) = fleet.end("worker", claim)
    assert following.job_id == "near~"
    assert [each.job_id for each in fleet.end("worker", following)] == ["other~"]


@pytest.mark.parametrize("by_s", [5, 6])
def test_job_older_than_the_bonus_is_worth_is_first(fleet, by_s):
    claim = busy_with_hints(fleet, "m")
    fleet.publish("older", "pdf")
    fleet.scheduler.advance(by_s)
    publish(fleet, "near", "m")
    assert [each.job_id for each in fleet.end("worker", claim)] == ["older"]


def in_order(fleet, claim):
    """End the worker's jobs one after another until none follows. Return the ids of the following jobs."""
    found = []
    while following := fleet.end("worker", claim):
        (claim,) = following
        found.append(claim.job_id)
    assert not fleet.scheduler.repair(), "what is known of heads is as it should be"
    return found


def test_bonus_may_be_a_fraction_of_a_point(fleet):
    fleet.join("worker", "pdf", settings={"locality_bonus": 0.5})  # worth 31 ms
    warm(fleet, "worker", "m")
    claim = busy(fleet, "worker")
    fleet.publish("older", "pdf")
    fleet.scheduler.advance(0.02)
    publish(fleet, "near", "m")
    assert in_order(fleet, claim) == ["near~", "older"]


def test_rare_job_precedes_local_jobs_with_small_bonus(fleet):
    bonus = {"locality_bonus": 100}  # a job of one slot has 500 points for rarity, a job of two slots 250
    fleet.join("worker", "pdf", "scan", settings=bonus)
    fleet.join("other", "scan", settings=bonus)
    warm(fleet, "worker", "m")
    claim = busy(fleet, "worker")
    busy(fleet, "other", "scan")
    publish(fleet, "near", "m", type_="scan")
    fleet.publish("rare", "pdf")
    assert in_order(fleet, claim) == ["rare", "near~"]


def test_older_local_job_in_a_lane_is_first(fleet):
    claim = busy_with_hints(fleet, "m", "n")
    fleet.publish("other", "pdf")
    for job, hint in (("older", "n"), ("younger", "m"), ("third", "n")):
        fleet.scheduler.advance(1)
        publish(fleet, job, hint)
    assert in_order(fleet, claim) == ["older~", "younger~", "third~", "other"]


def test_simultaneous_local_jobs_are_ordered_by_id(fleet):
    claim = busy_with_hints(fleet, "m", "n")
    fleet.publish("other", "pdf")
    fleet.scheduler.advance(1)
    for job, hint in (("b", "m"), ("a", "n")):
        publish(fleet, job, hint)
    assert in_order(fleet, claim) == ["a~", "b~", "other"]


def test_hint_recorded_by_a_release_applies_immediately(fleet):
    fleet.join("worker", "pdf", settings=BONUS)
    warm(fleet, "worker", "n")
    publish(fleet, "first", "m")
    (claim,) = fleet.inbox("worker")
    for job, hint in (("other", "x"), ("near", "m")):
        publish(fleet, job, hint)
        fleet.scheduler.advance(1)
    assert in_order(fleet, claim) == ["near~", "other~"]


def test_invocation_compares_some_heads_and_the_next_the_rest(fleet):
    types = [f"type{number:02}" for number in range(20)]
    fleet.join("worker", *types, settings={"locality_bonus": 100_000, "rarity_weight": 0})
    warm(fleet, "worker", "m", type_=types[0])
    claim = busy(fleet, "worker", types[0])
    length = MAX_NEAR_BYTES // len(types) // 10  # bytes of an id, so that the heads of all types exceed one invocation
    for number, type_ in enumerate(types):
        for priority in range(11):
            publish(fleet, f"{number:02}-{priority}-{'x' * length}", "m", type_, priority=priority)
        fleet.scheduler.advance(0.001)
    publish(fleet, "the-best", "m", types[-1], priority=10, on_demand=True)
    fleet.publish("first", types[0], priority=10, on_demand=True)
    fleet.publish("second", types[0], priority=10, on_demand=True)
    order = []
    for _ in range(2):
        (claim,) = fleet.end("worker", claim)
        order.append(claim.job_id)
    assert order[0].startswith("00-10-"), "the best one of those that were compared"
    assert order[1] == "the-best~"
    assert not fleet.scheduler.repair()


def test_each_worker_gets_the_jobs_of_its_own_hints(fleet):
    workers = {"one": "m", "two": "n"}
    claims = {}
    for worker, hint in workers.items():
        fleet.join(worker, "pdf", settings=BONUS)
        warm(fleet, worker, hint)
        claims[worker] = busy(fleet, worker)
    publish(fleet, "other", "x")
    for hint in ("m", "n") * 2:
        fleet.scheduler.advance(1)
        publish(fleet, f"near-{hint}-{fleet.scheduler.now_us}", hint)
    for worker in (*workers, *workers):
        (claims[worker],) = fleet.end(worker, claims[worker])
        assert claims[worker].job_id.startswith(f"near-{workers[worker]}")


@pytest.mark.parametrize("rarity", ["capacity", "free"])
@pytest.mark.parametrize("bonus", [80, 2_000])
@pytest.mark.parametrize("slots", [1, 3])
def test_jobs_in_many_hint_lanes_match_the_reference_order(fleet, bonus, rarity, slots):
    of_all = {"locality_bonus": bonus, "rarity": rarity, "rarity_weight": 4096}
    types = ("pdf", "excel", "scan")
    fleet.join("worker", *types, slots=slots, settings=of_all)
    fleet.join("other", "scan", settings=of_all)
    reference, at = Reference(), fleet.scheduler
    common = {"other": 0, "app": "", "stops": "", "settings": shared_settings(Settings(**of_all))}
    reference.join("worker", name="worker@host", types=[*types], slots=slots, **common, now_us=at.now_us)
    reference.join("other", name="other@host", types=["scan"], slots=1, **common, now_us=at.now_us)
    for number in range(150):
        type_, rules = types[number % 5 % 3], f"near={'mnxy'[number % 4]}"
        options = {"priority": number * 7 % 11, "on_demand": number % 3 == 0}
        fleet.publish(f"{number:03}~", type_, rules=rules, **options)
        reference.publish([NewJob(f"{number:03}~", type_, "", rules=rules, **options)], now_us=at.now_us)
        at.advance(0.25)
    claims, ended = fleet.inbox("worker"), 0
    while claims:
        held = reference.workers["worker"].claims
        assert {each.job_id for each in claims} == {*held}
        ends = [(job, fence, "acked") for job, fence in held.items()]
        claims, ended = fleet.end("worker", *claims), ended + len(claims)
        reference.release("worker", str(ended), ends, inline=True, now_us=at.now_us)
    assert ended == 149
    assert not at.repair(), "what is known of heads is as it should be"


def test_local_job_that_leads_anyway_leaves_its_hint_lane(fleet):
    claim = busy_with_hints(fleet, "m", "n")
    for job, hint in (("first", "n"), ("second", "m")):
        publish(fleet, job, hint)
        fleet.scheduler.advance(1)
    assert in_order(fleet, claim) == ["first~", "second~"]
    assert not fleet.scheduler.client.exists(fleet.scheduler.keys.key("hint_heads"))


def test_local_jobs_of_several_lanes_are_ordered_by_points(fleet):
    claim = busy_with_hints(fleet, "m", settings={"locality_bonus": 20_000})
    fleet.publish("old", "pdf")
    fleet.scheduler.advance(1)
    publish(fleet, "low", "m")
    publish(fleet, "high", "m", priority=3)
    fleet.publish("highest", "pdf", priority=9)
    assert in_order(fleet, claim) == ["high~", "low~", "highest", "old"]


def test_hint_head_with_an_invalid_time_is_skipped(fleet):
    claim = busy_with_hints(fleet, "m", "n")
    fleet.publish("other", "pdf")
    fleet.scheduler.advance(1)
    for hint in ("m", "n"):
        publish(fleet, f"near-{hint}", hint)
        fleet.scheduler.client.hset(fleet.scheduler.keys.key("hint_heads"), f"{hint} pdf", f"queued.0 x near-{hint}~")
    (following,) = fleet.end("worker", claim)
    assert following.job_id == "other"


def test_claim_by_age_ignores_the_bonus(fleet):
    claim = busy_with_hints(fleet, "m", settings={"locality_bonus": 2_000, "priority_percentage": 0})
    fleet.publish("older", "pdf")
    fleet.scheduler.advance(1)
    publish(fleet, "near", "m", priority=9)
    assert in_order(fleet, claim) == ["older", "near~"]


def test_hints_change_no_order_without_a_bonus(fleet):
    claim = busy_with_hints(fleet, "m", settings=None)
    fleet.publish("older", "pdf")
    fleet.scheduler.advance(1)
    publish(fleet, "near", "m")
    assert [each.job_id for each in fleet.end("worker", claim)] == ["older"]


def test_worker_holds_the_hints_of_its_last_ten_successes(fleet):
    fleet.join("worker", "pdf")
    warm(fleet, "worker", *(f"h{number}" for number in range(12)), "h3")
    assert hints(fleet, "worker") == ["h3", *(f"h{number}" for number in range(11, 3, -1)), "h2"]
    client, key = fleet.scheduler.client, fleet.scheduler.keys.key
    held = [f"h{number}" for number in range(12) if client.exists(key("holders", f"h{number}"))]
    assert sorted(held) == sorted(hints(fleet, "worker"))
    publish(fleet, "fails", "failed")
    (claim,) = fleet.inbox("worker")
    fleet.end("worker", claim, outcome="failed ValueError")
    assert "failed" not in hints(fleet, "worker")
    counters = fleet.scheduler.client.hgetall(fleet.scheduler.keys.key("counters"))
    assert (counters[b"locality_misses"], counters[b"locality_hits"]) == (b"12", b"1")


@pytest.mark.parametrize("way", ["leave", "recover", "silence"])
def test_hints_of_a_worker_are_deleted_with_it(fleet, way):
    fleet.join("worker", "pdf")
    fleet.join("other", "excel")
    warm(fleet, "worker", "m", "n")
    warm(fleet, "other", "m", type_="excel")
    if way == "silence":
        fleet.scheduler.tick()
        for _ in range(20):
            fleet.scheduler.advance(2)
            fleet.sync("other")
            fleet.scheduler.tick()
    else:
        getattr(fleet.scheduler, way)("worker")
    client, keys = fleet.scheduler.client, fleet.scheduler.keys
    assert hints(fleet, "worker") == []
    assert client.zrange(keys.key("holders", "m"), 0, -1) == [b"other"]
    assert not client.exists(keys.key("holders", "n"))


def test_idle_holder_of_a_hint_is_always_chosen(fleet):
    weighted = {"placement": "weighted", "sample_size": 1}
    fleet.join("near", "pdf", settings=weighted)
    warm(fleet, "near", "m")
    for number in range(9):
        fleet.join(f"w{number}", "pdf", slots=2, settings=weighted)
    publish(fleet, "job", "m")
    assert fleet.jobs("near") == ["job~"]


def test_one_of_many_holders_is_always_chosen(fleet):
    """There are more holders than comparisons, some of them busy, and a sample of one would miss them."""
    weighted = {"placement": "weighted", "sample_size": 1}
    client, key = fleet.scheduler.client, fleet.scheduler.keys.key
    for number in range(20):
        fleet.join(f"w{number:02}", "pdf", settings=weighted)
    holders = [f"w{number:02}" for number in range(0, 20, 2)] + ["w01", "w03", "w05"]
    for nth, worker in enumerate(holders):
        client.zadd(key("hints", worker), {"m": 1})
        client.zadd(key("holders", "m"), {worker: nth})
    assert fleet.scheduler.repair()
    for number in range(13):
        publish(fleet, f"job{number}", "m")
    assert all(fleet.jobs(worker) for worker in holders)


def test_prefetched_job_gets_the_bonus_too(fleet):
    claim = busy_with_hints(fleet, "m")
    fleet.publish("first", "pdf")
    fleet.publish("second", "pdf")
    publish(fleet, "near", "m")
    following = fleet.end("worker", claim, may_hold=PrefetchLimit(1))
    assert [each.job_id for each in following] == ["near~", "first"]


def test_local_job_of_a_long_type_is_not_prefetched(fleet):
    fleet.join("worker", "pdf", "excel", settings=BONUS)
    warm(fleet, "worker", "m", type_="excel")
    claim = busy(fleet, "worker")
    fleet.publish("first", "pdf")
    for job in ("near1", "near2"):
        publish(fleet, job, "m", "excel")
    following = fleet.end("worker", claim, may_hold=PrefetchLimit(work_us=20_000, costs={"pdf": 400}))
    assert [each.job_id for each in following] == ["near1~", "first"]


def test_local_job_blocked_by_a_reserve_is_not_prefetched(fleet):
    fleet.join("worker", "pdf", slots=2)
    fleet.scheduler.configure({"reserve": encoded_reserves({"pdf": {"0": 1}}), "locality_bonus": "1000000"})
    warm(fleet, "worker", "m")
    fleet.sync("worker", slots=1)
    fleet.join("other", "pdf")
    fleet.publish("busy-other", "pdf", priority=1)
    fleet.publish("busy-worker", "pdf", priority=1)
    (claim,) = fleet.inbox("worker")
    publish(fleet, "near", "m")
    for number in range(2):
        fleet.publish(f"urgent{number}", "pdf", priority=1)
    following = fleet.end("worker", claim, may_hold=PrefetchLimit(1))
    assert [each.job_id for each in following] == ["urgent0", "urgent1"]


def test_purged_jobs_leave_no_hint_lane(fleet):
    fleet.join("worker", "pdf", settings=BONUS)
    busy(fleet, "worker")
    for number in range(3):
        publish(fleet, f"job{number}", "m")
    assert fleet.scheduler.client.hlen(fleet.scheduler.keys.key("hint_heads")) == 1
    fleet.scheduler.purge("pdf")
    assert not fleet.scheduler.client.keys("*near*")


@pytest.mark.parametrize("key", [("hint_heads",), ("hint_lane", "m", "pdf", "queued.0"), ("holders", "m")])
def test_deleted_hint_lanes_and_holders_are_repaired(fleet, key):
    claim = busy_with_hints(fleet, "m")
    fleet.publish("other", "pdf")
    publish(fleet, "near", "m")
    client, name = fleet.scheduler.client, fleet.scheduler.keys.key(*key)
    before = client.dump(name)
    client.delete(name)
    assert fleet.scheduler.repair()
    assert client.dump(name) == before
    assert not fleet.scheduler.repair()
    assert [each.job_id for each in fleet.end("worker", claim)] == ["near~"]


def test_overwritten_hints_of_a_worker_are_repaired(fleet):
    fleet.join("worker", "pdf", settings=BONUS)
    warm(fleet, "worker", "n", "m")
    client, name = fleet.scheduler.client, fleet.scheduler.keys.key("worker", "worker")
    assert client.hget(name, "hints") == b"m n"
    for spoiled in ("x", "1", ""):
        client.hset(name, "hints", spoiled)
        assert fleet.scheduler.repair()
        assert client.hget(name, "hints") == b"m n"
    assert not fleet.scheduler.repair()


def test_hint_head_missing_from_its_lane_is_skipped(fleet):
    claim = busy_with_hints(fleet, "m")
    fleet.publish("other", "pdf")
    fleet.scheduler.advance(1)
    publish(fleet, "near", "m")
    fleet.scheduler.client.zrem(fleet.scheduler.keys.key("lane", "pdf", "queued.0"), "near~")
    assert [each.job_id for each in fleet.end("worker", claim)] == ["other"]
    assert not fleet.scheduler.client.exists(fleet.scheduler.keys.key("hint_heads"))


def test_local_job_with_a_deleted_hash_leaves_the_heads(fleet):
    claim = busy_with_hints(fleet, "m")
    publish(fleet, "near", "m")
    client, key = fleet.scheduler.client, fleet.scheduler.keys.key
    client.delete(key("job", "near~"))
    assert [each.job_id for each in fleet.end("worker", claim)] == ["near~"]
    assert not client.hexists(key("heads"), "pdf")


def test_local_job_keeps_its_points_after_the_age_cap(fleet):
    claim = busy_with_hints(
        fleet, "m", "n", settings={"locality_bonus": 10_000, "on_demand_weight": 0, "on_demand_age_cap": 10}
    )
    publish(fleet, "demand", "m", on_demand=True)
    for job in ("first", "second"):
        publish(fleet, job, "n", priority=1)
    fleet.publish("best", "pdf", priority=2)
    fleet.scheduler.advance(1)
    (claim,) = fleet.end("worker", claim)
    fleet.scheduler.advance(60)  # on demand 320 points more; 1,920 without the cap; 1,024 for the priority
    (following,) = fleet.end("worker", claim)
    assert [claim.job_id, following.job_id] == ["first~", "second~"]


def test_release_reads_no_type_rules_for_a_bonus(fleet):
    fleet.join("worker", "pdf", settings=BONUS)
    client, key = fleet.scheduler.client, fleet.scheduler.keys.key
    assert client.hget(key("heads"), "!") == client.hget(key("type_rules"), "!placing")
    warm(fleet, "worker", "m")
    claim = busy(fleet, "worker")
    publish(fleet, "near", "m")
    client.delete(key("type_rules"))
    client.hset(key("type_rules"), "pdf", "paused")
    assert [each.job_id for each in fleet.end("worker", claim)] == ["near~"]


# -- the bound

jobs = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["", "m", "n"]), st.integers(0, 8 * SECOND_US)),
    min_size=2,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(jobs, st.sampled_from([0, 1, 80, 400.5, 2000]))
def test_no_job_is_passed_beyond_the_bound_and_bonus(some, bonus):
    """D + bonus / 16, with D = 1024 * (difference of priorities) / 16: one type, all queued."""
    reference, now_us = Reference(), SECOND_US
    given_settings = shared_settings(Settings(locality_bonus=bonus))
    common = {"name": "w", "types": ["pdf"], "slots": 1, "other": 0, "app": "", "stops": "", "settings": given_settings}
    reference.join("w", **common, now_us=now_us)
    reference.publish([NewJob("warm~", "pdf", "", rules="near=m")], now_us=now_us)
    for number, (priority, hint, after_us) in enumerate(some):
        now_us += after_us
        job_id, rules = (f"{number:02}~", f"near={hint}") if hint else (f"{number:02}", "")
        reference.publish([NewJob(job_id, "pdf", "", priority=priority, rules=rules)], now_us=now_us)
    for sequence in range(len(some)):
        ((job_id, fence),) = reference.workers["w"].claims.items()
        held = set(reference.workers["w"].hints) | {"m"}
        reference.release("w", str(sequence), [(job_id, fence, "acked")], inline=True, now_us=now_us)
        (started,) = (reference.jobs[each] for each in reference.workers["w"].claims)
        held |= set(reference.workers["w"].hints)
        for other in reference.pending({"pdf"}):
            later_s = (started.enqueued_us - other.enqueued_us) / SECOND_US
            is_near = any(started.rules == f"near={hint}" for hint in held)
            bound_s = (1024 * (started.priority - other.priority) + bonus * is_near) / 16
            assert later_s <= max(bound_s, 0) or later_s <= 0


@pytest.mark.timeout(30)  # it would be chosen again and again
def test_running_job_in_a_hint_lane_stops_no_other_job(fleet, redis_client):
    """Another client added a running job, whose key has no capacity, to the hint lane of its worker."""
    fleet.scheduler.configure({"locality_bonus": "80"})
    fleet.join("worker", "pdf", slots=2)
    fleet.publish("first~", "pdf", rules="near=h")
    fleet.end("worker", *fleet.inbox("worker"))
    fleet.publish("running~!", "pdf", rules="near=h key=k limit=1")
    fleet.publish("busy", "pdf")
    _, busy = fleet.inbox("worker")
    fleet.publish("waiting", "pdf")
    key = fleet.scheduler.keys.key
    redis_client.zadd(key("hint_lane", "h", "pdf", "queued.0"), {"running~!": 5})
    redis_client.hset(key("hint_heads"), "h pdf", "queued.0 5 running~!")
    assert [*fleet.end("worker", busy), *fleet.inbox("worker")][0].job_id == "waiting"
