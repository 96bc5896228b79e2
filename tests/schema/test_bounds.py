"""Bounds of queues: accepted values of the setting, and the bound that applies to a type."""

import pytest

from celery_affinity import Bound, SettingError
from celery_affinity.schema.bounds import as_bound, bound_words
from celery_affinity.settings.table import Settings


def test_exact_name_then_longest_pattern_sets_the_bound():
    bounds = Settings(max_pending={"*": 9, "crawl.*": Bound(5, full="drop-oldest"), "crawl.fast": 7}).max_pending
    assert as_bound("crawl.fast", bounds) == Bound(7, "refuse")
    assert as_bound("crawl.slow", bounds) == Bound(5, "drop-oldest")
    assert as_bound("pdf", bounds) == Bound(9)
    assert as_bound("pdf", {"excel": 3}) is None
    for both in ({"pd*": 9, "pdf": 7}, {"*pdf*": 9, "pdf": 7}, {"*df": 9, "pd*": 7}, {"p*f": 9, "pd*": 7}):
        assert as_bound("pdf", both) == as_bound("pdf", dict(reversed(both.items()))) == Bound(7)


def test_bounds_are_encoded_without_spaces():
    assert bound_words({"a b": Bound(5), "pdf": Bound(7, "drop-newest")}) == "a%20b=5/refuse pdf=7/drop-newest"


@pytest.mark.parametrize("value", [7, *({"pdf": bound} for bound in (0, -1, True, "7", 1.5)), {"": 1}, {7: 1}])
def test_invalid_max_pending_is_refused(value):
    with pytest.raises(SettingError, match=r"affinity_max_pending must be a mapping of types.*, got: "):
        Settings(max_pending=value)


@pytest.mark.parametrize(
    ("most", "full", "message"),
    [
        (0, "refuse", "most of a Bound must be a whole number above 0, up to 1,000,000,000, got: 0"),
        (5, "drop", "full of a Bound must be 'refuse' or 'drop-oldest' or 'drop-newest', got: 'drop'"),
    ],
)
def test_invalid_bound_is_refused(most, full, message):
    with pytest.raises(SettingError, match=message):
        Bound(most, full)
