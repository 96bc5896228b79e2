"""When a task ends, the next job is written to its process before any other work for the end."""

import json
from collections import Counter
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from celery.exceptions import WorkerShutdown
from celery.worker import state
from celery.worker.request import create_request_cls

from celery_affinity.leases.held_claim import REVOKED
from celery_affinity.worker import job_feed
from celery_affinity.worker.event_loop import CeleryWorkerLoop

from ..support.fleet import in_time
from ..support.members import Host, Pool, reporting_of
from ..support.processes import wait_until
from ..support.requests import request_of
from ..support.worker_alone import Worker


def one_of_two_has_ended(*, forks=True, in_flight="a connection", ahead=3):
    """Return a worker with two busy slots and prefetched jobs, and the tag of a task that has just ended."""
    worker = Worker(2, ("pdf",), makes=True)
    for _ in range(2 + ahead):
        worker.hold("pdf")
    worker.iterate()
    worker.member._pool.forks = forks
    worker.reporter._host = Host(in_flight)
    worker.reporter._host.start_next = worker.job_feed.start_next
    return worker, worker.running[0]._tag


@pytest.fixture
def written(monkeypatch):
    """The number of started jobs at each write of the pool."""
    found = []
    monkeypatch.setattr(job_feed.pool, "writes_immediately", lambda pool, hub: found.append(pool.started()))
    return found


def in_a_pool(worker):
    worker.limited.pool = SimpleNamespace(started=lambda: len(worker.running))
    worker.limited.hub = None
    return worker


def test_next_job_gets_the_slot_before_the_record(written):
    worker, tag = one_of_two_has_ended()
    in_a_pool(worker)
    worker.reporter.start_next_in_freed_slot(tag)
    assert written == [3]
    assert [request._tag for request in worker.running] == ["job1:1", "job2:2", "job3:3"], "in their order"
    assert tag in dict(worker.claims.open_claims())
    assert worker.job_feed.room() == len(worker.reporter.lookahead) - 2, "as if it had ended"
    worker.reporter.start_next_in_freed_slot(tag)
    worker.reporter.end(tag)
    worker.running.pop(0)
    worker.iterate()
    assert [request._tag for request in worker.running] == ["job2:2", "job3:3"]
    worker.reporter.start_next_in_freed_slot(tag)
    assert written == [3], "it has no slot to give any more"


@pytest.mark.parametrize(
    "where", [{"in_flight": None}, {"forks": False}, {"ahead": 0}], ids=["no loop", "threads", "none ahead"]
)
def test_next_job_otherwise_starts_in_the_next_iteration(written, where):
    worker, tag = one_of_two_has_ended(**where)
    in_a_pool(worker).reporter.start_next_in_freed_slot(tag)
    assert (len(worker.running), written) == (2, [])
    assert worker.claims.unfinished() == 2 + where.get("ahead", 3)


def test_end_before_the_last_prefetched_job_is_batched(written):
    worker, tag = one_of_two_has_ended(ahead=1)
    in_a_pool(worker)
    told = worker.reporter.tell = Mock()
    worker.reporter.start_next_in_freed_slot(tag)
    worker.reporter.end(tag)
    assert not worker.reporter.lookahead
    assert (told.called, worker.reporter._host.woken) == (False, 1)
    worker.reporter.end("job2:2")
    assert told.called, "it had nothing to make way for"


def test_revoked_prebuilt_job_leaves_the_slot_to_the_next(written):
    worker, tag = one_of_two_has_ended()
    in_a_pool(worker)
    start = worker.limited.on_task_request
    # Celery's on_task_request does the same for a revoked request.
    worker.limited.on_task_request = lambda request: worker.reporter.end(request._tag, REVOKED)
    worker.reporter.start_next_in_freed_slot(tag)
    worker.reporter.end(tag)
    worker.running.pop(0)
    assert [request._tag for request in worker.running] == ["job2:2"]
    worker.limited.on_task_request = start
    worker.iterate()
    assert [request._tag for request in worker.running] == ["job2:2", "job4:4"]


def test_stopping_worker_starts_nothing(monkeypatch):
    host = CeleryWorkerLoop(Mock())
    host.job_feed = Mock()
    host.start_next()
    monkeypatch.setattr(state, "should_stop", 0)  # the exit code of a warm shutdown
    host.start_next()
    assert host.job_feed.start_next.call_count == 1


@pytest.mark.parametrize("error", [OSError, SystemExit, WorkerShutdown])
def test_error_of_the_next_start_reaches_the_loop(written, error):
    worker, tag = one_of_two_has_ended()
    in_a_pool(worker).limited.call_soon = Mock()
    worker.job_feed._start_claim = Mock(side_effect=error("lost"))
    worker.reporter.start_next_in_freed_slot(tag)
    fail, raised = worker.limited.call_soon.call_args.args
    with pytest.raises(error, match="lost"):
        fail(raised)


@pytest.mark.parametrize("failed", [0, 1])
def test_next_job_starts_before_the_ack_and_the_record(app, failed):
    reporting = reporting_of(lookahead=8, pool=Pool(forks=True), host=Host("a connection"))
    reporting.lookahead.add(SimpleNamespace(type="pdf", fence="2"), "next")
    made, message = request_of(app, reporting, acks_late=True)
    generated = create_request_cls(type(made), made.task, Mock(), "here", None, trace=Mock(), app=app)
    request = generated(message, app=app, task=made.task, eventer=None)
    acked = []
    reporting._host.start_next = lambda: acked.append(
        (message.ack_log_error.called, len(reporting.claims.open_claims()))
    )
    request.on_success((failed, SimpleNamespace(exception=ValueError("no"), traceback="") if failed else "done", 0.1))
    assert acked == [(False, 1)]
    assert message.ack_log_error.called
    assert reporting.claims.open_claims() == []


# -- real workers


@pytest.mark.parametrize("conf", in_time({"worker_max_tasks_per_child": 5}, {}))
def test_each_task_runs_as_often_as_expected_despite_deaths(fleet, conf):
    """The pipe of a process that is killed or replaced may already contain the next job."""
    for number in range(40):
        fleet.tasks["late" if number % 2 else "early"].delay(f"short-{number}", 0.002)
        if number % 20 == 5:
            fleet.tasks["lose_child"].delay(f"twice-{number}")
            fleet.tasks["fail"].delay(f"fails-{number}")
            fleet.tasks["retry"].delay(f"twice-again-{number}", 0)
    expected = {"short": 40, "twice": 8, "fails": 2}
    fleet.start("all", "pdf", concurrency=2, CONF=json.dumps({"affinity_lookahead": 8, **conf}))
    wait_until(lambda: sum(fleet.ledger.starts().values()) >= sum(expected.values()), 40, "all have run")
    wait_until(fleet.all_slots_are_free, 10, "the slots are free again")
    starts = Counter()
    for job, count in fleet.ledger.starts().items():
        starts[job.partition("-")[0]] += count
    assert starts == expected
    assert set(fleet.ledger.starts().values()) == {1, 2}
