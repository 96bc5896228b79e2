"""The order of claims: jobs are claimed in the order that `pending` lists, and by the ranks that `explain` counts."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_affinity.clock import SECOND_US
from celery_affinity.policy.score import Weights
from celery_affinity.reports import queue_order
from celery_affinity.reports.queue_order import ClaimOrder
from celery_affinity.scheduler.reader import Lane

from ..support.asking import next_jobs, why

TYPES = ("pdf", "excel", "index")


jobs = st.lists(
    st.tuples(
        st.sampled_from(TYPES),
        st.booleans(),
        st.sampled_from([0, 0, 1, 5, 9, 10]),
        st.one_of(
            st.integers(0, 3), st.integers(0, 400 * SECOND_US), st.sampled_from([64 * SECOND_US, 256 * SECOND_US])
        ),
    ),
    min_size=1,
    max_size=25,
)


some_settings = st.fixed_dictionaries(
    {},
    optional={
        "priority_weight": st.sampled_from([0, 1024, 0.1]),
        "age_weight": st.sampled_from([16, 0.3333333333333333, 1000]),
        "on_demand_age_weight": st.sampled_from([0, 32, 7.7]),
        "on_demand_age_cap": st.sampled_from([0, 3, 256]),
        "rarity": st.sampled_from(["capacity", "free"]),
        "priority_order": st.sampled_from(["higher-first", "lower-first"]),
        "priority_percentage": st.sampled_from([0, 100]),
    },
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(jobs=jobs, some_settings=some_settings)
def test_jobs_are_claimed_in_the_order_that_was_shown(fleet, reader, jobs, some_settings):
    """One slot, and time stands still: the listed order and the counted ranks are those of the claims."""
    fleet.scheduler.client.flushall()
    fleet.scheduler.advance(0)
    fleet.join("worker", *TYPES, settings=some_settings)
    fleet.publish("busy", "pdf")
    (claim,) = fleet.inbox("worker")
    start_us = fleet.scheduler.now_us
    for number, (type_, on_demand, priority, at_us) in sorted(enumerate(jobs), key=lambda job: job[1][3]):
        fleet.scheduler.advance((start_us + at_us - fleet.scheduler.now_us) / SECOND_US)
        fleet.publish(f"job{number}", type_, on_demand=on_demand, priority=priority)
    fleet.scheduler.advance(400 - (fleet.scheduler.now_us - start_us) / SECOND_US)

    shown = next_jobs(reader)
    ranks = {f"job{number}": why(reader, f"job{number}").waiting for number in range(len(jobs))}
    claimed = []
    while following := fleet.end("worker", claim):
        (claim,) = following
        claimed.append(claim.job_id)
    assert shown == claimed
    assert [ranks[job].rank for job in claimed] == list(range(1, len(jobs) + 1))
    for type_ in TYPES:
        of_type = [job for job in claimed if jobs[int(job[3:])][0] == type_]
        assert [ranks[job].rank_in_type for job in of_type] == list(range(1, len(of_type) + 1))


def test_only_so_many_are_listed_as_were_asked_for(fleet, reader):
    for number in range(30):
        fleet.publish(f"job{number:02}", "pdf", priority=number % 3)
        fleet.scheduler.advance(1)
    assert len(next_jobs(reader, 7)) == 7
    assert next_jobs(reader, 7) == next_jobs(reader)[:7]


heads = st.lists(
    st.tuples(
        st.integers(0, 400_000_000),
        st.sampled_from([f"id{number}" for number in range(40)]),
        st.sampled_from(["a", "b", "c", "unserved", "unserved too"]),
        st.sampled_from(["queued.0", "queued.5", "demand.0", "demand.9"]),
    ),
    max_size=40,
    unique_by=lambda head: head[2:],
)


@given(heads=heads, limit=st.integers(1, 12), by_age_alone=st.booleans(), priority_reversed=st.booleans())
def test_the_first_lanes_are_those_that_a_score_for_each_finds(heads, limit, by_age_alone, priority_reversed):
    lanes = [Lane(*head) for head in heads]
    rules = ClaimOrder(
        300_000_000, Weights(priority_reversed=priority_reversed), {"a": 1, "b": 1, "c": 7}, by_age_alone
    )
    ranked = sorted(lanes, key=lambda lane: queue_order._rank(rules, lane, lane.rank_us, lane.job_id))
    found = queue_order._first(rules, lanes, limit)
    key = [queue_order._rank(rules, lane, lane.rank_us, lane.job_id) for lane in found]
    assert key == [queue_order._rank(rules, lane, lane.rank_us, lane.job_id) for lane in ranked[:limit]]
