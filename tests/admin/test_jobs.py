"""`celery_affinity.jobs` finds and changes the jobs of an app by id."""

import pytest

from celery_affinity.errors import OptionError
from celery_affinity.reports.jobs import STATES


def test_cancel_revokes_a_waiting_job(fleet, jobs):
    fleet.publish("job", "pdf")
    change = jobs.cancel("task-job")
    assert (change.done, change.found) == (True, "pending")
    assert jobs.get("task-job").state == "revoked"
    again = jobs.cancel("task-job")
    assert (again.done, again.found, again.note) == (False, "revoked", "it has ended: revoked")


def test_cancel_ends_a_running_job_only_with_terminate(fleet, jobs, app, monkeypatch):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    (claim,) = fleet.inbox("worker")
    revoked = []
    monkeypatch.setattr(app.control, "revoke", lambda task, **options: revoked.append((task, options["terminate"])))
    change = jobs.cancel("task-job")
    assert (change.done, change.found) == (False, "running")
    assert "only terminate ends it" in change.note
    assert jobs.cancel("task-job", terminate=True).done
    assert revoked == [("task-job", True)]
    fleet.end("worker", claim)
    assert not jobs.cancel("task-job").done


def test_retry_requeues_a_dead_letter(fleet, jobs):
    fleet.bury("job")
    assert "dead letter" in jobs.cancel("task-job").note
    assert jobs.retry("task-job").done
    assert fleet.jobs("worker") == ["job"]
    again = jobs.retry("task-job")
    assert (again.done, again.note) == (False, "it has not ended")


def test_retry_requeues_a_failed_job_only_with_its_message(fleet, jobs):
    fleet.join("worker", "pdf", settings={"keep": 3600})
    fleet.publish("job", "pdf")
    fleet.end("worker", *fleet.inbox("worker"), outcome="failed ValueError", inline=False)
    assert jobs.retry("task-job").note == "published again"
    fleet.end("worker", *fleet.inbox("worker"), outcome="failed ValueError", inline=False)
    fleet.scheduler.client.delete(fleet.scheduler.keys.key("message", "job"))
    again = jobs.retry("task-job")
    assert not again.done
    assert "keeps messages of failed jobs up to 16,384 bytes" in again.note


def test_retry_refuses_done_and_unknown_jobs(fleet, jobs):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    fleet.end("worker", *fleet.inbox("worker"))
    assert "only dead letters and failed jobs can be retried" in jobs.retry("task-job").note
    for change in (jobs.retry("nobody"), jobs.cancel("nobody")):
        assert (change.done, change.found) == (False, "unknown")


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # by Celery
@pytest.mark.parametrize(
    ("status", "result", "state"),
    [
        ("SUCCESS", 7, "done"),
        ("FAILURE", ValueError("no"), "failed"),
        ("REVOKED", None, "revoked"),
        ("STARTED", None, "running"),
        ("RETRY", ValueError("no"), "unknown"),
    ],
)
def test_result_backend_supplies_states_deleted_from_redis(fleet, jobs, app, status, result, state):
    app.backend.store_result("task", result, status)
    job = jobs.get("task")
    assert (job.state, job.source) == (state, None if state == "unknown" else "backend")
    assert job.why == ("ValueError: no" if state == "failed" else None)
    assert job.has_ended == (job.ended_s is not None)


def test_unknown_id_is_never_reported_as_pending(fleet, jobs, app):
    assert jobs.get("nobody").state == "unknown"
    assert "PENDING" not in STATES


def test_failing_result_backend_raises_no_error(fleet, jobs, app, monkeypatch):
    def broken(_):
        raise RuntimeError("password")

    monkeypatch.setattr(app.backend, "get_task_meta", broken)
    job = jobs.get("nobody")
    assert job.state == "unknown"
    assert job.note.endswith("the result backend gave no answer: RuntimeError")


def test_list_returns_jobs_in_pages(fleet, jobs):
    for number in range(5):
        fleet.publish(f"job{number}", "pdf")
    first = jobs.list(state="pending", limit=3)
    rest = jobs.list(state="pending", limit=3, cursor=first.cursor)
    assert [len(first.jobs), len(rest.jobs), rest.cursor] == [3, 2, None]
    with pytest.raises(OptionError, match=r"state must be one of .*affinity_keep is above 60 s"):
        jobs.list(state="failed")
