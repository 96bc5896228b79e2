"""The checker of the chaos suite with workers over HTTP, and half a minute of that suite."""

import pytest

from ..support.processes import run_module
from .chaos.ledger import Event
from .chaos.over_http.checker import check, read

BY = {"run": "1.1", "worker": "1", "by": "http", "deliveries": "0"}


def event(kind, at, subject="job", pid=1, **facts):
    return Event(kind, at, pid, subject, facts)


def published(*events):
    return [event("intended", 0.0), event("accepted", 0.1), *events]


def ran(at=1.0, pid=1, run="1.1", deliveries="0", reported=True):
    facts = {"run": run, "worker": str(pid), "by": "http", "deliveries": deliveries}
    end = [event("reported", at + 0.3, pid=pid, run=run, status="200")] if reported else []
    return [event("start", at, pid=pid, **facts), event("end", at + 0.2, pid=pid, run=run), *end]


def killed(at, pid=1, what="worker over HTTP"):
    return event("kill", at, what, pid=99, target=str(pid))


def violations(*events, result="job"):
    return check(read([*published(), *events]), {"job": result}, {}).violations


def test_one_run_with_its_result_is_accepted():
    assert violations(*ran()) == []


def test_repeated_run_is_accepted_after_a_counted_kill():
    again = ran(5.0, 2, "2.1", deliveries="1")
    assert violations(*ran(reported=False), killed(1.25), *again) == []
    assert violations(event("start", 1.0, **BY), killed(1.1), *again) == []


@pytest.mark.parametrize(
    ("words", "events", "result"),
    [
        ("never ran to its end", [], "job"),
        ("never ran to its end", [event("start", 1.0, **BY), killed(1.1)], "job"),
        ("no worker that had it was killed", [*ran(), *ran(5.0, 2, "2.1")], "job"),
        ("no worker that had it was killed", [*ran(), killed(2.0), *ran(5.0, 2, "2.1", "1")], "job"),
        ("counts no delivery", [*ran(reported=False), killed(1.25), *ran(5.0, 2, "2.1")], "job"),
        ("its result is 'PENDING'", ran(), "PENDING"),
        ("was reported dead", [*ran(), event("unknown", 2.0, "http-1")], "job"),
        ("was answered with 400", [*ran(reported=False), event("reported", 2.0, run="1.1", status="400")], "job"),
    ],
)
def test_checker_finds_each_kind_of_violation(words, events, result):
    assert any(words in each for each in violations(*events, result=result))


@pytest.mark.slow  # a minute and a half: workers of three kinds, two web processes and the server are killed
@pytest.mark.timeout(280)
def test_half_a_minute_of_chaos_has_no_violations(tmp_path):
    run_module("tests.whole.chaos.over_http", "--seconds", 30, "--output", tmp_path, timeout=240)
