"""Placement on a real server: among equally specialised workers, the one with the most points in a sample."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_affinity.scheduler.messages import JoinArguments
from celery_affinity.settings.wire import DEFAULTS

from ..conformance.reference.placement import (
    FreeWorker,
    Placement,
    choose_by_points,
    choose_worker,
    most_specialised,
    parse_placement,
    sample_workers,
)

WEIGHTED = {"placement": "weighted"}

workers = st.lists(
    st.builds(
        FreeWorker,
        id=st.uuids().map(str),
        types=st.sets(st.sampled_from("abc"), min_size=1).map(frozenset),
        since_us=st.integers(0, 3),
        free=st.integers(1, 3),
        priority=st.integers(-1, 1),
    ),
    max_size=12,
)


@pytest.mark.parametrize("at_run_time", [False, True])
def test_worker_with_the_lower_priority_number_gets_the_job(fleet, at_run_time):
    if at_run_time:
        fleet.join("preferred", "pdf", settings=WEIGHTED, priority=2)
    fleet.join("idle", "pdf", settings=WEIGHTED, priority=1)
    fleet.scheduler.advance(1)
    fleet.join("preferred", "pdf", settings=WEIGHTED, priority=-1)
    fleet.publish("job", "pdf")
    assert fleet.jobs("preferred") == ["job"]


def test_worker_with_more_free_slots_gets_the_job(fleet):
    fleet.join("idle", "pdf", settings=WEIGHTED)
    fleet.scheduler.advance(1)
    fleet.join("large", "pdf", slots=3, settings=WEIGHTED)
    for job in ("one", "two", "three"):
        fleet.publish(job, "pdf")
    assert fleet.jobs("large") == ["one", "two"]
    assert fleet.jobs("idle") == ["three"]  # with one free slot each, the longest idle worker


def test_points_never_prefer_a_versatile_worker_to_a_specialist(fleet):
    fleet.join("specialist", "pdf", settings=WEIGHTED, priority=1000)
    fleet.join("versatile", "pdf", "excel", slots=5, settings=WEIGHTED, priority=-1000)
    fleet.publish("job", "pdf")
    assert fleet.jobs("specialist") == ["job"]


def test_jobs_of_one_publish_count_each_others_slots(fleet):
    fleet.join("one", "pdf", slots=3, settings=WEIGHTED)
    fleet.join("two", "pdf", slots=2, settings=WEIGHTED)
    fleet.scheduler.publish(*fleet.made(["a", "b", "c", "d", "e"], "pdf"))
    assert fleet.jobs("one") == ["a", "b", "d"]
    assert fleet.jobs("two") == ["c", "e"]


def test_zero_weights_choose_the_longest_idle_worker(fleet):
    zero = {f"placement_{name}_weight": 0 for name in ("priority", "locality", "free")}
    fleet.join("idle", "pdf", settings=WEIGHTED | zero, priority=9)
    fleet.scheduler.advance(1)
    fleet.join("other", "pdf", slots=5, settings=WEIGHTED | zero)
    assert not fleet.scheduler.client.exists(fleet.scheduler.keys.key("type_rules"))
    fleet.publish("job", "pdf")
    assert fleet.jobs("idle") == ["job"]


def test_settings_without_weights_disable_placement():
    weights = {f"placement_{name}_weight": "0" for name in ("priority", "locality", "free")}
    assert parse_placement(DEFAULTS) is None
    assert parse_placement({**DEFAULTS, "placement": "weighted", **weights}) is None
    assert parse_placement({**DEFAULTS, "placement": "weighted"}) == Placement(-10, 5, 1, 10)


@given(workers, st.text("xyz", min_size=1, max_size=9), st.integers(0, 5), st.sets(st.integers(0, 11)))
def test_chosen_worker_has_most_points_of_sample_and_holders(free, job_id, size, holding):
    by = Placement(-10, 5, 1, size)
    holders = {each.id for nth, each in enumerate(free) if nth in holding}
    chosen = choose_by_points("a", free, job_id, by, holders)
    fit = most_specialised("a", free)
    assert (chosen is None) == (not fit)
    if chosen:
        assert chosen in fit
        in_order = sorted(fit, key=lambda each: (each.profile, each.since_us, each.id))
        compared = sample_workers(in_order, job_id, size) + [each for each in fit if each.id in holders]
        most = max(by.points(each, is_hit=each.id in holders) for each in compared)
        assert by.points(chosen, is_hit=chosen.id in holders) == most
        assert len(sample_workers(in_order, job_id, size)) == (min(size, len(fit)) if size else len(fit))


@given(workers, st.text("xyz", min_size=1))
def test_zero_points_choose_the_longest_idle_worker(free, job_id):
    assert choose_by_points("a", free, job_id, Placement(0, 0, 0, 0)) == choose_worker("a", free)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.sets(st.sampled_from("abc"), min_size=1), st.integers(-1, 1), st.integers(1, 2)), max_size=9),
    st.lists(st.sampled_from("abc"), max_size=6),
    st.integers(0, 3),
)
def test_server_chooses_like_the_reference_rule(fleet, profiles, jobs, size):
    fleet.scheduler.client.flushdb()
    fleet.scheduler.advance(0)
    free = {}
    for number, (served, priority, slots) in enumerate(profiles):
        fleet.join(f"w{number}", *served, slots=slots, priority=priority, settings=WEIGHTED | {"sample_size": size})
        profile = JoinArguments("", "", served, 1).profile
        since_us = fleet.scheduler.now_us
        free[f"w{number}"] = FreeWorker(f"w{number}", frozenset(served), since_us, slots, priority, profile)
    for number, type_ in enumerate(jobs):
        fleet.scheduler.advance(1)
        chosen = choose_by_points(type_, free.values(), f"job{number}", Placement(-10, 5, 1, size))
        fleet.publish(f"job{number}", type_)
        assert chosen is None or f"job{number}" in fleet.claims(chosen.id)
        if chosen:
            now_us = fleet.scheduler.now_us
            free[chosen.id] = FreeWorker(**{**vars(chosen), "free": chosen.free - 1, "since_us": now_us})
            if chosen.free == 1:
                del free[chosen.id]
