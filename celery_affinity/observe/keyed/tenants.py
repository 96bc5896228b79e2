"""The tenants at a glance: those that have a quota of their own, and those with the most waiting jobs."""

from collections import Counter
from dataclasses import dataclass

from ...rules.encoding import encode
from ...rules.protocol import TENANT_PREFIX
from ...rules.tenants import OTHERS, quotas_in, weight_of
from ...server.fleet import Row
from ...server.reader import Reader
from .facts import facts_of, limits_in_force, read_keys
from .room import some_keys

#: Largest number of tenants without a quota of their own that are shown, and of those with one.
MOST_OTHERS, MOST_NAMED = 20, 100


@dataclass(frozen=True)
class TenantStatus(Row):
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


def tenants(reader: Reader, now_us: int) -> list[TenantStatus]:
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
            weight=weight_of(encode(each.key), text),
            is_named=encode(each.key) in named,
            preempting=preempting[encode(each.key)],
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
    keys = [key for key in some_keys(reader, number) if key.startswith(TENANT_PREFIX)] if number else []
    sublanes = [(key, lane) for key, facts in facts_of(reader, keys).items() for lane in facts.sublanes]
    lengths = reader.ask([("zcard", reader.key("sublane", key, lane.type, lane.name)) for key, lane in sublanes])
    waiting: Counter[str] = Counter()
    for (key, _), length in zip(sublanes, lengths, strict=True):
        waiting[key] += int(length)
    return [key for key, _ in waiting.most_common(MOST_OTHERS)]
