"""The tenants at a glance: those that have a quota of their own, and those with the most waiting jobs.

Whose turn it is among the tenants of a lane that have shares.
"""

import re
from collections import Counter
from dataclasses import dataclass

from ..clock import SECOND_US
from ..policy.score import decayed_use_us
from ..scheduler.cohorts import CohortRow
from ..scheduler.reader import Lane, Reader
from ..schema.constants import TENANT_PREFIX
from ..schema.values import decode_text, encode_part
from ..settings.tenants import OTHERS, quotas_in, weight_of
from .key_usage import sample_keys
from .keys import facts_of, limits_in_force, read_keys

#: Largest number of tenants without a quota of their own that are shown, and of those with one.
MOST_OTHERS, MOST_NAMED = 20, 100


@dataclass(frozen=True)
class TenantStatus(CohortRow):
    """A tenant: its quota, the slots that its jobs have (*held*), and its *waiting* jobs.

    *limit*: None for no maximum. *oldest_wait_s*: None if no job waits. *is_named*: whether it has a quota of its own.
    *preempting*: number of jobs of others that are being stopped for it.
    """

    name: str
    held: int
    waiting: int
    oldest_wait_s: float | None
    minimum: int
    limit: int | None
    weight: int
    is_named: bool
    preempting: int

    @property
    def is_below_minimum(self) -> bool:
        """Whether its waiting jobs go before those of all others."""
        return self.waiting > 0 and self.held < self.minimum

    @property
    def is_at_maximum(self) -> bool:
        """Whether its waiting jobs wait for others of its own to end."""
        return self.waiting > 0 and self.limit is not None and self.held >= self.limit


def tenants_status(reader: Reader, now_us: int) -> list[TenantStatus]:
    """Return the tenants with a quota of their own, and those with the most waiting jobs, the most first."""
    text = limits_in_force(reader).of_tenants
    named = [TENANT_PREFIX + name for name in sorted(quotas_in(text)) if name != OTHERS][:MOST_NAMED]
    keys = {*named, *_with_most_waiting(reader)}
    preempting = _orders(reader) if keys else Counter[str]()
    found = [
        TenantStatus(
            name=each.tenant or "",
            held=each.held,
            waiting=each.waiting,
            oldest_wait_s=each.oldest_wait_s,
            minimum=each.minimum,
            limit=each.limit,
            weight=weight_of(encode_part(each.key), text),
            is_named=encode_part(each.key) in named,
            preempting=preempting[encode_part(each.key)],
        )
        for each in (read_keys(reader, sorted(keys), now_us) if keys else [])
    ]
    return sorted(found, key=lambda each: (-each.waiting, -each.held, each.name))


def _orders(reader: Reader) -> Counter[str]:
    """Return how many jobs are being stopped for each tenant, by its key."""
    orders = (words.split(" ") for words in reader.hash("vacating").values())
    return Counter(words[2] for words in orders if len(words) > 2)


def _with_most_waiting(reader: Reader) -> list[str]:
    number = int(reader.ask_one("zcard", reader.key("waiting_keys")))
    keys = [key for key in sample_keys(reader, number) if key.startswith(TENANT_PREFIX)] if number else []
    sublanes = [(key, lane) for key, facts in facts_of(reader, keys).items() for lane in facts.sublanes]
    lengths = reader.ask([("zcard", reader.key("sublane", key, lane.type, lane.name)) for key, lane in sublanes])
    waiting: Counter[str] = Counter()
    for (key, _), length in zip(sublanes, lengths, strict=True):
        waiting[key] += int(length)
    return [key for key, _ in waiting.most_common(MOST_OTHERS)]


#: Member of key ``tags`` that has the clock.
_CLOCK = "!"

#: Field ``shares`` of the settings: the era, and the half-life, µs.
_SHARES = re.compile(r"([0-9]{1,18}) ([0-9]{1,18})")


@dataclass(frozen=True)
class ShareTurn:
    """The place of a tenant among those that have jobs in one lane.

    The tenant that has used the least slot-time, divided by its weight, goes first. *tenants*: their number. *before*:
    about how many of them have used less. *ahead_s*: slot-time by weight, s, that the tenant has used beyond the tenant
    that went last; None with a half-life. *used_s*: with a half-life, the slot-time by weight, s, that still counts.
    """

    tenants: int
    before: int
    ahead_s: float | None
    used_s: float | None = None


def generation_in(shares: str) -> str | None:
    """Return the era of shares that the setting says; None while tenants go by age."""
    found = _SHARES.fullmatch(shares)
    return found and found[1]


def share_turn(reader: Reader, key: str, lane: Lane) -> ShareTurn | None:
    """Return the turn of the tenant whose key (encoded) this is, in *lane*; None while tenants go by age."""
    tags = reader.key("tags")
    shares, tag, clock = reader.ask(
        [("hget", reader.key("settings"), "shares"), ("zscore", tags, key), ("zscore", tags, _CLOCK)]
    )
    found = _SHARES.fullmatch(decode_text(shares or b""))
    if found is None:
        return None
    tag, clock = float(tag or 0), float(clock or 0)
    era, half_life_us = found[1], int(found[2])
    start = tag if half_life_us else max(tag, clock)
    turns = reader.key("turns", lane.type, lane.name, era)
    tenants, before = (int(each) for each in reader.ask([("zcard", turns), ("zcount", turns, "-inf", f"({start!r}")]))
    if half_life_us:
        return ShareTurn(
            tenants, before, None, decayed_use_us(tag, half_life_us, reader.now_us()) / SECOND_US if tag else 0.0
        )
    return ShareTurn(tenants, before, (start - clock) / SECOND_US)
