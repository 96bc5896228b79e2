"""Tasks by name: runs, failures, waits and run times of the ended jobs that are kept."""

import pytest

from celery_affinity.reports.tasks import recent_jobs, task_summaries


@pytest.fixture
def kept(fleet):
    """A fleet that keeps ended jobs for an hour."""
    fleet.join("worker", "pdf", slots=1, settings={"keep": 3600})
    return fleet


def run(fleet, job, *, waited_s=0.0, ran_s=0.0, outcome="acked"):
    fleet.join("other", "excel")
    fleet.scheduler.pause("type:pdf")
    fleet.publish(job, "pdf")
    fleet.scheduler.advance(waited_s)
    fleet.scheduler.resume("type:pdf")
    (claim,) = fleet.inbox("worker")
    fleet.scheduler.advance(ran_s)
    fleet.end("worker", claim, outcome=outcome)


def test_summary_has_runs_failures_waits_and_run_times(kept, reader):
    for number in range(19):
        run(kept, f"a{number}", waited_s=2, ran_s=1)
    run(kept, "late", waited_s=60, ran_s=9, outcome="failed ValueError: no page")
    (row,) = task_summaries(reader)
    assert (row.types, row.runs, row.failed) == (["pdf"], 20, 1)
    assert (row.wait_p50_s, row.wait_p95_s, row.run_p50_s, row.run_p95_s) == (2, 2, 1, 1)
    run(kept, "later", waited_s=50, ran_s=8)
    assert task_summaries(reader)[0].wait_p95_s == 50


def test_jobs_of_other_workers_are_not_recent(kept, reader):
    for job in ("first", "second"):
        run(kept, job, ran_s=1)
    assert [job.id for job in recent_jobs(reader, ["worker"])] == ["task-second", "task-first"]
    assert recent_jobs(reader, ["other"]) == []


def test_fleet_without_kept_jobs_has_no_summary(fleet, reader):
    assert task_summaries(reader) == []
