"""Metrics count runs of several calls by size, and their calls by type. The conformance test covers the rest."""

import pytest

from celery_affinity.reports.status import Batches, Report
from celery_affinity.schema.constants import LARGEST_BATCH_COUNTED

RULES = "merge=city most=1000000 bytes=1000000000"


def publish(fleet, *ids, **fields):
    return fleet.scheduler.publish(*fleet.made(ids, "pdf", task_name="tests.task", rules=RULES, **fields))


def claimed(fleet, *ids, slots=1):
    publish(fleet, *ids)
    return fleet.join_and_claim("worker", "pdf", slots=slots)


def counts(fleet):
    """Return the counted runs, and the counted calls of each type."""
    status = Report(fleet.scheduler.reader).status()
    return status.batches, {each.type: each.ran_merged for each in status.types if each.ran_merged}


@pytest.mark.parametrize(("calls", "counted_as"), [(2, "2"), (3, "4"), (4, "4"), (5, "8")])
def test_run_is_counted_once_it_has_ended(fleet, calls, counted_as):
    batch = claimed(fleet, *(f"{n}+" for n in range(calls)))
    assert counts(fleet) == (Batches(), {})
    fleet.end("worker", batch)
    assert counts(fleet) == (Batches({counted_as: 1}, calls), {"pdf": calls})


def test_very_large_run_is_counted_as_more(fleet, redis_client):
    batch = claimed(fleet, "a+", "b+")
    redis_client.hset(fleet.scheduler.keys.key("job", batch.job_id), "size", LARGEST_BATCH_COUNTED + 1)
    fleet.end("worker", batch)
    assert counts(fleet)[0] == Batches({"more": 1}, LARGEST_BATCH_COUNTED + 1)


def test_calls_reported_during_the_run_are_counted(fleet):
    batch = claimed(fleet, "a+", "b+", "c+")
    fleet.scheduler.ack_batch_reports(batch.job_id, ["b+", "c+"], fence=batch.fence)
    fleet.end("worker", batch)
    assert counts(fleet)[0] == Batches({"4": 1}, 3)


def test_run_without_remaining_calls_is_not_counted(fleet):
    batch = claimed(fleet, "a+", "b+")
    fleet.scheduler.revoke(["task-b+"], [], keep_s=60)
    fleet.end("worker", batch, outcome="revoked")
    assert counts(fleet) == (Batches(), {})


def test_calls_removed_before_the_run_are_not_counted(fleet):
    publish(fleet, "a+", "b+", "c+", "d+")
    fleet.scheduler.revoke(["task-a+"], [], keep_s=60)
    batch = fleet.join_and_claim("worker", "pdf")
    fleet.end("worker", batch)
    assert counts(fleet)[0] == Batches({"4": 1}, 3)


def test_split_off_calls_are_counted_in_their_own_run(fleet):
    batch = claimed(fleet, "a+", "b+", "c+", "d+", "e+", slots=2)
    fleet.scheduler.split_batch(batch.job_id, ["c+", "d+", "e+"], fence=batch.fence)
    (part,) = fleet.inbox("worker")
    fleet.end("worker", batch)
    fleet.end("worker", part)
    assert counts(fleet) == (Batches({"2": 1, "4": 1}, 5), {"pdf": 5})


def test_call_that_ran_alone_is_not_counted(fleet):
    batch = claimed(fleet, "a+", "b+", slots=2)
    fleet.scheduler.split_batch(batch.job_id, ["b+"], fence=batch.fence)
    (part,) = fleet.inbox("worker")
    for each in (batch, part):
        fleet.end("worker", each)
    publish(fleet, "c+")
    (alone,) = fleet.inbox("worker")
    fleet.end("worker", alone)
    assert counts(fleet) == (Batches(), {})


def test_repeated_run_is_counted_once(fleet):
    batch = claimed(fleet, "a+", "b+", "c+")
    (again,) = fleet.end("worker", batch, outcome="unsettled")
    fleet.end("worker", again)
    assert counts(fleet)[0] == Batches({"4": 1}, 3)


def test_corrupt_size_is_not_counted_and_blocks_no_split(fleet, redis_client):
    batch = claimed(fleet, "a+", "b+", "c+", slots=2)
    redis_client.hset(fleet.scheduler.keys.key("job", batch.job_id), "size", "spoiled")
    assert fleet.scheduler.split_batch(batch.job_id, ["c+"], fence=batch.fence) == 1
    fleet.end("worker", batch)
    assert counts(fleet) == (Batches(), {})


def test_call_counts_end_with_the_types_last_worker(fleet):
    fleet.end("worker", claimed(fleet, "a+", "b+"))
    fleet.scheduler.leave("worker")
    publish(fleet, "c+")
    assert counts(fleet) == (Batches({"2": 1}, 2), {})
