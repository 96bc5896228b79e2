"""The calls that wait are counted beside the jobs that they are. The conformance test has every way of a batch."""

import pytest

from celery_affinity.reports.status import Report
from celery_affinity.schema.constants import MAX_PURGED, MAX_RECOUNTED
from celery_affinity.schema.keys import Keys

COUNTS = Keys().key("waiting_calls")


def publish(fleet, *ids, key="city", **fields):
    rules = f"merge={key} most=1000 bytes=1000000"
    return fleet.scheduler.publish(*fleet.made(ids, "pdf", task_name="tests.task", rules=rules, **fields))


def waiting(fleet):
    """Return the pending jobs, and the calls that they are, of each type with either."""
    types = Report(fleet.scheduler.reader).status().types
    return {each.type: (each.pending, each.calls) for each in types if each.calls}


def test_a_job_of_several_calls_is_several_and_any_other_job_is_one(fleet):
    publish(fleet, "a+", "b+", "c+")
    publish(fleet, "d+", key="another")
    fleet.publish("plain", "pdf")
    fleet.publish("other", "excel")
    assert waiting(fleet) == {"pdf": (3, 5), "excel": (1, 1)}


def test_calls_are_not_counted_once_they_run_and_are_again_when_they_come_back(fleet):
    publish(fleet, "a+", "b+", "c+")
    fleet.join("worker", "pdf")
    (claim,) = fleet.inbox("worker")
    assert waiting(fleet) == {}
    fleet.scheduler.leave("worker")
    assert waiting(fleet) == {"pdf": (1, 3)}
    fleet.scheduler.revoke([f"task-{claim.job_id[:-1]}+"], [], keep_s=60)
    assert waiting(fleet) == {"pdf": (1, 2)}
    fleet.scheduler.purge("pdf")
    assert not fleet.scheduler.client.exists(COUNTS)


def test_calls_that_leave_one_by_one_leave_no_count(fleet):
    publish(fleet, "a+", "b+")
    fleet.scheduler.revoke(["task-a+"], [], keep_s=60)
    fleet.scheduler.revoke(["task-b+"], [], keep_s=60)
    assert not fleet.scheduler.client.exists(COUNTS)


def test_a_call_that_leaves_a_run_was_counted_no_more(fleet):
    publish(fleet, "a+", "b+")
    publish(fleet, "c+", "d+", key="another")
    fleet.join("worker", "pdf")
    assert waiting(fleet) == {"pdf": (1, 2)}
    fleet.scheduler.revoke(["task-b+"], [], keep_s=60)
    assert waiting(fleet) == {"pdf": (1, 2)}


def test_calls_that_go_to_another_lane_are_counted_once(fleet):
    publish(fleet, "a+", "b+")
    publish(fleet, "c+", priority=9)
    assert waiting(fleet) == {"pdf": (1, 3)}


def test_calls_that_wait_for_others_change_no_count_however_urgent_they_become(fleet):
    publish(fleet, "a+", "b+")
    patient = "merge=other most=1000 bytes=1000000 wait=60000000/60000000"
    fleet.scheduler.publish(*fleet.made(["c+", "d+"], "pdf", rules=patient))
    fleet.scheduler.publish(*fleet.made(["e+"], "pdf", rules=patient, priority=9))
    assert waiting(fleet) == {"pdf": (1, 2)}


@pytest.mark.parametrize("wrong", ["7", "-3", "ghost", None], ids=["too many", "below 0", "no number", "none"])
def test_a_repair_counts_the_calls_again(fleet, wrong):
    publish(fleet, "a+", "b+", "c+")
    fleet.scheduler.client.hdel(COUNTS, "pdf")
    if wrong:
        fleet.scheduler.client.hset(COUNTS, "pdf", wrong)
    assert fleet.scheduler.repair()
    assert waiting(fleet) == {"pdf": (1, 3)}
    assert not fleet.scheduler.repair()


def test_a_count_that_is_no_number_keeps_no_call_from_waiting_and_running(fleet):
    fleet.scheduler.client.hset(COUNTS, "pdf", "ghost")
    assert publish(fleet, "a+", "b+")[1].merged
    fleet.join("worker", "pdf")
    assert [claim.job_id for claim in fleet.inbox("worker")] == ["a*"]


def test_calls_whose_key_is_held_are_counted_again_too(fleet):
    rules = "merge=city most=1000 bytes=1000000 key=k limit=1"
    fleet.join("worker", "excel")
    fleet.publish("holds!", "excel", rules="key=k limit=1")
    fleet.scheduler.publish(*fleet.made(["a+!", "b+!"], "pdf", rules=rules))
    fleet.scheduler.client.delete(COUNTS)
    assert fleet.scheduler.repair()
    assert waiting(fleet) == {"pdf": (1, 2)}


def test_a_count_of_a_type_without_jobs_goes(fleet):
    fleet.scheduler.client.hset(COUNTS, "pdf", 7)
    assert fleet.scheduler.repair()
    assert not fleet.scheduler.client.exists(COUNTS)


def test_the_calls_of_very_many_jobs_are_not_counted_again_at_once(fleet):
    fleet.scheduler.publish(*fleet.made([f"job{n}" for n in range(MAX_RECOUNTED)], "pdf"))
    fleet.scheduler.advance(1)
    publish(fleet, "a+", "b+")
    fleet.scheduler.client.delete(COUNTS)
    assert not fleet.scheduler.repair()
    fleet.join("worker", "pdf")  # one job runs
    assert fleet.scheduler.repair()
    assert waiting(fleet) == {"pdf": (MAX_RECOUNTED, MAX_RECOUNTED + 1)}


def test_calls_that_wait_for_more_are_not_counted_so_a_purge_of_them_counts_none_off(fleet):
    for number in range(MAX_PURGED + 5):
        fleet.publish(f"plain-{number}", "pdf")
    fleet.scheduler.advance(1)
    publish(fleet, "a+", "b+", "c+")
    rules = "merge=other most=1000 bytes=1000000 wait=9000000/9000000"
    fleet.scheduler.publish(*fleet.made(["p+", "q+"], "pdf", task_name="tests.task", rules=rules))
    fleet.scheduler._run("purge", ["p*"], type="pdf")
    assert waiting(fleet) == {"pdf": (6, 8)}
