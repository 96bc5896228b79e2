"""The log of jobs that left a worker unfinished: causes, `explain`, bounds, and entries of other clients."""

import click
import pytest

from celery_affinity.cli import explain_text
from celery_affinity.reports.explain import explain
from celery_affinity.reports.requeues import CAUSES, MAX_EXPLAINED, read_requeues
from celery_affinity.schema.constants import MAX_REQUEUE_TOKEN, MAX_REQUEUES, REQUEUES_KEPT_S


@pytest.fixture
def log(fleet):
    return fleet.scheduler.keys.key("requeues")


def causes(reader):
    return [(row.task_id, row.worker, row.cause, row.then) for row in read_requeues(reader)]


def run(fleet, job, worker="worker", type_="pdf", **options):
    fleet.join(worker, type_, **options)
    fleet.publish(job, type_)
    return fleet.inbox(worker)[0]


def test_death_that_the_guard_saw_is_recorded_with_worker_and_time(fleet, reader):
    run(fleet, "job")
    fleet.scheduler.advance(3)
    fleet.scheduler.recover("worker")
    (row,) = read_requeues(reader)
    assert (row.task_id, row.job_id, row.type, row.worker) == ("task-job", "job", "pdf", "worker@host")
    assert (row.cause, row.then, row.at_s) == ("died", "pending", fleet.now_us / 1_000_000)


def test_silent_worker_is_recorded_and_named_by_the_tick(fleet, reader):
    run(fleet, "job")
    fleet.scheduler.tick()
    for _ in range(40):
        ticked = fleet.advance_and_tick(1)
        if ticked.dead_workers:
            break
    assert (ticked.dead_workers, ticked.recovered) == (["worker@host"], 1)
    assert causes(reader) == [("task-job", "worker@host", "silent", "pending")]


def test_tick_cuts_the_long_name_of_a_dead_worker(fleet):
    fleet.join("worker", "pdf")
    fleet.scheduler.tick()
    fleet.scheduler.client.hset(fleet.scheduler.keys.key("worker", "worker"), "name", "n" * 1_000_000)
    ticked = next(filter(lambda reply: reply.dead_workers, (fleet.advance_and_tick(1) for _ in range(40))))
    assert ticked.dead_workers == ["n" * MAX_REQUEUE_TOKEN]


def test_prefetched_job_of_a_dead_worker_had_not_started(fleet, reader):
    first = run(fleet, "first")
    fleet.publish("second", "pdf")
    fleet.publish("third", "pdf")
    fleet.end("worker", first, most_ahead=1)
    fleet.scheduler.recover("worker")
    why = {row.job_id: row.why for row in read_requeues(reader)}
    assert why == {"second": CAUSES["died"], "third": f"{CAUSES['died']}; the job had not started"}


def test_acked_job_of_a_dead_worker_is_recorded_as_a_dead_letter(fleet, reader):
    fleet.ack("worker", run(fleet, "job"))
    fleet.scheduler.recover("worker")
    assert causes(reader) == [("task-job", "worker@host", "died", "lost")]
    assert "it is a dead letter (lost)" in explanation(reader, "task-job")


@pytest.mark.parametrize(
    ("outcome", "cause"), [("unsettled", "unsettled"), ("aborted", "aborted"), ("requeued", "requeued")]
)
def test_end_of_a_run_on_a_live_worker_has_its_cause(fleet, reader, outcome, cause):
    fleet.end("worker", run(fleet, "job"), outcome=outcome, inline=False)
    assert causes(reader) == [("task-job", "worker@host", cause, "pending")]


def test_return_is_recorded_at_shutdown_or_after_the_start_only(fleet, reader):
    """Workers return jobs that they have not started all the time, for example to look ahead."""
    claim = run(fleet, "job")
    fleet.end("worker", claim, outcome="returned", inline=False)
    assert causes(reader) == []
    (claim,) = fleet.inbox("worker")
    fleet.scheduler.sync("worker", [(*claim[:2], 1)], slots=1, other=0, draining=False)
    fleet.end("worker", claim, outcome="returned", inline=False)
    assert causes(reader)[:1] == [("task-job", "worker@host", "returned", "pending")]
    fleet.inbox("worker")
    fleet.scheduler.leave("worker")
    assert causes(reader)[:1] == [("task-job", "worker@host", "shutdown", "pending")]


def test_run_that_a_cold_shutdown_ends_is_recorded_as_shutdown(fleet, reader):
    claim = run(fleet, "job")
    fleet.scheduler.sync("worker", [(*claim[:2], 1)], slots=1, other=0, draining=True)
    fleet.end("worker", claim, outcome="unsettled", inline=False)
    assert causes(reader) == [("task-job", "worker@host", "shutdown", "pending")]


def test_jobs_that_end_write_nothing(fleet, reader, log):
    for outcome in ("acked", "failed ValueError: no", "ignored", "revoked"):
        fleet.end("worker", run(fleet, f"job-{outcome.split()[0]}"), outcome=outcome)
    fleet.scheduler.leave("worker")
    assert not fleet.scheduler.client.exists(log)


def explanation(reader, task_id):
    return click.unstyle(explain_text.explanation_text(explain(reader, task_id)))


def test_explain_names_worker_time_and_cause_even_of_a_forgotten_task(fleet, reader):
    run(fleet, "job")
    fleet.scheduler.recover("worker")
    assert "came back   from worker@host at " in explanation(reader, "task-job")
    assert "the worker died: its guard saw the process end" in explanation(reader, "task-job")
    fleet.scheduler.client.delete(*(fleet.scheduler.keys.key(name, "job") for name in ("job", "message")))
    fleet.scheduler.client.delete(fleet.scheduler.keys.key("task", "task-job"))
    found = explain(reader, "task-job")
    assert (found.state, [row.cause for row in found.left_workers]) == ("unknown", ["died"])
    assert "came back   from worker@host at " in explanation(reader, "task-job")
    assert "came back" not in explanation(reader, "task-other")


def test_log_is_bounded_and_kept_for_a_day(fleet, reader, log):
    client = fleet.scheduler.client
    client.rpush(log, *[f"{fleet.now_us} died unsettled pending w pdf j{nth} t" for nth in range(MAX_REQUEUES + 50)])
    run(fleet, "job")
    fleet.scheduler.recover("worker")
    assert client.llen(log) == MAX_REQUEUES
    assert 0 < client.ttl(log) <= REQUEUES_KEPT_S
    assert len(explain(reader, "t").left_workers) == MAX_EXPLAINED
    fleet.scheduler.advance(REQUEUES_KEPT_S + 1)
    assert read_requeues(reader) == [], "an entry that is older than a day is not shown"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff\xfe",
        b"5 died",
        b"9" * 5_000,
        b"1" * 19 + b" died unsettled pending w pdf j t",
        b"%d died unsettled pending " + b"w" * (MAX_REQUEUE_TOKEN + 1) + b" pdf j t",
        b"%d burnt unsettled pending w pdf j t",
        b"%d died unsettled pending w pdf j t more",
    ],
)
def test_entry_of_another_client_is_ignored(fleet, reader, log, line):
    fleet.scheduler.client.rpush(log, line.replace(b"%d", str(fleet.now_us).encode()))
    assert read_requeues(reader) == []


def test_key_of_another_type_neither_fails_the_reclaim_nor_the_report(fleet, reader, log):
    fleet.scheduler.client.set(log, "x")
    run(fleet, "job")
    fleet.scheduler.recover("worker")
    assert fleet.state("job") == "pending"
    assert read_requeues(reader) == []


def test_long_names_are_cut(fleet, reader, log):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf", task_id="t" * 1_000)
    fleet.inbox("worker")
    fleet.scheduler.recover("worker")
    (row,) = read_requeues(reader)
    assert row.task_id == "t" * MAX_REQUEUE_TOKEN
