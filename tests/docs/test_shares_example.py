"""The example of shares: a short run of each side that has tenants."""

import pytest

from examples.shares.__main__ import in_words, measure
from examples.shares.app import AGE, CUSTOMERS, SHARE


@pytest.mark.parametrize("side", [AGE, SHARE])
def test_both_customers_have_slots_and_their_tasks_run(valkey, redis_client, side):
    in_tasks, slots = measure(valkey.url, side, 5)
    assert in_tasks.keys() == slots.keys() == CUSTOMERS.keys()
    assert in_tasks["quick"] > 0
    assert slots["quick"] > 0
    assert slots["slow"] > 0


def test_a_ratio_has_no_zero_below():
    assert in_words({"slow": 6.0, "quick": 2.0}) == ("6.0 : 2.0", "3.00")
    assert in_words({"slow": 6.0, "quick": 0.0})[1] == "inf"
