"""Whose turn it is among the tenants of a lane that have shares."""

import re
from dataclasses import dataclass

from ...clock import SECOND_US
from ...rules.half_life import used_us
from ...rules.rows import text_of
from ...server.backlogs import Lane
from ...server.reader import Reader

#: Member of key ``tags`` that has the clock.
_CLOCK = "!"

#: Field ``shares`` of the settings: the era, and the half-life, µs.
_SHARES = re.compile(r"([0-9]{1,18}) ([0-9]{1,18})")


@dataclass(frozen=True)
class Turn:
    """The place of a tenant among those that have jobs in one lane.

    The tenant that has used the least slot-time, divided by its weight, goes first. *tenants*: their number. *before*:
    about how many of them have used less. *ahead_s*: slot-time by weight, s, that the tenant has used beyond the tenant
    that went last; None with a half-life. *used_s*: with a half-life, the slot-time by weight, s, that still counts.
    """

    tenants: int
    before: int
    ahead_s: float | None
    used_s: float | None = None


def era_in(shares: str) -> str | None:
    """Return the era of shares that the setting says; None while tenants go by age."""
    found = _SHARES.fullmatch(shares)
    return found and found[1]


def turn_of(reader: Reader, key: str, lane: Lane) -> Turn | None:
    """Return the turn of the tenant whose key (encoded) this is, in *lane*; None while tenants go by age."""
    tags = reader.key("tags")
    shares, tag, clock = reader.ask(
        [("hget", reader.key("settings"), "shares"), ("zscore", tags, key), ("zscore", tags, _CLOCK)]
    )
    found = _SHARES.fullmatch(text_of(shares or b""))
    if found is None:
        return None
    tag, clock = float(tag or 0), float(clock or 0)
    era, half_life_us = found[1], int(found[2])
    start = tag if half_life_us else max(tag, clock)
    turns = reader.key("turns", lane.type, lane.name, era)
    tenants, before = (int(each) for each in reader.ask([("zcard", turns), ("zcount", turns, "-inf", f"({start!r}")]))
    if half_life_us:
        return Turn(tenants, before, None, used_us(tag, half_life_us, reader.now_us()) / SECOND_US if tag else 0.0)
    return Turn(tenants, before, (start - clock) / SECOND_US)
