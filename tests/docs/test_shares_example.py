"""The example of shares: a short run of the side with shares."""

from examples.shares.__main__ import measure, totals_and_ratio
from examples.shares.app import CUSTOMERS, SHARE


def test_both_customers_have_slots_and_their_tasks_run(valkey, redis_client):
    redis_client.set("of another application", 1)
    in_tasks, slots = measure(valkey.url, SHARE, 3)
    assert redis_client.keys() == [b"of another application"]
    assert in_tasks.keys() == slots.keys() == CUSTOMERS.keys()
    assert in_tasks["quick"] > 0
    assert slots["quick"] > 0
    assert slots["slow"] > 0


def test_ratio_to_zero_is_infinite():
    assert totals_and_ratio({"slow": 6.0, "quick": 2.0}) == ("6.0 : 2.0", "3.00")
    assert totals_and_ratio({"slow": 6.0, "quick": 0.0})[1] == "inf"
