"""Slots and jobs on a real server: the slot that a job gets, and the job that is claimed first."""

import random
from dataclasses import replace

import pytest

from celery_affinity.policy.score import Weights, score
from celery_affinity.policy.slot_math import PrefetchLimit
from celery_affinity.schema.constants import MAX_BYTES

# -- which slot


def test_versatile_slot_is_kept_while_a_specialist_is_free(fleet):
    fleet.join("versatile", "pdf", "excel", "index")
    fleet.join("two", "pdf", "excel")
    fleet.join("specialist", "pdf")
    for job in ("first", "second", "third"):
        fleet.publish(job, "pdf")
    assert fleet.jobs("specialist") == ["first"]
    assert fleet.jobs("two") == ["second"]
    assert fleet.jobs("versatile") == ["third"]


def test_rare_job_starts_on_the_versatile_worker(fleet):
    fleet.join("specialist", "a")
    fleet.join("versatile", "a", "b", "c")
    fleet.publish("common", "a")
    fleet.publish("rare", "c")
    assert fleet.jobs("specialist") == ["common"]
    assert fleet.jobs("versatile") == ["rare"]


def test_longest_idle_worker_is_chosen_among_equals(fleet):
    fleet.join("first", "pdf")
    fleet.scheduler.advance(1)
    fleet.join("second", "pdf")
    fleet.publish("one", "pdf")
    (claim,) = fleet.inbox("first")
    fleet.scheduler.advance(1)
    fleet.end("first", claim)
    fleet.publish("two", "pdf")
    assert fleet.jobs("second") == ["two"]


def test_job_never_goes_to_a_worker_without_its_type(fleet):
    fleet.join("excel", "excel", slots=5)
    fleet.publish("job", "pdf")
    assert fleet.state("job") == "pending"
    assert fleet.jobs("excel") == []


def test_worker_holds_no_more_jobs_than_slots(fleet):
    fleet.join("worker", "pdf", slots=3)
    for number in range(5):
        fleet.publish(f"job{number}", "pdf")
    assert fleet.jobs("worker") == ["job0", "job1", "job2"]
    fleet.sync("worker", slots=3, other=0)
    assert fleet.jobs("worker") == []


def test_other_requests_take_slots_even_below_zero(fleet):
    fleet.join("worker", "pdf", slots=2)
    fleet.sync("worker", slots=2, other=3)
    fleet.publish("job", "pdf")
    assert fleet.state("job") == "pending"
    fleet.sync("worker", slots=2, other=1)
    assert fleet.jobs("worker") == ["job"]


def test_growing_pool_claims_more_immediately(fleet):
    fleet.join("worker", "pdf", slots=1)
    for number in range(3):
        fleet.publish(f"job{number}", "pdf")
    assert fleet.jobs("worker") == ["job0"]
    fleet.sync("worker", slots=3)
    assert fleet.jobs("worker") == ["job1", "job2"]


# -- which job


@pytest.mark.parametrize(("age_s", "winner"), [(319, "fresh"), (320, "old"), (321, "old")])
def test_one_priority_equals_64_seconds_of_age(fleet, age_s, winner):
    fleet.publish("old", "pdf", priority=0)
    fleet.scheduler.advance(age_s)
    fleet.publish("fresh", "pdf", priority=5)
    assert fleet.order(2, "pdf")[0] == winner


@pytest.mark.parametrize(("age_s", "winner"), [(0, "urgent"), (255, "urgent"), (256, "old"), (257, "old")])
def test_on_demand_job_precedes_jobs_below_256_s_older(fleet, age_s, winner):
    fleet.publish("old", "pdf")
    fleet.scheduler.advance(age_s)
    fleet.publish("urgent", "pdf", on_demand=True)
    assert fleet.order(2, "pdf")[0] == winner


def test_on_demand_job_stops_gaining_after_the_age_cap(fleet):
    fleet.publish("urgent", "pdf", on_demand=True)
    fleet.scheduler.advance(1000)
    # 4096 + 256 * 32 = 12,288 points ahead of a queued job of the same age: 12 priorities, more than exist.
    fleet.publish("fresh", "pdf", priority=10)
    fleet.scheduler.advance(100_000)
    assert fleet.order(2, "pdf") == ["urgent", "fresh"]


def test_rarer_type_is_first_among_equals(fleet):
    fleet.join("busy", "common", slots=3)
    for number in range(3):
        fleet.publish(f"busy{number}", "common")
    fleet.publish("common", "common")
    fleet.publish("rare", "rare")
    assert fleet.order(2, "common", "rare") == ["rare", "common"]


def test_ties_go_to_older_jobs_then_smaller_ids(fleet):
    for job in ("b", "a", "c"):
        fleet.publish(job, "pdf")
    fleet.scheduler.advance(1)
    fleet.publish("0", "pdf")
    assert fleet.order(4, "pdf") == ["a", "b", "c", "0"]


def test_scheduled_job_ages_from_its_due_time(fleet):
    fleet.publish("later", "pdf", delay_s=100)
    fleet.scheduler.advance(50)
    fleet.publish("now", "pdf")
    fleet.scheduler.advance(60)
    ticked = fleet.scheduler.tick()
    assert (ticked.due, ticked.next_due_s) == (1, None)
    assert fleet.order(2, "pdf") == ["now", "later"]


def test_tick_returns_the_next_due_time(fleet):
    fleet.publish("later", "pdf", delay_s=7.5)
    assert fleet.scheduler.tick().next_due_s == 7.5
    assert fleet.state("later") == "scheduled"


def test_cached_head_order_is_ignored_after_a_clock_reset(fleet):
    fleet.scheduler.configure({"worker_timeout_us": "1000000000", "priority_weight": "1"})
    fleet.join("worker", "pdf", "excel")
    for number in range(4):
        fleet.publish(f"excel-{number}", "excel")
    fleet.scheduler.advance(10)
    fleet.publish("old", "pdf")
    fleet.scheduler.advance(10)
    for priority in (1, 2, 9):
        fleet.publish(f"young-{priority}", "pdf", priority=priority)
    (claim,) = fleet.end("worker", *fleet.inbox("worker"))
    (claim,) = fleet.end("worker", claim)
    assert claim.job_id == "excel-2"
    fleet.scheduler.advance(-100)  # now all jobs are from the future
    (claim,) = fleet.end("worker", claim)
    assert claim.job_id == "young-9"


def test_job_id_that_looks_like_a_lane_is_harmless(fleet):
    fleet.publish("queued.1", "pdf")
    for number, priority in enumerate((3, 1, 1, 3)):
        fleet.scheduler.advance(1)
        fleet.publish(f"job{number}", "pdf", priority=priority)
    fleet.join("worker", "pdf", slots=9)
    assert fleet.jobs("worker") == ["job0", "job3", "job1", "job2", "queued.1"]


@pytest.mark.parametrize("name", ["demand.1", "a-demand.1"])
def test_job_id_that_looks_on_demand_allows_lookahead(fleet, name):
    fleet.join("worker", "pdf")
    fleet.publish("first", "pdf")
    fleet.publish("urgent", "pdf", priority=1)
    for job in (name, "second", "third", "fourth"):
        fleet.publish(job, "pdf")
    ahead = PrefetchLimit(work_us=20_000, costs={"pdf": 1_000})  # such a worker yields to on-demand jobs
    assert len(fleet.end("worker", *fleet.inbox("worker"), may_hold=ahead)) == 5


def test_incomplete_release_requests_no_prefetched_jobs(fleet):
    fleet.join("worker", "pdf", slots=2)
    fleet.publish("first", "pdf")
    fleet.publish("second", "pdf")
    fleet.join("holder", "pdf")
    for job in ("runs", "follows", "ahead"):
        fleet.publish(job, "pdf")
    assert len(fleet.end("holder", *fleet.inbox("holder"), most_ahead=1)) == 2
    for job in ("large", "larger"):
        fleet.publish(job, "pdf", message="x" * (MAX_BYTES + 1))
    fleet.end("worker", *fleet.inbox("worker"))
    assert set(fleet.claims("worker")) == {"large", "larger"}
    assert fleet.signs("holder") == []


def test_score_changes_between_claims_apply_when_lanes_cross(fleet):
    """From its 192nd second on, an on-demand job of priority 0 precedes a queued job of priority 10."""
    fleet.join("worker", "pdf")
    fleet.publish("busy", "pdf")
    fleet.publish("asked", "pdf", on_demand=True)
    for number in range(4):
        fleet.publish(f"queued{number}", "pdf", priority=10)
    (claim,), order = fleet.inbox("worker"), []
    for seconds in (100, 40, 40, 20):
        fleet.scheduler.advance(seconds)
        (claim,) = fleet.end("worker", claim)
        order.append(claim.job_id)
    assert order == ["queued0", "queued1", "queued2", "asked"]


def test_job_with_most_points_of_all_types_is_first(fleet):
    """The server caches the heads, slots and settings of types between invocations, with the time."""
    draw = random.Random(3)
    weights = Weights(priority=1, age=1, rarity=12, on_demand=4, on_demand_age=2, on_demand_age_cap_us=30_000_000)
    shown = {name: str(getattr(weights, name)) for name in ("on_demand_age_cap_us",)}
    shown |= {f"{name}_weight": str(getattr(weights, name)) for name in ("priority", "age", "rarity", "on_demand")}
    fleet.scheduler.configure({"worker_timeout_us": "10000000000", "on_demand_age_weight": "2", **shown})
    for type_ in "abc":
        fleet.join(f"of-{type_}", type_)
        fleet.publish(f"busy-{type_}", type_)
    fleet.join("worker", "a", "b", "c")
    fleet.publish("first", "a")
    (claim,) = fleet.inbox("worker")
    waiting, slots = {}, dict.fromkeys("abc", 2)

    def points(job):
        type_, priority, on_demand, enqueued_us = waiting[job]
        age_us = fleet.now_us - enqueued_us
        return -score(priority, on_demand, age_us, slots[type_], weights).total, enqueued_us, job

    for number in range(240):
        for again in range(draw.choice((0, 1, 2)) if number else 30):
            job = f"{draw.randrange(1000):03}-{number}-{again}"
            type_, priority, on_demand = draw.choice("abc"), draw.randrange(3), draw.random() < 0.4
            fleet.publish(job, type_, priority=priority, on_demand=on_demand)
            waiting[job] = type_, priority, on_demand, fleet.now_us
        if draw.random() < 0.1:
            type_ = draw.choice("abc")
            slots[type_] = draw.randrange(2, 6)
            fleet.sync(f"of-{type_}", slots=slots[type_] - 1, other=slots[type_] - 2)
        if draw.random() < 0.05:
            weights = replace(weights, rarity=draw.choice((0, 12, 30)))
            fleet.scheduler.configure({"rarity_weight": str(weights.rarity)})
        fleet.scheduler.advance(draw.choice((0, 0, 1, 3, 9)))
        if waiting:
            (claim,) = fleet.end("worker", claim)
            assert claim.job_id == min(waiting, key=points), number
            del waiting[claim.job_id]


def test_two_slot_changes_at_one_time_both_apply(fleet):
    """The clock does not advance between the changes, like after a clock reset."""
    for type_ in ("pdf", "excel"):
        fleet.join(f"of-{type_}", type_)
        fleet.publish(f"busy-{type_}", type_)
    fleet.join("worker", "pdf", "excel", slots=2)
    for name in ("busy0", "busy1", "pdf0", "pdf1"):
        fleet.publish(name, "pdf")
    for number in range(2):
        fleet.publish(f"excel{number}", "excel")
    claims = fleet.inbox("worker")
    fleet.sync("of-excel", slots=2, other=1)
    assert [each.job_id for each in fleet.end("worker", claims[0])] == ["pdf0"]
    fleet.sync("of-pdf", slots=3, other=2)
    assert [each.job_id for each in fleet.end("worker", claims[1])] == ["excel0"]


def test_overwritten_capacity_is_corrected_by_a_repair(fleet):
    """Type ``excel`` has an additional dedicated slot, so ``pdf`` is the rarer type."""
    fleet.join("of-excel", "excel")
    fleet.join("worker", "pdf", "excel", slots=2)
    for number in range(3):
        fleet.publish(f"busy{number}", "excel")
    claims = fleet.inbox("worker")
    fleet.scheduler.client.hset(fleet.scheduler.keys.key("capacity"), mapping={"pdf": 3, "excel": 1})
    fleet.scheduler.configure({"age_weight": "0"})  # the claim reads the slots again
    for number in range(3):
        fleet.publish(f"excel{number}", "excel")
    for number in range(3):
        fleet.publish(f"pdf{number}", "pdf")
    assert [each.job_id for each in fleet.end("worker", claims[0])] == ["excel0"]
    fleet.scheduler.repair()
    assert [each.job_id for each in fleet.end("worker", claims[1])] == ["pdf0"]


@pytest.mark.parametrize(
    ("settings", "first"), [({}, "rare"), ({"rarity": "free"}, "old"), ({"priority_percentage": "0"}, "old")]
)
def test_freed_slot_of_several_types_follows_the_settings(fleet, settings, first):
    fleet.join("busy", "excel", slots=8)
    fleet.join("worker", "pdf", "excel")
    for number in range(8):
        fleet.publish(f"busy{number}", "excel")
    fleet.publish("running", "pdf")
    fleet.scheduler.configure(settings)
    fleet.publish("old", "excel")
    fleet.scheduler.advance(1)
    fleet.publish("rare", "pdf")
    (following,) = fleet.end("worker", *fleet.inbox("worker"))
    assert following.job_id == first
