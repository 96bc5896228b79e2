"""Reads a cohort's data for observers: jobs, lanes, backlogs and hashes.

All reads use few round trips and write nothing. Two round trips can see different states.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple, cast

import redis

from ..broker.client import Reply, read_numbers, read_values, run_pipelined
from ..clock import SECOND_US
from ..schema.constants import MAX_NUMBER_LENGTH
from ..schema.keys import SEVERAL, Keys
from ..schema.values import (
    DEMAND,
    LARGEST,
    NAMES,
    decode_number,
    decode_text,
    encode_part,
    is_on_demand,
    with_mark,
    without_mark,
)

#: Enqueue time in µs of a head without a readable time: after all others.
_UNREADABLE_HEAD_US = LARGEST


class Lane(NamedTuple):
    """The waiting jobs of one type, mode and priority, with the first job. Lanes are sorted by the rank of that job.

    *rank_us*: orders the job in its lane: the time at which it became pending, minus its head start.
    """

    rank_us: int
    job_id: str
    type: str  #: encoded, as in Redis
    name: str
    is_kept_back: bool = False  #: True for the jobs that keys block from the lane
    head_us: int = 0  #: head start of the job, if it was read

    @property
    def on_demand(self) -> bool:
        return is_on_demand(self.name)

    @property
    def priority(self) -> int:
        """The priority in the order of its app, 10 highest (see `Weights.priority_reversed`)."""
        return decode_number(self.name.rpartition(".")[2])


class Backlog(NamedTuple):
    """The pending jobs of a type."""

    jobs: int
    on_demand: int
    oldest_us: int  #: enqueue time of the oldest job
    kept_back: int = 0  #: number of jobs blocked by keys
    lanes: tuple[str, ...] = ()  #: names of the non-empty lanes, without jobs blocked by keys

    def plus(self, other: "Backlog") -> "Backlog":
        """Return the sum of both backlogs."""
        return Backlog(
            self.jobs + other.jobs,
            self.on_demand + other.on_demand,
            min(self.oldest_us, other.oldest_us),
            self.kept_back + other.kept_back,
            self.lanes + other.lanes,
        )


NO_JOBS = Backlog(0, 0, _UNREADABLE_HEAD_US)


def lanes_in(type_: str, packed: str) -> list[Lane]:
    """Return the lanes of a type with the value *packed* in `heads`: lane, enqueue time and job id of each head."""
    tokens = packed.split()
    names, times, ids = tokens[::3], tokens[1::3], tokens[2::3]
    if all(map(str.isdecimal, times)) and max(map(len, times), default=0) <= MAX_NUMBER_LENGTH:
        return list(map(Lane, map(int, times), ids, repeat(type_), names))
    # Corrupt data: only the readable heads are used.
    heads = zip(times, ids, names, strict=False)
    return [Lane(int(at_us), id_, type_, name) for at_us, id_, name in heads if decode_number(at_us, -1) >= 0]


def backlog_of(names: tuple[str, ...], times: Sequence[str], lengths: Sequence[int]) -> Backlog:
    """Return the backlog of the lanes *names*. *times*: of their first jobs. *lengths*: of the lanes."""
    on_demand = [length for name, length in zip(names, lengths, strict=True) if name.startswith(DEMAND)]
    # Times usually have one length. Then the first one in the order of texts is the oldest.
    oldest = [min(times)] if len(set(map(len, times))) == 1 and all(map(str.isdecimal, times)) else times
    oldest_us = min((decode_number(time, _UNREADABLE_HEAD_US) for time in oldest), default=_UNREADABLE_HEAD_US)
    return Backlog(sum(lengths), sum(on_demand), oldest_us, 0, names)


def _first_job(words: Sequence[str]) -> tuple[int, str]:
    """Return rank and id of the first job in *words*: name, rank and job id of each head of a type."""
    times, ids = words[1::3], words[2::3]
    return min(
        ((decode_number(time, _UNREADABLE_HEAD_US), id_) for time, id_ in zip(times, ids, strict=False)),
        default=(_UNREADABLE_HEAD_US, ""),
    )


#: Maximum number of commands in one round trip: an observer must not block the server.
_MAX_COMMANDS = 200
#: Maximum number of fields that one command reads from a large hash. A field of `heads` lists up to 22 lanes.
_MAX_FIELDS = 100
#: Maximum number of jobs with head starts that are read of a lane to find its oldest job.
_MAX_HEAD_STARTS = 10
#: Reply per command for a key of another type; None for all other commands.
_EMPTY_REPLIES: dict[str, Reply] = {
    "hgetall": {},
    "hkeys": [],
    "hvals": [],
    "lrange": [],
    "zrange": [],
    "zrangebyscore": [],
    "hlen": 0,
    "zcard": 0,
    "zcount": 0,
}
#: Number of scheduled jobs per page when they are counted.
_SCHEDULED_PAGE = 500
#: Maximum number of jobs that are read per task.
_MAX_JOBS_OF_TASK = 1000
#: Maximum number of attempts to read a task's jobs while some of them end.
_MAX_ATTEMPTS = 3
#: A read command of redis-py: method, key, other arguments.
Command = tuple[str, *tuple[object, ...]]


class Reader:
    """Reads with *client*, which adds no prefix to keys."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client: Any = client  # redis-py's types leave open whether a reply is bytes, str or awaited
        self.key = keys.key

    def ask(self, commands: Sequence[Command], *, may_lack_rights: bool = False) -> list[Reply]:
        """Return the replies to read commands, in order. A key of another type than the command's is read as empty.

        *may_lack_rights*: return None if the server's user may not read the key. Raises any other error in the replies.
        """
        replies: list[Reply] = []
        for first in range(0, len(commands), _MAX_COMMANDS):
            with self._client.pipeline(transaction=False) as pipe:
                for name, *arguments in commands[first : first + _MAX_COMMANDS]:
                    getattr(pipe, name)(*arguments)
                page = pipe.execute(raise_on_error=False)
            if may_lack_rights:
                page = [None if isinstance(reply, redis.exceptions.NoPermissionError) else reply for reply in page]
            replies.extend(map(_reply, commands[first : first + _MAX_COMMANDS], page))
        return replies

    def ask_one(self, name: str, *arguments: object) -> Reply:
        """Return the reply to one read command."""
        (reply,) = self.ask([(name, *arguments)])
        return reply

    def jobs_of(self, task_ids: Sequence[str]) -> list[list[str]]:
        """Return the jobs per task, the newest last, limited to the newest 1,000."""
        jobs: dict[str, list[str]] = {}
        remaining = list(task_ids)
        for _ in range(_MAX_ATTEMPTS):
            values = self.ask([("get", self.key("task", encode_part(id_))) for id_ in remaining])
            jobs |= {id_: [decode_text(value)] if value else [] for id_, value in zip(remaining, values, strict=True)}
            several = [id_ for id_, value in zip(remaining, values, strict=True) if value == SEVERAL]
            pages = self.ask(
                [("zrange", self.key("jobs_of_task", encode_part(id_)), -_MAX_JOBS_OF_TASK, -1) for id_ in several]
            )
            jobs |= {id_: [decode_text(job_id) for job_id in page] for id_, page in zip(several, pages, strict=True)}
            remaining = [task_id for task_id in several if not jobs[task_id]]  # one job may remain, listed in the key
            if not remaining:
                break
        return [jobs[task_id] for task_id in task_ids]

    def knows(self, id: str) -> bool:
        """True if there is a job with this job id or task id."""
        replies = self.ask([("get", self.key("task", encode_part(id))), ("exists", self.key("job", id))])
        return any(replies)

    def has_unended_job(self, task_id: str) -> bool:
        """True if a job of the task has not ended."""
        (job_ids,) = self.jobs_of([task_id])
        states = self.ask([("hget", self.key("job", job_id), "state") for job_id in job_ids])
        return any(state in (b"scheduled", b"pending", b"claimed", b"merged") for state in states)

    def runs_of(self, task_ids: Sequence[str]) -> dict[str, str]:
        """Return the run of each task whose newest job is, or was until its end, merged into a batch.

        A run is the batch id, followed by ":" and the fencing token if the job has ended.
        """
        newest = {task_id: jobs[-1] for task_id, jobs in zip(task_ids, self.jobs_of(task_ids), strict=True) if jobs}
        rows = self.ask([("hmget", self.key("job", job_id), ["into", "ran_in"]) for job_id in newest.values()])
        runs = {task_id: decode_text(into or ran_in) for task_id, (into, ran_in) in zip(newest, rows, strict=True)}
        return {task_id: run for task_id, run in runs.items() if run}

    def now_us(self) -> int:
        """Return the server's time."""
        seconds, micros = self._client.time()
        return int(seconds) * SECOND_US + int(micros)

    def hash(self, name: str, *parts: str) -> dict[str, str]:
        """Return a whole hash. Use `large_hash` for hashes that grow with the fleet."""
        return as_text(self.ask_one("hgetall", self.key(name, *parts)))

    def large_hash(self, name: str, *parts: str) -> dict[str, str]:
        """Return a whole hash, read in pages. Fields that exist throughout are never missed."""
        return as_text(dict(self._client.hscan_iter(self.key(name, *parts), count=_MAX_FIELDS)))

    def large_zset(self, name: str) -> dict[str, float]:
        """Return the scores of a sorted set's members, read in pages like `large_hash`."""
        members = self._client.zscan_iter(self.key(name), count=_MAX_FIELDS)
        return {decode_text(member): score for member, score in members}

    def fields(self, name: str, fields: Sequence[str]) -> dict[str, str]:
        """Return the values of *fields* of a hash, without missing fields."""
        chunks = [fields[first : first + _MAX_FIELDS] for first in range(0, len(fields), _MAX_FIELDS)]
        values = [value for page in self.ask([("hmget", self.key(name), chunk) for chunk in chunks]) for value in page]
        return {field: decode_text(value) for field, value in zip(fields, values, strict=True) if value is not None}

    def capacity(self, types: Sequence[str] | None = None) -> dict[str, int]:
        """Return the slots of the live workers per type in *types* (encoded; None: all types).

        Workers that have temporarily withdrawn from a type are included, because they serve it.
        """
        fields = None if types is None else [*types, *(with_mark(type_) for type_ in types)]
        capacities = self.large_hash("capacity") if fields is None else self.fields("capacity", fields)
        slots: dict[str, int] = {}
        for type_, number in capacities.items():
            slots[without_mark(type_)] = slots.get(without_mark(type_), 0) + decode_number(number)
        return {type_: number for type_, number in slots.items() if number > 0}

    def lanes(self, types: Sequence[str] | None = None) -> list[Lane]:
        """Return the non-empty lanes of *types* (encoded; None: all types): jobs that no rule blocks."""
        return [lane for type_, heads in self._heads(types).items() for lane in lanes_in(type_, heads)]

    def first_lanes(self, types: Sequence[str]) -> list[Lane]:
        """Return the minimum lanes of *types* (encoded): jobs of tenants below their minimum, also in `lanes`."""
        return [lane for type_, heads in self.fields("minimum_heads", types).items() for lane in lanes_in(type_, heads)]

    def kept_lanes(self, types: Sequence[str] | None = None) -> list[Lane]:
        """Return, per lane of *types* (encoded; None: all types), the jobs that keys block."""
        if types is None:
            fields = list(self.large_hash("kept_lanes"))
        else:
            fields = list(self.fields("kept_lanes", [f"{type_} {name}" for type_ in types for name in NAMES]))
        names = [(type_, name) for type_, _, name in (field.partition(" ") for field in fields)]
        heads = self.ask([("zrange", self.key("kept_back", *name), 0, 0, False, True) for name in names])
        return [
            Lane(decode_number(at_us), decode_text(job_id), *name, is_kept_back=True)
            for name, ((job_id, at_us),) in ((name, head) for name, head in zip(names, heads, strict=True) if head)
        ]

    def backlogs(self, types: Sequence[str] | None = None) -> dict[str, Backlog]:
        """Return the non-empty backlogs of *types* (encoded; None: all types) by type."""
        heads = {type_: packed.split() for type_, packed in self._heads(types).items()}
        commands = (run_pipelined("ZCARD", self.key("lane", type_, ""), words[::3]) for type_, words in heads.items())
        counted = zip(heads.items(), read_numbers(self._client, commands), strict=True)
        backlogs = {type_: backlog_of(tuple(words[::3]), words[1::3], lengths) for (type_, words), lengths in counted}
        blocked_lanes = self.kept_lanes(types)
        for lane, jobs in zip(
            blocked_lanes, self.ask([("zcard", self.lane_key(lane)) for lane in blocked_lanes]), strict=True
        ):
            blocked = Backlog(jobs, jobs if lane.on_demand else 0, lane.rank_us, jobs)
            backlogs[lane.type] = blocked.plus(backlogs.get(lane.type, NO_JOBS))
        firsts = {type_: _first_job(words) for type_, words in heads.items()}
        lane_keys = {type_: [self.key("lane", type_, name) for name in words[::3]] for type_, words in heads.items()}
        for lane in blocked_lanes:
            firsts[lane.type] = min(firsts.get(lane.type, (_UNREADABLE_HEAD_US, "")), (lane.rank_us, lane.job_id))
            lane_keys.setdefault(lane.type, []).append(self.lane_key(lane))
        oldest_us = self.oldest_enqueued_us(firsts, lane_keys)
        return {type_: backlog._replace(oldest_us=oldest_us[type_]) for type_, backlog in backlogs.items()}

    def oldest_enqueued_us(
        self, firsts: Mapping[str, tuple[int, str]], keys: Mapping[str, Sequence[str]]
    ) -> dict[str, int]:
        """Return the earliest enqueue time in µs of each group of waiting jobs.

        *firsts*: rank and job id of the first job of each group. *keys*: the Redis keys of its sorted sets. A job with
        a head start has a rank before its enqueue time, so older jobs can follow it. Then the first jobs are read, up
        to one without a head start, at most `_MAX_HEAD_STARTS`.
        """
        heads = self.fields_of_jobs([job_id for _, job_id in firsts.values()], ("head",))
        moved = [name for name, (head,) in zip(firsts, heads, strict=True) if head is not None]
        pages_of = [(name, key) for name in moved for key in keys[name]]
        pages = self.ask([("zrange", key, 0, _MAX_HEAD_STARTS - 1, False, True) for _, key in pages_of])
        ids = [decode_text(job_id) for page in pages for job_id, _ in page]
        head_of = dict(zip(ids, self.fields_of_jobs(ids, ("head",)), strict=True))
        enqueued_us: dict[str, list[int]] = {name: [] for name in moved}
        for (name, _), page in zip(pages_of, pages, strict=True):
            for job_id, rank in page:
                (head,) = head_of[decode_text(job_id)]
                enqueued_us[name].append(decode_number(rank) + decode_number(head))
                if head is None:
                    break
        return {name: min(enqueued_us.get(name) or [rank_us]) for name, (rank_us, _) in firsts.items()}

    def pending(self, type_: str) -> int:
        """Return the number of pending jobs of a type."""
        return sum(backlog.jobs for backlog in self.backlogs([encode_part(type_)]).values())

    def claim_counts(self, workers: Sequence[str]) -> list[int]:
        """Return the number of jobs that each worker in *workers* (ids) holds."""
        return self.hash_lengths("claims", workers)

    def hash_lengths(self, name: str, parts: Sequence[str]) -> list[int]:
        """Return the number of fields of each hash *name* with one of *parts*."""
        pages = (parts[first : first + _MAX_COMMANDS] for first in range(0, len(parts), _MAX_COMMANDS))
        commands = (run_pipelined("HLEN", self.key(name, ""), page) for page in pages)
        return [number for some in read_numbers(self._client, commands) for number in some]

    def fields_of_jobs(self, job_ids: Sequence[str], fields: Sequence[str]) -> list[list[bytes | None]]:
        """Return the values of *fields* in each job hash, for thousands of jobs."""
        return self.fields_of_hashes("job", job_ids, fields)

    def fields_of_hashes(self, name: str, parts: Sequence[str], fields: Sequence[str]) -> list[list[bytes | None]]:
        """Return the values of *fields* in each hash *name* with one of *parts*, for thousands of hashes."""
        pages = (parts[first : first + _MAX_COMMANDS] for first in range(0, len(parts), _MAX_COMMANDS))
        commands = (run_pipelined("HMGET", self.key(name, ""), page, fields) for page in pages)
        return [values or [None] * len(fields) for some in read_values(self._client, commands) for values in some]

    def existing_jobs(self, job_ids: Sequence[str]) -> set[str]:
        """Return the ids of the jobs with a job hash, in any state. Ended jobs are retained for a while."""
        replies = self.ask([("exists", self.key("job", job_id)) for job_id in job_ids])
        return {job_id for job_id, exists in zip(job_ids, replies, strict=True) if exists}

    def settings(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the settings in force and the last settings from an app.conf, by their names in Redis."""
        with self._client.pipeline(transaction=False) as pipe:
            for name in ("settings", "conf_last"):
                pipe.hgetall(self.key(name))
            in_force, conf = map(as_text, pipe.execute())
        return in_force, conf

    def has_unreported_ends(self) -> bool:
        return bool(self._client.exists(self.key("unreported")))

    def has_due(self) -> bool:
        """True if there are due recurring calls that no process has received."""
        first = self._client.zrange(self.key("recurring"), 0, 0, withscores=True)
        return bool(first) and first[0][1] <= self.now_us()

    def message_of(self, job_id: str) -> bytes:
        """Return the message of a job as kombu sent it; b"" if it was deleted."""
        return self._client.get(self.key("message", job_id)) or b""

    def scheduled_count(self, type_: str) -> int:
        """Return the number of scheduled jobs of a type. Reads the scheduled jobs of all types."""
        return sum(map(len, self.scheduled(type_, _SCHEDULED_PAGE)))

    def has_scheduled(self, type_: str) -> bool:
        """True if a job of the type waits for its time."""
        return any(self.scheduled(type_, _SCHEDULED_PAGE))

    def scheduled(self, type_: str, page: int) -> Iterator[list[str]]:
        """Yield the ids of a type's scheduled jobs, one list per *page* of scheduled jobs."""
        wanted = encode_part(type_).encode()
        # From the last page to the first: jobs that are deleted in between do not shift earlier pages.
        for first in reversed(range(0, self._client.zcard(self.key("scheduled")), page)):
            ids = list(map(decode_text, self._client.zrange(self.key("scheduled"), first, first + page - 1)))
            with self._client.pipeline(transaction=False) as pipe:
                for job_id in ids:
                    pipe.hget(self.key("job", job_id), "type")
                types = pipe.execute()
            yield [job_id for job_id, type_of_job in zip(ids, types, strict=True) if type_of_job == wanted]

    def _heads(self, types: Sequence[str] | None) -> dict[str, str]:
        heads = self.large_hash("heads") if types is None else self.fields("heads", types)
        heads.pop("!", None)  # not a type, but a flag: some types have rules
        return heads

    def lane_key(self, lane: Lane) -> str:
        return self.key("kept_back" if lane.is_kept_back else "lane", lane.type, lane.name)


def as_text(raw: dict[bytes, bytes]) -> dict[str, str]:
    """Return a hash decoded to text."""
    return {decode_text(name): decode_text(value) for name, value in raw.items()}


def _reply(command: Command, reply: Reply) -> Reply:
    if not isinstance(reply, redis.RedisError):
        return reply
    if not str(reply).startswith("WRONGTYPE"):
        raise reply
    name, fields = command[0], command[-1]
    return [None] * len(cast(Sequence[str], fields)) if name == "hmget" else _EMPTY_REPLIES.get(name)
