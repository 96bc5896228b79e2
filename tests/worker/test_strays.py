"""Claims whose request is nowhere in the worker: each ends after a while."""

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
    """A request. *is_in_the_pool*: None if no pool has the request; "runs" if a pool says that the task runs."""

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


def test_what_waits_or_runs_is_no_stray_and_the_rest_is_one_after_a_while(clock):
    waiting, limited, running, queued_nowhere, ended = (
        Requested(),
        Requested(),
        Requested("runs"),
        Requested(),
        Requested("ended"),
    )
    reporting = reporting_of(lookahead=10)
    claims = reporting.claims
    for fence, each in enumerate((waiting, limited, running, queued_nowhere, ended), start=1):
        held(claims, fence, each)
    reporting.lookahead.add(Claim("job-8", "8", "pdf", 0, 0, b""), held(claims, 8))
    forgotten = held(claims, 9)
    found = request_end.LeakedClaims(Consumer([waiting], [limited]), reporting)
    for clock.s in (0.0, 10.0, 29.0):
        assert found.free(loop_runs=True) is not None, "it looks again soon"
    assert not ended.has_ended
    assert forgotten in dict(claims.open_claims())
    clock.s = 30.0
    found.free(loop_runs=True)
    assert [each.has_ended for each in (waiting, limited, running, queued_nowhere, ended)] == [False] * 3 + [True] * 2
    assert forgotten not in dict(claims.open_claims())


def test_nothing_is_a_stray_while_the_event_loop_stands_still(clock):
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
