"""Bounds of queues: what the setting accepts, and which bound a type has."""

import pytest

from celery_affinity import Bound, SettingError
from celery_affinity.schema.bounds import as_bound, bound_words
from celery_affinity.settings.table import Settings


def test_an_exact_name_counts_before_all_patterns_then_the_longest_pattern():
    bounds = Settings(max_pending={"*": 9, "crawl.*": Bound(5, full="drop-oldest"), "crawl.fast": 7}).max_pending
    assert as_bound("crawl.fast", bounds) == Bound(7, "refuse")
    assert as_bound("crawl.slow", bounds) == Bound(5, "drop-oldest")
    assert as_bound("pdf", bounds) == Bound(9)
    assert as_bound("pdf", {"excel": 3}) is None
    for both in ({"pd*": 9, "pdf": 7}, {"*pdf*": 9, "pdf": 7}, {"*df": 9, "pd*": 7}, {"p*f": 9, "pd*": 7}):
        assert as_bound("pdf", both) == as_bound("pdf", dict(reversed(both.items()))) == Bound(7)


def test_a_publish_says_them_in_words_without_blanks():
    assert bound_words({"a b": Bound(5), "pdf": Bound(7, "drop-newest")}) == "a%20b=5/refuse pdf=7/drop-newest"


@pytest.mark.parametrize(
    "value", [7, {"pdf": 0}, {"pdf": -1}, {"pdf": True}, {"pdf": "7"}, {"": 1}, {7: 1}, {"a": 1.5}]
)
def test_a_bad_setting_is_refused(value):
    with pytest.raises(SettingError, match=r"affinity_max_pending must be a mapping of types.*, got: "):
        Settings(max_pending=value)


@pytest.mark.parametrize(
    ("most", "full", "said"),
    [
        (0, "refuse", "most of a Bound must be a whole number above 0, up to 1,000,000,000, got: 0"),
        (5, "drop", "full of a Bound must be 'refuse' or 'drop-oldest' or 'drop-newest', got: 'drop'"),
    ],
)
def test_a_bad_bound_is_refused(most, full, said):
    with pytest.raises(SettingError, match=said):
        Bound(most, full)
