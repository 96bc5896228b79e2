"""Reads what a cohort holds, in few round trips, and writes nothing. No two round trips see one state."""

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import redis

from ..rules.keys import SEVERAL, Keys, encode, marked, unmarked
from ..rules.rows import LARGEST, number_of, text_of
from .connections import pipelined

#: Commands in one round trip at most: an observer must not hold the server up.
_CHUNK = 200

#: Fields that one command reads of a large hash at most. A field of `heads` is a text of up to 22 lanes.
_FIELDS = 100

#: Command -> what counts as its reply if the key has another type; None for a command that is not here.
_NOTHING: dict[str, Any] = {
    "hgetall": {},
    "hkeys": [],
    "lrange": [],
    "zrange": [],
    "zrangebyscore": [],
    "zcard": 0,
    "zcount": 0,
}

#: Scheduled jobs that are looked at together where they are counted.
_COUNTED = 500

#: Enqueue time, µs, of a head whose own cannot be read: after all others.
_NEVER_US = LARGEST

#: Digits of the longest time, µs.
_LONGEST_TIME = 18

#: Jobs of one task that are read at most.
_OF_TASK = 1000

#: Prefix of the names of on-demand jobs' lanes.
_DEMAND = "demand."

#: A read command of redis-py: method, key, further arguments.
Command = tuple[Any, ...]


class Lane(NamedTuple):
    """The waiting jobs of one type, mode and priority, and the first of them. Lanes sort by the age of that job.

    *type*: encoded, as in Redis.
    """

    enqueued_us: int
    job_id: str
    type: str
    name: str

    @property
    def on_demand(self) -> bool:
        return self.name.startswith(_DEMAND)

    @property
    def priority(self) -> int:
        """As its app counts it, 10 highest (see `Weights.priority_reversed`)."""
        return number_of(self.name.rpartition(".")[2])


class Backlog(NamedTuple):
    """The pending jobs of a type. *oldest_us*: the enqueue time of the first."""

    jobs: int
    on_demand: int
    oldest_us: int


class Reader:
    """Reads with *client*, which adds no prefix to keys."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client: Any = client  # redis-py's types leave open whether a reply is bytes, str or awaited
        self.key = keys.key

    def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Return the replies to read commands, in order. A key of another type than the command's counts as empty.

        Raises any other error among the replies.
        """
        replies: list[Any] = []
        for first in range(0, len(commands), _CHUNK):
            with self._client.pipeline(transaction=False) as pipe:
                for name, *arguments in commands[first : first + _CHUNK]:
                    getattr(pipe, name)(*arguments)
                some = pipe.execute(raise_on_error=False)
            replies.extend(map(_reply, commands[first : first + _CHUNK], some))
        return replies

    def ask_one(self, *command: Any) -> Any:
        """Return the reply to one read command."""
        (reply,) = self.ask([command])
        return reply

    def jobs_of(self, task_ids: Sequence[str]) -> list[list[str]]:
        """Return the jobs of each task, the newest last, and 1,000 at most."""
        found = self.ask([("get", self.key("task", encode(each))) for each in task_ids])
        several = [each for each, its in zip(task_ids, found, strict=True) if its == SEVERAL]
        pages = self.ask([("zrange", self.key("jobs_of_task", encode(each)), -_OF_TASK, -1) for each in several])
        jobs = dict(zip(several, pages, strict=True))
        return [
            [text_of(job_id) for job_id in jobs.get(each, [] if its in (None, SEVERAL) else [its])]
            for each, its in zip(task_ids, found, strict=True)
        ]

    def now_us(self) -> int:
        """Return the server's time."""
        seconds, micros = self._client.time()
        return int(seconds) * 1_000_000 + int(micros)

    def hash(self, name: str, *parts: str) -> dict[str, str]:
        """Return a whole hash. For one that grows with the fleet there is `large_hash`."""
        return as_text(self.ask_one("hgetall", self.key(name, *parts)))

    def large_hash(self, name: str) -> dict[str, str]:
        """Return a whole hash, read page by page: a field that is there all the while is not missed."""
        found: dict[str, str] = {}
        cursor = None
        while cursor != 0:
            cursor, some = self._client.hscan(self.key(name), cursor or 0, count=_FIELDS)
            found.update(as_text(some))
        return found

    def large_zset(self, name: str) -> dict[str, float]:
        """Return the score of each member of a sorted set, read page by page as `large_hash` does."""
        found: dict[str, float] = {}
        cursor = None
        while cursor != 0:
            cursor, some = self._client.zscan(self.key(name), cursor or 0, count=_FIELDS)
            found.update((text_of(member), score) for member, score in some)
        return found

    def fields(self, name: str, fields: Sequence[str]) -> dict[str, str]:
        """Return those of *fields* that a hash has."""
        chunks = [fields[first : first + _FIELDS] for first in range(0, len(fields), _FIELDS)]
        values = [value for some in self.ask([("hmget", self.key(name), chunk) for chunk in chunks]) for value in some]
        return {field: text_of(value) for field, value in zip(fields, values, strict=True) if value is not None}

    def capacity(self, types: Sequence[str] | None = None) -> dict[str, int]:
        """Return the slots of the live workers that serve each of *types* (encoded; None: of all).

        Workers that have withdrawn from a type for a moment count: they serve it.
        """
        named = None if types is None else [*types, *(marked(type_) for type_ in types)]
        found = self.large_hash("capacity") if named is None else self.fields("capacity", named)
        slots: dict[str, int] = {}
        for type_, number in found.items():
            slots[unmarked(type_)] = slots.get(unmarked(type_), 0) + number_of(number)
        return {type_: number for type_, number in slots.items() if number > 0}

    def lanes(self, types: Sequence[str] | None = None) -> list[Lane]:
        """Return the lanes of *types* (encoded; None: of all) that are not empty."""
        return [lane for type_, heads in self._heads(types).items() for lane in _unpack(type_, heads)]

    def backlogs(self, types: Sequence[str] | None = None) -> dict[str, Backlog]:
        """Return the backlogs of *types* (encoded; None: of all), by type, without the empty ones."""
        heads = self._heads(types)
        commands = (
            pipelined.of_each("ZCARD", self.key("lane", type_, ""), packed.split()[::3])
            for type_, packed in heads.items()
        )
        counted = zip(heads.items(), pipelined.numbers(self._client, commands), strict=True)
        return {type_: _backlog(packed, lengths) for (type_, packed), lengths in counted}

    def pending(self, type_: str) -> int:
        """Return the number of pending jobs of a type."""
        return sum(backlog.jobs for backlog in self.backlogs([encode(type_)]).values())

    def held(self, workers: Sequence[str]) -> list[int]:
        """Return the number of jobs that each of *workers* (ids) holds."""
        pages = (workers[first : first + _CHUNK] for first in range(0, len(workers), _CHUNK))
        commands = (pipelined.of_each("HLEN", self.key("claims", ""), page) for page in pages)
        return [number for some in pipelined.numbers(self._client, commands) for number in some]

    def known(self, job_ids: Sequence[str]) -> set[str]:
        """Return which of these jobs the server has, in whatever state; one that has ended is known for a while."""
        with self._client.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.exists(self.key("job", job_id))
            return {job_id for job_id, found in zip(job_ids, pipe.execute(), strict=True) if found}

    def settings(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the settings in force, and what an app.conf said last, by their names in Redis."""
        with self._client.pipeline(transaction=False) as pipe:
            for name in ("settings", "conf"):
                pipe.hgetall(self.key(name))
            in_force, conf = ({text_of(name): text_of(each) for name, each in raw.items()} for raw in pipe.execute())
        return in_force, conf

    def has_untold(self) -> bool:
        """Return whether there are ends that are not told, or not told yet."""
        return bool(self._client.exists(self.key("untold")))

    def message_of(self, job_id: str) -> bytes:
        """Return the message of a job as kombu sent it; b"" if it is gone."""
        return self._client.get(self.key("message", job_id)) or b""

    def scheduled_count(self, type_: str) -> int:
        """Return the number of jobs of a type that wait for their time. It looks at those of all types."""
        return sum(map(len, self.scheduled(type_, _COUNTED)))

    def has_scheduled(self, type_: str) -> bool:
        """Return whether a job of a type waits for its time."""
        return any(self.scheduled(type_, _COUNTED))

    def scheduled(self, type_: str, page: int) -> Iterator[list[str]]:
        """Yield the ids of the jobs of a type that wait for their time, those of a *page* of the scheduled together."""
        wanted = encode(type_).encode()
        # From the last page on: what is deleted of one moves none of those before it.
        for first in reversed(range(0, self._client.zcard(self.key("scheduled")), page)):
            ids = [text_of(job_id) for job_id in self._client.zrange(self.key("scheduled"), first, first + page - 1)]
            with self._client.pipeline(transaction=False) as pipe:
                for job_id in ids:
                    pipe.hget(self.key("job", job_id), "type")
                types = pipe.execute()
            yield [job_id for job_id, its in zip(ids, types, strict=True) if its == wanted]

    def _heads(self, types: Sequence[str] | None) -> dict[str, str]:
        return self.large_hash("heads") if types is None else self.fields("heads", types)

    def lane_key(self, lane: Lane) -> str:
        return self.key("lane", lane.type, lane.name)


def as_text(raw: dict[bytes, bytes]) -> dict[str, str]:
    """Return a hash with text for bytes."""
    return {text_of(name): text_of(value) for name, value in raw.items()}


def _reply(command: Command, reply: Any) -> Any:
    if not isinstance(reply, redis.RedisError):
        return reply
    if not str(reply).startswith("WRONGTYPE"):
        raise reply
    name, *_, last = command
    return [None] * len(last) if name == "hmget" else _NOTHING.get(name)


def _unpack(type_: str, packed: str) -> list[Lane]:
    words = packed.split()
    names, times, ids = words[::3], words[1::3], words[2::3]
    if all(map(str.isdecimal, times)) and max(map(len, times), default=0) <= _LONGEST_TIME:
        return list(map(Lane, map(int, times), ids, repeat(type_), names))
    # Some are not as a script wrote them.
    of_each = zip(times, ids, names, strict=False)
    return [Lane(int(at_us), id_, type_, name) for at_us, id_, name in of_each if number_of(at_us, -1) >= 0]


def _backlog(packed: str, lengths: Sequence[int]) -> Backlog:
    words = packed.split()
    on_demand = [length for name, length in zip(words[::3], lengths, strict=True) if name.startswith(_DEMAND)]
    oldest_us = min((number_of(each, _NEVER_US) for each in words[1::3]), default=_NEVER_US)
    return Backlog(sum(lengths), sum(on_demand), oldest_us)
