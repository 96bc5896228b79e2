"""Waiting calls are counted in addition to jobs. The conformance test covers every path of a batch."""

import pytest

from celery_affinity.reports.status import Report
from celery_affinity.schema.constants import MAX_PURGED, MAX_RECOUNTED
from celery_affinity.schema.keys import Keys

COUNTS = Keys().key("waiting_calls")


def publish(fleet, *ids, key="city", **fields):
    rules = f"merge={key} most=1000 bytes=1000000"
    return fleet.scheduler.publish(*fleet.made(ids, "pdf", task_name="tests.task", rules=rules, **fields))


def waiting(fleet):
    """Return the pending jobs and the pending calls of each type that has either."""
    types = Report(fleet.scheduler.reader).status().types
    return {each.type: (each.pending, each.calls) for each in types if each.calls}


def test_batch_counts_as_several_and_jobs_as_one(fleet):
    publish(fleet, "a+", "b+", "c+")
    publish(fleet, "d+", key="another")
    fleet.publish("plain", "pdf")
    fleet.publish("other", "excel")
    assert waiting(fleet) == {"pdf": (3, 5), "excel": (1, 1)}


def test_calls_are_counted_again_after_a_requeue(fleet):
    publish(fleet, "a+", "b+", "c+")
    claim = fleet.join_and_claim("worker", "pdf")
    assert waiting(fleet) == {}
    fleet.scheduler.leave("worker")
    assert waiting(fleet) == {"pdf": (1, 3)}
    fleet.scheduler.revoke([f"task-{claim.job_id[:-1]}+"], [], keep_s=60)
    assert waiting(fleet) == {"pdf": (1, 2)}
    fleet.scheduler.purge("pdf")
    assert not fleet.scheduler.client.exists(COUNTS)


def test_calls_removed_singly_leave_no_count(fleet):
    publish(fleet, "a+", "b+")
    fleet.scheduler.revoke(["task-a+"], [], keep_s=60)
    fleet.scheduler.revoke(["task-b+"], [], keep_s=60)
    assert not fleet.scheduler.client.exists(COUNTS)


def test_call_that_leaves_a_run_is_not_uncounted_twice(fleet):
    publish(fleet, "a+", "b+")
    publish(fleet, "c+", "d+", key="another")
    fleet.join("worker", "pdf")
    assert waiting(fleet) == {"pdf": (1, 2)}
    fleet.scheduler.revoke(["task-b+"], [], keep_s=60)
    assert waiting(fleet) == {"pdf": (1, 2)}


def test_calls_moved_to_another_lane_are_counted_once(fleet):
    publish(fleet, "a+", "b+")
    publish(fleet, "c+", priority=9)
    assert waiting(fleet) == {"pdf": (1, 3)}


def test_collecting_calls_never_change_the_count(fleet):
    publish(fleet, "a+", "b+")
    patient = "merge=other most=1000 bytes=1000000 wait=60000000/60000000"
    fleet.scheduler.publish(*fleet.made(["c+", "d+"], "pdf", rules=patient))
    fleet.scheduler.publish(*fleet.made(["e+"], "pdf", rules=patient, priority=9))
    assert waiting(fleet) == {"pdf": (1, 2)}


@pytest.mark.parametrize("wrong", ["7", "-3", "ghost", None], ids=["too many", "below 0", "no number", "none"])
def test_repair_recounts_the_calls(fleet, wrong):
    publish(fleet, "a+", "b+", "c+")
    fleet.scheduler.client.hdel(COUNTS, "pdf")
    if wrong:
        fleet.scheduler.client.hset(COUNTS, "pdf", wrong)
    assert fleet.scheduler.repair()
    assert waiting(fleet) == {"pdf": (1, 3)}
    assert not fleet.scheduler.repair()


def test_invalid_count_blocks_no_call(fleet):
    fleet.scheduler.client.hset(COUNTS, "pdf", "ghost")
    assert publish(fleet, "a+", "b+")[1].merged
    fleet.join("worker", "pdf")
    assert [claim.job_id for claim in fleet.inbox("worker")] == ["a*"]


def test_calls_blocked_by_a_key_are_recounted_too(fleet):
    rules = "merge=city most=1000 bytes=1000000 key=k limit=1"
    fleet.join("worker", "excel")
    fleet.publish("holds!", "excel", rules="key=k limit=1")
    fleet.scheduler.publish(*fleet.made(["a+!", "b+!"], "pdf", rules=rules))
    fleet.scheduler.client.delete(COUNTS)
    assert fleet.scheduler.repair()
    assert waiting(fleet) == {"pdf": (1, 2)}


def test_count_of_a_type_without_jobs_is_deleted(fleet):
    fleet.scheduler.client.hset(COUNTS, "pdf", 7)
    assert fleet.scheduler.repair()
    assert not fleet.scheduler.client.exists(COUNTS)


def test_calls_of_many_jobs_are_recounted_in_parts(fleet):
    fleet.scheduler.publish(*fleet.made([f"job{n}" for n in range(MAX_RECOUNTED)], "pdf"))
    fleet.scheduler.advance(1)
    publish(fleet, "a+", "b+")
    fleet.scheduler.client.delete(COUNTS)
    assert not fleet.scheduler.repair()
    fleet.join("worker", "pdf")  # one job runs
    assert fleet.scheduler.repair()
    assert waiting(fleet) == {"pdf": (MAX_RECOUNTED, MAX_RECOUNTED + 1)}


def test_purge_of_collecting_calls_leaves_the_count(fleet):
    for number in range(MAX_PURGED + 5):
        fleet.publish(f"plain-{number}", "pdf")
    fleet.scheduler.advance(1)
    publish(fleet, "a+", "b+", "c+")
    rules = "merge=other most=1000 bytes=1000000 wait=9000000/9000000"
    fleet.scheduler.publish(*fleet.made(["p+", "q+"], "pdf", task_name="tests.task", rules=rules))
    fleet.scheduler._run("purge", ["p*"], type="pdf")
    assert waiting(fleet) == {"pdf": (6, 8)}
