"""Read the metrics of each type: counters, and the wait and run times of its jobs. Also show whether queues grow.

For the trends, one dispatcher records the numbers of each type once a minute (`dispatcher/trend_notes`).
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
    """What has happened to the jobs of a type. Metrics are deleted a day after the type's last worker.

    *published*: jobs published while live workers served the type. *queued*, *on_demand*: wait times, one for each
    claim of a job. *runs*: slot times. *ended*: jobs by outcome. *in_time*: claims before the job's own due time.
    *late*: times between the due time and the claim of other such jobs.
    """

    type: str
    published: int = 0
    queued: TimeHistogram = field(default_factory=TimeHistogram)
    on_demand: TimeHistogram = field(default_factory=TimeHistogram)
    runs: TimeHistogram = field(default_factory=TimeHistogram)
    ended: Mapping[str, int] = field(default_factory=dict)
    in_time: int = 0
    late: TimeHistogram = field(default_factory=TimeHistogram)

    @property
    def started(self) -> int:
        return self.queued.number + self.on_demand.number

    def since(self, before: "TypeMetrics") -> "TypeMetrics":
        """Return the increase since *before*."""
        return TypeMetrics(
            self.type,
            _grown(self.published, before.published),
            self.queued.since(before.queued),
            self.on_demand.since(before.on_demand),
            self.runs.since(before.runs),
            {outcome: _grown(number, before.ended.get(outcome, 0)) for outcome, number in self.ended.items()},
            _grown(self.in_time, before.in_time),
            self.late.since(before.late),
        )


def _grown(now: int, before: int) -> int:
    return now - before if now >= before else now


def metrics_of(reader: Reader, types: Iterable[str]) -> list[TypeMetrics]:
    """Return the metrics of *types*. Types without metrics are omitted."""
    encoded = [(type_, encode_part(type_)) for type_ in types]
    lengths = reader.hash_lengths("metrics", [name for _, name in encoded])
    named = [type_name for type_name, length in zip(encoded, lengths, strict=True) if length]
    rows = reader.ask([("hgetall", reader.key("metrics", name)) for _, name in named])
    return [metrics_of_row(type_, as_text(row)) for (type_, _), row in zip(named, rows, strict=True) if row]


def metrics_of_row(type_: str, row: Mapping[str, str]) -> TypeMetrics:
    """Return the metrics in a metrics hash."""
    ended = {kind: histogram_of(row, kind).number for kind in histograms.RUNS}
    for outcome in histograms.OTHER_ENDS:
        ended[outcome] = ended.get(outcome, 0) + max(0, decode_number(row.get(outcome)))
    return TypeMetrics(
        type_,
        sum(max(0, decode_number(row.get(name))) for name in (histograms.PUBLISHED, histograms.PUBLISHED_BEFORE)),
        histogram_of(row, "queued"),
        histogram_of(row, "demand"),
        histogram_of(row, *histograms.RUNS),
        ended,
        max(0, decode_number(row.get(histograms.IN_TIME))),
        histogram_of(row, histograms.LATE),
    )


#: Number of notes that are kept, and the maximum age in seconds of a compared note.
KEPT = 15
COMPARED_S = 600

#: Minimum age in seconds of the note that shows the change in the last minute.
_MINUTE_S = 45

#: Maximum number of types in a note. The types with the most pending jobs are recorded.
MAX_TYPES = 200

#: Minimum increase of a growing queue, in jobs and as a share.
_MIN_GROWTH_JOBS, _MIN_GROWTH_SHARE = 10, 0.1


@dataclass(frozen=True)
class Trend:
    """Changes over the last *seconds*. *before*, *now*: waiting jobs. *published*, *ended*: jobs in between.

    *minute_ago*: waiting jobs about a minute ago. A queue that grew for ten minutes and now shrinks does neither.
    """

    seconds: float
    before: int
    now: int
    published: int
    ended: int
    minute_ago: int

    @property
    def grows(self) -> bool:
        grown = self.now - self.before
        return self.now > self.minute_ago and grown >= max(_MIN_GROWTH_JOBS, _MIN_GROWTH_SHARE * self.before)

    @property
    def shrinks(self) -> bool:
        shrunk = self.before - self.now
        return self.now < self.minute_ago and shrunk >= max(_MIN_GROWTH_JOBS, _MIN_GROWTH_SHARE * self.before)


def note_trends(reader: Reader) -> bytes:
    """Return a note of the waiting jobs, and of the jobs published and ended so far."""
    backlogs = reader.backlogs()
    busiest = sorted(
        {*backlogs, *reader.capacity()}, key=lambda type_: -backlogs[type_].jobs if type_ in backlogs else 0
    )
    types = [decode_part(type_) for type_ in busiest[:MAX_TYPES]]
    pending = {decode_part(type_): backlog.jobs for type_, backlog in backlogs.items()}
    metrics = {type_metrics.type: type_metrics for type_metrics in metrics_of(reader, types)}
    rows = {type_: [pending.get(type_, 0), *_published_and_ended(metrics.get(type_))] for type_ in types}
    return json.dumps({"at_us": reader.now_us(), "types": rows}, separators=(",", ":")).encode()


def _published_and_ended(metrics: TypeMetrics | None) -> tuple[int, int]:
    return (metrics.published, sum(metrics.ended.values())) if metrics else (0, 0)


def read_trends(reader: Reader, pending: Mapping[str, int], now_us: int) -> dict[str, Trend]:
    """Return the trends of types with a note. *pending*: type -> waiting jobs."""
    notes = [_read(decode_text(note)) for note in reader.ask_one("lrange", reader.key("trend"), 0, KEPT - 1)]
    old = [note for note in notes if 0 < now_us - note[0] <= COMPARED_S * SECOND_US]
    if not old:
        return {}
    at_us, rows = min(old, key=lambda note: note[0])
    of_last_minute = [note for note in old if now_us - note[0] >= _MINUTE_S * SECOND_US]
    _, minute_rows = max(of_last_minute, key=lambda note: note[0], default=(at_us, rows))
    compared = [type_ for type_ in pending if type_ in rows]
    metrics = {type_metrics.type: type_metrics for type_metrics in metrics_of(reader, compared)}
    trends = {}
    for type_ in compared:
        before, published, ended = rows[type_]
        published_now, ended_now = _published_and_ended(metrics.get(type_))
        trends[type_] = Trend(
            (now_us - at_us) / SECOND_US,
            before,
            pending[type_],
            max(0, published_now - published),
            max(0, ended_now - ended),
            minute_rows.get(type_, rows[type_])[0],
        )
    return trends


def _read(text: str) -> tuple[int, dict[str, list[int]]]:
    """Return the time and rows of a note, empty if another client overwrote it."""
    try:
        note = json.loads(text)
        rows = {type_: _parse_counts(row) for type_, row in note["types"].items()}
        return decode_number(note["at_us"]), rows
    except (ValueError, TypeError, KeyError, AttributeError):
        return 0, {}


def _parse_counts(row: Iterable[object]) -> list[int]:
    before, published, ended = row
    return [decode_number(str(count)) for count in (before, published, ended)]
