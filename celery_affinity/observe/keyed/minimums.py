"""Jobs of tenants that have fewer slots than their minimum: these go before all others."""

from collections import Counter
from collections.abc import Sequence

from ...rules.encoding import encode
from ...server.backlogs import Lane
from ...server.reader import Reader
from ..claim_order import Group, Order, ahead


def goes_first(reader: Reader, lane: Lane) -> bool:
    """Return whether the job of *lane* goes before all others, since its tenant has less than its minimum."""
    return reader.ask_one("zscore", _place(reader, lane), lane.job_id) is not None


def first_ahead(reader: Reader, order: Order, types: Sequence[str], lane: Lane) -> list[Group]:
    """Return the jobs of *types* (encoded) that go before that of *lane*, among those that go before all others."""
    mine = order.place(lane, lane.enqueued_us, lane.job_id)
    return ahead(reader, order, reader.first_lanes(types), mine, lambda each: _place(reader, each))


def passing(reader: Reader, order: Order, types: Sequence[str], lane: Lane) -> Counter[str]:
    """Return how many jobs of *types* (encoded) go before that of *lane*, by type, which would go after it by score."""
    lanes = reader.first_lanes(types)
    numbers = reader.ask([("zcard", _place(reader, each)) for each in lanes])
    passing: Counter[str] = Counter()
    for each, number in zip(lanes, numbers, strict=True):
        passing[each.type] += int(number)
    for group in first_ahead(reader, order, types, lane):
        passing[encode(group.type)] -= group.jobs
    return passing


def _place(reader: Reader, lane: Lane) -> str:
    return reader.key("first_lane", lane.type, lane.name)
