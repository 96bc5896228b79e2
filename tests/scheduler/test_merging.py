"""Merged calls: one run for several calls, and a result for each caller. The conformance test covers the rest."""

import pytest

from celery_affinity.reports import dead_letters, jobs
from celery_affinity.reports.explain import explain
from celery_affinity.schema.constants import MAX_MOVES, MAX_SHARED
from celery_affinity.schema.job_record import NewJob
from celery_affinity.schema.keys import Keys
from celery_affinity.schema.rules_codec import decode_rules

from ..support.counting import Counting
from ..support.full_server import full_server
from ..support.kept_rules import kept_rules
from ..support.scripted_fleet import ScriptedFleet

RULES = "merge=city most=1000 bytes=1000000"


def publish(fleet, *ids, rules=RULES, **fields):
    return fleet.scheduler.publish(*fleet.made(ids, "pdf", task_name="tests.task", rules=rules, **fields))


def claimed(fleet, *ids, **fields):
    """Publish calls that merge, and join a worker. Return the claim of their batch."""
    publish(fleet, *ids, **fields)
    return fleet.join_and_claim("worker", "pdf")


def names(page):
    return [caller.job_id for caller in page.callers]


def test_merged_calls_are_one_run_with_the_first_message(fleet):
    published = publish(fleet, "a+", "b+", "c+")
    assert [each.merged for each in published] == [False, True, True]
    claim = fleet.join_and_claim("worker", "pdf", slots=3)
    assert (claim.job_id, claim.message) == ("a*", b"message of a+")


def test_one_publish_places_its_own_batch(fleet):
    fleet.join("worker", "pdf")
    counting = Counting(fleet.scheduler.client, fleet.scheduler.keys)
    counting.publish(*fleet.made(("a+", "b+"), "pdf", task_name="tests.task", rules=RULES))
    assert [arrow for arrow, *_ in counting.calls] == ["publish"]
    (claim,) = fleet.inbox("worker")
    assert (claim.job_id, claim.message) == ("a*", b"message of a+")


def test_claimed_batch_is_joined_by_no_call(fleet):
    claimed(fleet, "a+", "b+")
    assert [each.merged for each in publish(fleet, "c+", "d+")] == [False, True]


def test_other_merge_keys_tasks_types_or_keys_run_separately(fleet):
    publish(fleet, "a+")
    assert not publish(fleet, "b+", rules="merge=other most=1000 bytes=1000000")[0].merged
    assert not publish(fleet, "c+!", rules=f"{RULES} key=k limit=1")[0].merged
    made = NewJob("d+", "pdf", "m", task_name="another.task", rules=RULES), NewJob("e+", "excel", "m", rules=RULES)
    assert not any(each.merged for each in fleet.scheduler.publish(*made))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("merge=k most=1000 bytes=1000000", "merge=k"),
        ("merge=k most=1000 bytes=1000000 wait=5/9", "merge=k wait=5/9"),
        ("merge=k most=1000 bytes=10000000", "merge=k most=1000 bytes=10000000"),
        ("merge=k most=10000 bytes=1000000", "merge=k most=10000 bytes=1000000"),
    ],
)
def test_default_limits_of_a_batch_are_not_stored(fleet, given, kept):
    publish(fleet, "a+", rules=given)
    row = fleet.scheduler.client.hget(Keys().key("job", "a+"), "rules").decode()
    assert row == kept == kept_rules(given)
    assert decode_rules(row).merge == decode_rules(given).merge


def test_call_without_stored_rules_is_explained_and_reported(fleet):
    ids = [f"{name}+" for name in "abcdefghijkl"]
    publish(fleet, *ids)
    says_rules = [fleet.scheduler.client.hexists(Keys().key("job", each), "rules") for each in ids]
    assert says_rules == [number <= MAX_MOVES for number in range(1, 13)]
    found = explain(fleet.scheduler.reader, "task-l+")
    assert (found.state, found.calls, found.deliveries) == ("pending", 12, 0)
    assert found.note == "merged with 11 other call(s) of 'city'"
    fleet.scheduler.revoke(["task-l+"], [], keep_s=60)
    ending = fleet.scheduler.next_report("app", again_s=5)
    assert (ending.job_id, ending.how, ending.task_name, ending.deliveries) == ("l+", "revoked", "tests.task", 0)


def test_calls_are_read_in_pages_and_reported_singly(fleet):
    batch = claimed(fleet, "a+", "b+", "c+", "d+")
    scheduler = fleet.scheduler
    page = scheduler.batch_calls(batch.job_id, fence=batch.fence, max_calls=2)
    assert names(page) == ["b+"], "the first one is the worker's"
    assert names(scheduler.batch_calls(batch.job_id, fence=batch.fence, after=page.after)) == ["c+", "d+"]
    assert [(each.task_id, each.message) for each in page.callers] == [("task-b+", b"message of b+")]
    assert scheduler.ack_batch_reports(batch.job_id, ["b+", "c+"], fence=batch.fence) == 1
    assert scheduler.ack_batch_reports(batch.job_id, ["d+"], fence=batch.fence, outcome="failed KeyError: d") == 0
    fleet.end("worker", batch)
    assert [fleet.state(job) for job in ("a+", "b+", "c+", "d+", "a*")] == ["done", "done", "done", "failed", "done"]
    assert [jobs.get_jobs(scheduler.reader, [f"task-{each}+"])[0].why for each in "bcd"] == [None, None, "KeyError: d"]
    assert scheduler.next_report("app", again_s=5) is None


def published_us(fleet, batch):
    page = fleet.scheduler.batch_calls(batch.job_id, fence=batch.fence)
    return {"primary": page.primary_us} | {caller.job_id: caller.published_us for caller in page.callers}


def test_each_call_keeps_its_publish_time_even_if_scheduled(fleet):
    began_us = fleet.scheduler.now_us
    publish(fleet, "a+", delay_us=10_000_000)
    fleet.scheduler.advance(4)
    publish(fleet, "b+", "c+", delay_us=6_000_000)
    fleet.scheduler.advance(5)
    publish(fleet, "d+")
    fleet.scheduler.advance(1.001)
    assert fleet.scheduler.tick().due == 3
    batch = fleet.join_and_claim("worker", "pdf")
    times_us = {name: at_us - began_us for name, at_us in published_us(fleet, batch).items()}
    assert times_us == {"primary": 9_000_000, "a+": 0, "b+": 4_000_000, "c+": 4_000_001}


@pytest.mark.parametrize("delay_us", [0, 1_000_000])
def test_retries_keep_the_publish_time_of_the_first_attempt(fleet, delay_us):
    began_us = fleet.scheduler.now_us
    publish(fleet, "a+")
    claim = fleet.join_and_claim("worker", "pdf")
    for retry in ("b+", "c+"):
        fleet.scheduler.pause("*")
        fleet.scheduler.advance(5)
        fleet.scheduler.publish(
            NewJob("new" + retry, "pdf", "m", task_name="tests.task", rules=RULES),
            NewJob(retry, "pdf", "m", task_id="task-a+", task_name="tests.task", rules=RULES, delay_us=delay_us),
        )
        fleet.end("worker", claim)
        fleet.advance_and_tick(delay_us / 1e6 + 0.001)
        fleet.scheduler.resume("*")
        (claim,) = fleet.inbox("worker")
        assert published_us(fleet, claim)[retry] == began_us
        if retry == "b+":
            fleet.scheduler.ack_batch_reports(claim.job_id, [], fence=claim.fence)


def test_other_fencing_token_neither_reads_nor_reports_calls(fleet):
    batch = claimed(fleet, "a+", "b+")
    for fence in ("", str(int(batch.fence) + 1)):
        assert fleet.scheduler.batch_calls(batch.job_id, fence=fence) is None
        assert fleet.scheduler.ack_batch_reports(batch.job_id, ["b+"], fence=fence) == -1


def test_unreported_calls_are_handed_out_as_one_end(fleet):
    batch = claimed(fleet, "a+", "b+", "c+")
    fleet.end("worker", batch, outcome="failed")
    ending = fleet.scheduler.next_report("app", again_s=5)
    assert (ending.job_id, ending.how, ending.task_id, ending.task_name) == ("a*", "shared", "task-a+", "tests.task")
    assert names(fleet.scheduler.batch_calls("a*")) == ["b+", "c+"]
    fleet.scheduler.ack_report(["a*"])
    fleet.scheduler.advance(6)
    assert fleet.scheduler.next_report("app", again_s=5).job_id == "a*", "its calls do not know"
    assert fleet.scheduler.ack_batch_reports("a*", ["b+", "c+"], outcome="failed") == 0
    fleet.scheduler.advance(60)
    assert fleet.scheduler.next_report("app", again_s=5) is None
    assert [fleet.state(job) for job in ("a+", "b+", "c+")] == ["failed"] * 3


def test_last_revoked_pending_call_ends_the_batch(fleet, redis_client):
    publish(fleet, "a+", "b+")
    fleet.scheduler.revoke(["task-a+"], [], keep_s=60)
    assert (fleet.state("a+"), fleet.state("a*")) == ("revoked", "pending")
    fleet.scheduler.revoke(["task-b+"], [], keep_s=60)
    assert fleet.state("a*") is None
    assert not redis_client.keys("*merging") + redis_client.keys("*callers*") + redis_client.keys("*heads")


def test_call_revoked_in_the_run_is_reported_unless_primary(fleet):
    batch = claimed(fleet, "a+", "b+", "c+")
    fleet.scheduler.revoke(["task-a+", "task-b+"], [], keep_s=60)
    assert (fleet.state("a+"), fleet.state("b+")) == ("merged", "revoked")
    assert names(fleet.scheduler.batch_calls("a*", fence=batch.fence)) == ["c+"]


def test_next_call_runs_after_the_worker_ended_the_primary(fleet):
    batch = claimed(fleet, "a+", "b+", "c+")
    (following,) = fleet.end("worker", batch, outcome="revoked")
    assert (following.job_id, following.message, following.deliveries) == ("a*", b"message of b+", 0)
    assert fleet.state("a+") == "revoked"
    assert not publish(fleet, "d+")[0].merged


@pytest.mark.parametrize("acked", [False, True])
def test_returned_run_is_repeated_for_unrevoked_calls(fleet, acked):
    batch = claimed(fleet, "a+", "b+", "c+")
    if acked:
        fleet.ack("worker", batch)
    fleet.scheduler.revoke(["task-b+"], [], keep_s=60)
    assert fleet.scheduler.reader.runs_of(["task-a+", "task-b+", "task-c+", "task-d+"]) == {
        "task-a+": "a*",
        "task-b+": f"a*:{batch.fence}",
        "task-c+": "a*",
    }
    (again,) = fleet.end("worker", batch, outcome="returned")
    assert (again.message, names(fleet.scheduler.batch_calls("a*", fence=again.fence))) == (b"message of a+", ["c+"])


def test_dead_batch_is_one_letter_with_all_calls(fleet):
    batch = claimed(fleet, "a+", "b+", "c+")
    fleet.end("worker", batch, outcome="rejected")
    assert fleet.scheduler.client.zrange(fleet.scheduler.keys.key("dead"), 0, -1) == [b"a*"]
    ending = fleet.scheduler.next_report("app", again_s=5)
    assert (ending.job_id, ending.how) == ("a*", "rejected")
    assert names(fleet.scheduler.batch_calls("a*")) == ["b+", "c+"], "the worker told the first one"
    assert fleet.scheduler.ack_batch_reports("a*", ["b+", "c+"]) == 0
    assert fleet.scheduler.replay(["a*"]) == ["a*"]
    (again,) = fleet.inbox("worker")
    assert again.message == b"message of a+"
    assert names(fleet.scheduler.batch_calls("a*", fence=again.fence)) == ["b+", "c+"]


@pytest.mark.parametrize("acked", [False, True])
def test_failed_run_is_one_letter_with_all_calls(fleet, acked):
    fleet.join("worker", "other", settings={"keep_failed": True})
    batch = claimed(fleet, "a+", "b+", "c+")
    if acked:
        fleet.ack("worker", batch)
    fleet.end("worker", batch, outcome="failed ValueError: no such page")
    (letter,) = dead_letters.find_letters(fleet.scheduler.reader, dead_letters.LetterFilter())
    assert (letter.job_id, letter.reason, letter.why) == ("a*", "failed", "ValueError: no such page")
    assert (letter.calls, letter.replayable) == (3, True)
    ending = fleet.scheduler.next_report("app", again_s=5)
    assert (ending.job_id, ending.how, ending.task_id) == ("a*", "failed", "task-a+")
    assert names(fleet.scheduler.batch_calls("a*")) == ["b+", "c+"], "the worker told the first one"
    assert fleet.scheduler.ack_batch_reports("a*", ["b+"], outcome="failed ValueError") == 1
    assert fleet.scheduler.replay(["a*"]) == ["a*"]
    (again,) = fleet.inbox("worker")
    assert (again.message, again.deliveries) == (b"message of a+", 0)
    assert names(fleet.scheduler.batch_calls("a*", fence=again.fence)) == ["b+", "c+"]
    assert fleet.scheduler.next_report("app", again_s=5) is None, "who was not told of the first end gets the second"


def test_dead_run_counts_all_calls_reported_or_not(fleet):
    batch = claimed(fleet, "a+", "b+", "c+")
    fleet.end("worker", batch, outcome="rejected")
    for told in ([], ["b+"], ["c+"]):
        fleet.scheduler.ack_batch_reports("a*", told)
        (letter,) = dead_letters.find_letters(fleet.scheduler.reader, dead_letters.LetterFilter())
        found = [explain(fleet.scheduler.reader, f"task-{each}+").calls for each in "abc"]
        found += [each.calls for each in jobs.get_jobs(fleet.scheduler.reader, ["task-a+", "task-c+", "a*"])]
        assert {letter.calls, *found} == {3}, told


def test_dead_run_is_found_and_dropped_by_any_call(fleet):
    batch = claimed(fleet, "a+", "b+", "c+")
    fleet.end("worker", batch, outcome="rejected")
    reader = fleet.scheduler.reader
    for id_ in ("a*", "a+", "b+", "task-a+", "task-c+"):
        (letter,) = dead_letters.find_letters(reader, dead_letters.LetterFilter((id_,)))
        assert (letter.job_id, letter.calls, letter.replayable) == ("a*", 3, True)
    assert dead_letters.find_letters(reader, dead_letters.LetterFilter(("task-c+",), reason="failed")) == []
    assert dead_letters.show_letter(reader, letter).message_bytes == len("message of a+")
    (letter,) = dead_letters.find_letters(reader, dead_letters.LetterFilter(("task-b+", "task-c+")))
    assert fleet.scheduler.drop([letter.job_id]) == 1


def test_dropped_dead_batch_is_deleted_with_its_calls(fleet, redis_client):
    batch = claimed(fleet, "a+", "b+", "c+")
    fleet.end("worker", batch, outcome="rejected")
    assert fleet.scheduler.drop(["a*"]) == 1
    assert names(fleet.scheduler.batch_calls("a*")) == ["b+", "c+"], "they are still to be told"
    fleet.scheduler.ack_batch_reports("a*", ["b+", "c+"])
    assert not redis_client.keys("*job:*") + redis_client.keys("*message:*") + redis_client.keys("*callers*")


def test_purge_deletes_batches_with_their_calls(fleet, redis_client):
    publish(fleet, "a+", "b+", "c+")
    fleet.scheduler.purge("pdf")
    assert not redis_client.keys("*job:*") + redis_client.keys("*message:*") + redis_client.keys("*lane:*")


@pytest.mark.parametrize("later_s", [1, 2])
def test_only_calls_that_expire_before_the_run_are_excluded(fleet, later_s):
    publish(fleet, "a+", expires_us=1_000_000)
    publish(fleet, "b+")
    publish(fleet, "c+", expires_us=3_000_000)
    fleet.scheduler.advance(later_s)
    batch = fleet.join_and_claim("worker", "pdf")
    assert (batch.message, fleet.state("a+")) == (b"message of b+", "expired")
    fleet.scheduler.advance(2)
    fleet.sync("worker")
    fleet.scheduler.tick()
    assert fleet.state("c+") == "merged"
    assert names(fleet.scheduler.batch_calls("a*", fence=batch.fence)) == ["c+"]


def test_batch_with_expiring_calls_is_requeued_unread(fleet):
    publish(fleet, "a+", "b+", expires_us=60_000_000)
    fleet.join("worker", "pdf")
    fleet.sync("worker", claims={}, draining=True)
    assert (fleet.inbox("worker"), fleet.state("a*")) == ([], "pending")


def test_many_expired_calls_end_in_parts(fleet):
    ids = [f"a{number}+" for number in range(MAX_MOVES + 5)]
    publish(fleet, *ids, expires_us=1_000_000)
    fleet.scheduler.advance(2)
    claim = fleet.join_and_claim("worker", "pdf")
    assert claim.message == f"message of {ids[MAX_MOVES]}".encode(), "it is the worker that finds it expired"
    assert [fleet.state(job) for job in ids] == ["expired"] * MAX_MOVES + ["merged"] * 5


def test_scheduled_call_merges_at_its_eta(fleet):
    publish(fleet, "a+", delay_us=1_000_000)
    assert not publish(fleet, "b+")[0].merged
    fleet.advance_and_tick(2)
    assert (fleet.state("a+"), fleet.state("b*")) == ("merged", "pending")


def test_each_merging_call_costs_the_same_commands(fleet):
    counting = Counting(fleet.scheduler.client, fleet.scheduler.keys)
    for number in range(300):
        counting.publish(NewJob(f"a{number}+", "pdf", "m", task_id=f"t{number}", rules=RULES))
    commands = [sum(times.values()) for _, times, _ in counting.calls]
    assert max(commands[2:]) == min(commands[2:]) < 20


def commands_of(scheduler, job_id, rules):
    """Return the commands of a job's publish, claim and release, by script."""
    scheduler.calls.clear()
    scheduler.publish(NewJob("first" + job_id, "pdf", "m", task_id="first", rules=rules.replace("city", "other")))
    scheduler.publish(NewJob(job_id, "pdf", "m", task_id="t", rules=rules))
    found = {"waits": sum(scheduler.calls[-1][1].values())}
    fleet = ScriptedFleet(scheduler)
    claim = fleet.join_and_claim("worker", "pdf")
    (following,) = fleet.end("worker", claim)
    found["release"] = sum(scheduler.calls[-1][1].values())
    found["claim"] = following.job_id
    fleet.end("worker", following)
    scheduler.publish(NewJob(job_id + "x" + job_id, "pdf", "m", task_id="t2", rules=rules))
    found["is placed"] = sum(scheduler.calls[-1][1].values())
    return found


def test_single_merging_call_costs_few_additional_commands(redis_client):
    found = []
    for mark, rules in (("", ""), ("+", RULES)):
        redis_client.flushall()
        found.append(commands_of(Counting(redis_client, Keys()), f"a{mark}", rules))
    plain, merging = found
    assert merging["waits"] == plain["waits"] + 3, "one of them looks for recurring calls"
    assert merging["is placed"] == plain["is placed"] + 3
    assert merging["release"] == plain["release"] + 4, "one of them looks for its task's other jobs"


def test_calls_of_a_large_batch_are_reported_in_parts(fleet, redis_client):
    ids = [f"a{number}+" for number in range(2 * MAX_SHARED + 50)]
    for first in range(0, len(ids), 25):
        publish(fleet, *ids[first : first + 25])
    batch = fleet.join_and_claim("worker", "pdf")
    found, after = [], 0
    while after is not None:
        page = fleet.scheduler.batch_calls(batch.job_id, fence=batch.fence, after=after)
        found, after = found + names(page), page.after
        assert len(page.callers) <= MAX_SHARED
    assert found == ids[1:]
    counting = Counting(redis_client, Keys())
    assert counting.ack_batch_reports(batch.job_id, found, fence=batch.fence) == 0
    assert len(counting.calls) == 3


def test_full_server_accepts_reports(fleet, redis_client):
    batch = claimed(fleet, "a+", "b+", "c+")
    with full_server(redis_client):
        page = fleet.scheduler.batch_calls(batch.job_id, fence=batch.fence)
        assert fleet.scheduler.ack_batch_reports(batch.job_id, names(page), fence=batch.fence) == 0
    assert (fleet.state("b+"), fleet.state("c+")) == ("done", "done")


def test_due_calls_join_up_to_the_default_bytes(fleet):
    long = [
        NewJob(f"{name}+", "pdf", "x" * 1_500, task_name="t", rules=RULES, delay_us=delay_us)
        for name, delay_us in (("a", 0), ("b", 1))
    ]
    fleet.scheduler.publish(*long)
    fleet.advance_and_tick(1)
    assert [fleet.state(each.id) for each in long] == ["merged", "merged"]
