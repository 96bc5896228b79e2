"""Waiting jobs as observers read them: lanes with their first jobs, from the texts of key `heads`, and backlogs.

Reads of a cohort's data, in few round trips and without a write. No two round trips see the same state.
"""

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple, cast

import redis

from ..broker.client import Reply, read_numbers, run_pipelined
from ..clock import SECOND_US
from ..schema.constants import LONGEST_NUMBER
from ..schema.keys import SEVERAL, Keys
from ..schema.values import (
    LARGEST,
    NAMES,
    decode_number,
    decode_text,
    encode_part,
    is_on_demand,
    with_mark,
    without_mark,
)

#: Enqueue time, µs, of a head whose own cannot be read: after all others.
_NEVER_US = LARGEST


class Lane(NamedTuple):
    """The waiting jobs of one type, mode and priority, and the first of them. Lanes sort by the age of that job.

    *type*: encoded, as in Redis. *is_kept_back*: these are the jobs that keys keep out of the lane.
    """

    enqueued_us: int
    job_id: str
    type: str
    name: str
    is_kept_back: bool = False

    @property
    def on_demand(self) -> bool:
        return is_on_demand(self.name)

    @property
    def priority(self) -> int:
        """The priority as its app counted it, 10 highest (see `Weights.priority_reversed`)."""
        return decode_number(self.name.rpartition(".")[2])


class Backlog(NamedTuple):
    """The pending jobs of a type. *oldest_us*: the enqueue time of the first. *kept_back*: jobs that keys keep back."""

    jobs: int
    on_demand: int
    oldest_us: int
    kept_back: int = 0

    def plus(self, other: "Backlog") -> "Backlog":
        """Return the jobs of both."""
        return Backlog(
            self.jobs + other.jobs,
            self.on_demand + other.on_demand,
            min(self.oldest_us, other.oldest_us),
            self.kept_back + other.kept_back,
        )


NO_JOBS = Backlog(0, 0, _NEVER_US)


def lanes_in(type_: str, packed: str) -> list[Lane]:
    """Return the lanes of a type whose value in `heads` is *packed*: lane, enqueue time and job id of each head."""
    words = packed.split()
    names, times, ids = words[::3], words[1::3], words[2::3]
    if all(map(str.isdecimal, times)) and max(map(len, times), default=0) <= LONGEST_NUMBER:
        return list(map(Lane, map(int, times), ids, repeat(type_), names))
    # Another program has written here: the heads that can be read count.
    of_each = zip(times, ids, names, strict=False)
    return [Lane(int(at_us), id_, type_, name) for at_us, id_, name in of_each if decode_number(at_us, -1) >= 0]


def backlog_of(packed: str, lengths: Sequence[int]) -> Backlog:
    """Return the backlog of the lanes that *packed*, a value of `heads`, names. *lengths*: of these lanes."""
    words = packed.split()
    on_demand = [length for name, length in zip(words[::3], lengths, strict=True) if is_on_demand(name)]
    oldest_us = min((decode_number(each, _NEVER_US) for each in words[1::3]), default=_NEVER_US)
    return Backlog(sum(lengths), sum(on_demand), oldest_us)


#: Largest number of commands in one round trip: an observer must not hold the server up.
_CHUNK = 200

#: Largest number of fields that one command reads of a large hash. A field of `heads` is a text of up to 22 lanes.
_FIELDS = 100

#: Reply that counts, by command, if the key has another type; None for a command that is not here.
_NOTHING: dict[str, Reply] = {
    "hgetall": {},
    "hkeys": [],
    "hvals": [],
    "lrange": [],
    "zrange": [],
    "zrangebyscore": [],
    "zcard": 0,
    "zcount": 0,
}

#: Number of scheduled jobs that are read together where they are counted.
_COUNTED = 500


#: Largest number of jobs that are read of one task.
_OF_TASK = 1000

#: Largest number of attempts to read a task's jobs, of which some end meanwhile.
_TRIES = 3

#: A read command of redis-py: method, key, further arguments.
Command = tuple[str, *tuple[object, ...]]


class Reader:
    """Reads with *client*, which adds no prefix to keys."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client: Any = client  # redis-py's types leave open whether a reply is bytes, str or awaited
        self.key = keys.key

    def ask(self, commands: Sequence[Command], *, may_lack_rights: bool = False) -> list[Reply]:
        """Return the replies to read commands, in order. A key of another type than the command's counts as empty.

        *may_lack_rights*: the reply is None if the server's user may not read the key. Raises any other error among the
        replies.
        """
        replies: list[Reply] = []
        for first in range(0, len(commands), _CHUNK):
            with self._client.pipeline(transaction=False) as pipe:
                for name, *arguments in commands[first : first + _CHUNK]:
                    getattr(pipe, name)(*arguments)
                some = pipe.execute(raise_on_error=False)
            if may_lack_rights:
                some = [None if isinstance(each, redis.exceptions.NoPermissionError) else each for each in some]
            replies.extend(map(_reply, commands[first : first + _CHUNK], some))
        return replies

    def ask_one(self, name: str, *arguments: object) -> Reply:
        """Return the reply to one read command."""
        (reply,) = self.ask([(name, *arguments)])
        return reply

    def jobs_of(self, task_ids: Sequence[str]) -> list[list[str]]:
        """Return the jobs of each task, the newest last, and 1,000 at most."""
        jobs: dict[str, list[str]] = {}
        asked = list(task_ids)
        for _ in range(_TRIES):
            found = self.ask([("get", self.key("task", encode_part(each))) for each in asked])
            jobs |= {each: [decode_text(its)] if its else [] for each, its in zip(asked, found, strict=True)}
            several = [each for each, its in zip(asked, found, strict=True) if its == SEVERAL]
            pages = self.ask(
                [("zrange", self.key("jobs_of_task", encode_part(each)), -_OF_TASK, -1) for each in several]
            )
            jobs |= {each: [decode_text(job_id) for job_id in page] for each, page in zip(several, pages, strict=True)}
            asked = [each for each in several if not jobs[each]]  # by now one job may be left, whose id the key has
            if not asked:
                break
        return [jobs[each] for each in task_ids]

    def knows(self, id: str) -> bool:
        """Return whether there is a job with an id, of the job or of its task."""
        found = self.ask([("get", self.key("task", encode_part(id))), ("exists", self.key("job", id))])
        return any(found)

    def lives(self, task_id: str) -> bool:
        """Return whether a job of a task waits, or runs."""
        (job_ids,) = self.jobs_of([task_id])
        states = self.ask([("hget", self.key("job", job_id), "state") for job_id in job_ids])
        return any(state in (b"scheduled", b"pending", b"claimed", b"merged") for state in states)

    def runs_of(self, task_ids: Sequence[str]) -> dict[str, str]:
        """Return the run of each task whose newest job is merged into a batch, or was until it ended meanwhile.

        A run is the batch, followed by ":" and the fencing number if the job has ended.
        """
        newest = {each: jobs[-1] for each, jobs in zip(task_ids, self.jobs_of(task_ids), strict=True) if jobs}
        rows = self.ask([("hmget", self.key("job", job_id), ["into", "ran_in"]) for job_id in newest.values()])
        runs = {each: decode_text(into or ran_in) for each, (into, ran_in) in zip(newest, rows, strict=True)}
        return {each: run for each, run in runs.items() if run}

    def now_us(self) -> int:
        """Return the server's time."""
        seconds, micros = self._client.time()
        return int(seconds) * SECOND_US + int(micros)

    def hash(self, name: str, *parts: str) -> dict[str, str]:
        """Return a whole hash. A hash that grows with the fleet is read by `large_hash`."""
        return as_text(self.ask_one("hgetall", self.key(name, *parts)))

    def large_hash(self, name: str, *parts: str) -> dict[str, str]:
        """Return a whole hash, read page by page: a field that is there all the while is not missed."""
        found: dict[str, str] = {}
        cursor = None
        while cursor != 0:
            cursor, some = self._client.hscan(self.key(name, *parts), cursor or 0, count=_FIELDS)
            found.update(as_text(some))
        return found

    def large_zset(self, name: str) -> dict[str, float]:
        """Return the score of each member of a sorted set, read page by page as `large_hash` does."""
        found: dict[str, float] = {}
        cursor = None
        while cursor != 0:
            cursor, some = self._client.zscan(self.key(name), cursor or 0, count=_FIELDS)
            found.update((decode_text(member), score) for member, score in some)
        return found

    def fields(self, name: str, fields: Sequence[str]) -> dict[str, str]:
        """Return the values of *fields* of a hash; missing fields are left out."""
        chunks = [fields[first : first + _FIELDS] for first in range(0, len(fields), _FIELDS)]
        values = [value for some in self.ask([("hmget", self.key(name), chunk) for chunk in chunks]) for value in some]
        return {field: decode_text(value) for field, value in zip(fields, values, strict=True) if value is not None}

    def capacity(self, types: Sequence[str] | None = None) -> dict[str, int]:
        """Return the slots of the live workers that serve each of *types* (encoded; None: of all).

        Workers that have withdrawn from a type for a moment count: they serve it.
        """
        named = None if types is None else [*types, *(with_mark(type_) for type_ in types)]
        found = self.large_hash("capacity") if named is None else self.fields("capacity", named)
        slots: dict[str, int] = {}
        for type_, number in found.items():
            slots[without_mark(type_)] = slots.get(without_mark(type_), 0) + decode_number(number)
        return {type_: number for type_, number in slots.items() if number > 0}

    def lanes(self, types: Sequence[str] | None = None) -> list[Lane]:
        """Return the lanes of *types* (encoded; None: of all) that are not empty: jobs that no rule keeps back."""
        return [lane for type_, heads in self._heads(types).items() for lane in lanes_in(type_, heads)]

    def first_lanes(self, types: Sequence[str]) -> list[Lane]:
        """Return the lanes of *types* (encoded) of jobs that go before all others, since their tenants have too little.

        These jobs are in `lanes` as well.
        """
        return [lane for type_, heads in self.fields("first_heads", types).items() for lane in lanes_in(type_, heads)]

    def kept_lanes(self, types: Sequence[str] | None = None) -> list[Lane]:
        """Return, for the lanes of *types* (encoded; None: of all), the jobs that keys keep out of them."""
        if types is None:
            found = list(self.large_hash("kept_lanes"))
        else:
            found = list(self.fields("kept_lanes", [f"{type_} {name}" for type_ in types for name in NAMES]))
        names = [(type_, name) for type_, _, name in (each.partition(" ") for each in found)]
        heads = self.ask([("zrange", self.key("kept_back", *each), 0, 0, False, True) for each in names])
        return [
            Lane(decode_number(at_us), decode_text(job_id), *each, is_kept_back=True)
            for each, ((job_id, at_us),) in ((each, head) for each, head in zip(names, heads, strict=True) if head)
        ]

    def backlogs(self, types: Sequence[str] | None = None) -> dict[str, Backlog]:
        """Return the backlogs of *types* (encoded; None: of all), by type, without the empty ones."""
        backlogs = self._backlogs_of_lanes(types)
        kept = self.kept_lanes(types)
        for lane, jobs in zip(kept, self.ask([("zcard", self.lane_key(lane)) for lane in kept]), strict=True):
            its = Backlog(jobs, jobs if lane.on_demand else 0, lane.enqueued_us, jobs)
            backlogs[lane.type] = its.plus(backlogs.get(lane.type, NO_JOBS))
        return backlogs

    def _backlogs_of_lanes(self, types: Sequence[str] | None) -> dict[str, Backlog]:
        heads = self._heads(types)
        commands = (
            run_pipelined("ZCARD", self.key("lane", type_, ""), packed.split()[::3]) for type_, packed in heads.items()
        )
        counted = zip(heads.items(), read_numbers(self._client, commands), strict=True)
        return {type_: backlog_of(packed, lengths) for (type_, packed), lengths in counted}

    def pending(self, type_: str) -> int:
        """Return the number of pending jobs of a type."""
        return sum(backlog.jobs for backlog in self.backlogs([encode_part(type_)]).values())

    def held(self, workers: Sequence[str]) -> list[int]:
        """Return the number of jobs that each of *workers* (ids) holds."""
        pages = (workers[first : first + _CHUNK] for first in range(0, len(workers), _CHUNK))
        commands = (run_pipelined("HLEN", self.key("claims", ""), page) for page in pages)
        return [number for some in read_numbers(self._client, commands) for number in some]

    def known(self, job_ids: Sequence[str]) -> set[str]:
        """Return the ids of the jobs that the server knows, in whatever state: an ended job is known for a while."""
        with self._client.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.exists(self.key("job", job_id))
            return {job_id for job_id, found in zip(job_ids, pipe.execute(), strict=True) if found}

    def settings(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the settings in force, and those that an app.conf said last, by their names in Redis."""
        with self._client.pipeline(transaction=False) as pipe:
            for name in ("settings", "conf"):
                pipe.hgetall(self.key(name))
            in_force, conf = (
                {decode_text(name): decode_text(each) for name, each in raw.items()} for raw in pipe.execute()
            )
        return in_force, conf

    def has_unreported_ends(self) -> bool:
        """Return whether there are ends that nobody has told yet."""
        return bool(self._client.exists(self.key("untold")))

    def has_due(self) -> bool:
        """Return whether there are recurring calls that are due, and not handed out."""
        first = self._client.zrange(self.key("recurring"), 0, 0, withscores=True)
        return bool(first) and first[0][1] <= self.now_us()

    def message_of(self, job_id: str) -> bytes:
        """Return the message of a job as kombu sent it; b"" if it is gone."""
        return self._client.get(self.key("message", job_id)) or b""

    def scheduled_count(self, type_: str) -> int:
        """Return the number of jobs of a type that wait for their time. The scheduled jobs of all types are read."""
        return sum(map(len, self.scheduled(type_, _COUNTED)))

    def has_scheduled(self, type_: str) -> bool:
        """Return whether a job of a type waits for its time."""
        return any(self.scheduled(type_, _COUNTED))

    def scheduled(self, type_: str, page: int) -> Iterator[list[str]]:
        """Yield the ids of the jobs of a type that wait for their time: a list for each *page* of scheduled jobs."""
        wanted = encode_part(type_).encode()
        # The last page comes first: jobs that are deleted meanwhile move no page before theirs.
        for first in reversed(range(0, self._client.zcard(self.key("scheduled")), page)):
            ids = [
                decode_text(job_id) for job_id in self._client.zrange(self.key("scheduled"), first, first + page - 1)
            ]
            with self._client.pipeline(transaction=False) as pipe:
                for job_id in ids:
                    pipe.hget(self.key("job", job_id), "type")
                types = pipe.execute()
            yield [job_id for job_id, its in zip(ids, types, strict=True) if its == wanted]

    def _heads(self, types: Sequence[str] | None) -> dict[str, str]:
        found = self.large_hash("heads") if types is None else self.fields("heads", types)
        found.pop("!", None)  # no type: it says that there are rules of types
        return found

    def lane_key(self, lane: Lane) -> str:
        return self.key("kept_back" if lane.is_kept_back else "lane", lane.type, lane.name)


def as_text(raw: dict[bytes, bytes]) -> dict[str, str]:
    """Return a hash with text for bytes."""
    return {decode_text(name): decode_text(value) for name, value in raw.items()}


def _reply(command: Command, reply: Reply) -> Reply:
    if not isinstance(reply, redis.RedisError):
        return reply
    if not str(reply).startswith("WRONGTYPE"):
        raise reply
    name, fields = command[0], command[-1]
    return [None] * len(cast(Sequence[str], fields)) if name == "hmget" else _NOTHING.get(name)
