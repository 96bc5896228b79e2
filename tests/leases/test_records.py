"""A recording notes the lane of a claim whose message has an invalid priority."""

import pytest

from celery_affinity.leases.held_claim import HeldClaim

from ..support.members import claims_of


@pytest.mark.parametrize(
    ("priority", "lane"),
    [(None, "queued.0"), (3, "queued.3"), ([3], ""), ({"a": 1}, ""), ("3", ""), (2.5, "")],
)
def test_recorded_lane_is_empty_for_an_invalid_priority(priority, lane):
    records = claims_of().records
    records.begin()
    records.ended([HeldClaim("job", "1", "pdf", on_demand=False, priority=priority, outcome="acked")])
    ((_, _, kind, *_),), number = records.take()
    assert kind == ("pdf", lane, "done", "")
    assert number == 1
