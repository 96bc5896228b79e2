"""`part`: calls that a run does not take are a run of their own. The conformance test has the rest."""

from celery_affinity.clock import SECOND_US

RULES = "merge=city most=1000 bytes=1000000"


def publish(fleet, *ids, rules=RULES, **fields):
    return fleet.scheduler.publish(*fleet.made(ids, "pdf", task_name="tests.task", rules=rules, **fields))


def claimed(fleet, *ids, slots=1, **fields):
    publish(fleet, *ids, **fields)
    fleet.join("worker", "pdf", slots=slots)
    (claim,) = fleet.inbox("worker")
    return claim


def test_the_calls_that_go_are_a_run_of_their_own_in_their_order(fleet):
    batch = claimed(fleet, "a+", "b+", "c+", "d+", slots=2)
    assert fleet.scheduler.split_batch(batch.job_id, ["c+", "d+"], fence=batch.fence) == 2
    (part,) = fleet.inbox("worker")
    assert (part.job_id, part.message, part.deliveries) == ("c*", b"message of c+", 0)
    for claim, others in ((batch, ["b+"]), (part, ["d+"])):
        page = fleet.scheduler.batch_calls(claim.job_id, fence=claim.fence)
        assert [each.job_id for each in page.callers] == others


def test_a_repeated_call_changes_nothing(fleet):
    batch = claimed(fleet, "a+", "b+", "c+")
    assert fleet.scheduler.split_batch(batch.job_id, ["b+", "c+"], fence=batch.fence) == 2
    assert fleet.scheduler.split_batch(batch.job_id, ["b+", "c+"], fence=batch.fence) == 0
    assert fleet.scheduler.split_batch(batch.job_id, ["a+"], fence=batch.fence) == 0, "it is the worker's"


def test_who_holds_the_batch_no_more_sends_nothing_back(fleet):
    batch = claimed(fleet, "a+", "b+")
    for fence in ("", "0", str(int(batch.fence) + 1)):
        assert fleet.scheduler.split_batch(batch.job_id, ["b+"], fence=fence) == -1
    fleet.end("worker", batch)
    assert fleet.scheduler.split_batch(batch.job_id, ["b+"], fence=batch.fence) == -1


def test_a_call_that_has_ended_meanwhile_keeps_no_other_from_going(fleet):
    batch = claimed(fleet, "a+", "b+", "c+")
    fleet.scheduler.revoke(["task-b+"], [], keep_s=60)
    assert fleet.scheduler.split_batch(batch.job_id, ["b+", "c+"], fence=batch.fence) == 1
    assert (fleet.state("b+"), fleet.state("c*")) == ("revoked", "pending")


def test_what_goes_is_as_old_as_its_oldest_call_and_goes_before_what_came_later(fleet):
    publish(fleet, "a+")
    fleet.scheduler.advance(1)
    at_us = fleet.scheduler.now_us
    publish(fleet, "b+")
    fleet.scheduler.advance(1)
    publish(fleet, "c+")
    fleet.publish("later", "pdf")
    fleet.join("worker", "pdf")
    (batch,) = fleet.inbox("worker")
    fleet.scheduler.split_batch(batch.job_id, ["b+", "c+"], fence=batch.fence)
    (following,) = fleet.end("worker", batch)
    assert (following.job_id, following.enqueued_us) == ("b*", at_us)
    assert fleet.end("worker", following)[0].job_id == "later"


def test_what_goes_is_as_urgent_as_the_most_urgent_of_its_calls(fleet):
    publish(fleet, "a+")
    publish(fleet, "b+", priority=9)
    publish(fleet, "c+")
    fleet.publish("other", "pdf", priority=5)
    fleet.join("worker", "pdf")
    (batch,) = fleet.inbox("worker")
    fleet.scheduler.split_batch(batch.job_id, ["b+", "c+"], fence=batch.fence)
    assert fleet.end("worker", batch)[0].job_id == "b*"


def test_a_call_that_is_named_twice_goes_once(fleet):
    batch = claimed(fleet, "a+", "b+", "c+")
    assert fleet.scheduler.split_batch(batch.job_id, ["b+", "c+", "b+"], fence=batch.fence) == 2


def test_what_goes_has_as_much_room_for_newcomers_as_its_messages_leave(fleet):
    two = f"merge=city most=1000 bytes={2 * len('message of a+')}"
    batch = claimed(fleet, "a+", "b+", rules=two)
    fleet.scheduler.split_batch(batch.job_id, ["b+"], fence=batch.fence)
    publish(fleet, "c+", "d+", rules=two)
    assert (fleet.state("c+"), fleet.state("d+")) == ("merged", "pending")


def test_newcomers_join_what_goes_unless_something_else_is_open(fleet):
    batch = claimed(fleet, "a+", "b+", "c+")
    fleet.scheduler.split_batch(batch.job_id, ["c+"], fence=batch.fence)
    fleet.scheduler.advance(1)
    assert publish(fleet, "d+")[0].merged
    assert fleet.scheduler.split_batch(batch.job_id, ["b+"], fence=batch.fence) == 1
    assert publish(fleet, "e+")[0].merged
    fleet.end("worker", batch, inline=False)
    (following,) = fleet.inbox("worker")
    assert (following.job_id, fleet.state("c*")) == ("b*", "pending"), "e+ went where d+ did"


def test_what_goes_waits_for_no_more_calls(fleet):
    batch = claimed(fleet, "a+", "b+", rules=f"{RULES} wait=60000000/60000000", on_demand=True)
    assert fleet.scheduler.split_batch(batch.job_id, ["b+"], fence=batch.fence) == 1
    assert fleet.state("b*") == "pending"


def test_what_goes_waits_for_the_key_that_the_run_holds(fleet):
    batch = claimed(fleet, "a+!", "b+!", slots=2, rules=f"{RULES} key=k limit=1")
    assert fleet.scheduler.split_batch(batch.job_id, ["b+!"], fence=batch.fence) == 1
    assert fleet.jobs("worker") == []
    (following,) = fleet.end("worker", batch)
    assert following.job_id == "b*!"


def test_calls_of_a_run_that_comes_back_are_not_those_that_went(fleet):
    batch = claimed(fleet, "a+", "b+", "c+")
    fleet.scheduler.split_batch(batch.job_id, ["c+"], fence=batch.fence)
    (again,) = fleet.end("worker", batch, outcome="unsettled")
    assert (again.job_id, again.deliveries) == ("a*", 1)
    page = fleet.scheduler.batch_calls(again.job_id, fence=again.fence)
    assert [each.job_id for each in page.callers] == ["b+"]
    (following,) = fleet.end("worker", again)
    assert following.job_id == "c*"


def test_all_calls_that_go_expire_and_leave_nothing(fleet, redis_client):
    publish(fleet, "a+")
    publish(fleet, "b+", "c+", expires_us=SECOND_US)
    fleet.join("worker", "pdf")
    (batch,) = fleet.inbox("worker")
    fleet.scheduler.split_batch(batch.job_id, ["b+", "c+"], fence=batch.fence)
    fleet.scheduler.advance(2)
    fleet.sync("worker")
    fleet.scheduler.tick()
    assert (fleet.state("b+"), fleet.state("c+"), fleet.state("b*")) == ("expired", "expired", None)
    assert not redis_client.keys("*lane:queued*") + redis_client.keys("*merging")
