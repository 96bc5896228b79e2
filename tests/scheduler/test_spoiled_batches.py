"""Another client deletes or overwrites a batch's hash: its calls are requeued or reported, and none waits forever."""

import pytest

from celery_affinity.scheduler.messages import EndArguments
from celery_affinity.schema.keys import Keys
from celery_affinity.schema.values import encode_part

RULES = "merge=city most=1000 bytes=1000000"
BATCH = "a*"
ROW = Keys().key("job", BATCH)


def publish(fleet, *ids, rules=RULES):
    return fleet.scheduler.publish(*fleet.made(ids, "pdf", task_name="tests.task", rules=rules))


def _delete(client):
    client.delete(ROW)


def _overwrite(client):
    client.set(ROW, "ghost")


def _spoil(client):
    client.delete(ROW)
    client.hset(ROW, mapping={"lane": "ghost", "enqueued": "x", "worker": "ghost"})


each_fault = pytest.mark.parametrize("lose", [_delete, _overwrite, _spoil], ids=["deleted", "another type", "ghost"])


def end_and_tell(fleet, claim):
    """End the run of *claim*, and report it to the other calls. Return the ids of all calls, in order."""
    page = fleet.scheduler.batch_calls(claim.job_id, fence=claim.fence)
    others = [each.job_id for each in page.callers]
    first = fleet.scheduler.client.hget(ROW, "primary").decode()
    fleet.scheduler.ack_batch_reports(claim.job_id, others, fence=claim.fence)
    fleet.end("worker", claim)
    while ending := fleet.scheduler.next_report("app", again_s=5):
        page = fleet.scheduler.batch_calls(ending.job_id)
        fleet.scheduler.ack_batch_reports(ending.job_id, [each.job_id for each in page.callers])
    return [first, *others]


@each_fault
@pytest.mark.parametrize("repairs", [True, False], ids=["repaired", "met by a claim"])
def test_pending_batch_runs_with_all_its_calls(fleet, lose, repairs):
    publish(fleet, "a+", "b+", "c+")
    lose(fleet.scheduler.client)
    if repairs:
        assert any(BATCH in each for each in fleet.scheduler.repair())
    claim = fleet.join_and_claim("worker", "pdf")
    assert (claim.job_id, claim.message) == (BATCH, b"message of a+")
    assert end_and_tell(fleet, claim) == ["a+", "b+", "c+"]
    client = fleet.scheduler.client
    assert all(client.ttl(each) > 0 for each in client.scan_iter("*job:*")), "all expire"


@each_fault
def test_requeued_batch_runs_with_all_its_calls(fleet, lose):
    publish(fleet, "a+", "b+", "c+")
    claim = fleet.join_and_claim("worker", "pdf")
    lose(fleet.scheduler.client)
    (again,) = fleet.end("worker", claim, outcome="unsettled") or fleet.inbox("worker")
    assert end_and_tell(fleet, again) == ["a+", "b+", "c+"]
    assert not publish(fleet, "d+")[0].merged


@each_fault
def test_batch_of_many_calls_is_rebuilt_and_stays_open(fleet, lose):
    publish(fleet, *(f"{name}+" for name in "abcdefghijklmno"))
    client = fleet.scheduler.client
    before = client.hmget(ROW, "type", "lane", "enqueued", "name", "rules", "calls")
    lose(client)
    fleet.scheduler.repair()
    assert client.hmget(ROW, "type", "lane", "enqueued", "name", "rules", "calls") == before
    assert not client.hexists(Keys().key("job", "o+"), "rules")
    fleet.scheduler.purge("pdf")
    assert not client.exists(Keys().key("merging"))


@each_fault
def test_calls_of_a_returned_batch_are_revoked_singly(fleet, lose):
    publish(fleet, "a+", "b+", "c+")
    fleet.join("worker", "pdf")
    lose(fleet.scheduler.client)
    fleet.scheduler.leave("worker")
    assert fleet.state(BATCH) == "pending"
    assert fleet.scheduler.revoke(["task-b+"], [], keep_s=60).jobs == 1
    assert fleet.state("b+") == "revoked"


def test_claim_rebuilds_the_hash_from_the_calls(fleet):
    publish(fleet, "a+", "b+")
    fleet.scheduler.client.delete(ROW)
    fleet.join("worker", "pdf")
    assert fleet.scheduler.client.hmget(ROW, "name", "task", "rules") == [b"tests.task", b"task-a%2B", b"merge=city"]


@each_fault
@pytest.mark.parametrize("outcome", ["acked", "failed", "rejected"])
def test_calls_of_an_ended_run_are_reported(fleet, lose, outcome):
    publish(fleet, "a+", "b+", "c+")
    claim = fleet.join_and_claim("worker", "pdf")
    lose(fleet.scheduler.client)
    fleet.end("worker", claim, outcome=outcome)
    ending = fleet.scheduler.next_report("app", again_s=5)
    assert (ending.job_id, ending.task_name) == (BATCH, "tests.task")
    page = fleet.scheduler.batch_calls(BATCH)
    assert [each.job_id for each in page.callers] == ["a+", "b+", "c+"]


@each_fault
def test_calls_of_an_unreported_batch_are_reported(fleet, lose):
    publish(fleet, "a+", "b+", "c+")
    claim = fleet.join_and_claim("worker", "pdf")
    fleet.end("worker", claim)
    lose(fleet.scheduler.client)
    ending = fleet.scheduler.next_report("app", again_s=5)
    assert (ending.job_id, ending.how) == (BATCH, "")
    fleet.scheduler.set_aside([BATCH])
    fleet.scheduler.advance(6)
    assert fleet.scheduler.next_report("app", again_s=5).task_name == "tests.task"
    assert [each.job_id for each in fleet.scheduler.batch_calls(BATCH).callers] == ["b+", "c+"]


def test_claim_of_a_batch_is_repaired(fleet):
    publish(fleet, "a+", "b+")
    claim = fleet.join_and_claim("worker", "pdf")
    fleet.scheduler.client.delete(ROW)
    assert any(BATCH in each for each in fleet.scheduler.repair())
    assert fleet.scheduler.client.hmget(ROW, "state", "fence", "name") == [
        b"claimed",
        claim.fence.encode(),
        b"tests.task",
    ]
    fleet.end("worker", claim)
    assert fleet.scheduler.next_report("app", again_s=5).how == "shared"


def test_batch_with_a_key_is_pending_again(fleet):
    publish(fleet, "a+!", "b+!", rules=f"{RULES} key=k limit=1")
    fleet.scheduler.client.delete(Keys().key("job", "a*!"))
    fleet.scheduler.repair()
    claim = fleet.join_and_claim("worker", "pdf")
    assert claim.job_id == "a*!"
    assert fleet.scheduler.client.zcard(Keys().key("held", "k")) == 1
    fleet.scheduler.release_and_claim(
        "worker", acks=[], ends=[EndArguments(*claim[:2], "acked")], sequence=1, inline=True
    )
    assert not fleet.scheduler.client.exists(Keys().key("held", "k"))


def test_calls_of_a_lost_batch_are_requeued_when_named(fleet):
    publish(fleet, "a+", "b+")
    client = fleet.scheduler.client
    client.delete(ROW, Keys().key("callers", BATCH), Keys().key("merging"))
    fleet.scheduler.repair(["a+", encode_part("task-b+")])
    assert (fleet.state("a+"), fleet.state("b+")) == ("pending", "pending")
    fleet.scheduler.purge("pdf")
    assert not client.keys("*job:*")
