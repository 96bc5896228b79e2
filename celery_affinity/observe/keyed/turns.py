"""Whose turn it is among the tenants of a lane that have shares."""

from dataclasses import dataclass

from ...clock import SECOND_US
from ...rules.rows import number_of
from ...server.reader import Lane, Reader

#: Member of key ``tags`` that has the clock.
_CLOCK = "!"


@dataclass(frozen=True)
class Turn:
    """The place of a tenant among those that have jobs in one lane.

    *tenants*: their number. *before*: how many of them have used less, about. *ahead_s*: time of slots by weight that
    the tenant has used beyond the one that went last, s.
    """

    tenants: int
    before: int
    ahead_s: float


def turn_of(reader: Reader, key: str, lane: Lane) -> Turn:
    """Return the turn of the tenant whose key (encoded) this is, in *lane*."""
    tags, turns = reader.key("tags"), reader.key("turns", lane.type, lane.name)
    tag, clock = (number_of(score or 0) for score in reader.ask([("zscore", tags, key), ("zscore", tags, _CLOCK)]))
    start = max(tag, clock)
    tenants, before = reader.ask([("zcard", turns), ("zcount", turns, "-inf", f"({start}")])
    return Turn(int(tenants), int(before), (start - clock) / SECOND_US)
