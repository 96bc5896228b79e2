"""`explain`: the place of a job, the jobs ahead, and the reason of the wait."""

import pytest
import redis

from celery_affinity.cli import explain_text
from celery_affinity.clock import SECOND_US
from celery_affinity.policy.score import Weights
from celery_affinity.reports.explain import Blocker, explain
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys
from celery_affinity.settings import wire

from ..support.asking import next_jobs, why

# -- the state


def test_each_state_has_its_name_and_start_time(fleet, reader):
    start_s = fleet.scheduler.now_us / SECOND_US
    assert why(reader, "nobody").state == "unknown"

    fleet.publish("job", "pdf", priority=3, delay_s=10)
    found = why(reader, "job")
    assert (found.state, found.since_s, found.due_s) == ("scheduled", start_s, start_s + 10)
    assert "no dispatcher ticks" in found.note

    fleet.scheduler.advance(10)
    fleet.scheduler.tick()
    found = why(reader, "job")
    assert (found.state, found.since_s, found.note) == ("pending", start_s + 10, None)
    assert (found.type, found.priority, found.mode, found.task) == ("pdf", 3, "queued", "tests.task")

    fleet.scheduler.advance(5)
    fleet.join("worker", "pdf")
    found = why(reader, "job")
    assert (found.state, found.since_s, found.worker) == ("claimed", start_s + 15, "worker@host")
    assert "inbox" in found.note

    (claim,) = fleet.inbox("worker")
    fleet.scheduler.advance(1)
    assert (why(reader, "job").state, why(reader, "job").since_s) == ("running", start_s + 15)

    fleet.scheduler.advance(11)
    found = why(reader, "job")
    assert found.state == "claimed", "its worker has had the time to report the start"
    assert "a rate limit, a full pool, or a buffer of its task" in found.note
    fleet.scheduler.sync("worker", [(*each, 2_000_000) for each in fleet.claims("worker").items()], **SLOTS)
    assert (why(reader, "job").state, why(reader, "job").since_s) == ("running", start_s + 25)

    fleet.end("worker", claim)
    assert (why(reader, "job").state, why(reader, "job").since_s) == ("done", start_s + 27)


SLOTS = {"slots": 1, "other": 0, "draining": False}


def test_attempt_ending_during_lookup_does_not_hide_the_retry(fleet, reader):
    """The index of a task is a set while it has several jobs. It is deleted when only one job remains."""
    fleet.join("worker", "pdf")
    fleet.publish("first", "pdf", task_id="task")
    (claim,) = fleet.inbox("worker")
    fleet.publish("second", "pdf", task_id="task", delay_s=60)
    ask = reader.ask

    def ends_before_the_set_is_read(commands, **options):
        if any(name == "zrange" for name, *_ in commands) and fleet.claims("worker"):
            fleet.end("worker", claim)
        return ask(commands, **options)

    reader.ask = ends_before_the_set_is_read
    found = explain(reader, "task")
    assert (found.state, found.job_id) == ("scheduled", "second")


def test_dead_letter_has_its_reason(fleet, reader):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    (claim,) = fleet.inbox("worker")
    fleet.end("worker", claim, outcome="rejected")
    assert (why(reader, "job").state, why(reader, "job").reason) == ("dead", "rejected")


def test_failed_task_has_its_error(fleet, reader):
    fleet.join("worker", "pdf", slots=3)
    for outcome in ("failed ValueError: no such page", "revoked", "expired"):
        fleet.publish(outcome[:6], "pdf")
        (claim,) = fleet.inbox("worker")
        fleet.scheduler.advance(1)
        fleet.end("worker", claim, outcome=outcome)
    now_s = fleet.scheduler.now_us / SECOND_US
    found = [(each.state, each.reason, each.why, each.since_s) for each in (why(reader, job) for job in ENDED)]
    assert found == [
        ("failed", None, "ValueError: no such page", now_s - 2),
        ("revoked", None, None, now_s - 1),
        ("expired", None, None, now_s),
    ]
    for job in ENDED:
        assert 0 < fleet.scheduler.client.ttl(Keys().key("job", job)) <= 60, "it is forgotten like one that is done"


ENDED = ("failed", "revoke", "expire")


def test_corrupt_error_text_is_decoded_and_truncated(fleet, reader, redis_client):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    (claim,) = fleet.inbox("worker")
    fleet.end("worker", claim, outcome="failed ValueError")
    redis_client.hset(Keys().key("job", "job"), "why", b"\xff\x00" + b"x" * 1_000_000)
    found = why(reader, "job").why
    assert found.startswith("\ufffd\x00xxx")
    assert len(found) <= 300


def test_an_early_acked_job_runs(fleet, reader):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    (claim,) = fleet.inbox("worker")
    fleet.scheduler.release_and_claim("worker", acks=[(claim.job_id, claim.fence)], ends=[], sequence=1, inline=True)
    fleet.scheduler.advance(100)
    assert why(reader, "job").state == "running"


def test_retried_task_has_the_state_of_its_newest_job(fleet, reader):
    fleet.join("worker", "pdf")
    fleet.publish("first-try", "pdf", task_id="a task: {1}")
    (claim,) = fleet.inbox("worker")
    fleet.publish("second-try", "pdf", task_id="a task: {1}")
    found = explain(reader, "a task: {1}")
    assert (found.job_id, found.state, found.other_jobs) == ("second-try", "pending", ["first-try"])
    (following,) = fleet.end("worker", claim)
    found = explain(reader, "a task: {1}")
    assert (found.job_id, found.state, found.other_jobs) == ("second-try", "running", [])
    fleet.end("worker", following)
    assert explain(reader, "a task: {1}").state == "done"
    assert 0 < fleet.scheduler.client.ttl(Keys().key("task", "a%20task%3A%20%7B1%7D")) <= 60


def test_a_purged_job_is_unknown(fleet, reader):
    fleet.publish("job", "pdf")
    fleet.scheduler.purge("pdf")
    assert why(reader, "job").state == "unknown"
    assert not fleet.scheduler.client.exists(Keys().key("task", "task-job"))


# -- the wait


def test_each_term_of_the_score_is_shown(fleet, reader):
    fleet.join("one", "pdf", slots=1)
    fleet.join("two", "pdf", "excel", slots=1)
    for busy in ("a", "b"):
        fleet.publish(busy, "pdf")
    fleet.publish("job", "pdf", priority=5, on_demand=True)
    fleet.scheduler.advance(100)
    waiting = why(reader, "job").waiting
    assert waiting.score.priority == 5 * 1024
    assert waiting.score.age == 100 * 16
    assert (waiting.score.rarity, waiting.score.slots_that_fit) == (250, 2)
    assert waiting.score.on_demand == 4096 + 100 * 32
    assert waiting.score.total == 5 * 1024 + 1600 + 250 + 7296
    assert waiting.bound_s == wire.overtaking_seconds(5, True, Weights()) == 64 * 5 + 31.25
    assert waiting.passed_until_s == pytest.approx(fleet.scheduler.now_us / SECOND_US - 100 + 351.25)


def test_jobs_ahead_are_counted_by_group(fleet, reader):
    fleet.join("worker", "pdf", "excel")
    fleet.publish("busy", "pdf")
    for number in range(12):
        fleet.publish(f"urgent{number}", "pdf", priority=8)
    for number in range(3):
        fleet.publish(f"asked{number}", "excel", on_demand=True)
    fleet.publish("elsewhere", "index", priority=10)
    fleet.publish("before", "pdf")
    fleet.scheduler.advance(1)
    fleet.publish("job", "pdf")
    fleet.scheduler.advance(1)
    for number in range(5):
        fleet.publish(f"behind{number}", "excel")
    waiting = why(reader, "job").waiting
    assert {(group.type, group.on_demand, group.priority): group.jobs for group in waiting.ahead} == {
        ("pdf", False, 8): 12,
        ("excel", True, 0): 3,
        ("pdf", False, 0): 1,
    }
    assert (waiting.rank_in_type, waiting.rank) == (14, 17)


def test_jobs_of_other_paused_types_are_not_ahead(fleet, reader):
    fleet.join("worker", "pdf", "excel")
    fleet.publish("busy", "pdf")
    fleet.publish("urgent", "excel", priority=8)
    fleet.publish("job", "pdf")
    assert why(reader, "job").waiting.rank == 2
    fleet.scheduler.pause("type:excel")
    waiting = why(reader, "job").waiting
    assert (waiting.ahead, waiting.rank) == ([], 1)
    assert why(reader, "urgent").waiting.rank == 1, "it is the first of its own type, which is paused"


def test_matching_slots_are_grouped_by_their_types(fleet, reader):
    fleet.join("one", "pdf", slots=2)
    fleet.join("two", "pdf", slots=1)
    fleet.join("versatile", "pdf", "excel", slots=1)
    fleet.join("other", "excel", slots=7)
    for number in range(4):
        fleet.publish(f"busy{number}", "pdf")
    fleet.publish("job", "pdf")
    waiting = why(reader, "job").waiting
    found = [(each.types, each.workers, each.slots, each.free) for each in waiting.slots]
    assert found == [(["pdf"], 2, 3, 0), (["excel", "pdf"], 1, 1, 0)]
    assert waiting.blocked_by == [Blocker("slots", "all 4 slots that fit are busy or draining")]


def test_unserved_type_blocks_its_jobs(fleet, reader):
    fleet.join("other", "excel")
    fleet.publish("first", "drawing")
    fleet.publish("job", "drawing")
    waiting = why(reader, "job").waiting
    assert waiting.blocked_by == [Blocker("type", "no live worker serves type 'drawing': start one with -Q drawing")]
    assert (waiting.slots, waiting.score.slots_that_fit, waiting.estimate_s) == ([], 0, None)
    assert waiting.rank_in_type == 2


def test_wait_is_estimated_from_run_times(fleet, reader):
    fleet.join("worker", "pdf", slots=2)
    for number in range(20):
        fleet.publish(f"job{number:02}", "pdf")
    assert why(reader, "job19").waiting.estimate_s is None, "nothing is known yet"
    for _ in range(4):
        claims = fleet.inbox("worker")
        fleet.scheduler.advance(3)
        for claim in claims:
            fleet.end("worker", claim, inline=False)
        fleet.hand_over("worker")
    # 8 jobs are done, 2 run, so 9 wait before the last: ten jobs of 3 s on two slots.
    assert why(reader, "job19").waiting.estimate_s == pytest.approx(10 * 3 / 2)


def test_estimate_excludes_work_for_other_slots(fleet, reader):
    fleet.join("worker", "pdf", "excel", slots=1)
    fleet.join("others", "excel", slots=3)
    fleet.publish("timed", "pdf")
    (claim,) = fleet.inbox("worker")
    fleet.scheduler.advance(2)
    fleet.end("worker", claim)
    fleet.hand_over("worker")
    for number in range(4):
        fleet.publish(f"busy{number}", "excel")
    for number in range(8):
        fleet.publish(f"ahead{number}", "excel", priority=10)
    fleet.publish("job", "pdf")
    # One of the four slots for the other type serves both types, so it gets a quarter of the eight 2 s jobs.
    assert why(reader, "job").waiting.estimate_s == pytest.approx(8 / 4 * 2 + 2)


def test_overdue_slot_is_named_and_excluded_from_the_estimate(fleet, reader):
    fleet.join("worker", "pdf", slots=2)
    fleet.publish("timed", "pdf")
    (claim,) = fleet.inbox("worker")
    fleet.scheduler.advance(2)
    fleet.end("worker", claim)
    fleet.hand_over("worker")
    for job in ("hangs", "hangs-too", "job"):
        fleet.publish(job, "pdf")
        fleet.scheduler.advance(5)
    waiting = why(reader, "job").waiting
    assert waiting.blocked_by == [Blocker("slots", "all 2 slots that fit are busy or draining")], "15 s are not yet far"
    assert waiting.estimate_s == pytest.approx(2 / 2)
    fleet.scheduler.advance(6)
    waiting = why(reader, "job").waiting
    assert [(each.task_id, each.ran_s, each.usual_s) for each in waiting.overdue] == [("task-hangs", 21, 2)]
    (block,) = waiting.blocked_by
    assert block.why.endswith("; task-hangs (tests.task) on worker@host has had its slot for 21 s, usually 2.0 s")
    assert waiting.estimate_s == pytest.approx(2), "one of the two slots counts"
    fleet.scheduler.advance(60)
    waiting = why(reader, "job").waiting
    assert waiting.estimate_s is None
    assert waiting.blocked_by[0].why.endswith("usually 2.0 s, and 1 more")
    hangs = "unknown: each slot that fits has a job that takes far longer than usual"
    assert hangs in explain_text.explanation_text(why(reader, "job"))


# -- permissions


def test_explain_needs_only_read_permission(fleet, redis_client):
    fleet.join("worker", "pdf")
    for number in range(5):
        fleet.publish(f"job{number}", "pdf")
    fleet.publish("later", "pdf", delay_s=60)
    redis_client.acl_setuser("observer", enabled=True, passwords=["+look"], keys=["*"], commands=["+@read", "+time"])
    address = redis_client.connection_pool.connection_kwargs
    try:
        with redis.Redis(address["host"], address["port"], username="observer", password="look") as client:
            reader = Reader(client, Keys())
            assert why(reader, "job4").state == "pending"
            assert [why(reader, job).state for job in ("job0", "later", "nobody")] == [
                "claimed",
                "scheduled",
                "unknown",
            ]
            assert len(next_jobs(reader)) == 4
    finally:
        redis_client.acl_deluser("observer")
