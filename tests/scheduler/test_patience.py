"""Merge windows, `wait=` of Merge. The conformance test covers the rest."""

import pytest

from celery_affinity.clock import SECOND_US
from celery_affinity.reports.explain import explain
from celery_affinity.schema.job_record import NewJob
from celery_affinity.schema.keys import Keys

from ..support.counting import Counting

ROOMY = "merge=city most=1000 bytes=1000000"
RULES = f"{ROOMY} wait=2000000/5000000"


@pytest.fixture
def fleet(fleet):
    fleet.join("worker", "pdf", slots=3)
    return fleet


def publish(fleet, *ids, rules=RULES, **fields):
    return fleet.scheduler.publish(*fleet.made(ids, "pdf", task_name="tests.task", rules=rules, **fields))


def runs(fleet, after_s=0):
    """Let time pass, and tick. Return the worker's jobs."""
    fleet.advance_and_tick(after_s)
    return fleet.jobs("worker")


def is_to_tick(fleet):
    """Read the worker's inbox. Return True if it contained a request to tick."""
    signs = fleet.signs("worker")
    fleet.inbox("worker")
    return ["tick"] in signs


def test_call_collects_others_and_each_extends_the_window(fleet):
    assert not publish(fleet, "a+")[0].merged
    assert (fleet.state("a+"), runs(fleet, 1.5)) == ("scheduled", [])
    assert publish(fleet, "b+")[0].merged
    assert (fleet.state("a+"), fleet.state("a*"), runs(fleet, 1.9)) == ("merged", "scheduled", [])
    assert fleet.scheduler.tick().next_due_s == pytest.approx(0.1)
    assert runs(fleet, 0.1) == ["a*"]


def test_only_collecting_jobs_store_the_windows_end(fleet):
    def says(job):
        return fleet.scheduler.client.hexists(fleet.scheduler.keys.key("job", job), "patient")

    publish(fleet, "a+")
    assert says("a+")
    publish(fleet, "b+")
    assert [says(each) for each in ("a+", "b+", "a*")] == [False, False, True]
    assert runs(fleet, 2) == ["a*"]
    assert not says("a*")


def test_call_after_the_window_does_not_extend_it(fleet):
    publish(fleet, "a+")
    fleet.scheduler.advance(2)
    assert publish(fleet, "b+")[0].merged
    assert runs(fleet) == ["a*"]


def test_window_never_exceeds_its_total_limit(fleet):
    publish(fleet, "a+")
    for job in "bcd":
        assert runs(fleet, 1.5) == []
        publish(fleet, f"{job}+")
    assert runs(fleet, 0.4) == []
    publish(fleet, "e+")
    assert runs(fleet, 0.1) == ["a*"]


def test_run_is_as_old_as_its_first_call(fleet, redis_client):
    at_us = fleet.scheduler.now_us
    publish(fleet, "a+")
    fleet.scheduler.advance(1)
    publish(fleet, "b+")
    assert redis_client.hget(Keys().key("job", "a*"), "enqueued") == str(at_us).encode()
    fleet.advance_and_tick(2)
    (claim,) = fleet.inbox("worker")
    assert claim.enqueued_us == at_us


@pytest.mark.parametrize("fields", [{"on_demand": True}, {"rules": RULES.replace("1000000", "5", 1)}])
def test_on_demand_call_or_full_run_has_no_window(fleet, fields):
    publish(fleet, "a+", **fields)
    assert fleet.jobs("worker") == ["a+"]


def test_on_demand_call_ends_the_window_of_the_others(fleet):
    publish(fleet, "a+", "b+")
    assert not is_to_tick(fleet)
    publish(fleet, "c+", on_demand=True)
    assert is_to_tick(fleet)
    assert runs(fleet) == ["a*"]


def test_many_on_demand_calls_request_one_tick(fleet):
    publish(fleet, "a+")
    publish(fleet, *(f"b{number}+" for number in range(9)), on_demand=True)
    assert fleet.signs("worker") == [["tick"]]


def test_move_that_ends_a_window_twice_requests_one_tick(fleet):
    fleet.scheduler.publish(*fleet.made(["there+"], "excel", task_name="tests.task", rules=RULES))
    publish(fleet, "a+")
    fleet.scheduler.move(["a+"], type_="excel", on_demand=True)
    assert fleet.signs("worker") == [["tick"]]


def test_full_run_ends_its_window(fleet):
    publish(fleet, "a+", "b+", rules=RULES.replace("1000 ", "3 "))
    assert runs(fleet) == []
    publish(fleet, "c+", rules=RULES.replace("1000 ", "3 "))
    assert is_to_tick(fleet)
    assert runs(fleet) == ["a*"]
    publish(fleet, "d+", rules=RULES.replace("1000 ", "3 "))
    assert fleet.state("d+") == "scheduled"


def test_run_filled_to_the_last_byte_ends_its_window(fleet):
    rules = RULES.replace("1000000", str(2 * len("message of a+")), 1)
    publish(fleet, "a+", "b+", rules=rules)
    assert is_to_tick(fleet)
    assert runs(fleet) == ["a*"]


def test_run_too_full_for_a_call_ends_its_window(fleet):
    rules = RULES.replace("1000000", "25", 1)  # one and a half messages in bytes
    publish(fleet, "a+", rules=rules)
    fleet.scheduler.advance(0.5)
    assert not publish(fleet, "b+", rules=rules)[0].merged
    assert is_to_tick(fleet)
    assert runs(fleet) == ["a+"]
    assert (runs(fleet, 1.9), runs(fleet, 0.1)) == ([], ["b+"])


def test_first_call_sets_the_window_of_the_run(fleet):
    publish(fleet, "a+")
    assert publish(fleet, "b+", rules=ROOMY)[0].merged
    assert publish(fleet, "c+", rules=f"{ROOMY} wait=64000000/64000000")[0].merged
    assert (runs(fleet, 1.9), runs(fleet, 0.1)) == ([], ["a*"])


def test_call_joins_a_pending_run_without_a_window(fleet):
    fleet.scheduler.pause("type:pdf")
    publish(fleet, "a+")
    assert runs(fleet, 2) == []
    publish(fleet, "b+")
    assert (fleet.state("a*"), fleet.state("b+")) == ("pending", "merged")
    fleet.scheduler.resume("type:pdf")
    assert fleet.jobs("worker") == ["a*"]


def test_run_without_a_window_survives_a_clock_reset(fleet):
    publish(fleet, "a+", "b+", rules=RULES.replace("1000 ", "2 "))
    publish(fleet, "c+", rules=RULES.replace("1000 ", "2 "))
    fleet.scheduler.advance(-3600)
    found = explain(fleet.scheduler.reader, "task-a+")
    assert (found.state, found.patient_until_s, found.due_s) == ("scheduled", None, None)
    assert runs(fleet) == ["a*"]


def test_run_after_its_window_survives_a_clock_reset(fleet):
    rules = RULES.replace("1000000", "25", 1)  # one and a half messages in bytes
    publish(fleet, "a+", rules=rules)
    fleet.scheduler.advance(2)
    assert not publish(fleet, "b+", rules=rules)[0].merged
    fleet.scheduler.advance(-3600)
    assert runs(fleet) == ["a+"]


def test_scheduled_call_has_its_window_after_its_eta(fleet):
    publish(fleet, "a+", delay_us=3 * SECOND_US)
    publish(fleet, "b+")
    assert runs(fleet, 2) == ["b+"]
    assert runs(fleet, 1) == []
    publish(fleet, "c+")
    assert (runs(fleet, 1.9), runs(fleet, 0.1)) == ([], ["a*"])


@pytest.mark.parametrize(("delay_us", "after_s"), [(0, 2), (1, 6)])
def test_call_that_no_other_joins_runs_unmerged(fleet, delay_us, after_s):
    """A call that is long overdue has no window."""
    publish(fleet, "a+", delay_us=delay_us)
    assert runs(fleet, after_s) == ["a+"]


def test_due_calls_join_a_run_whose_window_ends_then(fleet):
    publish(fleet, "b+", delay_us=round(1.9 * SECOND_US))
    publish(fleet, "a+")
    assert runs(fleet, 2) == ["a*"]
    assert fleet.state("b+") == "merged"


def test_tick_is_requested_if_the_next_is_late(fleet):
    publish(fleet, "a+", rules=f"{ROOMY} wait=1000000/1000000")
    assert is_to_tick(fleet)
    publish(fleet, "b+", rules="merge=other most=1000 bytes=1000000 wait=1400000/1400000")
    assert not is_to_tick(fleet)
    publish(fleet, "c+", rules="merge=third most=1000 bytes=1000000 wait=1200000/1200000")
    assert not is_to_tick(fleet), "the tick for the first one tells when this one is due"


def test_collecting_calls_are_revoked_and_expire_singly(fleet, redis_client):
    publish(fleet, "a+", "b+")
    publish(fleet, "c+", expires_us=SECOND_US)
    fleet.scheduler.revoke(["task-a+"], [], keep_s=60)
    assert (fleet.state("a+"), fleet.state("a*")) == ("revoked", "scheduled")
    assert runs(fleet, 1) == []
    assert (fleet.state("c+"), fleet.state("a*")) == ("expired", "scheduled")
    fleet.scheduler.revoke(["task-b+"], [], keep_s=60)
    assert fleet.state("a*") is None
    publish(fleet, "d+")
    fleet.scheduler.revoke(["task-d+"], [], keep_s=60)
    assert not redis_client.keys("*merging") + redis_client.keys("*callers*") + redis_client.keys("*:scheduled")


def test_purge_deletes_collecting_calls(fleet, redis_client):
    publish(fleet, "a+", "b+")
    publish(fleet, "c+", rules=RULES.replace("city", "other"))
    assert fleet.scheduler.purge("pdf") == 2
    left = ("*job:*", "*message:*", "*merging", "*:scheduled", "*callers*")
    assert not [key for pattern in left for key in redis_client.keys(pattern)]


@pytest.mark.parametrize("outcome", ["returned", "unsettled", "rejected"])
def test_requeued_or_replayed_run_has_no_second_window(fleet, outcome):
    publish(fleet, "a+", "b+")
    fleet.advance_and_tick(2)
    (claim,) = fleet.inbox("worker")
    following = [each.job_id for each in fleet.end("worker", claim, outcome=outcome)]
    if outcome == "rejected":
        assert following == []
        assert fleet.scheduler.replay(["a*"]) == ["a*"]
        following = fleet.jobs("worker")
    assert following == ["a*"]


def test_key_is_not_reserved_for_a_merged_retry(fleet):
    """No claim could use the reservation: the retry's run is another job."""
    rules = f"{RULES} key=k limit=1 order=1"
    publish(fleet, "a+!", rules=rules, on_demand=True)
    (claim,) = fleet.inbox("worker")
    fleet.publish("b+!", "pdf", task_id="task-a+!", rules=rules)
    fleet.end("worker", claim)
    publish(fleet, "c+!", rules=rules)
    assert runs(fleet, 2) == ["b*!"]


def test_explain_shows_the_windows_end(fleet):
    at_s = fleet.scheduler.now_us / SECOND_US
    publish(fleet, "a+")
    fleet.scheduler.advance(1)
    publish(fleet, "b+")
    for task in ("task-a+", "task-b+"):
        found = explain(fleet.scheduler.reader, task)
        assert (found.state, found.since_s, found.patient_until_s, found.calls) == ("scheduled", at_s, at_s + 3, 2)
    fleet.advance_and_tick(2)
    assert explain(fleet.scheduler.reader, "task-a+").patient_until_s is None


def test_corrupt_end_of_a_window_is_repaired(fleet, redis_client):
    publish(fleet, "a+", "b+")
    due_us = redis_client.zscore(Keys().key("scheduled"), "a*")
    redis_client.zadd(Keys().key("scheduled"), {"a*": "inf"})
    fleet.scheduler.repair()
    assert redis_client.zscore(Keys().key("scheduled"), "a*") == due_us


def test_each_collecting_call_costs_the_same_commands(fleet):
    counting = Counting(fleet.scheduler.client, fleet.scheduler.keys)
    for number in range(100):
        counting.publish(NewJob(f"a{number}+", "pdf", "m", task_id=f"t{number}", rules=RULES))
    commands = [sum(times.values()) for _, times, _ in counting.calls]
    assert max(commands[2:]) == min(commands[2:]) < 20
