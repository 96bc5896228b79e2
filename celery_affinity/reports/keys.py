"""Report the keys that jobs hold or wait for: the limit in force, the holders, and the numbers of waiting jobs."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ..clock import SECOND_US
from ..options.key_templates import HASHED, encoded_key
from ..options.keys import OF_TENANT
from ..scheduler.cohorts import CohortRow
from ..scheduler.reader import Lane, Reader
from ..schema.constants import TENANT_PREFIX
from ..schema.keys import key_address
from ..schema.rules_codec import StatedKey, StatedRate, decode_rules, is_valid, rate_in, readable_rules
from ..schema.values import decode_number, decode_part, decode_text, encode_part
from ..settings import limits as limit_settings
from ..settings.limits import rate_set
from ..settings.tenants import maximum_of, minimum_of
from .job_rows import read_jobs
from .render import duration_text

#: Fields of a key's hash: "type lane" of a sub-lane, and a limit that a task stated. A sub-lane's value: the time and
#: id of its first job, the admitted job, "!" if that runs before all others, and "~" with the generation of its turn.
#: The value "*" means that all its jobs are in the lane, because nothing limits their tenant.
_SUBLANE, _STATED = re.compile(r"(\S+) (\S+)"), re.compile(r"=(\S*)")
_FIRST = re.compile(r"[0-9]+ \S+ ?(\S*)(?: !)?|\*[0-9-]*")
_TURN = re.compile(r"(\S+) [0-9]+ [0-9]+")


@dataclass(frozen=True)
class Holder:
    """A job that holds a key. *held_s*: seconds since the job was claimed."""

    job_id: str
    task_id: str
    task: str
    worker: str
    held_s: float


@dataclass(frozen=True)
class KeyStarts:
    """The rate at which jobs of a key start: *most* in *period_s*. *next_s*: seconds until the next start."""

    most: int
    period_s: float
    next_s: float


@dataclass(frozen=True)
class KeyName(CohortRow):
    """A key that jobs hold or wait for.

    - *limit*: number of jobs that can hold the key at the same time. None without a limit, or if the key has *starts*,
      because no job holds such a key.
    - *minimum*: while fewer jobs hold a tenant's key, its waiting jobs run before all others.
    - *holder*: the job that has held the key longest.
    - *kept_for*: id of the task whose retry gets the key next.
    - *kept_until_s*: the Unix time at which that retry is due, None if it is already due.
    - *turn*: the type that gets the key next.
    - *paused*: True if a pause of this key blocks its jobs.
    - *waiting*: number of waiting jobs, including jobs that can start now.
    - *oldest_wait_s*: None if no job waits.
    """

    key: str
    limit: int | None
    held: int
    waiting: int
    oldest_wait_s: float | None
    holder: Holder | None
    starts: KeyStarts | None = None
    kept_for: str | None = None
    kept_until_s: float | None = None
    turn: str | None = None
    minimum: int = 0
    paused: bool = False

    @property
    def tenant(self) -> str | None:
        """The tenant of the key, or None for other keys."""
        return self.key.removeprefix(OF_TENANT) if self.key.startswith(OF_TENANT) else None

    @property
    def has_room(self) -> bool:
        """True if one more job can start, and the key is not reserved for a retry."""
        if self.starts is not None:
            return not self.starts.next_s
        return self.kept_for is None and (self.limit is None or self.held < self.limit)

    def is_kept_from(self, type_: str) -> bool:
        """Return True if the key's remaining capacity is reserved for another type than *type_*."""
        return self.turn not in (None, type_) and self.limit is not None and self.held == self.limit - 1


def limit_text(key: KeyName) -> str:
    """Return the limit or the rate in force as text."""
    if key.starts:
        return f"{key.starts.most} in {duration_text(key.starts.period_s)}"
    return "-" if key.limit is None else str(key.limit)


def holder_text(holder: Holder) -> str:
    return f"{holder.task_id} ({holder.task}) on {holder.worker} for {duration_text(holder.held_s)}"


def encoded_name(key: str) -> str:
    """Return *key*, as typed or as shown by `show_key`, in Redis form. Raises OptionError."""
    begin, hashed, digest = key.rpartition(HASHED)
    return f"{encode_part(begin)}{hashed}{digest}" if hashed else encoded_key("exclusive", key)


@lru_cache(maxsize=1024)
def stated_keys(text: str) -> tuple[StatedKey, ...]:
    """Return the keys in the field ``rules`` of a job hash, in the order in which the job passes them."""
    return decode_rules(text).keys if is_valid(readable_rules(text)) else ()


def read_keys(reader: Reader, keys: Sequence[str], now_us: int) -> list[KeyName]:
    """Return the state of each of *keys* (encoded)."""
    limits = limits_in_force(reader)
    facts = facts_of(reader, keys)
    pauses = reader.fields("pauses", [key_address(key) for key in keys])
    stated = {key: key_facts.stated.values() for key, key_facts in facts.items()}
    held = reader.ask([("zcard", reader.key("held", key)) for key in keys])
    starts = _starts(reader, stated, limits, now_us)
    retries = {key: key_facts.retry for key, key_facts in facts.items() if key_facts.retry}
    rows = read_jobs(reader, list(retries.values()), ("task", "state", "enqueued", "rank"))
    kept_for = dict(zip(retries, rows, strict=True))
    due_us = {key: retry.lane.rank_us for key, retry in kept_for.items() if retry.state == "scheduled"}
    holders = _holders(reader, keys, now_us)
    waiting = _waiting(reader, {key: key_facts.sublanes for key, key_facts in facts.items()})
    return [
        KeyName(
            key=decode_part(key),
            limit=None if key in starts else limit_of(key, limits, stated[key]),
            held=int(number),
            waiting=jobs,
            oldest_wait_s=None if oldest_us is None else max(0, now_us - oldest_us) / SECOND_US,
            holder=holders.get(key),
            starts=starts.get(key),
            kept_for=kept_for[key].task_id if key in kept_for else None,
            kept_until_s=due_us[key] / SECOND_US if key in due_us else None,
            turn=facts[key].turn,
            minimum=minimum_of(key, limits.of_tenants) if key.startswith(TENANT_PREFIX) else 0,
            paused=key_address(key) in pauses,
        )
        for key, number, (jobs, oldest_us) in zip(keys, held, waiting.values(), strict=True)
    ]


@dataclass(frozen=True)
class KeyFacts:
    """The contents of a key's hash.

    *sublanes*: its sub-lanes with waiting jobs, without their heads. The job in each one is the admitted job, or "" if
    none or all are admitted. *stated*: the last limit or rate of each task (encoded). *retry*: a job id. *turn*: a
    type.
    """

    sublanes: list[Lane]
    stated: dict[str, str]
    retry: str | None
    turn: str | None


def facts_of(reader: Reader, keys: Sequence[str]) -> dict[str, KeyFacts]:
    """Return the hash contents of each of *keys* (encoded)."""
    hashes = reader.ask([("hgetall", reader.key("key_state", key)) for key in keys])
    facts = {}
    for key, raw in zip(keys, hashes, strict=True):
        fields = {decode_text(name): decode_text(value) for name, value in raw.items()}
        lanes = [(_SUBLANE.fullmatch(name), _FIRST.fullmatch(value)) for name, value in fields.items()]
        facts[key] = KeyFacts(
            [Lane(0, jobs[1] or "", place[1], place[2]) for place, jobs in lanes if place and jobs],
            {match[1]: value for name, value in fields.items() if (match := _STATED.fullmatch(name))},
            fields.get("retry"),
            decode_part(match[1]) if (match := _TURN.fullmatch(fields.get("turn", ""))) else None,
        )
    return facts


class LimitsInForce(NamedTuple):
    """The settings of keys in Redis form. *of_keys*: limits in their order. *of_tenants*: quotas.

    *shares*: the generation and the half-life in µs of fair shares, "" without them.
    """

    of_keys: str
    of_tenants: str
    shares: str = ""


def limits_in_force(reader: Reader) -> LimitsInForce:
    """Return the valid limits and the quotas in the settings."""
    limits, quotas, shares = reader.ask_one("hmget", reader.key("settings"), "limits", "tenants", "shares")
    of_keys = limit_settings.limits_in_force(limits and decode_text(limits))
    return LimitsInForce(of_keys, decode_text(quotas or b""), decode_text(shares or b""))


def limit_of(key: str, limits: LimitsInForce, stated: Collection[str]) -> int | None:
    """Return the number of jobs that can hold *key* (encoded): from *limits* or, without one, as *stated* by tasks."""
    if key.startswith(TENANT_PREFIX):
        return maximum_of(key, limits.of_tenants)
    limit = limit_settings.limit_set(key, limits.of_keys)
    return limit if limit is not None else min((int(value) for value in stated if value.isdecimal()), default=None)


def rates_of(
    reader: Reader, stated: Mapping[str, Collection[str]], limits: LimitsInForce, now_us: int
) -> dict[str, tuple[StatedRate, int]]:
    """Return the rate in force of each key with a rate, and the µs until all its starts are free.

    A rate in *limits*, the settings, takes precedence. Otherwise the slowest rate *stated* by tasks applies.
    """
    rates: dict[str, StatedRate] = {}
    for key, texts in stated.items():
        stated_rates = [rate for text in texts if (rate := rate_in(text))]
        if stated_rates:
            rates[key] = rate_set(key, limits.of_keys) or min(
                stated_rates, key=lambda rate: (rate.tokens / rate.period_us, rate)
            )
    times = reader.ask([("zscore", reader.key("rates"), key) for key in rates])
    return {
        key: (rate, min(max(0, decode_number(free_us) - now_us), rate.period_us))
        for (key, rate), free_us in zip(rates.items(), times, strict=True)
    }


def _starts(
    reader: Reader, stated: Mapping[str, Collection[str]], limits: LimitsInForce, now_us: int
) -> dict[str, KeyStarts]:
    """Return when the next job of each key with a rate can start."""
    starts = {}
    for key, (rate, ahead_us) in rates_of(reader, stated, limits, now_us).items():
        next_us = 0 if rate.room(ahead_us) else ahead_us - rate.period_us + rate.interval_us
        starts[key] = KeyStarts(rate.tokens, rate.period_us / SECOND_US, next_us / SECOND_US)
    return starts


def _waiting(reader: Reader, sublanes: Mapping[str, Sequence[Lane]]) -> dict[str, tuple[int, int | None]]:
    """Return the number of jobs that wait for each key, and the oldest enqueue time in µs or None."""
    of_keys = [
        (key, reader.key("key_queue", key, lane.type, lane.name)) for key, lanes in sublanes.items() for lane in lanes
    ]
    lengths = reader.ask([("zcard", name) for _, name in of_keys])
    heads = reader.ask([("zrange", name, 0, 0, False, True) for _, name in of_keys])
    jobs, firsts = Counter[str](), dict[str, tuple[int, str]]()
    for (key, _), length, head in zip(of_keys, lengths, heads, strict=True):
        jobs[key] += int(length)
        of_key = [(decode_number(rank), decode_text(job_id)) for job_id, rank in head]
        if of_key:
            firsts[key] = min([*of_key, *([firsts[key]] if key in firsts else [])])
    names: dict[str, list[str]] = defaultdict(list)
    for key, name in of_keys:
        names[key].append(name)
    oldest_us = reader.oldest_enqueued_us(firsts, names)
    return {key: (jobs[key], oldest_us.get(key)) for key in sublanes}


def _holders(reader: Reader, keys: Sequence[str], now_us: int) -> dict[str, Holder]:
    """Return the job that has held each key longest."""
    replies = reader.ask([("zrange", reader.key("held", key), 0, 0) for key in keys])
    first = {key: decode_text(ids[0]) for key, ids in zip(keys, replies, strict=True) if ids}
    return dict(zip(first, _read_holders(reader, list(first.values()), now_us), strict=True))


def holders_of(reader: Reader, key: str, most: int, now_us: int) -> list[Holder]:
    """Return the *most* jobs that have held *key* (encoded) longest."""
    ids = reader.ask_one("zrange", reader.key("held", key), 0, most - 1)
    return _read_holders(reader, [decode_text(job_id) for job_id in ids], now_us)


def _read_holders(reader: Reader, ids: Sequence[str], now_us: int) -> list[Holder]:
    rows = read_jobs(reader, ids, ("task", "name", "worker", "claimed"))
    names = reader.ask([("hget", reader.key("worker", row.worker), "name") for row in rows])
    return [
        Holder(
            job_id=row.job_id,
            task_id=row.task_id,
            task=row.task,
            worker=decode_part(decode_text(name)) if name else row.worker,
            held_s=max(0, now_us - row.claimed_us) / SECOND_US,
        )
        for row, name in zip(rows, names, strict=True)
    ]
