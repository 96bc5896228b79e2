"""The checker of the chaos suite finds recurring calls that run too often or never, in synthetic histories."""

import pytest

from .chaos.app import STALE_S
from .chaos.synthetic import SyntheticHistory


@pytest.fixture
def history():
    return SyntheticHistory()


def test_calls_at_their_interval_have_no_violation(history):
    history.recur(["a"], 1, 2)
    history.recur(["b", "c"], 2 + STALE_S, 3 + STALE_S)
    verdict = history.checked(fired=3)
    assert (verdict.recurring, verdict.violations) == (3, [])


@pytest.mark.parametrize(("fired", "violations"), [(1, 0), (2, 1), (0, 1)])
def test_each_run_needs_exactly_one_published_call(history, fired, violations):
    history.recur(["a"], 1, 2, since="enqueue")
    assert len(history.checked(fired=fired).violations) == violations


def test_server_without_recurring_calls_is_a_violation(history):
    assert history.checked(fired=0).violations == ["no call that recurs was made"]


def test_second_call_in_an_interval_is_a_violation(history):
    history.recur(["a"], 1, 2)
    history.recur(["a"], 3, 3.1)
    assert history.checked(fired=1).violations == []
    history.recur(["b"], 3.5, 3.6)
    (violation,) = history.checked(fired=2).violations
    assert "ran 0.40 s after the last had ended" in violation or "ran 1.50 s after the last had ended" in violation


def test_server_may_repeat_a_call_after_power_loss(history):
    history.recur(["a"], 1, 2)
    history.happen("down", "server", 2.1, how="power lost", forgets_s=1)
    history.happen("up", "server", 2.2)
    history.recur(["b"], 2.5, 2.6)
    assert history.checked(fired=1).violations == []
