"""The keys in use, found by a pattern; and one key with all that is known of it.

No index has the keys that are held and for which nobody waits: those are found by the jobs that workers hold.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ...rules.addresses import type_address
from ...rules.encoding import decode, encode
from ...rules.marks import has_key
from ...rules.patterns import matches
from ...rules.rows import text_of
from ...rules.shared_settings import weights
from ...server.fleet import Row
from ...server.reader import Reader
from ..claim_order import Group
from ..job_row import read_jobs
from ..type_rules import all_limits
from .facts import Holder, Key, encoded, facts_of, holders_of, read_keys, stated_in

#: Number of waiting keys that one round trip reads, and the most that are looked at.
_PAGE, _MOST_WAITING = 500, 20_000

#: Largest number of claims whose keys are read: the cost of an observer must not grow with the fleet.
_MOST_CLAIMS = 1000

#: Largest number of holders of one key that are shown.
_MOST_HOLDERS = 20


@dataclass(frozen=True)
class TypeUnderLimit(Row):
    """A type of which *limit* jobs may run together: *running* do, and *waiting* wait, for whatever reason."""

    type: str
    limit: int
    running: int
    waiting: int


@dataclass(frozen=True)
class Found:
    """Keys in use, those with the oldest waiting job first. *are_all*: whether no other key matches.

    *types*: the limits of whole types, which the settings have beside those of keys.
    """

    keys: list[Key]
    are_all: bool
    types: list[TypeUnderLimit] = field(default_factory=list)


@dataclass(frozen=True)
class KeyDetails:
    """A *key* with what each task *stated* of it (a limit, or a rate: starts/µs), some *holders*, and who waits."""

    key: Key
    stated: dict[str, str]
    holders: list[Holder]
    waiting: list[Group]


def find(reader: Reader, pattern: str, limit: int) -> Found:
    """Return *limit* keys at most that jobs hold or wait for. *pattern*: of the whole key; ``*``: any characters.

    The limit of type pdf has the name ``type:pdf``, as in the settings.
    """
    names: dict[str, None] = {}
    look = _Look(reader)
    for key in look.for_keys():
        if key not in names and matches(pattern, decode(key)):
            if len(names) == limit:
                look.saw_all = False
                break
            names[key] = None
    found = read_keys(reader, list(names), reader.now_us())
    used = [key for key in found if key.held or key.waiting]  # others were left meanwhile
    used.sort(key=lambda key: key.key)
    used.sort(key=lambda key: (-1.0 if key.oldest_wait_s is None else key.oldest_wait_s, key.waiting), reverse=True)
    return Found(used, look.saw_all, _under_limits(reader, pattern))


def _under_limits(reader: Reader, pattern: str) -> list[TypeUnderLimit]:
    """Return the types that have a limit, and whose names in the settings match *pattern*."""
    limits = [each for each in all_limits(reader) if matches(pattern, type_address(each.type))]
    waiting = reader.backlogs([encode(each.type) for each in limits]) if limits else {}
    jobs = {type_: backlog.jobs for type_, backlog in waiting.items()}
    return [TypeUnderLimit(each.type, each.limit, each.running, jobs.get(encode(each.type), 0)) for each in limits]


def show(reader: Reader, key: str) -> KeyDetails | None:
    """Return all that is known of *key*, as people write it; None if no job holds it or waits for it."""
    name = encoded(key)
    now_us = reader.now_us()
    (found,) = read_keys(reader, [name], now_us)
    if not (found.held or found.waiting or found.kept_for):
        return None
    in_force = weights(reader.hash("settings"))
    facts = facts_of(reader, [name])[name]
    lengths = reader.ask([("zcard", reader.key("sublane", name, each.type, each.name)) for each in facts.sublanes])
    return KeyDetails(
        key=found,
        stated=facts.stated,
        holders=holders_of(reader, name, _MOST_HOLDERS, now_us),
        waiting=[
            Group(decode(lane.type), lane.on_demand, in_force.read(lane.priority), int(jobs), not lane.job_id)
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
            yield from map(text_of, page)
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
            ids += [job_id for job_id in map(text_of, claims) if has_key(job_id)]
        for row in read_jobs(read, ids, ("rules",)):
            yield from (stated.key for stated in stated_in(row.rules))
