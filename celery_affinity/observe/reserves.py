"""Slots that reserves keep free, for whom, and the jobs that wait because of that."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..rules import reserves
from ..rules.encoding import decode
from ..rules.protocol import MAX_PRIORITY
from ..rules.reserves import Reserve
from ..server.backlogs import Lane
from ..server.reader import Reader
from . import sentences

#: Settings that say which reserves are in force.
_SETTINGS = ("reserve", "priority_reversed")


@dataclass(frozen=True)
class Reserved:
    """Slots that jobs of a class leave free: *kept* of the *live* slots that fit.

    *of_class*: "queued", "on_demand", a priority or a range of them, 10 as the highest. *for_whom*: the others, in
    words.
    """

    type: str
    of_class: str
    for_whom: str
    kept: int
    live: int

    @property
    def is_too_large(self) -> bool:
        """Whether the reserve keeps all live slots: then one job of the class runs at a time, and not none."""
        return 0 < self.live <= self.kept

    @property
    def sentence(self) -> str:
        """What a reserve that is too large comes to."""
        return sentences.too_large(self)


@dataclass(frozen=True)
class _InForce:
    reserve: Reserve
    shown: Reserved


def reserved(
    reader: Reader, live: Mapping[str, int], free: Mapping[str, int]
) -> tuple[dict[str, list[Reserved]], dict[str, int]]:
    """Return the reserves by type, and how many pending jobs of a type they keep back. Types are encoded.

    *live*, *free*: slots, and free ones, that fit each type. A class of which none runs counts as kept back too.
    """
    found = _in_force(reader.fields("settings", _SETTINGS), live)
    if not found:
        return {}, {}
    lanes = [
        lane
        for lane in reader.lanes([*found])
        if any(_concerns(each, lane) and free.get(lane.type, 0) <= each.shown.kept for each in found[lane.type])
    ]
    kept_back = dict.fromkeys(found, 0)
    for lane, jobs in zip(lanes, reader.ask([("zcard", reader.lane_key(lane)) for lane in lanes]), strict=True):
        kept_back[lane.type] += int(str(jobs))
    return {type_: [each.shown for each in of_type] for type_, of_type in found.items()}, kept_back


def too_large(reader: Reader) -> list[Reserved]:
    """Return the reserves that leave no slot of a type to their class. One command if there is no reserve."""
    settings = reader.fields("settings", _SETTINGS)
    if not settings.get("reserve", "").strip():
        return []
    found = _in_force(settings, reader.capacity())
    return [each.shown for of_type in found.values() for each in of_type if each.shown.is_too_large]


def why_kept_back(
    reader: Reader, settings: Mapping[str, str], lane: Lane, live: int, free: int
) -> tuple[str, int] | None:
    """Return in words which reserve keeps a job of *lane* back, the largest one, and its slots; None if none does.

    *live*, *free*: slots that fit, and free ones.
    """
    of_type = _in_force(settings, {lane.type: live}).get(lane.type, [])
    covering = [each for each in of_type if _concerns(each, lane) and free <= each.shown.kept]
    running = {each: _running(reader, each.reserve, lane.type) for each in covering if each.shown.is_too_large}
    blocking = [each for each in covering if running.get(each, 1)]
    if not blocking:
        return None
    largest = max(blocking, key=lambda each: each.shown.kept)
    why = sentences.kept_by_reserve(largest.shown, live, free, running.get(largest, 0))
    return why, largest.shown.kept


def _in_force(settings: Mapping[str, str], live: Mapping[str, int]) -> dict[str, list[_InForce]]:
    """Return type -> the reserves in *settings*, by their names in Redis, for each type with *live* slots."""
    is_reversed = settings.get("priority_reversed") == "1"
    all_reserves = reserves.parsed(settings.get("reserve", ""))
    found = {
        type_: [
            _InForce(each, _shown(each, type_, slots, is_reversed)) for each in all_reserves if each.concerns(type_)
        ]
        for type_, slots in live.items()
        if slots
    }
    return {type_: of_type for type_, of_type in found.items() if of_type}


def _shown(reserve: Reserve, type_: str, live: int, is_reversed: bool) -> Reserved:
    first, last = reserve.first, reserve.last
    if is_reversed:
        first, last = MAX_PRIORITY - last, MAX_PRIORITY - first
    read = reserve._replace(first=first, last=last)
    return Reserved(decode(type_), read.of_class, sentences.others_than(read), reserve.slots(live), live)


def _concerns(each: _InForce, lane: Lane) -> bool:
    return each.reserve.covers(lane.on_demand, lane.priority)


def _running(reader: Reader, reserve: Reserve, type_: str) -> int:
    key = reader.key("limited", type_)
    ranges = reserve.lane_numbers
    return sum(int(str(each)) for each in reader.ask([("zcount", key, first, last) for first, last in ranges]))
