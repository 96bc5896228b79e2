"""What has happened to the jobs of each type: counts that only grow, and the times that jobs waited and ran.

Whether queues grow: what waits, has come and has ended, in comparison with a few minutes ago.

A process that ticks notes the numbers of each type once a minute (`dispatcher/trend_notes`).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..clock import SECOND_US
from ..scheduler.reader import Reader, as_text
from ..schema import histograms
from ..schema.histograms import TimeHistogram, histogram_of
from ..schema.values import decode_number, decode_part, decode_text, encode_part


@dataclass(frozen=True)
class TypeMetrics:
    """What has happened to the jobs of a type since it has metrics: they go a day after its last worker.

    *published*: jobs, while live workers served the type. *queued*, *on_demand*: waits of the jobs that were claimed,
    a job that came back at each claim. *runs*: times in a slot. *ended*: jobs by how they ended.
    """

    type: str
    published: int = 0
    queued: TimeHistogram = field(default_factory=TimeHistogram)
    on_demand: TimeHistogram = field(default_factory=TimeHistogram)
    runs: TimeHistogram = field(default_factory=TimeHistogram)
    ended: Mapping[str, int] = field(default_factory=dict)

    @property
    def started(self) -> int:
        return self.queued.number + self.on_demand.number

    def since(self, before: "TypeMetrics") -> "TypeMetrics":
        """Return what came after *before*."""
        return TypeMetrics(
            self.type,
            _grown(self.published, before.published),
            self.queued.since(before.queued),
            self.on_demand.since(before.on_demand),
            self.runs.since(before.runs),
            {how: _grown(number, before.ended.get(how, 0)) for how, number in self.ended.items()},
        )


def _grown(now: int, before: int) -> int:
    return now - before if now >= before else now


def metrics_of(reader: Reader, types: Iterable[str]) -> list[TypeMetrics]:
    """Return the metrics of *types*; none of a type without any."""
    named = list(types)
    rows = reader.ask([("hgetall", reader.key("metrics", encode_part(type_))) for type_ in named])
    return [_metrics_of_type(type_, as_text(row)) for type_, row in zip(named, rows, strict=True) if row]


def _metrics_of_type(type_: str, row: Mapping[str, str]) -> TypeMetrics:
    ended = {kind: histogram_of(row, kind).number for kind in histograms.RUNS}
    for how in histograms.OTHER_ENDS:
        ended[how] = ended.get(how, 0) + max(0, decode_number(row.get(how)))
    return TypeMetrics(
        type_,
        sum(max(0, decode_number(row.get(name))) for name in (histograms.PUBLISHED, histograms.PUBLISHED_BEFORE)),
        histogram_of(row, "queued"),
        histogram_of(row, "demand"),
        histogram_of(row, *histograms.RUNS),
        ended,
    )


#: Number of notes that are kept, and the longest time, s, that a comparison goes back.
KEPT = 15
COMPARED_S = 600

#: Types, those with most pending jobs, of which there are notes.
MOST_TYPES = 200

#: A queue grows if it has so many jobs more, and so large a share more.
_NOTABLE_JOBS, _NOTABLE_SHARE = 10, 0.1


@dataclass(frozen=True)
class Trend:
    """*before*, *now*: jobs that wait; *published*, *ended*: jobs in between, over the last *seconds*."""

    seconds: float
    before: int
    now: int
    published: int
    ended: int

    @property
    def grows(self) -> bool:
        return self.now - self.before >= max(_NOTABLE_JOBS, _NOTABLE_SHARE * self.before)

    @property
    def shrinks(self) -> bool:
        return self.before - self.now >= max(_NOTABLE_JOBS, _NOTABLE_SHARE * self.before)


def note_trends(reader: Reader) -> bytes:
    """Return a note of what waits now, and of what has come and ended so far."""
    backlogs = reader.backlogs()
    busiest = sorted(
        {*backlogs, *reader.capacity()}, key=lambda type_: -backlogs[type_].jobs if type_ in backlogs else 0
    )
    types = [decode_part(type_) for type_ in busiest[:MOST_TYPES]]
    pending = {decode_part(type_): backlog.jobs for type_, backlog in backlogs.items()}
    known = {each.type: each for each in metrics_of(reader, types)}
    rows = {type_: [pending.get(type_, 0), *_came_and_ended(known.get(type_))] for type_ in types}
    return json.dumps({"at_us": reader.now_us(), "types": rows}, separators=(",", ":")).encode()


def _came_and_ended(metrics: TypeMetrics | None) -> tuple[int, int]:
    return (metrics.published, sum(metrics.ended.values())) if metrics else (0, 0)


def read_trends(reader: Reader, pending: Mapping[str, int], now_us: int) -> dict[str, Trend]:
    """Return the trends of types: *pending* has the jobs that wait now. None of a type without a note."""
    notes = [_read(decode_text(each)) for each in reader.ask_one("lrange", reader.key("trend"), 0, KEPT - 1)]
    old = [each for each in notes if 0 < now_us - each[0] <= COMPARED_S * SECOND_US]
    if not old:
        return {}
    at_us, rows = min(old, key=lambda each: each[0])
    compared = [type_ for type_ in pending if type_ in rows]
    metrics = {each.type: each for each in metrics_of(reader, compared)}
    found = {}
    for type_ in compared:
        before, published, ended = rows[type_]
        came, gone = _came_and_ended(metrics.get(type_))
        found[type_] = Trend(
            (now_us - at_us) / SECOND_US, before, pending[type_], max(0, came - published), max(0, gone - ended)
        )
    return found


def _read(text: str) -> tuple[int, dict[str, list[int]]]:
    """Return time and rows of a note; those of no note at all if somebody else wrote there."""
    try:
        found = json.loads(text)
        rows = {type_: _three(row) for type_, row in found["types"].items()}
        return decode_number(found["at_us"]), rows
    except (ValueError, TypeError, KeyError, AttributeError):
        return 0, {}


def _three(row: Iterable[object]) -> list[int]:
    before, published, ended = row
    return [decode_number(str(each)) for each in (before, published, ended)]
