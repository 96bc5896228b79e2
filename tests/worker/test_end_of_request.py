"""Request ends whose result cannot be stored, and task starts whose job another worker may have."""

from contextlib import nullcontext
from unittest.mock import Mock

import pytest
from celery.concurrency.base import BasePool, apply_target
from celery.worker.request import create_request_cls

from celery_affinity.leases.held_claim import ACKED, RETURNED, UNSETTLED
from celery_affinity.worker.pool import derive_pool, is_accepted_inline, still_has_job

from ..support.members import Pool, reporting_of
from ..support.requests import request_of


def test_revoked_job_ends_when_its_result_cannot_be_stored(app):
    reporting = reporting_of()
    revoked, message = request_of(app, reporting)
    revoked._announce_revoked("revoked", False, None, False)
    assert message.ack_log_error.called, "it does not come again"
    assert reporting.claims.open_claims() == []
    assert revoked.revoked()


@pytest.mark.parametrize("acks", [True, False])
def test_timed_out_task_ends_when_result_cannot_be_stored(app, acks):
    reporting = reporting_of()
    long, message = request_of(app, reporting, acks_late=True, acks_on_failure_or_timeout=acks)
    long.on_timeout(soft=False, timeout=1)
    assert (message.ack_log_error.called, message.reject_log_error.called) == (acks, not acks)
    assert reporting.claims.open_claims() == []


@pytest.mark.parametrize("error", [LookupError, SystemExit])
def test_task_runs_or_ends_when_its_start_event_fails(app, error):
    reporting = reporting_of()
    started, _ = request_of(app, reporting, eventer=Mock(enabled=True, **{"send.side_effect": error}), send_events=True)
    with pytest.raises(error) if error is SystemExit else nullcontext():
        started.on_accepted(1, 0.0)
    assert len(reporting.claims.open_claims()) == (error is not SystemExit)


class Busy(BasePool):
    """A green pool with only busy greenlets: a task begins when the test calls `begin`."""

    is_green = True

    def __init__(self):
        self._pool_map = {}

    def apply_async(self, target, args=(), kwargs=None, **options):
        wanted = {name: options[name] for name in ("callback", "accept_callback")}
        self.begin = lambda: apply_target(target, args, kwargs or {}, **wanted)


#: The pool class that a worker derives from it.
Late = derive_pool(Busy)


def give(app, reporting, began, eventer=None, **options):
    """Give a job to a pool. Return the job's message and the pool. A task body that begins appends to *began*."""
    made, message = request_of(app, reporting, eventer, **options)
    pool = Late()

    def trace(*_):
        began.append(True)
        return 0, "done", 0.1

    generated = create_request_cls(type(made), made.task, pool, "here", eventer, trace=trace, app=app)
    generated(message, app=app, task=made.task, eventer=eventer).execute_using_pool(pool)
    return message, pool


def loses_it(claims):
    claims.void_up_to(10)


def is_silent(claims):
    claims.lease.renew(asked_at_s=0, timeout_s=0)


@pytest.mark.parametrize("happens", [loses_it, is_silent])
@pytest.mark.parametrize("when", ["before the task is accepted", "while its event is sent"])
@pytest.mark.parametrize("acks_late", [True, False])
def test_task_does_not_begin_when_its_job_is_unsure(app, happens, when, acks_late):
    reporting, began = reporting_of(), []
    sends = Mock(enabled=True, **{"send.side_effect": lambda *_, **__: happens(reporting.claims)})
    eventer = sends if when == "while its event is sent" else None
    options = {"eventer": eventer, "send_events": eventer is not None, "acks_late": acks_late}
    message, pool = give(app, reporting, began, **options)
    if eventer is None:
        happens(reporting.claims)
    pool.begin()
    assert not began
    assert reporting.claims.open_claims() == []
    assert message.ack_log_error.called == (eventer is not None and not acks_late)
    if happens is is_silent:
        assert [each.outcome for each in reporting.claims._ends.values()] == [RETURNED]


def test_task_begins_after_its_early_ack_was_sent(app):
    reporting, began = reporting_of(), []
    message, pool = give(app, reporting, began)

    def is_told(*_, **__):
        reporting.set_outcome(message.delivery_tag, ACKED)
        reporting.outbox.flush(Mock(), inline=False)
        is_silent(reporting.claims)

    message.ack_log_error.side_effect = is_told
    pool.begin()
    assert began, "nobody else would run it"


def test_draining_worker_keeps_jobs_accepted_by_a_green_pool(app):
    reporting, pool = reporting_of(), Late()
    claimed, _ = request_of(app, reporting)
    assert claimed._apply_result is None
    claimed.is_in_the_pool = is_accepted_inline
    assert reporting.claims.drop_unstarted(Pool(has=lambda each: still_has_job(pool, each))) == []
    claimed.is_in_the_pool = None  # for example a request that waits for its ETA
    assert len(reporting.claims.drop_unstarted(Pool(has=lambda each: still_has_job(pool, each)))) == 1


@pytest.mark.parametrize("acks_late", [True, False])
def test_cancelled_greenlet_is_not_recorded_as_success(app, acks_late):
    reporting = reporting_of()
    request, message = request_of(app, reporting, acks_late=acks_late)
    cls = type("Request", (create_request_cls(type(request), request.task, Mock(), "", None),), {})
    request.__class__ = cls
    request.on_accepted(1, 0.0)
    pool = Mock(**{"terminate_job.side_effect": lambda *_: request.on_success((False, None, None))})
    request.cancel(pool, emit_retry=acks_late)
    assert message.ack_log_error.called != acks_late
    assert bool(reporting.claims.open_claims()) != acks_late, "an acked job is left for the end of the worker"
    assert request.task.backend.mark_as_retry.called == acks_late
    (held,) = reporting.claims.held_claims()
    assert held.outcome_text == UNSETTLED
