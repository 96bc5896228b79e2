"""What a worker does with the sign to stop a task, without a pool and a server."""

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


def test_a_task_is_asked_once_and_the_grace_is_that_of_the_first_sign(worker, marks):
    request = run_one(worker)
    tag = order(worker, request)
    order(worker, request, "1")
    (stop,) = worker.limited.timer.call_after.call_args_list
    assert stop.args[0] == 5
    assert marks.has(tag)
    assert worker.claims.find(tag).described()["grace_s"] == pytest.approx(5, abs=1)
    stop.args[1](*stop.args[2])
    request.preempt.assert_called_once()


def test_a_task_that_has_ended_in_the_grace_is_left_alone(worker):
    request = run_one(worker)
    tag = order(worker, request)
    worker.reporter.set_outcome(tag, ACKED)
    worker.end_one()
    (stop,) = worker.limited.timer.call_after.call_args_list
    stop.args[1](*stop.args[2])
    request.preempt.assert_not_called()
    assert order(worker, request) == tag
    assert worker.limited.timer.call_after.call_count == 1


def test_a_reconnect_which_may_drop_timers_ends_no_grace(worker):
    request = run_one(worker)
    held = worker.claims.find(order(worker, request))
    held.stops_at_s = monotonic() - 1
    worker.limited.timer.reset_mock()
    worker.job_feed._preemption.begin()
    ((pause_s, stop, arguments),) = (call.args for call in worker.limited.timer.call_after.call_args_list)
    assert pause_s == 0
    stop(*arguments)
    request.preempt.assert_called_once()


def test_a_job_that_has_not_started_goes_back_at_once(worker):
    run_one(worker)
    worker.hold("excel")  # ahead
    worker.iterate()
    ((claim, tag),) = worker.reporter.lookahead.first(9)
    worker.job_feed.obey(["preempt", claim.job_id, claim.fence, "5000"])
    assert not worker.reporter.lookahead
    assert worker.claims.pending_reports(9)[1][tag].outcome_text == "returned"
    worker.limited.timer.call_after.assert_not_called()


def test_a_job_that_waits_for_a_rate_limit_goes_back_at_once(worker):
    claim = worker.claim("mail")
    worker.job_feed.receive(claim)
    worker.iterate()
    worker.job_feed.obey(["preempt", claim.job_id, claim.fence, "5000"])
    assert worker.claims.given_up() == {delivery_tag(claim.job_id, claim.fence)}
    worker.member._heartbeats.wake.assert_called()


def test_a_task_that_was_acked_early_goes_on(worker, marks, caplog):
    request = run_one(worker)
    worker.reporter.set_outcome(request._tag, ACKED)
    tag = order(worker, request)
    assert not marks.has(tag)
    assert "goes on: the job may not run again" in caplog.text


def test_a_sign_for_a_job_that_is_not_here_changes_nothing(worker, marks):
    worker.job_feed.obey(["preempt", "job", "9", "0"])
    assert not marks.has("job:9")
    worker.limited.timer.call_after.assert_not_called()


def test_the_memory_of_marks_has_room_again_when_claims_have_ended(marks):
    for number in range(MAX_MARKED + 1):
        marks.mark(f"job:{number}", lambda tag: True)
    assert marks.has(f"job:{MAX_MARKED - 1}")
    assert not marks.has(f"job:{MAX_MARKED}")
    marks.mark("other:1", lambda tag: tag != "job:5")
    assert marks.has("other:1")
    assert not marks.has("job:5")
    assert marks.has("job:6")


def test_a_stopped_claim_tells_for_how_long_it_had_its_slot():
    held = HeldClaim("job", FENCE, "pdf", slot_since_s=10.0, ended_s=51.5, outcome=PREEMPTED, why="")
    assert held.outcome_text == "preempted 41500000"
    assert held.run is None


def test_a_pool_without_force_names_the_tasks_that_ask_fifty_at_most():
    slots = PoolSlots(SimpleNamespace(pool=SimpleNamespace(terminate_job=None)))
    slots._stoppable_tasks = []
    assert [slots.stops_when_asked(name) for name in ("a", "b c", "a")] == [True, True, False]
    assert slots._stoppable_tasks == ["a", "b c"]
    for number in range(60):
        slots.stops_when_asked(f"task{number}")
    assert len(slots._stoppable_tasks) == 50


def test_outside_of_a_task_nobody_is_asked_to_stop():
    assert preemption.preempted() is False
