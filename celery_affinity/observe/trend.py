"""Whether queues grow: what waits, has come and has ended, in comparison with a few minutes ago.

A process that ticks notes the numbers of each type once a minute (`dispatcher/trend_notes`).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..clock import SECOND_US
from ..rules.encoding import decode
from ..rules.rows import number_of, text_of
from ..server.reader import Reader
from .type_metrics import TypeMetrics, metrics_of

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


def note(reader: Reader) -> bytes:
    """Return a note of what waits now, and of what has come and ended so far."""
    backlogs = reader.backlogs()
    busiest = sorted(
        {*backlogs, *reader.capacity()}, key=lambda type_: -backlogs[type_].jobs if type_ in backlogs else 0
    )
    types = [decode(type_) for type_ in busiest[:MOST_TYPES]]
    pending = {decode(type_): backlog.jobs for type_, backlog in backlogs.items()}
    known = {each.type: each for each in metrics_of(reader, types)}
    rows = {type_: [pending.get(type_, 0), *_came_and_ended(known.get(type_))] for type_ in types}
    return json.dumps({"at_us": reader.now_us(), "types": rows}, separators=(",", ":")).encode()


def _came_and_ended(metrics: TypeMetrics | None) -> tuple[int, int]:
    return (metrics.published, sum(metrics.ended.values())) if metrics else (0, 0)


def trends(reader: Reader, pending: Mapping[str, int], now_us: int) -> dict[str, Trend]:
    """Return the trends of types: *pending* has the jobs that wait now. None of a type without a note."""
    notes = [_read(text_of(each)) for each in reader.ask_one("lrange", reader.key("trend"), 0, KEPT - 1)]
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
        return number_of(found["at_us"]), rows
    except (ValueError, TypeError, KeyError, AttributeError):
        return 0, {}


def _three(row: Iterable[object]) -> list[int]:
    before, published, ended = row
    return [number_of(str(each)) for each in (before, published, ended)]
