"""The keys in use, found by a pattern; and one key with all that is known of it.

No index has the keys that are held and for which nobody waits: those are found by the jobs that workers hold.

The reasons why a job with a key waits: who holds the key, and which jobs of the key go before it.

How many of the jobs with keys could start if slots were free.

Of each key that has room one job stands in each lane, and the next one takes its place when that starts. So of a key
with a limit above 1, or a rate, more jobs could start than stand in lanes; of a key with several lanes fewer could. Of
jobs with several keys no more could than the later keys, those of the first of them, have room for. The jobs of a
tenant that nothing bounds are all in their lanes.

Jobs of tenants that have fewer slots than their minimum: these go before all others.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..clock import SECOND_US
from ..scheduler.cohorts import CohortRow
from ..scheduler.reader import Lane, Reader
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
    holders_of,
    limit_of,
    limits_in_force,
    rates_of,
    read_keys,
    stated_keys,
)
from .queue_order import ClaimGroup, ClaimOrder, jobs_ahead
from .type_limits import all_limits

#: Number of waiting keys that one round trip reads, and the most that are looked at.
_PAGE, _MOST_WAITING = 500, 20_000

#: Largest number of claims whose keys are read: the cost of an observer must not grow with the fleet.
_MOST_CLAIMS = 1000

#: Largest number of holders of one key that are shown.
_MOST_SHOWN_HOLDERS = 20


@dataclass(frozen=True)
class TypeUnderLimit(CohortRow):
    """A type of which *limit* jobs may run together: *running* do, and *waiting* wait, for whatever reason."""

    type: str
    limit: int
    running: int
    waiting: int


@dataclass(frozen=True)
class KeysInUse:
    """Keys in use, those with the oldest waiting job first. *are_all*: whether no other key matches.

    *types*: the limits of whole types, which the settings have beside those of keys.
    """

    keys: list[KeyName]
    are_all: bool
    types: list[TypeUnderLimit] = field(default_factory=list)


@dataclass(frozen=True)
class KeyDetails:
    """A *key* with what each task *stated* of it (a limit, or a rate: starts/µs), some *holders*, and who waits."""

    key: KeyName
    stated: dict[str, str]
    holders: list[Holder]
    waiting: list[ClaimGroup]


def find_keys(reader: Reader, pattern: str, limit: int) -> KeysInUse:
    """Return *limit* keys at most that jobs hold or wait for. *pattern*: of the whole key; ``*``: any characters.

    The limit of type pdf has the name ``type:pdf``, as in the settings.
    """
    names: dict[str, None] = {}
    look = _Look(reader)
    for key in look.for_keys():
        if key not in names and matches(pattern, decode_part(key)):
            if len(names) == limit:
                look.saw_all = False
                break
            names[key] = None
    found = read_keys(reader, list(names), reader.now_us())
    used = [key for key in found if key.held or key.waiting]  # others were left meanwhile
    used.sort(key=lambda key: key.key)
    used.sort(key=lambda key: (-1.0 if key.oldest_wait_s is None else key.oldest_wait_s, key.waiting), reverse=True)
    return KeysInUse(used, look.saw_all, _under_limits(reader, pattern))


def _under_limits(reader: Reader, pattern: str) -> list[TypeUnderLimit]:
    """Return the types that have a limit, and whose names in the settings match *pattern*."""
    limits = [each for each in all_limits(reader) if matches(pattern, type_address(each.type))]
    waiting = reader.backlogs([encode_part(each.type) for each in limits]) if limits else {}
    jobs = {type_: backlog.jobs for type_, backlog in waiting.items()}
    return [TypeUnderLimit(each.type, each.limit, each.running, jobs.get(encode_part(each.type), 0)) for each in limits]


def show_key(reader: Reader, key: str) -> KeyDetails | None:
    """Return all that is known of *key*, as people write it; None if no job holds it or waits for it."""
    name = encoded_name(key)
    now_us = reader.now_us()
    (found,) = read_keys(reader, [name], now_us)
    if not (found.held or found.waiting or found.kept_for):
        return None
    in_force = weights_of(reader.hash("settings"))
    facts = facts_of(reader, [name])[name]
    lengths = reader.ask([("zcard", reader.key("sublane", name, each.type, each.name)) for each in facts.sublanes])
    return KeyDetails(
        key=found,
        stated=facts.stated,
        holders=holders_of(reader, name, _MOST_SHOWN_HOLDERS, now_us),
        waiting=[
            ClaimGroup(decode_part(lane.type), lane.on_demand, in_force.read(lane.priority), int(jobs), not lane.job_id)
            for lane, jobs in zip(facts.sublanes, lengths, strict=True)
        ],
    )


class _Look:
    """Looks for keys in use. *saw_all*: whether there were no more than it looked at."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.saw_all = True

    def for_keys(self) -> Iterator[str]:
        """Yield keys, encoded, some more than once: those with waiting jobs first."""
        yield from self._waiting()
        yield from self._held()

    def _waiting(self) -> Iterator[str]:
        name = self._reader.key("waiting_keys")
        for first in range(0, _MOST_WAITING, _PAGE):
            page = self._reader.ask_one("zrange", name, first, first + _PAGE - 1)
            yield from map(decode_text, page)
            if len(page) < _PAGE:
                return
        self.saw_all = False

    def _held(self) -> Iterator[str]:
        read = self._reader
        workers = list(read.large_zset("heartbeats"))
        ids: list[str] = []
        for worker, number in zip(workers, read.held(workers), strict=True):
            if len(ids) + number > _MOST_CLAIMS:
                self.saw_all = False
                break
            claims = read.ask_one("hkeys", read.key("claims", worker)) if number else []
            ids += [job_id for job_id in map(decode_text, claims) if has_key(job_id)]
        for row in read_jobs(read, ids, ("rules",)):
            yield from (stated.key for stated in stated_keys(row.rules))


#: Largest number of holders of a key that are looked at.
_MOST_HOLDERS = 100


@dataclass(frozen=True)
class KeyWait:
    """The key of a waiting job. *before*: number of jobs of the key that go before it. *run_s*: the usual run time.

    *held_s*: for how long jobs that hold the key have had it, the longest time first. *now_s*: the server's time.
    """

    key: KeyName
    before: int
    run_s: float | None
    held_s: list[float]
    now_s: float

    @property
    def overdue_since_s(self) -> float | None:
        """The Unix time by which, going by usual run times, a holder would have ended; None if one may soon."""
        if self.run_s is None or not self.held_s or self.key.has_room or self.key.starts:
            return None
        late_s = min(self.held_s) - self.run_s
        return self.now_s - late_s if late_s > 0 else None

    @property
    def estimate_s(self) -> float | None:
        """A guess at the time until the key is the job's, s; None if nothing is known, or it is closed or overdue."""
        starts = self.key.starts
        if starts:
            return starts.next_s + self.before * starts.period_s / starts.most
        if self.run_s is None or self.key.limit == 0 or self.overdue_since_s is not None:
            return None
        if self.key.limit is None:
            return 0.0
        left_s = 0.0
        if self.key.kept_for is not None:
            left_s = self.run_s + max(0.0, (self.key.kept_until_s or 0.0) - self.now_s)
        elif not self.key.has_room:
            left_s = self.run_s - max((each for each in self.held_s if each <= self.run_s), default=self.run_s)
        return left_s + self.before // self.key.limit * self.run_s


def waiting_for_key(reader: Reader, order: ClaimOrder, key: str, sublanes: Sequence[Lane], lane: Lane) -> KeyWait:
    """Return why the first job of *lane* waits for *key* (encoded). *sublanes*: those of the key.

    Jobs of another type do not go before it if no live worker serves that type.
    """
    (state,) = read_keys(reader, [key], order.now_us)
    served = [each for each in sublanes if each.type in (lane.type, *order.fits)]
    mine = order.place(lane, lane.enqueued_us, lane.job_id)
    groups = jobs_ahead(reader, order, served, mine, lambda each: reader.key("sublane", key, each.type, each.name))
    usual = reader.fields("durations", [lane.type]).get(lane.type)
    run_s = None if usual is None else decode_number(usual) / SECOND_US
    held_s = [each.held_s for each in holders_of(reader, key, _MOST_HOLDERS, order.now_us)] if state.held else []
    if state.held > len(held_s):
        held_s.append(0.0)  # of the others nobody knows
    return KeyWait(state, sum(group.jobs for group in groups), run_s, held_s, order.now_us / SECOND_US)


def why_keys_block(reader: Reader, wait: KeyWait, sublanes: Sequence[Lane], lane: Lane) -> str:
    """Return in words why a key keeps a job back. *lane*: that of the job."""
    if not wait.key.has_room:
        return sentences.blocked_by_key_sentence(wait, lane.type)
    first = next((each.job_id for each in sublanes if (each.type, each.name) == (lane.type, lane.name)), "")
    return sentences.blocked_by_key_sentence(wait, lane.type, *read_jobs(reader, [first], ("task", "name")))


#: Number of keys that are looked at, since the cost of an observer must not grow with the keys; and how many of them
#: follow each other, in the order of the index.
_MOST_KEYS, _TOGETHER = 1000, 20


def startable_keyed_jobs(reader: Reader, now_us: int) -> dict[str, int]:
    """Return, by type (encoded), how many jobs more could start now than stand in lanes; below 0 if fewer could.

    If jobs wait for more than `_MOST_KEYS` keys, this is an estimate by so many of them.
    """
    number = int(reader.ask_one("zcard", reader.key("waiting_keys")))
    facts = facts_of(reader, sample_keys(reader, number))
    standing = {key: its for key, each in facts.items() if (its := _standing(each))}
    later = _later_keys(reader, standing)
    further = facts_of(reader, list({key for keys in later.values() for key in keys} - standing.keys()))
    left = _rooms(reader, {key: facts[key] for key in standing} | further, now_us)
    lanes = [(key, lane) for key in standing for lane in standing[key] if left[key] > 1 or len(standing[key]) > 1]
    lengths = reader.ask([("zcard", reader.key("sublane", key, lane.type, lane.name)) for key, lane in lanes])
    found: Counter[str] = Counter()
    # A job that stands for its first key is in the lane of the next, which is looked at before.
    for (key, lane), length in sorted(zip(lanes, lengths, strict=True), key=lambda each: len(later.get(each[0], ()))):
        its_later = later.get((key, lane), ())
        may_start = min(left[key], int(length), *(1 + left[each] for each in its_later))
        for each in its_later:
            left[each] -= max(0, may_start - 1)
        left[key] -= may_start
        found[lane.type] += may_start - 1
    return {type_: round(jobs * number / len(facts)) for type_, jobs in found.items()}


def _later_keys(reader: Reader, standing: dict[str, list[Lane]]) -> dict[tuple[str, Lane], tuple[str, ...]]:
    """Return the later keys of each job that stands for one of several."""
    places = [(key, lane) for key, lanes in standing.items() for lane in lanes if has_many_keys(lane.job_id)]
    rows = read_jobs(reader, [lane.job_id for _, lane in places], ("rules",))
    found = {}
    for place, row in zip(places, rows, strict=True):
        keys = [stated.key for stated in stated_keys(row.rules)]
        if place[0] in keys[:-1]:
            found[place] = tuple(keys[keys.index(place[0]) + 1 :])
    return found


def sample_keys(reader: Reader, number: int) -> list[str]:
    """Return the keys for which jobs wait: all of the *number*, or some from everywhere in the index."""
    name = reader.key("waiting_keys")
    if number <= _MOST_KEYS:
        pages = [reader.ask_one("zrange", name, 0, _MOST_KEYS - 1)]
    else:
        windows = _MOST_KEYS // _TOGETHER
        firsts = [number * (2 * window + 1) // (2 * windows) - _TOGETHER // 2 for window in range(windows)]
        pages = reader.ask([("zrange", name, first, first + _TOGETHER - 1) for first in firsts])
    return list(dict.fromkeys(decode_text(key) for page in pages for key in page))


def _standing(facts: KeyFacts) -> list[Lane]:
    """Return the lanes in which a job of the key stands, those of the highest priority first."""
    standing = (lane for lane in facts.sublanes if lane.job_id)
    return sorted(standing, key=lambda lane: (lane.on_demand, lane.priority), reverse=True)


def _rooms(reader: Reader, facts: dict[str, KeyFacts], now_us: int) -> dict[str, int]:
    """Return how many jobs more may hold each key, or start; 1 for a key that is kept for a retry."""
    stated = {key: each.stated.values() for key, each in facts.items()}
    setting = limits_in_force(reader)
    rates = rates_of(reader, stated, setting, now_us)
    limits = {key: limit_of(key, setting, its) for key, its in stated.items() if key not in rates}
    held = reader.ask([("zcard", reader.key("held", key)) for key in limits])
    rooms = {key: rate.room(ahead_us) for key, (rate, ahead_us) in rates.items()}
    rooms |= {
        key: sys.maxsize if limit is None else max(0, limit - int(number))
        for (key, limit), number in zip(limits.items(), held, strict=True)
    }
    return {key: min(room, 1) if facts[key].retry else room for key, room in rooms.items()}


def is_below_minimum(reader: Reader, lane: Lane) -> bool:
    """Return whether the job of *lane* goes before all others, since its tenant has less than its minimum."""
    return reader.ask_one("zscore", _place(reader, lane), lane.job_id) is not None


def minimum_jobs_ahead(reader: Reader, order: ClaimOrder, types: Sequence[str], lane: Lane) -> list[ClaimGroup]:
    """Return the jobs of *types* (encoded) that go before that of *lane*, among those that go before all others."""
    mine = order.place(lane, lane.enqueued_us, lane.job_id)
    return jobs_ahead(reader, order, reader.first_lanes(types), mine, lambda each: _place(reader, each))


def minimum_jobs_passing(reader: Reader, order: ClaimOrder, types: Sequence[str], lane: Lane) -> Counter[str]:
    """Return how many jobs of *types* (encoded) go before that of *lane*, by type, which would go after it by score."""
    lanes = reader.first_lanes(types)
    numbers = reader.ask([("zcard", _place(reader, each)) for each in lanes])
    passing: Counter[str] = Counter()
    for each, number in zip(lanes, numbers, strict=True):
        passing[each.type] += int(number)
    for group in minimum_jobs_ahead(reader, order, types, lane):
        passing[encode_part(group.type)] -= group.jobs
    return passing


def _place(reader: Reader, lane: Lane) -> str:
    return reader.key("first_lane", lane.type, lane.name)
