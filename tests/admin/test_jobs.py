"""`celery_affinity.jobs`: jobs by id, by an app."""

import pytest

from celery_affinity.errors import OptionError
from celery_affinity.reports.jobs import STATES


def test_a_job_that_waits_is_cancelled(fleet, jobs):
    fleet.publish("job", "pdf")
    change = jobs.cancel("task-job")
    assert (change.done, change.found) == (True, "pending")
    assert jobs.get("task-job").state == "revoked"
    again = jobs.cancel("task-job")
    assert (again.done, again.found, again.note) == (False, "revoked", "it has ended: revoked")


def test_a_job_that_runs_is_ended_only_if_that_is_said(fleet, jobs, app, monkeypatch):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    (claim,) = fleet.inbox("worker")
    told = []
    monkeypatch.setattr(app.control, "revoke", lambda task, **options: told.append((task, options["terminate"])))
    change = jobs.cancel("task-job")
    assert (change.done, change.found) == (False, "running")
    assert "with terminate it is ended" in change.note
    assert jobs.cancel("task-job", terminate=True).done
    assert told == [("task-job", True)]
    fleet.end("worker", claim)
    assert not jobs.cancel("task-job").done


def test_a_dead_letter_is_retried(fleet, jobs):
    fleet.bury("job")
    assert "dead letter" in jobs.cancel("task-job").note
    assert jobs.retry("task-job").done
    assert fleet.jobs("worker") == ["job"]
    again = jobs.retry("task-job")
    assert (again.done, again.note) == (False, "it has not ended")


def test_what_has_ended_well_or_is_unknown_is_not_retried(fleet, jobs):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    fleet.end("worker", *fleet.inbox("worker"))
    assert "only dead letters can be retried" in jobs.retry("task-job").note
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
def test_what_redis_has_forgotten_the_result_backend_knows(fleet, jobs, app, status, result, state):
    app.backend.store_result("task", result, status)
    found = jobs.get("task")
    assert (found.state, found.source) == (state, None if state == "unknown" else "backend")
    assert found.why == ("ValueError: no" if state == "failed" else None)
    assert found.has_ended == (found.ended_s is not None)


def test_what_nobody_knows_is_unknown_and_never_pending(fleet, jobs, app):
    assert jobs.get("nobody").state == "unknown"
    assert "PENDING" not in STATES


def test_a_result_backend_that_fails_makes_no_error(fleet, jobs, app, monkeypatch):
    def broken(_):
        raise RuntimeError("password")

    monkeypatch.setattr(app.backend, "get_task_meta", broken)
    found = jobs.get("nobody")
    assert found.state == "unknown"
    assert found.note.endswith("the result backend gave no answer: RuntimeError")


def test_pages_are_listed(fleet, jobs):
    for number in range(5):
        fleet.publish(f"job{number}", "pdf")
    first = jobs.list(state="pending", limit=3)
    rest = jobs.list(state="pending", limit=3, cursor=first.cursor)
    assert [len(first.jobs), len(rest.jobs), rest.cursor] == [3, 2, None]
    with pytest.raises(OptionError, match=r"state must be one of .*affinity_keep is above 60 s"):
        jobs.list(state="failed")
