"""`split_batch`: calls that a run refuses become another run. The conformance test covers the rest."""

from celery_affinity.clock import SECOND_US

RULES = "merge=city most=1000 bytes=1000000"


def publish(fleet, *ids, rules=RULES, **fields):
    return fleet.scheduler.publish(*fleet.made(ids, "pdf", task_name="tests.task", rules=rules, **fields))


def claimed(fleet, *ids, slots=1, **fields):
    publish(fleet, *ids, **fields)
    return fleet.join_and_claim("worker", "pdf", slots=slots)


def test_split_off_calls_are_their_own_run_in_order(fleet):
    batch = claimed(fleet, "a+", "b+", "c+", "d+", slots=2)
    assert fleet.scheduler.split_batch(batch.job_id, ["c+", "d+"], fence=batch.fence) == 2
    (part,) = fleet.inbox("worker")
    assert (part.job_id, part.message, part.deliveries) == ("c*", b"message of c+", 0)
    for claim, others in ((batch, ["b+"]), (part, ["d+"])):
        page = fleet.scheduler.batch_calls(claim.job_id, fence=claim.fence)
        assert [each.job_id for each in page.callers] == others


def test_repeated_split_changes_nothing(fleet):
    batch = claimed(fleet, "a+", "b+", "c+")
    assert fleet.scheduler.split_batch(batch.job_id, ["b+", "c+"], fence=batch.fence) == 2
    assert fleet.scheduler.split_batch(batch.job_id, ["b+", "c+"], fence=batch.fence) == 0
    assert fleet.scheduler.split_batch(batch.job_id, ["a+"], fence=batch.fence) == 0, "it is the worker's"


def test_split_with_a_stale_claim_is_refused(fleet):
    batch = claimed(fleet, "a+", "b+")
    for fence in ("", "0", str(int(batch.fence) + 1)):
        assert fleet.scheduler.split_batch(batch.job_id, ["b+"], fence=fence) == -1
    fleet.end("worker", batch)
    assert fleet.scheduler.split_batch(batch.job_id, ["b+"], fence=batch.fence) == -1


def test_ended_call_does_not_prevent_the_others_split(fleet):
    batch = claimed(fleet, "a+", "b+", "c+")
    fleet.scheduler.revoke(["task-b+"], [], keep_s=60)
    assert fleet.scheduler.split_batch(batch.job_id, ["b+", "c+"], fence=batch.fence) == 1
    assert (fleet.state("b+"), fleet.state("c*")) == ("revoked", "pending")


def test_split_off_run_has_its_oldest_calls_age(fleet):
    publish(fleet, "a+")
    fleet.scheduler.advance(1)
    at_us = fleet.scheduler.now_us
    publish(fleet, "b+")
    fleet.scheduler.advance(1)
    publish(fleet, "c+")
    fleet.publish("later", "pdf")
    batch = fleet.join_and_claim("worker", "pdf")
    fleet.scheduler.split_batch(batch.job_id, ["b+", "c+"], fence=batch.fence)
    (following,) = fleet.end("worker", batch)
    assert (following.job_id, following.enqueued_us) == ("b*", at_us)
    assert fleet.end("worker", following)[0].job_id == "later"


def test_split_off_run_has_its_most_urgent_calls_priority(fleet):
    publish(fleet, "a+")
    publish(fleet, "b+", priority=9)
    publish(fleet, "c+")
    fleet.publish("other", "pdf", priority=5)
    batch = fleet.join_and_claim("worker", "pdf")
    fleet.scheduler.split_batch(batch.job_id, ["b+", "c+"], fence=batch.fence)
    assert fleet.end("worker", batch)[0].job_id == "b*"


def test_call_named_twice_is_split_off_once(fleet):
    batch = claimed(fleet, "a+", "b+", "c+")
    assert fleet.scheduler.split_batch(batch.job_id, ["b+", "c+", "b+"], fence=batch.fence) == 2


def test_split_off_run_accepts_calls_up_to_its_bytes(fleet):
    two = f"merge=city most=1000 bytes={2 * len('message of a+')}"
    batch = claimed(fleet, "a+", "b+", rules=two)
    fleet.scheduler.split_batch(batch.job_id, ["b+"], fence=batch.fence)
    publish(fleet, "c+", "d+", rules=two)
    assert (fleet.state("c+"), fleet.state("d+")) == ("merged", "pending")


def test_new_calls_join_the_last_open_split_off_run(fleet):
    batch = claimed(fleet, "a+", "b+", "c+")
    fleet.scheduler.split_batch(batch.job_id, ["c+"], fence=batch.fence)
    fleet.scheduler.advance(1)
    assert publish(fleet, "d+")[0].merged
    assert fleet.scheduler.split_batch(batch.job_id, ["b+"], fence=batch.fence) == 1
    assert publish(fleet, "e+")[0].merged
    fleet.end("worker", batch, inline=False)
    (following,) = fleet.inbox("worker")
    assert (following.job_id, fleet.state("c*")) == ("b*", "pending"), "e+ went where d+ did"


def test_split_off_run_has_no_merge_window(fleet):
    batch = claimed(fleet, "a+", "b+", rules=f"{RULES} wait=60000000/60000000", on_demand=True)
    assert fleet.scheduler.split_batch(batch.job_id, ["b+"], fence=batch.fence) == 1
    assert fleet.state("b*") == "pending"


def test_split_off_calls_wait_for_the_runs_key(fleet):
    batch = claimed(fleet, "a+!", "b+!", slots=2, rules=f"{RULES} key=k limit=1")
    assert fleet.scheduler.split_batch(batch.job_id, ["b+!"], fence=batch.fence) == 1
    assert fleet.jobs("worker") == []
    (following,) = fleet.end("worker", batch)
    assert following.job_id == "b*!"


def test_requeued_run_excludes_split_off_calls(fleet):
    batch = claimed(fleet, "a+", "b+", "c+")
    fleet.scheduler.split_batch(batch.job_id, ["c+"], fence=batch.fence)
    (again,) = fleet.end("worker", batch, outcome="unsettled")
    assert (again.job_id, again.deliveries) == ("a*", 1)
    page = fleet.scheduler.batch_calls(again.job_id, fence=again.fence)
    assert [each.job_id for each in page.callers] == ["b+"]
    (following,) = fleet.end("worker", again)
    assert following.job_id == "c*"


def test_expired_split_off_calls_leave_no_data(fleet, redis_client):
    publish(fleet, "a+")
    publish(fleet, "b+", "c+", expires_us=SECOND_US)
    batch = fleet.join_and_claim("worker", "pdf")
    fleet.scheduler.split_batch(batch.job_id, ["b+", "c+"], fence=batch.fence)
    fleet.scheduler.advance(2)
    fleet.sync("worker")
    fleet.scheduler.tick()
    assert (fleet.state("b+"), fleet.state("c+"), fleet.state("b*")) == ("expired", "expired", None)
    assert not redis_client.keys("*lane:queued*") + redis_client.keys("*merging")
