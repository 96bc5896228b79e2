"""Keys in use. `facts`: the limit, holders and waiting jobs of a key. `waiting`: why a job with a key waits.

`room`: how many jobs with keys could start. `in_use`: the keys found by a pattern.

The keys that jobs hold or wait for: the limit in force, who holds a key, and how many wait for it.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..clock import SECOND_US
from ..options.key_templates import HASHED, encoded_key
from ..options.keys import OF_TENANT, is_rules_dict
from ..scheduler.cohorts import CohortRow
from ..scheduler.reader import Lane, Reader
from ..schema.constants import TENANT_PREFIX
from ..schema.rules_codec import StatedKey, StatedRate, keys_in, rate_in, readable_rules
from ..schema.values import decode_number, decode_part, decode_text, encode_part
from ..settings import limits as limit_settings
from ..settings.limits import rate_set
from ..settings.tenants import maximum_of, minimum_of
from .job_rows import JobRow, read_jobs

#: Fields of a key's hash: "type lane" of a sub-lane, and what a task stated. A sub-lane's value: the time and the id of
#: its first job, the job that stands in the lane, "!" if that goes before all others, and "~" with the era of its turn;
#: or "*": all its jobs are in the lane, since nothing bounds their tenant.
_SUBLANE, _STATED = re.compile(r"(\S+) (\S+)"), re.compile(r"=(\S*)")
_FIRST = re.compile(r"[0-9]+ \S+ ?(\S*)(?: !?(?:~[0-9]+)?)?|\*[0-9-]*")
_TURN = re.compile(r"(\S+) [0-9]+ [0-9]+")


@dataclass(frozen=True)
class Holder:
    """A job that holds a key. *held_s*: time since the job was claimed."""

    job_id: str
    task_id: str
    task: str
    worker: str
    held_s: float


@dataclass(frozen=True)
class KeyStarts:
    """The rate at which jobs of a key start: *most* in *period_s*. *next_s*: time until the next start."""

    most: int
    period_s: float
    next_s: float


@dataclass(frozen=True)
class KeyName(CohortRow):
    """A key that jobs hold or wait for.

    *limit*: number of jobs that may hold the key at once; None if nothing sets a limit any more, or if the key has
    *starts*: no job holds such a key. *minimum*: while fewer jobs hold the key of a tenant, its waiting jobs go before
    all others. *holder*: of the *held* jobs, the one that has held the key longest. *kept_for*: the id of the task
    whose retry gets the key next; *kept_until_s*: the Unix time at which that retry is due, None if it is due. *turn*:
    the type that gets the key next. *waiting*: number of waiting jobs, including those that may start now.
    *oldest_wait_s*: None if no job waits.
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

    @property
    def tenant(self) -> str | None:
        """The tenant whose key it is; None for a key of another kind."""
        return self.key.removeprefix(OF_TENANT) if self.key.startswith(OF_TENANT) else None

    @property
    def has_room(self) -> bool:
        """Whether the key lets one more job start, and keeps that for no retry."""
        if self.starts is not None:
            return not self.starts.next_s
        return self.kept_for is None and (self.limit is None or self.held < self.limit)

    def is_kept_from(self, type_: str) -> bool:
        """Return whether the key has room for a job of another type than *type_* alone."""
        return self.turn not in (None, type_) and self.limit is not None and self.held == self.limit - 1


def encoded_name(key: str) -> str:
    """Return *key*, as people write it or as `show` shows it, as the arrows have it. Raises OptionError."""
    begin, hashed, digest = key.rpartition(HASHED)
    return f"{encode_part(begin)}{hashed}{digest}" if hashed else encoded_key("exclusive", key)


def stated_keys(text: str) -> tuple[StatedKey, ...]:
    """Return the keys that the field ``rules`` of a job's row says, in the order in which the job passes them."""
    full = readable_rules(text)
    return keys_in(full) if full and is_rules_dict(full) else ()


def read_keys(reader: Reader, keys: Sequence[str], now_us: int) -> list[KeyName]:
    """Return what is known of each of *keys* (encoded)."""
    limits = limits_in_force(reader)
    found = facts_of(reader, keys)
    stated = {key: each.stated.values() for key, each in found.items()}
    held = reader.ask([("zcard", reader.key("held", key)) for key in keys])
    starts = _starts(reader, stated, limits, now_us)
    kept_for = _kept_for(reader, found)
    holders = _holders(reader, keys, now_us)
    waiting = _waiting(reader, {key: each.sublanes for key, each in found.items()})
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
            kept_until_s=_due_s(kept_for.get(key)),
            turn=found[key].turn,
            minimum=minimum_of(key, limits.of_tenants) if key.startswith(TENANT_PREFIX) else 0,
        )
        for key, number, (jobs, oldest_us) in zip(keys, held, waiting.values(), strict=True)
    ]


@dataclass(frozen=True)
class KeyFacts:
    """What arrows write of a key.

    *sublanes*: the lanes for which jobs of the key wait, without their heads; the job in each is the one that stands in
    the lane, "" if none or all of them do. *stated*: what each task (encoded) stated last. *retry*: a job's id.
    *turn*: a type.
    """

    sublanes: list[Lane]
    stated: dict[str, str]
    retry: str | None
    turn: str | None


def facts_of(reader: Reader, keys: Sequence[str]) -> dict[str, KeyFacts]:
    """Return what is written of each of *keys* (encoded)."""
    found = reader.ask([("hgetall", reader.key("of_key", key)) for key in keys])
    facts = {}
    for key, raw in zip(keys, found, strict=True):
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
    """What settings say of keys, as Redis has it. *of_keys*: the limits that count, in their order. *of_tenants*."""

    of_keys: str
    of_tenants: str


def limits_in_force(reader: Reader) -> LimitsInForce:
    """Return the limits that the settings say, without what is none."""
    limits, quotas = reader.ask_one("hmget", reader.key("settings"), "limits", "tenants")
    return LimitsInForce(limit_settings.limits_in_force(limits and decode_text(limits)), decode_text(quotas or b""))


def limit_of(key: str, limits: LimitsInForce, stated: Collection[str]) -> int | None:
    """Return how many jobs may hold *key* (encoded), by *limits* of the settings, else as tasks *stated*."""
    if key.startswith(TENANT_PREFIX):
        return maximum_of(key, limits.of_tenants)
    given = limit_settings.limit_set(key, limits.of_keys)
    return given if given is not None else min((int(each) for each in stated if each.isdecimal()), default=None)


def rates_of(
    reader: Reader, stated: Mapping[str, Collection[str]], limits: LimitsInForce, now_us: int
) -> dict[str, tuple[StatedRate, int]]:
    """Return the rate in force of each key that has one, and the time until all its starts are free, µs.

    *limits*: those of the settings. Otherwise the slowest rate that tasks *stated* counts.
    """
    rates: dict[str, StatedRate] = {}
    for key, texts in stated.items():
        its = [rate for each in texts if (rate := rate_in(each))]
        if its:
            rates[key] = rate_set(key, limits.of_keys) or min(
                its, key=lambda rate: (rate.tokens / rate.period_us, rate)
            )
    times = reader.ask([("zscore", reader.key("rates"), key) for key in rates])
    return {
        key: (rate, min(max(0, decode_number(free_us) - now_us), rate.period_us))
        for (key, rate), free_us in zip(rates.items(), times, strict=True)
    }


def _starts(
    reader: Reader, stated: Mapping[str, Collection[str]], limits: LimitsInForce, now_us: int
) -> dict[str, KeyStarts]:
    """Return when the next job of each key that has a rate may start."""
    starts = {}
    for key, (rate, ahead_us) in rates_of(reader, stated, limits, now_us).items():
        next_us = 0 if rate.room(ahead_us) else ahead_us - rate.period_us + rate.interval_us
        starts[key] = KeyStarts(rate.tokens, rate.period_us / SECOND_US, next_us / SECOND_US)
    return starts


def _kept_for(reader: Reader, found: Mapping[str, KeyFacts]) -> dict[str, JobRow]:
    """Return the keys that are kept for a retry, each with that retry."""
    retries = {key: each.retry for key, each in found.items() if each.retry}
    rows = read_jobs(reader, list(retries.values()), ("task", "state", "enqueued", "rank"))
    return dict(zip(retries, rows, strict=True))


def _due_s(retry: JobRow | None) -> float | None:
    return retry.lane.enqueued_us / SECOND_US if retry is not None and retry.state == "scheduled" else None


def _waiting(reader: Reader, sublanes: Mapping[str, Sequence[Lane]]) -> dict[str, tuple[int, int | None]]:
    """Return how many jobs wait for each key, and the enqueue time of the oldest, µs; None if none waits."""
    of_keys = [
        (key, reader.key("sublane", key, lane.type, lane.name)) for key, lanes in sublanes.items() for lane in lanes
    ]
    lengths = reader.ask([("zcard", name) for _, name in of_keys])
    heads = reader.ask([("zrange", name, 0, 0, False, True) for _, name in of_keys])
    waiting: dict[str, tuple[int, int | None]] = dict.fromkeys(sublanes, (0, None))
    for (key, _), length, head in zip(of_keys, lengths, heads, strict=True):
        jobs, oldest_us = waiting[key]
        times_us = [decode_number(at_us) for _, at_us in head] + ([] if oldest_us is None else [oldest_us])
        waiting[key] = (jobs + int(length), min(times_us, default=None))
    return waiting


def _holders(reader: Reader, keys: Sequence[str], now_us: int) -> dict[str, Holder]:
    """Return of each key that is held the job that has held it longest."""
    found = reader.ask([("zrange", reader.key("held", key), 0, 0) for key in keys])
    first = {key: decode_text(ids[0]) for key, ids in zip(keys, found, strict=True) if ids}
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
