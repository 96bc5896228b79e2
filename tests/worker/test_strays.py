"""Leaked claims, whose request is nowhere in the worker, end after a while."""

from types import SimpleNamespace

import pytest

from celery_affinity.scheduler.messages import Claim
from celery_affinity.worker import request_end

from ..support.members import reporting_of
from ..support.requests import held


class Consumer:
    """The part of Celery's consumer where requests wait."""

    def __init__(self, waiting=(), limited=()):
        self.controller = SimpleNamespace(
            semaphore=SimpleNamespace(_waiting=[(print, (each,), {}) for each in waiting])
        )
        self.task_buckets = {"other": None, "limited": SimpleNamespace(contents=[(each, 1) for each in limited])}


class Requested:
    """A request. *is_in_the_pool*: None if no pool has the request; "runs" if a pool reports that the task runs."""

    name, id = "task", "id"

    def __init__(self, is_in_the_pool=None):
        self.is_in_the_pool = is_in_the_pool and (lambda: is_in_the_pool == "runs")
        self.has_ended = False

    def end_leaked(self):
        self.has_ended = True


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(s=0.0)
    monkeypatch.setattr(request_end, "monotonic", lambda: now.s)
    return now


def test_only_claims_without_a_task_leak_after_a_while(clock):
    states = (None, None, "runs", None, "ended")
    requests = waiting, limited, _, _, ended = [Requested(state) for state in states]
    reporting = reporting_of(lookahead=10)
    claims = reporting.claims
    for fence, request in enumerate(requests, start=1):
        held(claims, fence, request)
    reporting.lookahead.add(Claim("job-8", "8", "pdf", 0, 0, b""), held(claims, 8))
    forgotten = held(claims, 9)
    found = request_end.LeakedClaims(Consumer([waiting], [limited]), reporting)
    for clock.s in (0.0, 10.0, 29.0):
        assert found.free(loop_runs=True) is not None, "it looks again soon"
    assert not ended.has_ended
    assert forgotten in dict(claims.open_claims())
    clock.s = 30.0
    found.free(loop_runs=True)
    assert [request.has_ended for request in requests] == [False] * 3 + [True] * 2
    assert forgotten not in dict(claims.open_claims())


def test_no_claim_leaks_while_the_event_loop_is_blocked(clock):
    reporting = reporting_of(lookahead=10)
    claims = reporting.claims
    ended = Requested("ended")
    held(claims, 1, ended)
    found = request_end.LeakedClaims(Consumer(), reporting)
    found.free(loop_runs=True)
    clock.s = 40.0
    found.free(loop_runs=False)
    found.free(loop_runs=True)
    assert not ended.has_ended, "its end may have been read since"
