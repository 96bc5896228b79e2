"""List jobs page by page from existing indexes: claims, lanes, jobs blocked by keys, and so on.

The cost of a page depends on what it reads, not on the number of jobs. Its cursor stores the position: if no job moves,
the pages are disjoint and complete. A filter can also read messages, up to a number of bytes per page.
"""

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

from redis.exceptions import NoPermissionError

from ..clock import SECOND_US
from ..errors import OptionError, refuse
from ..options.type_names import ACCEPTED, is_type_name
from ..scheduler.reader import Reader
from ..schema import values
from ..schema.constants import ENDED_KEPT_S
from ..schema.job_record import is_batch
from ..schema.values import decode_number, decode_part, decode_text, encode_part, is_readable
from ..settings.wire import complete_settings
from .job_rows import read_jobs
from .jobs import STATES, Job, describe_jobs, seconds_between, settings_command
from .keys import stated_keys

#: Maximum bytes of messages read for one page. The first message is read regardless of its size.
MAX_BYTES = 16_000_000

#: Number of calls, types or workers that are read together.
_TOGETHER = 100

#: Returns True if the filter admits a message. The first argument is the task's name.
Holds = Callable[[str, bytes], bool]


class ReadMessages(NamedTuple):
    """Result of `read_messages`. *holding*: ids of the matching jobs. *size*: bytes read.

    *next*: id of the first job that was not read, or None if all were read.
    """

    holding: list[str]
    next: str | None
    size: int


def read_messages(reader: Reader, jobs: Sequence[Job], holds: Holds, max_bytes: int) -> ReadMessages:
    """Return which of *jobs* have a message that *holds* admits. All calls of a run must match.

    Stops before *max_bytes* are exceeded, but not before the first job. Raises OptionError without the right to read
    messages.
    """
    ids = [job.job_id or "" for job in jobs]
    keys = [reader.key("message", job_id) for job_id in ids]
    number, size, holding = 0, 0, []
    try:
        sizes = [length or 0 for length in reader.ask([("strlen", key) for key in keys])]
        while number < len(jobs) and (number == 0 or size + sizes[number] <= max_bytes):
            size += sizes[number]
            number += 1
        messages = reader.ask([("get", key) for key in keys[:number]])
        for job_id, job, message in zip(ids, jobs, messages, strict=False):
            if is_batch(job_id):
                matches, bytes_read = _all_calls_hold(reader, job, holds)
                size += bytes_read
            else:
                matches = holds(job.task or "", message or b"")
            if matches:
                holding.append(job_id)
    except NoPermissionError as exc:
        raise OptionError(
            "argument: the broker's user has no right to read messages, which have the arguments; "
            "a worker's user has it, an observer's has not"
        ) from exc
    return ReadMessages(holding, ids[number] if number < len(ids) else None, size)


def _all_calls_hold(reader: Reader, job: Job, holds: Holds) -> tuple[bool, int]:
    """Return whether the messages of all calls of a run match, and the bytes read."""
    size, number = 0, 0
    for name in ("callers", "reported_calls"):
        key, first = reader.key(name, job.job_id or ""), 0
        while calls := reader.ask_one("zrange", key, first, first + _TOGETHER - 1):
            replies = reader.ask([("get", reader.key("message", decode_text(call))) for call in calls])
            messages = [message for message in replies if message]  # an ended call has no message
            size += sum(map(len, messages))
            if not all(holds(job.task or "", message) for message in messages):
                return False, size
            number += len(messages)
            first += len(calls)
    return number > 0, size


#: Indexes by the state of their jobs, in the order in which they are listed.
_INDEXES = {
    "claimed": ("claims",),
    "running": ("claims",),
    "pending": ("lanes", "kept_lanes"),
    "scheduled": ("scheduled",),
    "dead": ("dead",),
    "done": ("ended",),
    "failed": ("ended",),
    "revoked": ("unreported", "ended"),
    "expired": ("unreported", "ended"),
}

_OF_STATES = ("claims", "lanes", "kept_lanes", "scheduled", "dead")
_OF_STAMPS = ("stamped",)

#: All indexes in the order of a list without a state, and of its cursor.
ALL_INDEXES = (*_OF_STATES, *_OF_STAMPS, "unreported", "ended")

#: States that have a list only if `affinity_keep` is more than a minute.
KEPT = ("done", "failed", "revoked", "expired")

#: States that have a list.
LISTED = tuple(_INDEXES)


@dataclass(frozen=True)
class JobFilter:
    """A filter of jobs. *type*: a name. *task*: a name or a pattern, in which ``*`` matches any characters.

    - *stamp*: "name=value", as in Celery's commands.
    - *before_s*, *since_s*: Unix times. Only jobs enqueued until *before_s* and from *since_s* on match.
    - *key*: a key that limits how many of its jobs run together.
    - *holds*: admits a job by its message. All calls of a run must match.
    """

    state: str | None = None
    type: str | None = None
    task: str | None = None
    stamp: str | None = None
    before_s: float | None = None
    key: str | None = None
    since_s: float | None = None
    holds: Holds | None = None

    def __post_init__(self) -> None:
        if self.state is not None and self.state not in LISTED:
            accepted = f"a state that has a list ({', '.join(LISTED)})"
            if self.state in STATES:
                accepted += "; jobs of other states are found by their id alone"
            raise refuse("state", accepted, self.state)
        if self.type is not None and not is_type_name(self.type):
            raise refuse("type", ACCEPTED, self.type)
        if self.stamp is not None and not (is_readable(self.stamp) and "=" in self.stamp):
            raise refuse("stamp", "a name and a value, name=value", self.stamp)

    @property
    def leaves_out(self) -> bool:
        """True if the state's index has jobs that do not match."""
        of_type = self.type is not None and self.state != "pending"
        further = (self.task, self.stamp, self.before_s, self.key, self.since_s, self.holds)
        return of_type or any(value is not None for value in further) or self.state in ("claimed", "running", *KEPT)

    @property
    def indexes(self) -> tuple[str, ...]:
        """Names of the Redis keys that list the jobs which may match."""
        if self.stamp is not None:
            return _OF_STAMPS
        return _OF_STATES if self.state is None else _INDEXES[self.state]

    def admits(self, job: Job) -> bool:
        """Return True if the facts of *job* match. `holds` checks the message separately."""
        return (
            self.state in (None, job.state)
            and (self.state is not None or job.state not in KEPT)
            and self.type in (None, job.type)
            and (self.task is None or values.matches(self.task, job.task or ""))
            and (self.key is None or self.key in job.keys)
            and (self.before_s is None or (job.enqueued_s or 0) <= self.before_s)
            and (self.since_s is None or (job.enqueued_s or 0) >= self.since_s)
        )

    @property
    def fields(self) -> list[str]:
        """Fields of a waiting job's hash that `admits` needs, and its state and task id."""
        fields = ["state", "into", "task"]
        fields += ["type"] if self.type is not None else []
        fields += ["name"] if (self.task, self.holds) != (None, None) else []
        fields += ["rules"] if self.key is not None else []
        return fields + (["enqueued", "published"] if (self.before_s, self.since_s) != (None, None) else [])


#: Maximum number of jobs on a page, and of jobs read for it.
MAX_JOBS_READ = 1000


@dataclass(frozen=True)
class JobsPage:
    """A page of a list of jobs. *cursor*: the argument for the next page, or None on the last page.

    *partial*: True if the page stopped before its limit because it had read the maximum number of jobs or bytes. More
    matching jobs may follow. *down*: cohorts whose jobs are missing -> the reason, or None.
    """

    jobs: list[Job]
    cursor: str | None
    partial: bool = False
    down: dict[str, str] | None = None


class _At(NamedTuple):
    """A position: after the first *skip* members of *place* with the score *after*, or after that member.

    *nth*: position of the index in `ALL_INDEXES`. *chunk*: the index's own cursor over places that are read together.
    """

    nth: int
    chunk: int = 0
    place: str = ""
    after: str = ""
    skip: int = 0


class _Place(NamedTuple):
    """A Redis *key* that lists jobs. Places are sorted by *name*."""

    name: str
    key: str


class _Held(JobFilter):
    """All jobs that workers hold, started or not."""

    leaves_out = False

    def admits(self, job: Job) -> bool:
        return True


def held_jobs(reader: Reader, limit: int) -> list[Job]:
    """Return at most *limit* jobs that workers hold, in states "claimed" and "running"."""
    return jobs_page(reader, _Held("claimed"), limit).jobs


def jobs_page(
    reader: Reader, which: JobFilter, limit: int = 100, cursor: str | None = None, *, is_brief: bool = False
) -> JobsPage:
    """Return at most *limit* jobs that *which* admits, from *cursor* on. Raises OptionError.

    *is_brief*: True to read only these fields of waiting jobs: id, state, and the fields that *which* compares.
    """
    if not (isinstance(limit, int) and 1 <= limit <= MAX_JOBS_READ):
        raise refuse("limit", f"a whole number from 1 to {MAX_JOBS_READ:,}", limit)
    if which.state in KEPT:
        _check_kept(reader, which.state)
    at: _At | None = _At(0) if cursor is None else _read_cursor(cursor)
    listed: list[Job] = []
    read, remaining_bytes = 0, MAX_BYTES
    while at is not None and len(listed) < limit:
        if read >= MAX_JOBS_READ or remaining_bytes <= 0:
            return JobsPage(listed, _cursor(at), partial=True)
        missing = limit - len(listed)
        # A filter can reject most of the jobs that are read. Without a filter, all of them are listed.
        candidates, at = _next(
            reader, which, at, min(MAX_JOBS_READ - read, max(missing, _TOGETHER) if which.leaves_out else missing)
        )
        read += max(1, len(candidates))
        wanted = _read_admitted(reader, which, [job_id for job_id, _ in candidates], is_brief)
        if which.holds is not None and wanted:
            messages = read_messages(reader, list(wanted.values()), which.holds, remaining_bytes)
            remaining_bytes -= messages.size
            if messages.next is not None:
                candidates = candidates[: [job_id for job_id, _ in candidates].index(messages.next)]
                at, remaining_bytes = candidates[-1][1], 0
            wanted = {job_id: wanted[job_id] for job_id in messages.holding}
        for job_id, after in candidates:
            if job_id in wanted:
                listed.append(wanted[job_id])
                if len(listed) == limit:
                    is_last = at is None and job_id == candidates[-1][0]
                    return JobsPage(listed, None if is_last else _cursor(after))
    return JobsPage(listed, None if at is None else _cursor(at))


def read_full_jobs(reader: Reader, ids: Sequence[str]) -> dict[str, Job]:
    """Return the facts of jobs by job id, in order, without missing jobs."""
    described = describe_jobs(reader, read_jobs(reader, ids), reader.ask_one(*settings_command(reader)))
    return {one.job.job_id or "": one.job for one in described}


def _read_admitted(reader: Reader, which: JobFilter, ids: Sequence[str], is_brief: bool) -> dict[str, Job]:
    """Return the jobs of *ids* that *which* admits, in order, by job id. A filter rejects most jobs by a few fields."""
    if not is_brief and not which.leaves_out:
        jobs = read_full_jobs(reader, ids)
    else:
        briefs = _read_brief(reader, which.fields, ids)
        unsure = [id_ for id_, brief in briefs.items() if brief is None or (not is_brief and which.admits(brief))]
        full = read_full_jobs(reader, unsure) if unsure else {}
        jobs = {id_: job for id_ in ids if (job := full.get(id_) or (briefs[id_] if is_brief else None))}
    return {id_: jobs[id_] for id_ in ids if id_ in jobs and which.admits(jobs[id_])}


def _read_brief(reader: Reader, fields: Sequence[str], ids: Sequence[str]) -> dict[str, Job | None]:
    """Return by job id what *fields* have of waiting jobs, and None for other jobs and for merged calls.

    The facts of the others depend on further hashes.
    """
    briefs: dict[str, Job | None] = {}
    for job_id, reply in zip(ids, reader.fields_of_jobs(ids, fields), strict=True):
        row = {name: decode_text(value) for name, value in zip(fields, reply, strict=True) if value}
        state = row.get("state", "")
        if state not in ("pending", "scheduled") or "into" in row or is_batch(job_id):
            briefs[job_id] = None
            continue
        briefs[job_id] = Job(
            id=decode_part(row.get("task", "")) or job_id,
            state=state,
            source="broker",
            job_id=job_id,
            task=row.get("name"),
            type=decode_part(row.get("type", "")),
            enqueued_s=seconds_between(decode_number(row.get("published")) or decode_number(row.get("enqueued"))),
            keys=[decode_part(key.key) for key in stated_keys(row["rules"])] if "rules" in row else [],
        )
    return briefs


def _check_kept(reader: Reader, state: str) -> None:
    keep_us = complete_settings(reader.fields("settings", ["keep_us"]))["keep_us"]
    if int(keep_us) <= ENDED_KEPT_S * SECOND_US:
        always = ", ".join(state for state in LISTED if state not in KEPT)
        raise refuse("state", f"one of {always} (others have lists if affinity_keep is above {ENDED_KEPT_S} s)", state)


def _next(reader: Reader, which: JobFilter, at: _At, max_jobs: int) -> tuple[list[tuple[str, _At]], _At | None]:
    """Return job ids from *at* on, each with the position after it, and the position after all, None at the end."""
    if ALL_INDEXES[at.nth] not in which.indexes:
        return [], _following(at.nth)
    name = ALL_INDEXES[at.nth]
    if name == "claims":
        places, chunk = _workers(reader, at.chunk)
        ids = _members(reader, places, at, max_jobs)
    else:
        if "lanes" in name:
            places, chunk = _lanes(reader, name, which.type, at.chunk)
        elif which.stamp is not None:
            stamp, _, value = which.stamp.partition("=")
            key = reader.key("stamped", f"{encode_part(stamp)}:{encode_part(value)}")
            places, chunk = [_Place("stamped", key)], 0
        else:
            places, chunk = [_Place(name, reader.key(name))], 0
        ids = _by_score(reader, places, at, max_jobs)
    if len(ids) == max_jobs:
        return ids, ids[-1][1]
    return ids, _following(at.nth) if chunk == 0 else _At(at.nth, chunk)


def _following(index: int) -> _At | None:
    return _At(index + 1) if index + 1 < len(ALL_INDEXES) else None


def _workers(reader: Reader, first: int) -> tuple[list[_Place], int]:
    """Return the claims of workers, in the order in which they joined, and the next position, 0 at the end."""
    members = reader.ask_one("zrange", reader.key("joined"), first, first + _TOGETHER - 1)
    names = sorted(decode_text(member) for member in members)
    places = [_Place(name, reader.key("claims", name)) for name in names]
    return places, first + _TOGETHER if len(members) == _TOGETHER else 0


def _lanes(reader: Reader, name: str, type_: str | None, cursor: int) -> tuple[list[_Place], int]:
    """Return lanes, or blocked jobs by lane, and the next cursor, 0 at the end."""
    index, key = ("heads", "lane") if name == "lanes" else ("kept_lanes", "kept_back")
    if type_ is not None:
        pairs = [(encode_part(type_), lane) for lane in values.NAMES]
    else:
        cursor, entries = reader.ask_one("hscan", reader.key(index), cursor, None, _TOGETHER) or (0, {})
        decoded = [(decode_text(field), decode_text(value)) for field, value in entries.items()]
        if name == "lanes":
            pairs = [(field, lane) for field, heads in decoded if field != "!" for lane in heads.split()[::3]]
        else:
            pairs = [(field.partition(" ")[0], field.partition(" ")[2]) for field, _ in decoded]
    places = sorted(_Place(" ".join(pair), reader.key(key, *pair)) for pair in set(pairs))
    return places, 0 if type_ is not None else int(cursor)


def _members(reader: Reader, places: Sequence[_Place], at: _At, max_jobs: int) -> list[tuple[str, _At]]:
    """Return at most *max_jobs* job ids of workers' claims, about as many for each worker as it has slots."""
    remaining = [place for place in places if place.name >= at.place]
    replies = reader.ask([("hkeys", place.key) for place in remaining])
    ids = [
        (job_id, _At(at.nth, at.chunk, place.name, job_id))
        for place, members in zip(remaining, replies, strict=True)
        for job_id in sorted(map(decode_text, members))
        if place.name > at.place or job_id > at.after
    ]
    return ids[:max_jobs]


def _by_score(reader: Reader, places: Sequence[_Place], at: _At, max_jobs: int) -> list[tuple[str, _At]]:
    """Return at most *max_jobs* job ids of sorted sets, by place and score."""
    remaining = [place for place in places if place.name >= at.place]
    lengths = reader.ask([("zcard", place.key) for place in remaining])
    ids: list[tuple[str, _At]] = []
    for group in _groups(remaining, lengths, max_jobs):
        starts = [(at.after or "-inf", at.skip) if place.name == at.place else ("-inf", 0) for place in group]
        commands = [
            ("zrangebyscore", place.key, score, "+inf", skip, max_jobs, True)
            for place, (score, skip) in zip(group, starts, strict=True)
        ]
        for place, (score, skip), members in zip(group, starts, reader.ask(commands), strict=True):
            for member, member_score in members:
                text = repr(member_score)
                skip = skip + 1 if text == score else 1
                score = text
                ids.append((decode_text(member), _At(at.nth, at.chunk, place.name, score, skip)))
        if len(ids) >= max_jobs:
            break
    return ids[:max_jobs]


def _groups(places: Sequence[_Place], lengths: Sequence[int], max_jobs: int) -> Iterator[list[_Place]]:
    """Yield places that are read together. One place with *max_jobs* jobs is enough for a group."""
    group: list[_Place] = []
    jobs = 0
    for place, length in zip(places, lengths, strict=True):
        if length:
            group.append(place)
            jobs += length
        if jobs >= max_jobs:
            yield group
            group, jobs = [], 0
    if group:
        yield group


def _cursor(at: _At) -> str:
    return base64.urlsafe_b64encode(json.dumps(at, separators=(",", ":")).encode()).decode().rstrip("=")


def _read_cursor(text: str) -> _At:
    try:
        index, chunk, place, after, skip = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        at = _At(index, chunk, place, after, skip)
        good = all(type(number) is int and 0 <= number < 2**63 for number in (index, chunk, skip))
        good = good and isinstance(place, str) and isinstance(after, str) and index < len(ALL_INDEXES)
        good = good and is_readable(place) and is_readable(after)
        if good and ALL_INDEXES[index] != "claims" and after:
            good = isfinite(float(after))
    except (ValueError, TypeError, RecursionError):
        good = False
    if not good:
        raise OptionError(f"cursor must be the cursor of a page, got: {text[:100]!r}")
    return at
