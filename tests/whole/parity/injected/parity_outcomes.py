"""A pytest plugin that writes the outcome of each test to ``$PARITY_OUTCOMES`` immediately, as a line of JSON."""

import json
import os

import pytest
from celery import Celery

_reruns: dict[str, int] = {}
_parts: dict[str, list[tuple[str, str]]] = {}
_again: set[str] = set()  # tests to rerun

#: The outcome of a test is its worst report (set-up, call, subtests, tear-down).
_WORST_FIRST = ("failed", "error", "xpassed", "xfailed", "skipped", "passed")


def pytest_sessionstart():
    """Check that the transport of this side is in use."""
    found = Celery(broker=os.environ["TEST_BROKER"], set_as_current=False).conf.broker_transport
    if found != (os.environ.get("PARITY_TRANSPORT") or None):
        pytest.exit(f"the transport is {found!r}", returncode=3)


def pytest_runtest_logreport(report):
    if report.outcome == "rerun":
        _reruns[report.nodeid] = _reruns.get(report.nodeid, 0) + 1
        _again.add(report.nodeid)
        return
    _parts.setdefault(report.nodeid, []).append((_outcome(report), report.longreprtext if report.failed else ""))


def pytest_runtest_logfinish(nodeid):
    parts = _parts.pop(nodeid, [])
    if nodeid in _again:
        _again.discard(nodeid)
        return
    outcomes = {outcome for outcome, _ in parts}
    record = {
        "test": nodeid,
        "outcome": next(outcome for outcome in _WORST_FIRST if outcome in outcomes),
        "reruns": _reruns.pop(nodeid, 0),
        "why": "\n\n".join(text for _, text in parts if text),
    }
    with open(os.environ["PARITY_OUTCOMES"], "a") as file:
        file.write(json.dumps(record) + "\n")


def _outcome(report):
    if hasattr(report, "wasxfail"):
        return "xpassed" if report.passed else "xfailed"
    if report.failed and report.when != "call":
        return "error"
    return report.outcome
