"""A worker's reaction to the preemption message, without a pool and a server."""

from time import monotonic
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from celery_affinity.leases.held_claim import ACKED, HeldClaim, delivery_tag
from celery_affinity.schema.constants import PREEMPTED
from celery_affinity.worker import preemption
from celery_affinity.worker.pool import PoolSlots
from celery_affinity.worker.preemption import MAX_MARKED, PreemptionMarks

from ..support.worker_alone import Worker

FENCE = "7"


@pytest.fixture
def marks(monkeypatch):
    marks = PreemptionMarks()
    monkeypatch.setattr(preemption, "MARKS", marks)
    return marks


@pytest.fixture
def worker(marks):
    return Worker(1, ("excel", "mail"), makes=True)


def order(worker, request, grace_ms="5000"):
    job_id, _, fence = request._tag.rpartition(":")
    worker.job_feed.obey(["preempt", job_id, fence, grace_ms])
    return request._tag


def run_one(worker, **facts):
    worker.hold("excel")
    worker.iterate()
    request = worker.running[-1]
    vars(request).update(task=SimpleNamespace(acks_late=True), preempt=Mock(return_value=False), **facts)
    worker.claims.start(request._tag)
    return request


def test_second_order_does_not_change_the_grace(worker, marks):
    request = run_one(worker)
    tag = order(worker, request)
    order(worker, request, "1")
    (stop,) = worker.limited.timer.call_after.call_args_list
    assert stop.args[0] == 5
    assert marks.has(tag)
    assert worker.claims.find(tag).described()["grace_s"] == pytest.approx(5, abs=1)
    stop.args[1](*stop.args[2])
    request.preempt.assert_called_once()


def test_task_that_ends_within_the_grace_is_not_stopped(worker):
    request = run_one(worker)
    tag = order(worker, request)
    worker.reporter.set_outcome(tag, ACKED)
    worker.end_one()
    (stop,) = worker.limited.timer.call_after.call_args_list
    stop.args[1](*stop.args[2])
    request.preempt.assert_not_called()
    assert order(worker, request) == tag
    assert worker.limited.timer.call_after.call_count == 1


def test_reconnect_that_drops_timers_extends_no_grace(worker):
    request = run_one(worker)
    held = worker.claims.find(order(worker, request))
    held.stops_at_s = monotonic() - 1
    worker.limited.timer.reset_mock()
    worker.job_feed._preemption.begin()
    ((pause_s, stop, arguments),) = (call.args for call in worker.limited.timer.call_after.call_args_list)
    assert pause_s == 0
    stop(*arguments)
    request.preempt.assert_called_once()


def test_unstarted_prefetched_job_is_returned_immediately(worker):
    run_one(worker)
    worker.hold("excel")  # prefetched
    worker.iterate()
    ((claim, tag),) = worker.reporter.lookahead.first(9)
    worker.job_feed.obey(["preempt", claim.job_id, claim.fence, "5000"])
    assert not worker.reporter.lookahead
    assert worker.claims.pending_reports(9)[1][tag].outcome_text == "returned"
    worker.limited.timer.call_after.assert_not_called()


def test_rate_limited_job_is_returned_immediately(worker):
    claim = worker.claim("mail")
    worker.job_feed.receive(claim)
    worker.iterate()
    worker.job_feed.obey(["preempt", claim.job_id, claim.fence, "5000"])
    assert worker.claims.given_up() == {delivery_tag(claim.job_id, claim.fence)}
    worker.member._heartbeats.wake.assert_called()


def test_early_acked_task_continues(worker, marks, caplog):
    request = run_one(worker)
    worker.reporter.set_outcome(request._tag, ACKED)
    tag = order(worker, request)
    assert not marks.has(tag)
    assert "continues: the job must not run again" in caplog.text


def test_preemption_of_an_absent_job_changes_nothing(worker, marks):
    worker.job_feed.obey(["preempt", "job", "9", "0"])
    assert not marks.has("job:9")
    worker.limited.timer.call_after.assert_not_called()


def test_preemption_marks_of_ended_claims_are_dropped_when_full(marks):
    for number in range(MAX_MARKED + 1):
        marks.mark(f"job:{number}", lambda tag: True)
    assert marks.has(f"job:{MAX_MARKED - 1}")
    assert not marks.has(f"job:{MAX_MARKED}")
    marks.mark("other:1", lambda tag: tag != "job:5")
    assert marks.has("other:1")
    assert not marks.has("job:5")
    assert marks.has("job:6")


def test_preempted_claim_reports_its_slot_time():
    held = HeldClaim("job", FENCE, "pdf", slot_since_s=10.0, ended_s=51.5, outcome=PREEMPTED, why="")
    assert held.outcome_text == "preempted 41500000"
    assert held.run is None


def test_pool_without_force_reports_at_most_fifty_stoppable_tasks():
    slots = PoolSlots(SimpleNamespace(pool=SimpleNamespace(terminate_job=None)))
    slots._stoppable_tasks = []
    assert [slots.stops_when_asked(name) for name in ("a", "b c", "a")] == [True, True, False]
    assert slots._stoppable_tasks == ["a", "b c"]
    for number in range(60):
        slots.stops_when_asked(f"task{number}")
    assert len(slots._stoppable_tasks) == 50


def test_preempted_is_false_outside_of_a_task():
    assert preemption.preempted() is False
