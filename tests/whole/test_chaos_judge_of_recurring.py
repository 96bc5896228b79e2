"""The judge of the chaos suite sees calls that recur too often, or not at all, in stories that never were."""

import pytest

from .chaos.app import STALE_S
from .chaos.story import Story


@pytest.fixture
def story():
    return Story()


def test_calls_that_recur_at_their_interval_are_fine(story):
    story.recur(["a"], 1, 2)
    story.recur(["b", "c"], 2 + STALE_S, 3 + STALE_S)
    verdict = story.judged(fired=3)
    assert (verdict.recurring, verdict.violations) == (3, [])


@pytest.mark.parametrize(("fired", "violations"), [(1, 0), (2, 1), (0, 1)])
def test_a_call_that_was_made_and_did_not_run_is_a_violation_and_so_is_one_that_nobody_made(story, fired, violations):
    story.recur(["a"], 1, 2, since="enqueue")
    assert len(story.judged(fired=fired).violations) == violations


def test_a_server_that_makes_none_is_a_violation(story):
    assert story.judged(fired=0).violations == ["no call that recurs was made"]


def test_a_second_call_within_the_interval_is_a_violation_and_a_second_run_of_one_is_not(story):
    story.recur(["a"], 1, 2)
    story.recur(["a"], 3, 3.1)
    assert story.judged(fired=1).violations == []
    story.recur(["b"], 3.5, 3.6)
    (violation,) = story.judged(fired=2).violations
    assert "ran 0.40 s after the last had ended" in violation or "ran 1.50 s after the last had ended" in violation


def test_a_server_that_forgets_may_make_one_again(story):
    story.recur(["a"], 1, 2)
    story.happen("down", "server", 2.1, how="power lost", forgets_s=1)
    story.happen("up", "server", 2.2)
    story.recur(["b"], 2.5, 2.6)
    assert story.judged(fired=1).violations == []
