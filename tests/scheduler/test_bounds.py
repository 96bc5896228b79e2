"""Bounds on a server: the counted jobs, the additional jobs of a publish, and the dropped job."""

from dataclasses import replace

import pytest

from celery_affinity.schema.bounds import DROP_NEWEST, DROP_OLDEST, Bound
from celery_affinity.schema.constants import MAX_DROPPED_FROM

MERGING = "merge=city most=2 bytes=1000000"


def publish(fleet, *ids, most=1, full="refuse", type_="pdf", **fields):
    """Publish jobs in one invocation. Return True for each new one."""
    jobs = fleet.made(ids, type_, task_name="tests.task", bound=Bound(most, full=full), **fields)
    return [each.fresh for each in fleet.scheduler.publish(*jobs)]


# -- counted jobs


@pytest.mark.parametrize(
    "waiting",
    [
        {"a": {}, "b": {}},
        {"low": {}, "high": {"priority": 9}},
        {"a!": {"rules": "key=k limit=1"}, "b!": {"rules": "key=k limit=1"}},
    ],
    ids=["one lane", "two lanes", "a key"],
)
def test_bound_is_the_number_of_waiting_jobs(fleet, waiting):
    assert [publish(fleet, job, most=2, **fields) for job, fields in waiting.items()] == [[True], [True]]
    assert publish(fleet, "third", most=2) == [False]


def test_replacement_of_the_only_waiting_job_starts_immediately(fleet):
    """An expired job can wait next to a free slot until a tick sees it, so later jobs do not fill the slot."""
    publish(fleet, "expired", full=DROP_OLDEST)
    heads = fleet.scheduler.keys.key("heads")
    hidden = fleet.scheduler.client.hget(heads, "pdf")
    fleet.scheduler.client.hdel(heads, "pdf")
    fleet.join("one", "pdf")
    fleet.scheduler.client.hset(heads, "pdf", hidden)
    publish(fleet, "next", full=DROP_OLDEST)
    assert [fleet.state(name) for name in ("expired", "next")] == ["revoked", "claimed"]


# -- jobs of one publish


@pytest.mark.parametrize(("marks", "rules"), [("", ""), ("!", "key=k limit=1")])
def test_jobs_of_one_publish_are_counted_together(fleet, marks, rules):
    jobs = [f"{name}{marks}" for name in "abc"]
    assert publish(fleet, *jobs, most=2, rules=rules) == [False, False, False]
    assert publish(fleet, *jobs[:2], most=2, rules=rules) == [True, True]


@pytest.mark.parametrize(("number", "is_full"), [(2, False), (3, True), (4, True)])
def test_calls_that_fill_a_run_count_the_next_run(fleet, number, is_full):
    """Two calls are one run and fill the bound. A third call would be another run."""
    ids = [f"{name}+" for name in "abcd"[:number]]
    assert publish(fleet, *ids, rules=MERGING) == [not is_full] * number
    assert (fleet.state("a+") is None) == is_full


def test_collecting_calls_do_not_count(fleet):
    patient = f"{MERGING} wait=60000000/60000000"
    assert publish(fleet, "waits") == publish(fleet, "patient+", rules=patient) == [True]


@pytest.mark.parametrize(
    "fields",
    [{"expires_us": 0}, {"delay_us": 1_000_000}, {"task_id": "revoked"}],
    ids=["expired", "scheduled", "revoked"],
)
def test_job_that_does_not_wait_does_not_count(fleet, fields):
    fleet.scheduler.revoke(["revoked"], [], keep_s=60)
    first = fleet.made(["a"], "pdf", bound=Bound(1))[0]
    other = fleet.made(["b"], "pdf", bound=Bound(1))[0]
    assert [each.full for each in fleet.scheduler.publish(replace(first, **fields), other)] == [None, None]
    assert fleet.state("b") == "pending"


def test_job_named_twice_in_one_publish_is_one_job(fleet):
    assert publish(fleet, "a", "a") == [True, False]


# -- dropped jobs


def test_each_excess_job_of_one_publish_is_dropped(fleet):
    assert publish(fleet, "a", full=DROP_NEWEST) == [True]
    publish(fleet, "b", "c", full=DROP_NEWEST)
    assert [fleet.state(each) for each in "abc"] == ["pending", "revoked", "revoked"]


def test_oldest_job_is_dropped_for_each_excess_job(fleet):
    publish(fleet, "a", "b", "c", most=2, full=DROP_OLDEST)
    assert [fleet.state(each) for each in "abc"] == ["revoked", "pending", "pending"]


def test_oldest_single_job_is_dropped_instead_of_a_run(fleet):
    publish(fleet, "a+", "b+", rules=MERGING, most=3, full=DROP_OLDEST)
    fleet.scheduler.advance(1)
    publish(fleet, "c", "d", most=3, full=DROP_OLDEST)
    fleet.scheduler.advance(1)
    publish(fleet, "e", most=3, full=DROP_OLDEST)
    states = [fleet.state(each) for each in ("a*", "c", "d", "e")]
    assert states == ["pending", "revoked", "pending", "pending"]


def test_newest_job_is_dropped_behind_many_runs(fleet):
    for number in range(MAX_DROPPED_FROM):
        publish(fleet, f"a{number}+", f"b{number}+", rules=MERGING.replace("city", f"c{number}"), most=99)
    most = MAX_DROPPED_FROM + 1
    publish(fleet, "plain", most=most, full=DROP_OLDEST)
    publish(fleet, "newest", most=most, full=DROP_OLDEST)
    assert [fleet.state(each) for each in ("plain", "newest")] == ["pending", "revoked"]


def test_dropped_job_is_reported_as_dropped(fleet):
    publish(fleet, "a", "b", full=DROP_NEWEST)
    assert fleet.scheduler.next_report("app", again_s=1).how == "dropped"


def test_dropped_job_gets_no_free_slot(fleet):
    fleet.join("worker", "pdf", slots=2)
    fleet.publish("runs!", "pdf", rules="key=k limit=1")
    fleet.publish("kept-back!", "pdf", rules="key=k limit=1")
    publish(fleet, "dropped", full=DROP_NEWEST)
    assert fleet.state("dropped") == "revoked"
    assert fleet.jobs("worker") == ["runs!"]
