"""The overtaking bound proved in `docs/internals/proofs.md` holds for random jobs and in simulated queues."""

import heapq
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_affinity.clock import SECOND_US
from celery_affinity.policy.score import QueueRank, Weights, overtakes, score
from celery_affinity.schema.constants import MAX_PRIORITY
from celery_affinity.settings import wire

WEIGHTS = Weights()
UNCAPPED = replace(WEIGHTS, on_demand_age_cap_us=10**9 * SECOND_US)

priorities = st.integers(0, MAX_PRIORITY)
slots = st.integers(1, 10_000)
some_weights = st.builds(
    Weights,
    priority=st.integers(0, 5000),
    age=st.integers(1, 100),
    rarity=st.integers(0, 5000),
    on_demand=st.integers(0, 10_000),
    on_demand_age=st.integers(0, 100),
    on_demand_age_cap_us=st.integers(0, 10_000 * SECOND_US),
)


def test_overtaking_bounds_equal_the_documented_numbers():
    bounds_s = {(0, False): 1439.25, (10, False): 799.25, (0, True): 671.25, (10, True): 31.25}
    assert {mode: wire.overtaking_seconds(*mode, WEIGHTS) for mode in bounds_s} == bounds_s


@given(st.data())
def test_job_enqueued_a_bound_later_never_runs_first(data):
    weights = data.draw(st.one_of(st.just(WEIGHTS), some_weights))
    mine, theirs = data.draw(priorities), data.draw(priorities)
    on_demand, they_on_demand = data.draw(st.booleans()), data.draw(st.booleans())
    later_us = -int(-wire.overtaking_seconds(mine, on_demand, weights) * SECOND_US // 1) + data.draw(
        st.integers(1, 10**10)
    )
    waited_us = data.draw(st.integers(0, 10**10))  # since the later job was enqueued
    old = score(mine, on_demand, later_us + waited_us, data.draw(slots), weights).total
    new = score(theirs, they_on_demand, waited_us, data.draw(slots), weights).total
    assert overtakes(QueueRank(old, 0, "old"), QueueRank(new, later_us, "new"))


head_starts_us = st.integers(0, 10**10)


@given(st.data())
def test_job_with_a_rank_a_bound_later_never_runs_first(data):
    """A head start changes the rank, which is the enqueue time minus it, and the age by which both are scored."""
    weights = data.draw(st.one_of(st.just(WEIGHTS), some_weights))
    mine, theirs = data.draw(priorities), data.draw(priorities)
    on_demand, they_on_demand = data.draw(st.booleans()), data.draw(st.booleans())
    bound_us = -int(-wire.overtaking_seconds(mine, on_demand, weights) * SECOND_US // 1)
    my_head_us, their_head_us = data.draw(head_starts_us), data.draw(head_starts_us)
    longest_us = their_head_us + data.draw(head_starts_us)  # the largest target wait
    # Their job comes the bound later, plus the largest head start that it could have, less the head start of mine.
    enqueued_us = bound_us + longest_us - my_head_us + data.draw(st.integers(1, 10**10))
    now_us = max(0, enqueued_us) + data.draw(st.integers(0, 10**10))
    my_rank_us, their_rank_us = -my_head_us, enqueued_us - their_head_us
    assert their_rank_us >= my_rank_us + bound_us
    old = score(mine, on_demand, now_us - my_rank_us, data.draw(slots), weights).total
    new = score(theirs, they_on_demand, now_us - their_rank_us, data.draw(slots), weights).total
    assert overtakes(QueueRank(old, my_rank_us, "old"), QueueRank(new, their_rank_us, "new"))


@pytest.mark.parametrize(("on_demand", "they_on_demand"), [(False, True), (True, True)])
def test_overtaking_bound_is_tight(on_demand, they_on_demand):
    """Just below the bound, a job of priority 10 and a rare type that waited past the cap runs first."""
    later_us = round(wire.overtaking_seconds(0, on_demand, WEIGHTS) * SECOND_US) - SECOND_US
    waited_us = 10_000 * SECOND_US
    old = score(0, on_demand, later_us + waited_us, 10**6, WEIGHTS).total
    new = score(10, they_on_demand, waited_us, 1, WEIGHTS).total
    assert overtakes(QueueRank(new, later_us, "new"), QueueRank(old, 0, "old"))


# -- one slot, jobs of one second


class Queue:
    """Lanes with one slot. Like the scheduler, it compares only the heads of lanes."""

    def __init__(self, weights):
        self.weights = weights
        self.lanes = {}
        self.ids = count()

    def put(self, at_s, priority, on_demand, name=""):
        lane = self.lanes.setdefault((priority, on_demand), [])
        heapq.heappush(lane, (round(at_s * SECOND_US), next(self.ids), name))

    def take(self, now_s):
        best = None
        for (priority, on_demand), lane in self.lanes.items():
            if lane:
                enqueued_us, number, _ = lane[0]
                total = score(priority, on_demand, round(now_s * SECOND_US) - enqueued_us, 1, self.weights).total
                rank = (-total, enqueued_us, number)
                if best is None or rank < best[0]:
                    best = rank, lane
        return heapq.heappop(best[1])[2] if best else None


def wait_of(weights, arrivals, load, patience_s, priority=0):
    """Return the second at which a queued job enqueued at 0 starts, or None.

    *arrivals* maps the number of a later job to its (priority, on demand).
    """
    queue, due, came = Queue(weights), 0.0, 0
    queue.put(0, priority, on_demand=False, name="mine")
    for second in range(patience_s):
        while due <= second:
            queue.put(due, *arrivals(came))
            came, due = came + 1, due + 1 / load
        if queue.take(second) == "mine":
            return second
    return None


@pytest.mark.parametrize("load", [1, 1.5, 2, 5])
@pytest.mark.parametrize(
    "arrivals",
    [lambda n: (0, True), lambda n: (10, True), lambda n: (n * 7 % 11, n % 3 != 0)],
    ids=["on demand", "bursts of P10 on demand", "mixed"],
)
def test_no_load_starves_a_queued_job(load, arrivals):
    limit = load * wire.overtaking_seconds(0, False, WEIGHTS)
    waited = wait_of(WEIGHTS, arrivals, load, round(limit) + 2)
    assert waited is not None
    assert waited <= limit + 1


@pytest.mark.parametrize(("load", "starves"), [(1.4, False), (1.51, True), (2, True), (5, True)])
def test_uncapped_on_demand_load_starves_queued_jobs_above_1_5(load, starves):
    assert (wait_of(UNCAPPED, lambda n: (0, True), load, 20_000) is None) is starves
