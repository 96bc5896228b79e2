"""After a requeue or an aborted run, a job pauses before its next run. The tests advance the fake clock."""

import pytest

from celery_affinity.cli import explain_text
from celery_affinity.clock import SECOND_US
from celery_affinity.reports import dead_letters
from celery_affinity.reports.explain import explain
from celery_affinity.reports.fleet_status import status_text
from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader

from ..support.clocked import ClockedReader

ORDERED = "key=o limit=1 order=1"
MERGING = "merge=city most=1000 bytes=1000000"


def end(fleet, claim, outcome="requeued"):
    return fleet.end("worker", claim, outcome=outcome)


def run_until_paused(fleet, job="job", outcome="requeued"):
    """Requeue a job twice, so that it waits for the second pause (1 s). Return its last claim."""
    (claim,) = fleet.inbox("worker")
    assert claim.job_id == job
    (claim,) = end(fleet, claim, outcome)
    assert end(fleet, claim, outcome) == []
    assert fleet.state(job) == "scheduled"
    return claim


def after(fleet, seconds):
    fleet.advance_and_tick(seconds)
    return fleet.inbox("worker")


def row(fleet, job="job"):
    return fleet.scheduler.reader.hash("job", job)


@pytest.mark.parametrize("outcome", ["requeued", "aborted"])
def test_pauses_double_up_to_the_configured_limit(fleet, outcome):
    fleet.join("worker", "pdf", settings={"requeue_delay_max": 10})
    fleet.publish("job", "pdf")
    (claim,) = fleet.inbox("worker")
    (claim,) = end(fleet, claim, outcome)
    for pause_s in (1, 2, 4, 8, 10, 10):
        assert end(fleet, claim, outcome) == []
        assert after(fleet, pause_s - 0.001) == [], f"{pause_s} s are not over"
        (claim,) = after(fleet, 0.001)
    counted = row(fleet).get("requeues"), row(fleet).get("deliveries")
    assert counted == (("7", None) if outcome == "requeued" else (None, "7"))


def test_requeued_job_runs_later_but_keeps_enqueue_time(fleet):
    enqueued_us = fleet.scheduler.now_us
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    fleet.scheduler.advance(1)
    fleet.publish("younger", "pdf")
    fleet.scheduler.advance(1)
    (claim,) = fleet.inbox("worker")
    (younger,) = end(fleet, claim)
    assert younger.job_id == "younger"
    fleet.publish("youngest", "pdf")
    (claim,) = fleet.end("worker", younger)
    assert (claim.job_id, claim.enqueued_us, claim.requeues, claim.mark_ending) == ("job", enqueued_us, 1, True)


def test_dead_workers_unpaused_job_keeps_its_place(fleet):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    fleet.scheduler.advance(1)
    fleet.publish("younger", "pdf")
    for _ in range(3):
        assert fleet.jobs("worker") == ["job"]
        fleet.scheduler.recover("worker")
        fleet.join("worker", "pdf")
    assert "rank" not in row(fleet)


def test_dead_workers_paused_job_keeps_its_place(fleet):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    fleet.scheduler.advance(0.5)
    fleet.join("second", "pdf")
    fleet.publish("younger", "pdf")
    fleet.scheduler.advance(0.5)
    (claim,) = end(fleet, *fleet.inbox("worker"))
    assert claim.job_id == "job"
    fleet.scheduler.recover("worker")
    fleet.scheduler.recover("second")
    assert fleet.order(2, "pdf") == ["younger", "job"]


def test_paused_job_is_ordered_by_its_pauses_end(fleet):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    claim = run_until_paused(fleet)
    fleet.publish("busy", "pdf")
    for job in ("younger", "youngest"):
        fleet.scheduler.advance(0.75)
        fleet.publish(job, "pdf")
    fleet.scheduler.tick()
    (busy,) = fleet.inbox("worker")
    order, following = [], fleet.end("worker", busy)
    while following:
        order.append(following[0].job_id)
        following = fleet.end("worker", *following)
    assert order == ["younger", claim.job_id, "youngest"]


def test_requeue_beyond_the_limit_makes_a_dead_letter(fleet):
    fleet.join("worker", "pdf", settings={"max_requeues": 1, "max_deliveries": 1})
    fleet.publish("job", "pdf")
    (claim,) = fleet.inbox("worker")
    (claim,) = end(fleet, claim)
    end(fleet, claim, "requeued Reject: not now")
    reader = Reader(fleet.scheduler.client, fleet.scheduler.keys)
    (letter,) = dead_letters.find_letters(reader, dead_letters.LetterFilter())
    assert (letter.reason, letter.why, letter.deliveries) == ("max_requeues", "Reject: not now", 0)
    assert fleet.scheduler.next_report("app", again_s=1).how == "max_requeues"
    fleet.scheduler.replay(["job"])
    assert not {"rank", "pauses", "requeues"} & row(fleet).keys()


def test_paused_job_holds_no_key(fleet):
    fleet.join("worker", "pdf")
    for job in ("job!", "other!"):
        fleet.publish(job, "pdf", rules="key=o limit=1")
    (claim,) = fleet.inbox("worker")
    fleet.scheduler.advance(1)
    (other,) = end(fleet, claim)
    assert other.job_id == "other!"


def test_keep_order_reserves_the_key_until_the_pause_ends(fleet):
    fleet.join("worker", "pdf")
    for job in ("job!", "other!"):
        fleet.publish(job, "pdf", rules=ORDERED)
    claim = run_until_paused(fleet, "job!")
    assert after(fleet, 0.5) == [], "the other job would break the order"
    (claim,) = after(fleet, 0.5)
    assert claim.job_id == "job!"
    (other,) = fleet.end("worker", claim)
    assert other.job_id == "other!"


def test_revoking_a_paused_job_frees_its_reserved_key(fleet):
    fleet.join("worker", "pdf")
    for job in ("job!", "other!"):
        fleet.publish(job, "pdf", rules=ORDERED)
    run_until_paused(fleet, "job!")
    fleet.scheduler.revoke(["task-job!"], [], keep_s=60)
    assert fleet.state("job!") == "revoked"
    assert [each.job_id for each in after(fleet, 0.1)] == ["other!"]


@pytest.mark.parametrize("calls", [["a+"], ["a+", "b+"]], ids=["a call", "a batch"])
def test_calls_do_not_join_a_requeued_call_or_batch(fleet, calls):
    def publish(*ids):
        fleet.scheduler.advance(0.1)
        fleet.scheduler.publish(*fleet.made(ids, "pdf", task_name="tests.task", rules=MERGING))

    publish(*calls)
    first = fleet.join_and_claim("worker", "pdf")
    fleet.publish("busy", "pdf", priority=10)
    (busy,) = end(fleet, first)
    assert fleet.state(first.job_id) == "pending"
    publish("c+")
    assert fleet.state("c+") == "pending"
    (claim,) = fleet.end("worker", busy)
    assert claim.job_id == first.job_id
    (other,) = end(fleet, claim)
    assert (other.job_id, fleet.state(first.job_id)) == ("c+", "scheduled")
    publish("d+")
    assert fleet.state("d+") == "pending"
    fleet.advance_and_tick(1)
    assert (fleet.state("d+"), fleet.state(first.job_id)) == ("pending", "pending")


def test_paused_job_changes_like_a_scheduled_job(fleet):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf", expires_s=1.5)
    run_until_paused(fleet)
    fleet.scheduler.client.zadd(fleet.scheduler.keys.key("scheduled"), {"job": fleet.scheduler.now_us + 5 * SECOND_US})
    assert after(fleet, 2) == []
    assert fleet.state("job") == "expired"

    fleet.publish("moved", "pdf")
    run_until_paused(fleet, "moved")
    fleet.scheduler.move(["moved"], type_="excel")
    fleet.join("for excel", "excel")
    assert after(fleet, 1) == []
    assert fleet.jobs("for excel") == ["moved"]

    fleet.publish("purged", "pdf")
    run_until_paused(fleet, "purged")
    assert fleet.scheduler.purge("pdf") == 1
    assert fleet.state("purged") is None


def test_reports_show_requeue_count_and_next_start(fleet):
    reader = ClockedReader(fleet.scheduler)
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    enqueued_s = fleet.scheduler.now_us / SECOND_US
    claim = run_until_paused(fleet)
    (claim,) = after(fleet, 1)
    assert end(fleet, claim) == []
    fleet.scheduler.tick()
    found = explain(reader, "task-job")
    assert (found.state, found.requeues, found.note) == ("scheduled", 3, "requeued 3 times, starts again in 2 s")
    assert (found.enqueued_s, found.since_s, found.due_s) == (enqueued_s, enqueued_s, None)
    assert found.paused_until_s == fleet.scheduler.now_us / SECOND_US + 2
    assert "requeued 3 times, starts again in 2 s" in explain_text.explanation_text(found)
    status = Report(reader).status()
    assert (status.scheduled, status.requeued) == (1, 1)
    assert "scheduled for later: 1 (1 requeued, start again after a pause)" in status_text(status)
    after(fleet, 2)
    assert (explain(reader, "task-job").requeues, Report(reader).status().requeued) == (3, 0)


def test_damaged_requeue_counts_are_read_as_zero(fleet):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    (claim,) = fleet.inbox("worker")
    for garbage in ("x y", "", "1e400", "-1", "9" * 40, "1 2:3/4,5\n6\0%{}"):
        fleet.scheduler.client.hset(
            fleet.scheduler.keys.key("job", "job"), mapping=dict.fromkeys(("requeues", "pauses", "rank"), garbage)
        )
        (claim,) = end(fleet, claim)
        assert (claim.job_id, claim.requeues) == ("job", 1)


def test_claim_with_a_damaged_rank_uses_the_enqueue_time(fleet):
    fleet.join("worker", "pdf")
    for job in ("job", "younger"):
        fleet.publish(job, "pdf")
        fleet.scheduler.advance(1)
    (claim,) = fleet.inbox("worker")
    fleet.scheduler.client.hset(fleet.scheduler.keys.key("job", "job"), "rank", "5 x")
    (claim,) = end(fleet, claim, "unsettled")
    assert (claim.job_id, claim.deliveries) == ("job", 1)


def test_repair_restores_the_end_of_a_pause(fleet):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    run_until_paused(fleet)
    fleet.scheduler.client.zadd(fleet.scheduler.keys.key("scheduled"), {"job": 3e18})
    fleet.scheduler.repair()
    assert after(fleet, 0.5) == []
    assert [claim.job_id for claim in after(fleet, 0.5)] == ["job"]


def test_repair_reports_no_findings_for_jobs_after_a_pause(fleet):
    fleet.join("worker", "pdf", slots=4)
    fleet.publish("job", "pdf")
    for job, rules in (("keyed!", "key=o limit=1"), ("ordered!", "key=p limit=1 order=1"), ("call+", MERGING)):
        fleet.publish(job, "pdf", rules=rules)
    held = fleet.inbox("worker")
    for number in range(4):
        fleet.publish(f"busy-{number}", "pdf", priority=10)
    fleet.scheduler.advance(1)
    fleet.end("worker", *held, outcome="requeued")
    assert [fleet.state(claim.job_id) for claim in held] == ["pending"] * 4
    assert fleet.scheduler.repair(thorough=True, says_only=True) == []
    assert fleet.scheduler.repair() == []


def test_moved_job_keeps_its_rank_after_a_pause(fleet):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    fleet.publish("busy", "pdf", priority=10)
    fleet.scheduler.advance(1)
    fleet.publish("younger", "excel")
    fleet.scheduler.advance(1)
    end(fleet, *fleet.inbox("worker"))
    assert fleet.scheduler.move(["job"], type_="excel")
    fleet.join("for excel", "excel")
    (first,) = fleet.inbox("for excel")
    (second,) = fleet.end("for excel", first)
    assert (first.job_id, second.job_id) == ("younger", "job")


def test_calls_split_off_after_a_pause_keep_its_rank(fleet):
    enqueued_us = fleet.scheduler.now_us
    fleet.scheduler.publish(*fleet.made(["a+", "b+"], "pdf", task_name="tests.task", rules=MERGING))
    fleet.join("worker", "pdf")
    fleet.scheduler.advance(1)
    (claim,) = end(fleet, *fleet.inbox("worker"))
    fleet.publish("busy", "pdf", priority=10)
    rank = row(fleet, claim.job_id)["rank"]
    assert fleet.scheduler.split_batch(claim.job_id, ["b+"], fence=claim.fence) == 1
    assert row(fleet, "b*")["rank"] == rank
    (busy,) = fleet.end("worker", claim)
    (part,) = fleet.end("worker", busy)
    assert (part.job_id, part.enqueued_us) == ("b*", enqueued_us + 1)
