"""Report the keys in use, one key in detail, why a job waits for a key, and jobs of tenants below their minimum.

Held keys without waiting jobs are in no index. They are found by the claims of workers.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from ..clock import SECOND_US
from ..scheduler.cohorts import CohortAnswers, CohortRow
from ..scheduler.reader import Lane, Reader
from ..schema.constants import TENANT_PREFIX
from ..schema.job_record import has_key, has_many_keys
from ..schema.keys import type_address
from ..schema.values import decode_number, decode_part, decode_text, encode_part, matches
from ..settings.wire import weights_of
from . import sentences
from .job_rows import read_jobs
from .keys import (
    Holder,
    KeyFacts,
    KeyName,
    encoded_name,
    facts_of,
    holder_text,
    holders_of,
    limit_of,
    limit_text,
    limits_in_force,
    rates_of,
    read_keys,
    stated_keys,
)
from .queue_order import ClaimGroup, ClaimOrder, jobs_ahead
from .render import Table, duration_or_dash, pluralize
from .report import Answer, Param, Source, report, rows_of_all
from .type_limits import all_limits

#: Number of waiting keys per round trip, and the maximum number that is read.
_PAGE, _MAX_WAITING = 500, 20_000

#: Maximum number of claims whose keys are read. It bounds the cost for large fleets.
_MAX_CLAIMS = 1000

#: Maximum number of a key's holders that are shown.
_MAX_SHOWN_HOLDERS = 20


@dataclass(frozen=True)
class TypeUnderLimit(CohortRow):
    """A type with a *limit* of running jobs, and its numbers of *running* and *waiting* jobs."""

    type: str
    limit: int
    running: int
    waiting: int


@dataclass(frozen=True)
class KeysInUse:
    """Keys in use, ordered by their oldest waiting job. *are_all*: True if no other key matches.

    *types*: the limits of types, which are in the same setting.
    """

    keys: list[KeyName]
    are_all: bool
    types: list[TypeUnderLimit] = field(default_factory=list)


@dataclass(frozen=True)
class KeyDetails:
    """A *key* with the limit or rate (starts/µs) that each task *stated*, some *holders*, and the *waiting* jobs."""

    key: KeyName
    stated: dict[str, str]
    holders: list[Holder]
    waiting: list[ClaimGroup]


def find_keys(reader: Reader, pattern: str, limit: int) -> KeysInUse:
    """Return at most *limit* keys that jobs hold or wait for.

    *pattern*: of the whole key, with ``*`` for any characters. The limit of type pdf has the name ``type:pdf``, as in
    the settings.
    """
    names: dict[str, None] = {}
    search = _KeySearch(reader)
    for key in search.for_keys():
        if key not in names and matches(pattern, decode_part(key)):
            if len(names) == limit:
                search.saw_all = False
                break
            names[key] = None
    keys = read_keys(reader, list(names), reader.now_us())
    used = [key for key in keys if key.held or key.waiting]  # the others were released while the keys were read
    used.sort(key=lambda key: key.key)
    used.sort(key=lambda key: (-1.0 if key.oldest_wait_s is None else key.oldest_wait_s, key.waiting), reverse=True)
    return KeysInUse(used, search.saw_all, _under_limits(reader, pattern))


def _under_limits(reader: Reader, pattern: str) -> list[TypeUnderLimit]:
    """Return the types with a limit whose names in the settings match *pattern*."""
    limits = [limit for limit in all_limits(reader) if matches(pattern, type_address(limit.type))]
    waiting = reader.backlogs([encode_part(limit.type) for limit in limits]) if limits else {}
    jobs = {type_: backlog.jobs for type_, backlog in waiting.items()}
    return [TypeUnderLimit(one.type, one.limit, one.running, jobs.get(encode_part(one.type), 0)) for one in limits]


def show_key(reader: Reader, key: str) -> KeyDetails | None:
    """Return the details of *key*, in readable form, or None if no job holds it or waits for it."""
    name = encoded_name(key)
    now_us = reader.now_us()
    (state,) = read_keys(reader, [name], now_us)
    if not (state.held or state.waiting or state.kept_for):
        return None
    in_force = weights_of(reader.hash("settings"))
    facts = facts_of(reader, [name])[name]
    lengths = reader.ask([("zcard", reader.key("key_queue", name, lane.type, lane.name)) for lane in facts.sublanes])
    return KeyDetails(
        key=state,
        stated=facts.stated,
        holders=holders_of(reader, name, _MAX_SHOWN_HOLDERS, now_us),
        waiting=[
            ClaimGroup(decode_part(lane.type), lane.on_demand, in_force.read(lane.priority), int(jobs), not lane.job_id)
            for lane, jobs in zip(facts.sublanes, lengths, strict=True)
        ],
    )


def _held_by(key: KeyName) -> str:
    if key.holder is None:
        return "-"
    return holder_text(key.holder) + (f" and {pluralize(key.held - 1, 'other')}" if key.held > 1 else "")


_KEYS = Table[KeyName](
    {
        "key": "key",
        "limit": limit_text,
        "held": "held",
        "waiting": "waiting",
        "oldest wait": lambda key: duration_or_dash(key.oldest_wait_s),
        "held by": _held_by,
        "": lambda key: "paused" if key.paused else "",
    },
    optional={"": lambda key: key.paused},
)

_TYPES = Table[TypeUnderLimit](
    {
        "limit of a type": lambda row: type_address(row.type),
        "limit": "limit",
        "running": "running",
        "waiting": "waiting",
    }
)


def keys_text(in_use: KeysInUse) -> str:
    """Return keys as a table with a note if there are more, followed by the types with a limit."""
    parts = [table_of_keys(in_use, _KEYS, "no job holds such a key or waits for one")]
    return "\n\n".join([*parts, _TYPES.text(in_use.types)] if in_use.types else parts)


def table_of_keys(in_use: KeysInUse, table: Table[KeyName], empty: str) -> str:
    """Return keys as a table, with a note if there may be more."""
    if not in_use.keys and in_use.are_all:
        return empty
    more = "" if in_use.are_all else "\n\nthere may be more: give a PATTERN, or a higher --limit"
    return f"{table.text(in_use.keys)}{more}"


Pattern = Annotated[str, Param(is_argument=True)]
Limit = Annotated[int, Param("Maximum number to show.", min_value=1, max_value=1000)]


@report(
    "keys list",
    "/api/keys",
    "Keys that jobs hold or wait for; * in the pattern stands for any characters",
    type_name="FoundKeys",
    text=keys_text,
)
def keys(source: Source, pattern: Pattern = "*", limit: Limit = 100) -> Answer[KeysInUse]:
    """List the keys that jobs hold or wait for. * in PATTERN matches any characters."""
    return keys_of_cohorts(source, pattern, limit)


def keys_of_cohorts(source: Source, pattern: str, limit: int) -> Answer[KeysInUse]:
    """Return the keys in use in all cohorts as one report."""
    replies = source.fleet.each(lambda scheduler: find_keys(scheduler.reader, pattern, limit))
    keys = CohortAnswers({name: usage.keys for name, usage in replies.answers.items()}, replies.down)
    types = CohortAnswers({name: usage.types for name, usage in replies.answers.items()}, replies.down)
    are_all = all(usage.are_all for usage in replies.answers.values())
    return Answer(KeysInUse(rows_of_all(keys), are_all, rows_of_all(types)), replies.down)


class _KeySearch:
    """Searches keys in use. *saw_all*: False if it stopped at a maximum."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.saw_all = True

    def for_keys(self) -> Iterator[str]:
        """Yield encoded keys, those with waiting jobs first. A key can occur several times."""
        yield from self._waiting()
        yield from self._held()

    def _waiting(self) -> Iterator[str]:
        name = self._reader.key("waiting_keys")
        for first in range(0, _MAX_WAITING, _PAGE):
            page = self._reader.ask_one("zrange", name, first, first + _PAGE - 1)
            yield from map(decode_text, page)
            if len(page) < _PAGE:
                return
        self.saw_all = False

    def _held(self) -> Iterator[str]:
        read = self._reader
        workers = list(read.large_zset("heartbeats"))
        ids: list[str] = []
        for worker, number in zip(workers, read.claim_counts(workers), strict=True):
            if len(ids) + number > _MAX_CLAIMS:
                self.saw_all = False
                break
            claims = read.ask_one("hkeys", read.key("claims", worker)) if number else []
            ids += [job_id for job_id in map(decode_text, claims) if has_key(job_id)]
        for row in read_jobs(read, ids, ("rules",)):
            yield from (stated.key for stated in stated_keys(row.rules))


#: Maximum number of a key's holders that are read.
_MAX_HOLDERS = 100


@dataclass(frozen=True)
class KeyWait:
    """The key of a waiting job. *before*: number of the key's jobs before it. *run_s*: the usual run time.

    *held_s*: seconds for which jobs have held the key, the longest first. *now_s*: the server's time.
    """

    key: KeyName
    before: int
    run_s: float | None
    held_s: list[float]
    now_s: float

    @property
    def overdue_since_s(self) -> float | None:
        """The Unix time by which a holder would have ended, according to usual run times. None if it can end soon."""
        if self.run_s is None or not self.held_s or self.key.has_room or self.key.starts:
            return None
        late_s = min(self.held_s) - self.run_s
        return self.now_s - late_s if late_s > 0 else None

    @property
    def estimate_s(self) -> float | None:
        """Estimated seconds until the key admits the job. None without run times, or for a closed or overdue key."""
        starts = self.key.starts
        if starts:
            return starts.next_s + self.before * starts.period_s / starts.most
        if self.run_s is None or self.key.limit == 0 or self.overdue_since_s is not None:
            return None
        if self.key.limit is None:
            return 0.0
        remaining_s = 0.0
        if self.key.kept_for is not None:
            remaining_s = self.run_s + max(0.0, (self.key.kept_until_s or 0.0) - self.now_s)
        elif not self.key.has_room:
            remaining_s = self.run_s - max((age_s for age_s in self.held_s if age_s <= self.run_s), default=self.run_s)
        return remaining_s + self.before // self.key.limit * self.run_s


def waiting_for_key(reader: Reader, order: ClaimOrder, key: str, sublanes: Sequence[Lane], lane: Lane) -> KeyWait:
    """Return how the first job of *lane* waits for *key* (encoded). *sublanes*: the key's sub-lanes.

    Jobs whose type no live worker serves are not before it.
    """
    (state,) = read_keys(reader, [key], order.now_us)
    served = [sublane for sublane in sublanes if sublane.type in (lane.type, *order.fits)]
    rank = order.place(lane, lane.rank_us, lane.job_id)
    groups = jobs_ahead(
        reader, order, served, rank, lambda sublane: reader.key("key_queue", key, sublane.type, sublane.name)
    )
    usual = reader.fields("durations", [lane.type]).get(lane.type)
    run_s = None if usual is None else decode_number(usual) / SECOND_US
    held_s = [holder.held_s for holder in holders_of(reader, key, _MAX_HOLDERS, order.now_us)] if state.held else []
    if state.held > len(held_s):
        held_s.append(0.0)  # the other holders are not read
    return KeyWait(state, sum(group.jobs for group in groups), run_s, held_s, order.now_us / SECOND_US)


def why_keys_block(reader: Reader, wait: KeyWait, sublanes: Sequence[Lane], lane: Lane) -> str:
    """Return as text why a key blocks a job. *lane*: the job's lane."""
    if not wait.key.has_room:
        return sentences.blocked_by_key_sentence(wait, lane.type)
    first = next((sublane.job_id for sublane in sublanes if (sublane.type, sublane.name) == (lane.type, lane.name)), "")
    return sentences.blocked_by_key_sentence(wait, lane.type, *read_jobs(reader, [first], ("task", "name")))


#: Maximum number of keys that are read, to bound the cost, and number of adjacent keys per sample.
_MAX_KEYS, _SAMPLE_SIZE = 1000, 20


def waiting_key_facts(reader: Reader) -> tuple[int, dict[str, KeyFacts]]:
    """Return the number of keys with waiting jobs, and the facts of at most `_MAX_KEYS` of them."""
    number = int(reader.ask_one("zcard", reader.key("waiting_keys")))
    return number, facts_of(reader, sample_keys(reader, number))


def blocking_kinds(reader: Reader, facts: Mapping[str, KeyFacts]) -> dict[str, str]:
    """Return by encoded type what blocks its jobs: "key", "quota" (of tenants) or "key or quota".

    *facts*: of keys with waiting jobs. A tenant without a maximum blocks no job.
    """
    setting = limits_in_force(reader)
    kinds: dict[str, set[str]] = {}
    for key, key_facts in facts.items():
        is_of_tenant = key.startswith(TENANT_PREFIX)
        if is_of_tenant and limit_of(key, setting, ()) is None:
            continue
        for lane in key_facts.sublanes:
            kinds.setdefault(lane.type, set()).add("quota" if is_of_tenant else "key")
    return {type_: " or ".join(sorted(names)) for type_, names in kinds.items()}


def startable_keyed_jobs(reader: Reader, now_us: int, number: int, facts: dict[str, KeyFacts]) -> dict[str, int]:
    """Return by encoded type how many more jobs can start now than are in lanes, below 0 if fewer can.

    A key with capacity admits one job of each lane; the next is admitted when that job starts. So with a limit above 1
    or a rate, more jobs can start than are in lanes; with several lanes, fewer can. Jobs with several keys are also
    limited by the capacity of their later keys. The jobs of a tenant without a maximum are all in their lanes.

    *number*, *facts*: see `waiting_key_facts`. Above `_MAX_KEYS` waiting keys, this is an estimate from a sample of
    keys.
    """
    admitted: dict[str, list[Lane]] = {}  # the lanes whose head the key admits, the highest priority first
    for key, key_facts in facts.items():
        if heads := [lane for lane in key_facts.sublanes if lane.job_id]:
            admitted[key] = sorted(heads, key=lambda lane: (lane.on_demand, lane.priority), reverse=True)
    later = _later_keys(reader, admitted)
    further = facts_of(reader, list({key for keys in later.values() for key in keys} - admitted.keys()))
    capacity = _capacities(reader, {key: facts[key] for key in admitted} | further, now_us)
    lanes = [(key, lane) for key in admitted for lane in admitted[key] if capacity[key] > 1 or len(admitted[key]) > 1]
    lengths = reader.ask([("zcard", reader.key("key_queue", key, lane.type, lane.name)) for key, lane in lanes])
    jobs_by_type: Counter[str] = Counter()
    # A job admitted by its first key is in the next key's sub-lane, and the next key is evaluated first.
    for (key, lane), length in sorted(zip(lanes, lengths, strict=True), key=lambda item: len(later.get(item[0], ()))):
        later_keys = later.get((key, lane), ())
        may_start = min(capacity[key], int(length), *(1 + capacity[later_key] for later_key in later_keys))
        for later_key in later_keys:
            capacity[later_key] -= max(0, may_start - 1)
        capacity[key] -= may_start
        jobs_by_type[lane.type] += may_start - 1
    return {type_: round(jobs * number / len(facts)) for type_, jobs in jobs_by_type.items()}


def _later_keys(reader: Reader, admitted: dict[str, list[Lane]]) -> dict[tuple[str, Lane], tuple[str, ...]]:
    """Return the later keys of each admitted job with several keys."""
    places = [(key, lane) for key, lanes in admitted.items() for lane in lanes if has_many_keys(lane.job_id)]
    rows = read_jobs(reader, [lane.job_id for _, lane in places], ("rules",))
    later = {}
    for place, row in zip(places, rows, strict=True):
        keys = [stated.key for stated in stated_keys(row.rules)]
        if place[0] in keys[:-1]:
            later[place] = tuple(keys[keys.index(place[0]) + 1 :])
    return later


def sample_keys(reader: Reader, number: int) -> list[str]:
    """Return the keys with waiting jobs: all of the *number*, or samples from the whole index."""
    name = reader.key("waiting_keys")
    if number <= _MAX_KEYS:
        pages = [reader.ask_one("zrange", name, 0, _MAX_KEYS - 1)]
    else:
        windows = _MAX_KEYS // _SAMPLE_SIZE
        firsts = [number * (2 * window + 1) // (2 * windows) - _SAMPLE_SIZE // 2 for window in range(windows)]
        pages = reader.ask([("zrange", name, first, first + _SAMPLE_SIZE - 1) for first in firsts])
    return list(dict.fromkeys(decode_text(key) for page in pages for key in page))


def _capacities(reader: Reader, facts: dict[str, KeyFacts], now_us: int) -> dict[str, int]:
    """Return the number of jobs that can still hold each key, or start. A key reserved for a retry has 1."""
    stated = {key: key_facts.stated.values() for key, key_facts in facts.items()}
    setting = limits_in_force(reader)
    rates = rates_of(reader, stated, setting, now_us)
    limits = {key: limit_of(key, setting, stated_values) for key, stated_values in stated.items() if key not in rates}
    held = reader.ask([("zcard", reader.key("held", key)) for key in limits])
    capacities = {key: rate.room(ahead_us) for key, (rate, ahead_us) in rates.items()}
    capacities |= {
        key: sys.maxsize if limit is None else max(0, limit - int(number))
        for (key, limit), number in zip(limits.items(), held, strict=True)
    }
    return {key: min(capacity, 1) if facts[key].retry else capacity for key, capacity in capacities.items()}


def is_below_minimum(reader: Reader, lane: Lane) -> bool:
    """Return True if the job of *lane* runs before all others because its tenant is below its minimum."""
    return reader.ask_one("zscore", _place(reader, lane), lane.job_id) is not None


def minimum_jobs_ahead(reader: Reader, order: ClaimOrder, types: Sequence[str], lane: Lane) -> list[ClaimGroup]:
    """Return the jobs of *types* (encoded) before *lane*'s job, among jobs of tenants below their minimum."""
    rank = order.place(lane, lane.rank_us, lane.job_id)
    return jobs_ahead(reader, order, reader.first_lanes(types), rank, lambda minimum_lane: _place(reader, minimum_lane))


def minimum_jobs_passing(reader: Reader, order: ClaimOrder, types: Sequence[str], lane: Lane) -> Counter[str]:
    """Return by type the jobs that are before *lane*'s job only because their tenant is below its minimum.

    *types*: encoded.
    """
    lanes = reader.first_lanes(types)
    numbers = reader.ask([("zcard", _place(reader, minimum_lane)) for minimum_lane in lanes])
    passing: Counter[str] = Counter()
    for minimum_lane, number in zip(lanes, numbers, strict=True):
        passing[minimum_lane.type] += int(number)
    for group in minimum_jobs_ahead(reader, order, types, lane):
        passing[encode_part(group.type)] -= group.jobs
    return passing


def _place(reader: Reader, lane: Lane) -> str:
    return reader.key("minimum_lane", lane.type, lane.name)
