"""Report tenants with an own quota and tenants with the most waiting jobs, and a tenant's turn by shares."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..clock import SECOND_US
from ..options.keys import OF_TENANT
from ..policy.score import decayed_use_us
from ..scheduler.cohorts import CohortRow
from ..scheduler.reader import Lane, Reader
from ..scheduler.scheduler import Scheduler
from ..schema.constants import TENANT_PREFIX
from ..schema.values import NAMES, decode_number, decode_text, encode_part
from ..settings.tenants import EMPTY, OTHERS, quotas_in, weight_of
from .key_usage import KeysInUse, Limit, Pattern, keys_of_cohorts, sample_keys, table_of_keys
from .keys import KeyName, facts_of, limits_in_force, read_keys
from .render import Table, duration_or_dash, pluralize
from .report import Answer, Source, report

#: Maximum numbers of tenants without and with an own quota that are shown.
MAX_OTHERS, MAX_NAMED = 20, 100


@dataclass(frozen=True)
class TenantStatus(CohortRow):
    """A tenant: its quota, the slots that its jobs have (*held*), and its *waiting* jobs.

    With fair shares, jobs without a tenant are in a row with an empty *name*.

    *limit*: None without a maximum. *oldest_wait_s*: None if no job waits. *is_named*: True if it has its own quota.
    *preempting*: number of jobs of other tenants that are being preempted for it.
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
        """True if its waiting jobs run before all other tenants' jobs."""
        return self.waiting > 0 and self.held < self.minimum

    @property
    def is_at_maximum(self) -> bool:
        """True if its waiting jobs wait for its own running jobs to end."""
        return self.waiting > 0 and self.limit is not None and self.held >= self.limit


def tenants_status(reader: Reader, now_us: int) -> list[TenantStatus]:
    """Return tenants with their own quota, and tenants with the most waiting jobs, sorted by waiting jobs."""
    in_force = limits_in_force(reader)
    text = in_force.of_tenants
    named = [TENANT_PREFIX + name for name in sorted(quotas_in(text)) if name not in (OTHERS, EMPTY)][:MAX_NAMED]
    keys = {*named, *_with_most_waiting(reader)}
    orders = [words.split(" ") for words in reader.hash("stop_orders").values()] if keys else []
    preempting = Counter(words[2] for words in orders if len(words) > 2)  # by the key of the tenant
    tenants = [
        TenantStatus(
            name=key.tenant or "",
            held=key.held,
            waiting=key.waiting,
            oldest_wait_s=key.oldest_wait_s,
            minimum=key.minimum,
            limit=key.limit,
            weight=weight_of(encode_part(key.key), text),
            is_named=encode_part(key.key) in named,
            preempting=preempting[encode_part(key.key)],
        )
        for key in (read_keys(reader, sorted(keys), now_us) if keys else [])
    ]
    if generation := generation_in(in_force.shares):
        tenants.append(_without_tenant(reader, generation, text, now_us))
    return sorted(tenants, key=lambda tenant: (-tenant.waiting, -tenant.held, tenant.name))


def _without_tenant(reader: Reader, generation: str, quotas: str, now_us: int) -> TenantStatus:
    lanes = [reader.key("untenanted", lane.type, lane.name) for lane in reader.lanes()]
    lengths = reader.ask([("zcard", lane) for lane in lanes])
    firsts = [first for (first,) in filter(None, reader.ask([("zrange", lane, 0, 0, False, True) for lane in lanes]))]
    shares = [reader.key("share", name, TENANT_PREFIX, generation) for name in NAMES]
    running = (_read_share(text).running for text in reader.ask_one("mget", *shares))
    first = {"": min((decode_number(rank), decode_text(job_id)) for job_id, rank in firsts)} if firsts else {}
    oldest_us = reader.oldest_enqueued_us(first, {"": lanes}).get("")
    return TenantStatus(
        name="",
        held=sum(running),
        waiting=sum(map(int, lengths)),
        oldest_wait_s=None if oldest_us is None else max(0, now_us - oldest_us) / SECOND_US,
        minimum=0,
        limit=None,
        weight=weight_of(TENANT_PREFIX, quotas),
        is_named=EMPTY in quotas_in(quotas),
        preempting=0,
    )


def _note(tenant: TenantStatus) -> str:
    if tenant.is_below_minimum:
        stops = f", {pluralize(tenant.preempting, 'job')} of others being stopped" if tenant.preempting else ""
        return f"below its minimum: its jobs start first{stops}"
    return "at its maximum" if tenant.is_at_maximum else ""


#: Tenants in the fleet's status.
TENANTS = Table[TenantStatus](
    {
        "tenant": lambda tenant: tenant.name or "(no tenant)",
        "slots": "held",
        "min": lambda tenant: tenant.minimum or None,
        "max": "limit",
        "weight": "weight",
        "waiting": "waiting",
        "oldest wait": lambda tenant: duration_or_dash(tenant.oldest_wait_s),
        "": _note,
    }
)

_TENANT_KEYS = Table[KeyName](
    {
        "tenant": "tenant",
        "min": lambda key: key.minimum or None,
        "max": "limit",
        "slots": "held",
        "waiting": "waiting",
        "oldest wait": lambda key: duration_or_dash(key.oldest_wait_s),
        "": lambda key: "paused" if key.paused else "",
    },
    optional={"": lambda key: key.paused},
)


@report(
    "tenants list",
    text=lambda in_use: table_of_keys(in_use, _TENANT_KEYS, "no job of such a tenant runs or waits"),
)
def tenants_in_use(source: Source, pattern: Pattern = "*", limit: Limit = 100) -> Answer[KeysInUse]:
    """List the tenants whose jobs run or wait. * in PATTERN matches any characters."""
    return keys_of_cohorts(source, OF_TENANT + pattern, limit)


@report("/api/tenants", "/api/tenants", "Tenants with their own quota, and the tenants with the most waiting jobs")
def list_tenants(source: Source) -> Answer[list[TenantStatus]]:
    """Report the tenants of the fleet's status."""
    return source.rows(tenants_of_cohort)


def tenants_of_cohort(scheduler: Scheduler) -> list[TenantStatus]:
    return tenants_status(scheduler.reader, scheduler.reader.now_us())


def _with_most_waiting(reader: Reader) -> list[str]:
    number = int(reader.ask_one("zcard", reader.key("waiting_keys")))
    keys = [key for key in sample_keys(reader, number) if key.startswith(TENANT_PREFIX)] if number else []
    sublanes = [(key, lane) for key, facts in facts_of(reader, keys).items() for lane in facts.sublanes]
    lengths = reader.ask([("zcard", reader.key("key_queue", key, lane.type, lane.name)) for key, lane in sublanes])
    waiting: Counter[str] = Counter()
    for (key, _), length in zip(sublanes, lengths, strict=True):
        waiting[key] += int(length)
    return [key for key, _ in waiting.most_common(MAX_OTHERS)]


#: Field ``shares`` of the settings: the generation, and the half-life in µs.
_SHARES = re.compile(r"([0-9]{1,18}) ([0-9]{1,18})")

#: A share in Redis: credit, use and running jobs; then, per line, a type, its start tag, and its candidate.
_SHARE = re.compile(r"([0-9]{1,18}) ([-+.e0-9]{1,30}) ([0-9]{1,9})(?:\n.*)?", re.DOTALL)
_START = re.compile(r"^(\S+) ([-+.e0-9]{1,30})", re.MULTILINE)

#: Maximum number of types whose turns are counted.
_MAX_TYPES = 100


@dataclass(frozen=True)
class ShareTurn:
    """The rank of a job's tenant among all tenants with pending jobs of its mode and priority.

    The tenant that has used the least slot time, divided by its weight, runs first. A tenant has one turn per type.
    *turns*: the number of turns for the slots that the job can take. *before*: how many of them come first. *ahead_s*:
    weighted slot time in seconds used beyond the last turn of the type, or None with a half-life. *used_s*: with a
    half-life, the remaining weighted slot time in seconds.
    """

    turns: int
    before: int
    ahead_s: float | None
    used_s: float | None = None


class _Share(NamedTuple):
    use: float
    running: int
    starts: dict[str, float]


def _read_share(text: bytes | None) -> _Share:
    """Return a share as ``lua/keys/fair_share.lua`` writes it. Lines of another form are ignored."""
    match = _SHARE.fullmatch(decode_text(text or b""))
    if match is None:
        return _Share(0.0, 0, {})
    starts = {type_: _finite(start) for type_, start in _START.findall(match[0].partition("\n")[2])}
    return _Share(_finite(match[2]), int(match[3]), starts)


def _finite(text: str) -> float:
    """Return the number in *text*, or 0 if it is none."""
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0


def generation_in(shares: str) -> str | None:
    """Return the generation of shares in the setting, or None while tenants are ordered by age."""
    match = _SHARES.fullmatch(shares)
    return match and match[1]


def share_turn(reader: Reader, key: str, lane: Lane, types: Sequence[str]) -> ShareTurn | None:
    """Return the turn in *lane* of the tenant with this encoded *key*, or None while tenants are ordered by age.

    *types*: the types (encoded) that the slots of the job serve. The turns of at most 100 are counted.
    """
    match = _SHARES.fullmatch(decode_text(reader.ask_one("hget", reader.key("settings"), "shares") or b""))
    if match is None:
        return None
    generation, half_life_us = match[1], int(match[2])
    (text,), clock = reader.ask(
        [
            ("mget", reader.key("share", lane.name, key, generation)),  # None for a key of another kind
            ("zscore", reader.key("clocks"), f"{lane.name} {lane.type}"),
        ]
    )
    share, clock_us = _read_share(text), float(clock or 0)
    start = share.use if half_life_us else max(clock_us, share.starts.get(lane.type, 0.0))
    turns = [reader.key("turns", type_, lane.name) for type_ in sorted({lane.type, *types[:_MAX_TYPES]})]
    numbers = [int(number) for number in reader.ask([("zcard", name) for name in turns])]
    before = [int(number) for number in reader.ask([("zcount", name, "-inf", f"({start!r}") for name in turns])]
    if half_life_us:
        used_us = decayed_use_us(share.use, half_life_us, reader.now_us()) if share.use else 0.0
        return ShareTurn(sum(numbers), sum(before), None, used_us / SECOND_US)
    return ShareTurn(sum(numbers), sum(before), (start - clock_us) / SECOND_US)
