"""Invalid ids in the sorted sets of waiting jobs are removed without affecting other jobs."""

import re
from pathlib import Path

from celery_affinity import lua
from celery_affinity.schema.keys import Keys

from ..support.damage import SEPARATORS, TEXTS

KEY = Keys().key

#: Strings that are not valid ids, because they contain a space or an unprintable character, or are empty.
NO_IDS = [text for text in TEXTS if not re.fullmatch(rb"[!-~]+", text)]


def repaired(fleet):
    """Return the findings of a repair, and check that a second repair finds nothing."""
    found = fleet.scheduler.repair(thorough=True)
    assert not fleet.scheduler.repair(thorough=True)
    return found


def test_lane_removes_each_member_that_is_not_an_id(fleet):
    client, lane = fleet.scheduler.client, KEY("lane", "pdf", "queued.0")
    wrong = []
    for nth, text in enumerate(NO_IDS):
        fleet.publish(f"first{nth}", "pdf")
        fleet.publish(f"urgent{nth}", "pdf", priority=5)
        client.zadd(lane, {text: 0})
        fleet.publish(f"second{nth}", "pdf")
        claim = fleet.join_and_claim("worker", "pdf")
        order = [claim.job_id]
        while (following := fleet.end("worker", claim)) and len(order) < 9:
            (claim,) = following
            order.append(claim.job_id)
        fleet.scheduler.leave("worker")
        found = repaired(fleet)
        # A finding for the member, and perhaps one for its head.
        if order != [f"urgent{nth}", f"first{nth}", f"second{nth}"] or not 1 <= len(found) <= 2:
            wrong.append((text, order, found))
    assert not wrong
    assert not client.exists(KEY("dead"))


def test_member_with_spaces_fails_no_server_function(fleet):
    """Its head in `heads` once looked like several heads, and one of them had no priority."""
    client = fleet.scheduler.client
    for text in ("a b c d e", "x y", "x\ty\tz\tu"):
        client.zadd(KEY("lane", "pdf", "queued.0"), {text: 0})
    client.hset(KEY("heads"), "pdf", "queued.0 0 a b c d e")
    for job in ("first", "second"):
        fleet.publish(job, "pdf", priority=1)
    assert fleet.order(2, "pdf") == ["first", "second"]


def test_invalid_turn_does_not_end_the_turns_of_tenants(fleet):
    fleet.scheduler.configure({"tenant_turns": "share"})
    fleet.join("worker", "pdf")
    for nth, tenant in enumerate("aab"):
        fleet.publish(f"{nth}$", "pdf", rules=f"key=tenant%3A{tenant} quota=settings")
    fleet.scheduler.client.zadd(KEY("turns", "pdf", "queued.0"), dict.fromkeys([*NO_IDS, b"5 ghost$"], 0))
    (claim,) = fleet.inbox("worker")
    fleet.scheduler.advance(5)
    (claim,) = fleet.end("worker", claim)
    assert claim.job_id == "2$", "the other tenant has its turn"
    assert len(repaired(fleet)) <= len(NO_IDS) + 1


def test_id_without_a_job_becomes_no_dead_letter(fleet):
    client = fleet.scheduler.client
    client.zadd(KEY("lane", "pdf", "queued.0"), dict.fromkeys(("ghost", "ghost!", "ghost~", "ghost*"), 0))
    fleet.publish("job", "pdf")
    assert fleet.order(1, "pdf") == ["job"]
    assert not client.exists(KEY("dead"), KEY("job", "ghost"))
    assert sum("ghost" in found for found in repaired(fleet)) == 3, "a batch without calls is forgotten silently"


def test_head_of_a_running_job_starts_nothing(fleet):
    fleet.join("worker", "pdf")
    fleet.publish("runs", "pdf")
    (claim,) = fleet.inbox("worker")
    fleet.publish("waits", "pdf")
    fleet.scheduler.client.hset(KEY("heads"), "pdf", "queued.0 5 runs")
    (following,) = fleet.end("worker", claim, outcome="unsettled")
    assert following.job_id == "runs", "it came back"
    (following,) = fleet.end("worker", following)
    assert following.job_id == "waits"
    fleet.scheduler.client.hset(KEY("heads"), "pdf", "queued.0 5 waits")
    fleet.join("other", "pdf")
    assert not fleet.inbox("other"), "the other worker has the job"


def test_running_job_among_the_blocked_jobs_starts_once(fleet):
    fleet.join("worker", "pdf", slots=2)
    fleet.publish("runs", "pdf")
    assert fleet.jobs("worker") == ["runs"]
    fleet.scheduler.client.zadd(KEY("kept_back", "pdf", "queued.0"), {"runs": 5})
    assert len(repaired(fleet)) == 1
    fleet.scheduler.tick()
    assert fleet.jobs("worker") == []
    assert not fleet.scheduler.client.exists(KEY("lane", "pdf", "queued.0"))


def test_batch_runs_only_members_that_are_calls(fleet):
    rules = "merge=city most=100 bytes=10000"
    fleet.scheduler.publish(*fleet.made(["a+", "b+"], "pdf", task_name="n", rules=rules))
    calls = KEY("callers", "a*")
    fleet.scheduler.client.zadd(calls, dict.fromkeys([*NO_IDS, "ghost"], 0))
    claim = fleet.join_and_claim("worker", "pdf")
    assert claim.message == b"message of a+"
    fleet.scheduler.client.zadd(calls, {"x y": 1.5})
    page = fleet.scheduler.batch_calls(claim.job_id, fence=claim.fence)
    assert [each.job_id for each in page.callers] == ["b+"]
    assert fleet.scheduler.client.zrange(calls, 0, -1) == [b"a+", b"b+"]


def test_damaged_numbers_dead_letter_the_job_without_an_error(fleet):
    client = fleet.scheduler.client
    for nth, field in enumerate(("deliveries", "enqueued", "type", "lane", "preemptions")):
        fleet.join(f"worker{nth}", "pdf")
        fleet.publish(f"job{nth}", "pdf")
        (claim,) = fleet.inbox(f"worker{nth}")
        client.hset(KEY("job", claim.job_id), field, "x y" if field in ("type", "preemptions") else "9" * 30)
        fleet.scheduler.leave(f"worker{nth}")
        client.hdel(KEY("job", claim.job_id), "preemptions")
    assert client.zrange(KEY("dead"), 0, -1) == [b"job0", b"job1", b"job2", b"job3"]


def test_key_is_not_reserved_for_a_lost_retry(fleet):
    rules = "key=k limit=1 order=1"
    fleet.join("worker", "pdf", slots=2)
    fleet.publish("first!", "pdf", rules=rules, task_id="t")
    (claim,) = fleet.inbox("worker")
    fleet.publish("retry!", "pdf", rules=rules, task_id="t", delay_s=60)
    fleet.publish("next!", "pdf", rules=rules)
    fleet.end("worker", claim)
    fleet.scheduler.client.delete(KEY("scheduled"))
    fleet.scheduler.repair()
    fleet.scheduler.tick()
    assert fleet.jobs("worker") == ["next!"]


def test_rate_with_damaged_time_admits_after_repair(fleet):
    fleet.join("worker", "pdf", slots=2)
    for job in ("1!", "2!"):
        fleet.publish(job, "pdf", rules="key=rate%3Ar rate=1/2000000")
    fleet.scheduler.client.zadd(KEY("rates"), {"rate%3Ar": 1.9e18})
    assert fleet.scheduler.repair()
    fleet.advance_and_tick(3)
    assert fleet.jobs("worker") == ["1!", "2!"]


def test_rate_with_a_longer_period_is_not_damaged(fleet):
    fleet.join("worker", "pdf", slots=1)
    fleet.publish("slow!", "pdf", rules="key=rate%3Ar rate=2/3000000")
    assert fleet.jobs("worker") == ["slow!"]
    fleet.publish("fast!", "pdf", rules="key=rate%3Ar rate=3/1000000")
    assert not fleet.scheduler.repair(thorough=True)


def test_worker_with_overwritten_types_joins_again(fleet):
    fleet.join("worker", "pdf")
    fleet.scheduler.client.hset(KEY("worker", "worker"), "types", "x y")
    assert repaired(fleet)
    assert not fleet.sync("worker").is_registered


def test_finding_is_one_line_of_printable_characters(fleet):
    fleet.scheduler.client.zadd(KEY("lane", "pdf", "queued.0"), {SEPARATORS + "\r\x1b[31m" + 10**6 * "x": 0})
    fleet.publish("job", "pdf")
    (found,) = fleet.scheduler.repair(thorough=True)
    assert found.isprintable()
    assert len(found) <= 500


#: Commands that read untrusted members, fields or values.
READS = re.compile(r'"(?:ZRANGE|ZRANGEBYSCORE|ZREVRANGEBYSCORE|ZPOPMIN|HGETALL|HKEYS|HVALS|HSCAN|SMEMBERS)"')

#: File -> number of such reads. A value from such a read is checked with `spoiled.is_word`, `spoiled.can_wait` or a
#: pattern before it is joined into a string that another function splits.
READS_OF_FILES = {
    "functions/admin": 2,
    "functions/claim": 1,
    "functions/publish": 1,
    "functions/recurring": 1,
    "functions/repair": 2,
    "functions/results": 2,
    "functions/tick": 6,
    "functions/worker": 1,
    "jobs/ends": 2,
    "jobs/job_index": 3,
    "jobs/max_pending": 1,
    "jobs/requeue": 2,
    "keys/fair_share": 4,
    "keys/fast_path": 2,
    "keys/gate": 3,
    "keys/key_state": 1,
    "locality/locality": 3,
    "matching/free_slots": 3,
    "matching/lanes": 1,
    "matching/slot_choice": 2,
    "merging/batch_calls": 1,
    "merging/batch_hooks": 1,
    "merging/batches": 4,
    "merging/call_hooks": 1,
    "preemption/evictions": 3,
    "preemption/victims": 3,
    "recurring/recurring": 1,
    "types/reserves": 1,
    "types/type_limits": 4,
    "workers/run_times": 1,
    "workers/workers": 5,
}


def test_each_read_of_untrusted_members_is_listed():
    """Read waiting jobs with `spoiled.first_of`. Before listing another read here, check where its members are used."""
    folder = Path(lua.__file__).parent
    found = {
        str(path.relative_to(folder)).removesuffix(".lua"): number
        for path in sorted(folder.rglob("*.lua"))
        if path.parent.name != "repair" and (number := len(READS.findall(path.read_text())))
    }
    assert found == READS_OF_FILES
