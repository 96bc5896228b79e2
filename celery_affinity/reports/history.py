"""Report the history of a fleet: throughput, failures, waits, slots and memory, from points of 10 s and of 5 min.

A dispatcher makes the points from counters that the server has anyway, so calls, claims and releases pay nothing. The
points are packed and compressed: for 50 types, an hour of 10 s and a week of 5 min need less than 2 MB.
"""

import json
import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from ..clock import SECOND_US
from ..scheduler.cohorts import CohortRow
from ..scheduler.reader import Reader, as_text
from ..schema.histograms import BUCKET_DIGITS, OTHER_ENDS, RUNS, WAITS, TimeHistogram
from ..schema.untrusted import inflate, loads
from ..schema.values import decode_number, decode_part, encode_part
from .report import Answer, Param, Source, report, with_cohort_name
from .type_metrics import TypeMetrics, metrics_of_row

#: Seconds per point of the short and of the long series.
SHORT_S, LONG_S = 10, 300
#: Series -> number of points and of bases that are kept.
KEPT = {SHORT_S: (360, 1), LONG_S: (2016, 4)}
#: Seconds for which names of types, points and bases are kept without further ones.
EXPIRES_S = 7 * 86_400
#: Maximum number of types in a point: the types with the most pending jobs. Maximum number of remembered names.
MAX_TYPES, MAX_NAMES = 100, 1_000
#: Maximum number of types in a report: the types with the most ended jobs.
_MAX_SHOWN = 50

#: Period -> series, number of points, and number of points that the report combines into one.
PERIODS = {"15m": (SHORT_S, 90, 1), "1h": (SHORT_S, 360, 3), "1d": (LONG_S, 288, 1), "1w": (LONG_S, 2016, 6)}

#: A point: time in steps, slots, busy slots, memory, p50 and p95 of recent waits.
_HEAD = struct.Struct(">IIIQBB")
#: A type in a point: checksum of its name, ended and failed jobs, waiting jobs, p50 and p95 of the waits.
_ROW = struct.Struct(">IIIIBB")
_MAX_POINT = _HEAD.size + MAX_TYPES * _ROW.size
_MAX_BASE = 4_000_000
_MAX_32, _MAX_64 = 2**32 - 1, 2**64 - 1


class TypePoint(NamedTuple):
    """The jobs of a type in the interval of a point. *waiting*: number at the end of the interval."""

    ended: int
    failed: int
    waiting: int
    p50_s: float | None
    p95_s: float | None


class Point(NamedTuple):
    """The state of a cohort. *number*: Unix time when the interval ended, in steps of the series."""

    number: int
    slots: int
    busy: int
    memory_bytes: int
    #: Waits of all types over the last 5 to 10 minutes.
    p50_s: float | None
    p95_s: float | None
    #: By checksum of the type's name.
    types: dict[int, TypePoint]

    def packed(self) -> bytes:
        head = _HEAD.pack(
            *(min(self.number, _MAX_32), min(self.slots, _MAX_32), min(self.busy, _MAX_32)),
            *(min(self.memory_bytes, _MAX_64), _level(self.p50_s), _level(self.p95_s)),
        )
        rows = (
            _ROW.pack(checksum, *(min(count, _MAX_32) for count in row[:3]), _level(row.p50_s), _level(row.p95_s))
            for checksum, row in self.types.items()
        )
        return zlib.compress(b"".join([head, *rows]))

    @classmethod
    def unpacked(cls, data: bytes) -> "Point | None":
        """Return the point in *data*, or None if another client wrote it."""
        content = inflate(data, _MAX_POINT)
        if len(content) < _HEAD.size or (len(content) - _HEAD.size) % _ROW.size:
            return None
        number, slots, busy, memory_bytes, p50, p95 = _HEAD.unpack_from(content)
        types = {
            checksum: TypePoint(ended, failed, waiting, _seconds(row_p50), _seconds(row_p95))
            for checksum, ended, failed, waiting, row_p50, row_p95 in _ROW.iter_unpack(content[_HEAD.size :])
        }
        return cls(number, slots, busy, memory_bytes, _seconds(p50), _seconds(p95), types)


def _level(seconds: float | None) -> int:
    """Return a time as a byte: 0 for None, otherwise 1 + 8 * log2(milliseconds), which is exact to 5 %."""
    return 0 if seconds is None else min(255, 1 + max(0, round(8 * math.log2(max(seconds, 0.001) * 1000))))


def _seconds(level: int) -> float | None:
    return round(2 ** ((level - 1) / 8) / 1000, 4) if level else None


def checksum_of(type_: str) -> int:
    return zlib.crc32(type_.encode(errors="replace"))


class Base(NamedTuple):
    """The counters of a cohort at the end of a point, which the next point is compared with."""

    at_us: int
    #: Type -> its metrics hash.
    rows: Mapping[str, Mapping[str, str]]

    def packed(self) -> bytes:
        return zlib.compress(json.dumps([self.at_us, self.rows], separators=(",", ":")).encode())

    @classmethod
    def unpacked(cls, data: bytes) -> "Base | None":
        """Return the base in *data*, or None if another client wrote it."""
        try:
            at_us, rows = loads(inflate(data, _MAX_BASE))
            return cls(decode_number(str(at_us)), {type_: _texts(row) for type_, row in rows.items()})
        except (ValueError, TypeError, AttributeError):
            return None

    def metrics(self) -> dict[str, TypeMetrics]:
        return {type_: metrics_of_row(type_, row) for type_, row in self.rows.items()}


def _texts(row: Mapping[str, object]) -> dict[str, str]:
    return {name: value for name, value in row.items() if isinstance(value, str)}


def read_bases(reader: Reader, step_s: int) -> list[Base]:
    """Return the bases of a series, the newest first."""
    stored = reader.ask_one("lrange", reader.key("history_base", str(step_s)), 0, KEPT[step_s][1] - 1)
    return [base for base in map(Base.unpacked, stored) if base is not None]


class NewPoint(NamedTuple):
    """A *point* of the series *step_s*, and the *base* for the next point. *names*: checksum -> type."""

    step_s: int
    point: bytes
    base: bytes
    names: dict[int, str]


class _Counters(NamedTuple):
    """The jobs of a type since the server's first day, as far as the history needs them."""

    ended: int = 0
    failed: int = 0
    waits: TimeHistogram = TimeHistogram()

    @classmethod
    def of(cls, row: Mapping[str, str]) -> "_Counters":
        """Return the counters in a metrics hash. Reads only the fields that exist: most buckets are empty."""
        ended, failed, waits = 0, 0, [0] * len(TimeHistogram().counts)
        for name, text in row.items():
            kind, _, bucket = name.partition(" ")
            is_bucket = bucket.isdecimal() and len(bucket) == BUCKET_DIGITS and int(bucket) < len(waits)
            if is_bucket and kind in WAITS:
                waits[int(bucket)] += max(0, decode_number(text))
            elif (is_bucket and kind in RUNS) or name in OTHER_ENDS:
                ended += max(0, decode_number(text))
                failed += max(0, decode_number(text)) if kind == "failed" else 0
        return cls(ended, failed, TimeHistogram(tuple(waits)))

    def since(self, before: "_Counters") -> "_Counters":
        """Return the increase since *before*, or all if the server has lost its data since then."""
        if self.ended < before.ended:
            return self
        waits = self.waits.since(before.waits)
        return _Counters(self.ended - before.ended, max(0, self.failed - before.failed), waits)


def new_points(reader: Reader, now_us: int) -> list[NewPoint]:
    """Return a point of 10 s and, if five minutes have passed, one of 5 min."""
    backlogs, capacity = reader.backlogs(), reader.capacity()
    slots, free = (sum(map(decode_number, reader.large_hash(name).values())) for name in ("slots", "free_slots"))
    waiting = {decode_part(type_): backlog.jobs for type_, backlog in backlogs.items()}
    served = {decode_part(type_) for type_ in capacity}
    types = sorted({*waiting, *served}, key=lambda type_: (-waiting.get(type_, 0), type_))[:MAX_TYPES]
    replies = reader.ask([("hgetall", reader.key("metrics", encode_part(type_))) for type_ in types])
    base = Base(now_us, {type_: as_text(row) for type_, row in zip(types, replies, strict=True)})
    (info,) = reader.ask([("info", "memory")], may_lack_rights=True)
    memory_bytes = max(0, decode_number(str((info or {}).get("used_memory", 0))))
    latest = {type_: _Counters.of(row) for type_, row in base.rows.items()}
    long_bases = read_bases(reader, LONG_S)
    recent = TimeHistogram()
    for counters in _grown(latest, long_bases[:2][-1]).values() if long_bases else ():
        recent = recent.plus(counters.waits)
    names = {checksum_of(type_): type_ for type_ in types}
    packed_base, points = base.packed(), []
    for step_s, bases in ((SHORT_S, read_bases(reader, SHORT_S)), (LONG_S, long_bases)):
        number = now_us // (step_s * SECOND_US)
        if step_s == LONG_S and bases and bases[0].at_us // (step_s * SECOND_US) == number:
            continue
        grown = _grown(latest, bases[0]) if bases else {}
        rows = {}
        for checksum, type_ in names.items():
            ended, failed, waits = grown.get(type_, _Counters())
            quantiles = waits.quantile(0.5), waits.quantile(0.95)
            rows[checksum] = TypePoint(ended, failed, max(0, waiting.get(type_, 0)), *quantiles)
        quantiles = recent.quantile(0.5), recent.quantile(0.95)
        point = Point(number, max(0, slots), max(0, slots - free), memory_bytes, *quantiles, rows)
        points.append(NewPoint(step_s, point.packed(), packed_base, names))
    return points


def _grown(latest: Mapping[str, _Counters], base: Base) -> dict[str, _Counters]:
    """Return the increase since *base*. A type that a full base lacks may be old: its increase is unknown."""
    is_full = len(base.rows) >= MAX_TYPES
    return {
        type_: counters.since(_Counters.of(base.rows.get(type_, {})))
        for type_, counters in latest.items()
        if type_ in base.rows or not is_full
    }


def recent_wait_p95_s(reader: Reader, now_us: int) -> float | None:
    """Return p95 of the waits in the last 5 to 10 minutes, or None if no job started."""
    stored = reader.ask_one("lrange", reader.key("history", str(SHORT_S)), 0, 0)
    point = Point.unpacked(stored[0]) if stored else None
    is_new = point and abs(now_us // (SHORT_S * SECOND_US) - point.number) <= 6
    return point.p95_s if point and is_new else None


def recent_waits_s(reader: Reader, share: float) -> dict[str, float]:
    """Return the quantile *share* of the waits in the last 5 to 10 minutes, by type. Only of types that had claims."""
    base = next(iter(read_bases(reader, LONG_S)[:2][::-1]), None)
    if base is None:
        return {}
    types = list(base.rows)[:MAX_TYPES]
    replies = reader.ask([("hgetall", reader.key("metrics", encode_part(type_))) for type_ in types])
    latest = {type_: _Counters.of(as_text(row)) for type_, row in zip(types, replies, strict=True)}
    waits = {type_: counters.waits.quantile(share) for type_, counters in _grown(latest, base).items()}
    return {type_: wait_s for type_, wait_s in waits.items() if wait_s is not None}


@dataclass(frozen=True)
class TypeHistory(CohortRow):
    """A type. Each list has a value per time of the history, or None without data.

    *ended_per_s*, *failed_per_s*: jobs per second. *waiting*: pending jobs. *p50_s*, *p95_s*: waits of jobs that
    started.
    """

    type: str
    ended_per_s: list[float | None]
    failed_per_s: list[float | None]
    waiting: list[float | None]
    p50_s: list[float | None]
    p95_s: list[float | None]


@dataclass(frozen=True)
class SlotsHistory(CohortRow):
    """A cohort. *memory_bytes*: memory of its Redis server."""

    slots: list[float | None]
    busy: list[float | None]
    memory_bytes: list[float | None]


@dataclass(frozen=True)
class History:
    """The values at the Unix times *at_s*: averages over *step_s* seconds; p95 is a maximum."""

    step_s: int
    at_s: list[int]
    types: list[TypeHistory]
    cohorts: list[SlotsHistory]


def read_history(reader: Reader, period: str) -> History:
    """Return the history of one cohort. *period*: one of `PERIODS`."""
    step_s, length, combined = PERIODS[period]
    stored = reader.ask_one("lrange", reader.key("history", str(step_s)), 0, length - 1)
    names = {decode_number(checksum): name for checksum, name in reader.hash("history_names").items()}
    groups = length // combined
    last = reader.now_us() // (step_s * SECOND_US) // combined
    by_group: list[list[Point]] = [[] for _ in range(groups)]
    for point in map(Point.unpacked, stored):
        place = point.number // combined - last + groups - 1 if point else -1
        if point and 0 <= place < groups:
            by_group[place].append(point)
    at_s = [(last - groups + 1 + place) * combined * step_s for place in range(groups)]
    types = [
        _type_history(name, checksum, by_group, step_s)
        for checksum, name in names.items()
        if any(checksum in point.types for points in by_group for point in points)
    ]
    types.sort(key=lambda row: (-sum(rate or 0 for rate in row.ended_per_s), row.type))
    slots = SlotsHistory(
        slots=[_mean(point.slots for point in points) for points in by_group],
        busy=[_mean(point.busy for point in points) for points in by_group],
        memory_bytes=[_mean(point.memory_bytes for point in points) for points in by_group],
    )
    return History(step_s * combined, at_s, types[:_MAX_SHOWN], [slots])


def _type_history(name: str, checksum: int, by_group: Sequence[Sequence[Point]], step_s: int) -> TypeHistory:
    nothing = TypePoint(0, 0, 0, None, None)
    groups = [[point.types.get(checksum, nothing) for point in points] for points in by_group]
    return TypeHistory(
        type=name,
        ended_per_s=[_mean(row.ended / step_s for row in rows) for rows in groups],
        failed_per_s=[_mean(row.failed / step_s for row in rows) for rows in groups],
        waiting=[_mean(row.waiting for row in rows) for rows in groups],
        p50_s=[_mean(row.p50_s for row in rows if row.p50_s is not None) for rows in groups],
        p95_s=[max((row.p95_s for row in rows if row.p95_s is not None), default=None) for rows in groups],
    )


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return round(sum(numbers) / len(numbers), 4) if numbers else None


@report(
    "/api/history",
    "/api/history",
    "Throughput, failures, waiting jobs, waits, slots and memory over the last 15 minutes to the last week",
)
def history(
    source: Source, period: Annotated[str, Param("The covered time.", choices=tuple(PERIODS))] = "15m"
) -> Answer[History]:
    """Report the history of the fleet. It has the types that had jobs or workers."""
    answers = source.fleet.each(lambda scheduler: read_history(scheduler.reader, period))
    histories = answers.answers
    if not answers.is_split:
        return Answer(histories[source.fleet.names[0]], answers.down)
    types = [row for name, one in histories.items() for row in with_cohort_name(one.types, name)]
    cohorts = [row for name, one in histories.items() for row in with_cohort_name(one.cohorts, name)]
    step_s, at_s = next(((one.step_s, one.at_s) for one in histories.values()), (0, []))
    return Answer(History(step_s, at_s, types, cohorts), answers.down)
