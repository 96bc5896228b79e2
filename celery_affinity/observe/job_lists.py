"""Lists of jobs, page by page, by the indexes that arrows keep anyway: claims, lanes, what keys keep back, and so on.

A page costs what it reads, however many jobs there are. Each page says in its cursor how far it came: pages of a fleet
in which nothing moves are disjoint, and complete.
"""

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

from ..clock import SECOND_US
from ..errors import OptionError, refuse
from ..rules import lanes
from ..rules.encoding import encode
from ..rules.protocol import ENDED_KEPT_S
from ..rules.rows import text_of
from ..rules.shared_settings import complete
from ..rules.unreadable import is_text
from ..server.reader import Reader
from .job_filter import ALL_INDEXES, KEPT, LISTED, Filter
from .job_row import read_jobs
from .jobs import Job, described, settings_command
from .messages import MOST_BYTES, look

#: Largest number of jobs on a page, and of jobs that are read for one.
MOST = 1000

#: Number of types, or of workers, of which the places are read together.
_TOGETHER = 100


@dataclass(frozen=True)
class JobsPage:
    """A page of a list of jobs. *cursor*: the argument for the next page; None on the last page.

    *partial*: whether the page stopped before its limit because it had read as many jobs, or as much of their messages,
    as one page may read. More matching jobs may follow. *down*: why jobs of cohorts are left out, by name; None if none
    are.
    """

    jobs: list[Job]
    cursor: str | None
    partial: bool = False
    down: dict[str, str] | None = None


class _At(NamedTuple):
    """A position: after the first *skip* of the members of *place* with the score *after*, or after that member.

    *nth*: number of the index in `ALL_INDEXES`. *chunk*: what the index says of the places that are read together.
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


class _Held(Filter):
    """All jobs that workers hold, whether they have started or not."""

    leaves_out = False

    def admits(self, job: Job) -> bool:
        return True


def held(reader: Reader, limit: int) -> list[Job]:
    """Return *limit* jobs at most that workers hold, in states "claimed" and "running"."""
    return page_of(reader, _Held("claimed"), limit).jobs


def page_of(reader: Reader, which: Filter, limit: int = 100, cursor: str | None = None) -> JobsPage:
    """Return *limit* jobs at most that *which* admits, from *cursor* on. Raises OptionError."""
    if not (isinstance(limit, int) and 1 <= limit <= MOST):
        raise refuse("limit", f"a whole number from 1 to {MOST:,}", limit)
    if which.state in KEPT:
        _check_kept(reader, which.state)
    at: _At | None = _At(0) if cursor is None else _read_cursor(cursor)
    found: list[Job] = []
    read, left_bytes = 0, MOST_BYTES
    while at is not None and len(found) < limit:
        if read >= MOST or left_bytes <= 0:
            return JobsPage(found, _cursor(at), partial=True)
        room = limit - len(found)
        # A filter may leave out most of what is read; without one, all that is read is wanted.
        some, at = _next(reader, which, at, min(MOST - read, max(room, _TOGETHER) if which.leaves_out else room))
        read += max(1, len(some))
        rows = read_jobs(reader, [job_id for job_id, _ in some])
        jobs = {each.job_id: each for each in described(reader, rows, reader.ask_one(*settings_command(reader)))}
        wanted = {id_: jobs[id_] for id_, _ in some if id_ in jobs and which.admits(jobs[id_])}
        if which.holds is not None and wanted:
            looked = look(reader, list(wanted.values()), which.holds, left_bytes)
            left_bytes -= looked.size
            if looked.next is not None:
                some = some[: [job_id for job_id, _ in some].index(looked.next)]
                at, left_bytes = some[-1][1], 0
            wanted = {job_id: wanted[job_id] for job_id in looked.holding}
        for job_id, after in some:
            if job_id in wanted:
                found.append(wanted[job_id])
                if len(found) == limit:
                    is_last = at is None and job_id == some[-1][0]
                    return JobsPage(found, None if is_last else _cursor(after))
    return JobsPage(found, None if at is None else _cursor(at))


def _check_kept(reader: Reader, state: str) -> None:
    keep_us = complete(reader.fields("settings", ["keep_us"]))["keep_us"]
    if int(keep_us) <= ENDED_KEPT_S * SECOND_US:
        always = ", ".join(each for each in LISTED if each not in KEPT)
        raise refuse("state", f"one of {always} (others have lists if affinity_keep is above {ENDED_KEPT_S} s)", state)


def _next(reader: Reader, which: Filter, at: _At, most: int) -> tuple[list[tuple[str, _At]], _At | None]:
    """Return job ids from *at* on, each with the position after it, and the position after all; None at the end."""
    if ALL_INDEXES[at.nth] not in which.indexes:
        return [], _following(at.nth)
    name = ALL_INDEXES[at.nth]
    if name == "claims":
        places, chunk = _workers(reader, at.chunk)
        found = _members(reader, places, at, most)
    else:
        if "lanes" in name:
            places, chunk = _lanes(reader, name, which.type, at.chunk)
        elif which.stamp is not None:
            places, chunk = _places_of_stamp(reader, which.stamp)
        else:
            places, chunk = _one(reader, name)
        found = _by_score(reader, places, at, most)
    if len(found) == most:
        return found, found[-1][1]
    return found, _following(at.nth) if chunk == 0 else _At(at.nth, chunk)


def _following(index: int) -> _At | None:
    return _At(index + 1) if index + 1 < len(ALL_INDEXES) else None


# -- places


def _one(reader: Reader, name: str) -> tuple[list[_Place], int]:
    return [_Place(name, reader.key(name))], 0


def _places_of_stamp(reader: Reader, given: str) -> tuple[list[_Place], int]:
    name, _, value = given.partition("=")
    return [_Place("stamped", reader.key("stamped", f"{encode(name)}:{encode(value)}"))], 0


def _workers(reader: Reader, first: int) -> tuple[list[_Place], int]:
    """Return the claims of workers, in the order in which they joined, and where to go on; 0 at the end."""
    found = reader.ask_one("zrange", reader.key("joined"), first, first + _TOGETHER - 1)
    names = sorted(text_of(each) for each in found)
    places = [_Place(name, reader.key("claims", name)) for name in names]
    return places, first + _TOGETHER if len(found) == _TOGETHER else 0


def _lanes(reader: Reader, name: str, type_: str | None, cursor: int) -> tuple[list[_Place], int]:
    """Return lanes, or what is kept out of them, and where to go on; 0 at the end."""
    index, key = ("heads", "lane") if name == "lanes" else ("kept_lanes", "kept_back")
    if type_ is not None:
        pairs = [(encode(type_), lane) for lane in lanes.NAMES]
    else:
        cursor, found = reader.ask_one("hscan", reader.key(index), cursor, None, _TOGETHER) or (0, {})
        words = [(text_of(field), text_of(value)) for field, value in found.items()]
        if name == "lanes":
            pairs = [(field, lane) for field, heads in words if field != "!" for lane in heads.split()[::3]]
        else:
            pairs = [(field.partition(" ")[0], field.partition(" ")[2]) for field, _ in words]
    places = sorted(_Place(" ".join(pair), reader.key(key, *pair)) for pair in set(pairs))
    return places, 0 if type_ is not None else int(cursor)


# -- jobs of places


def _members(reader: Reader, places: Sequence[_Place], at: _At, most: int) -> list[tuple[str, _At]]:
    """Return up to *most* job ids of hashes: the claims of workers, of which each has about as many as slots."""
    left = [place for place in places if place.name >= at.place]
    found = reader.ask([("hkeys", place.key) for place in left])
    ids = [
        (job_id, _At(at.nth, at.chunk, place.name, job_id))
        for place, members in zip(left, found, strict=True)
        for job_id in sorted(map(text_of, members))
        if place.name > at.place or job_id > at.after
    ]
    return ids[:most]


def _by_score(reader: Reader, places: Sequence[_Place], at: _At, most: int) -> list[tuple[str, _At]]:
    """Return up to *most* job ids of sorted sets, by place and score."""
    left = [place for place in places if place.name >= at.place]
    lengths = reader.ask([("zcard", place.key) for place in left])
    ids: list[tuple[str, _At]] = []
    for group in _groups(left, lengths, most):
        starts = [(at.after or "-inf", at.skip) if place.name == at.place else ("-inf", 0) for place in group]
        commands = [
            ("zrangebyscore", place.key, score, "+inf", skip, most, True)
            for place, (score, skip) in zip(group, starts, strict=True)
        ]
        for place, (score, skip), found in zip(group, starts, reader.ask(commands), strict=True):
            for member, its_score in found:
                text = repr(its_score)
                skip = skip + 1 if text == score else 1
                score = text
                ids.append((text_of(member), _At(at.nth, at.chunk, place.name, score, skip)))
        if len(ids) >= most:
            break
    return ids[:most]


def _groups(places: Sequence[_Place], lengths: Sequence[int], most: int) -> Iterator[list[_Place]]:
    """Yield places that are read together: of some that are full one is enough."""
    group: list[_Place] = []
    jobs = 0
    for place, length in zip(places, lengths, strict=True):
        if length:
            group.append(place)
            jobs += length
        if jobs >= most:
            yield group
            group, jobs = [], 0
    if group:
        yield group


# -- cursors


def _cursor(at: _At) -> str:
    return base64.urlsafe_b64encode(json.dumps(at, separators=(",", ":")).encode()).decode().rstrip("=")


def _read_cursor(text: str) -> _At:
    try:
        index, chunk, place, after, skip = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        at = _At(index, chunk, place, after, skip)
        good = all(type(number) is int and 0 <= number < 2**63 for number in (index, chunk, skip))
        good = good and isinstance(place, str) and isinstance(after, str) and index < len(ALL_INDEXES)
        good = good and is_text(place) and is_text(after)
        if good and ALL_INDEXES[index] != "claims" and after:
            good = isfinite(float(after))
    except (ValueError, TypeError, RecursionError):
        good = False
    if not good:
        raise OptionError(f"cursor must be the cursor of a page, got: {text[:100]!r}")
    return at
