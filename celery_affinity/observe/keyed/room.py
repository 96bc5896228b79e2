"""How many of the jobs with keys could start if slots were free.

Of each key that has room one job stands in each lane, and the next one takes its place when that starts. So of a key
with a limit above 1, or a rate, more jobs could start than stand in lanes; of a key with several lanes fewer could. Of
jobs with several keys no more could than the later keys, those of the first of them, have room for. The jobs of a
tenant that nothing bounds are all in their lanes.
"""

import sys
from collections import Counter

from ...rules.marks import has_many_keys
from ...rules.rows import text_of
from ...server.backlogs import Lane
from ...server.reader import Reader
from ..job_row import read_jobs
from .facts import KeyFacts, facts_of, limit_of, limits_in_force, rates_of, stated_in

#: Number of keys that are looked at, since the cost of an observer must not grow with the keys; and how many of them
#: follow each other, in the order of the index.
_MOST_KEYS, _TOGETHER = 1000, 20


def beyond_lanes(reader: Reader, now_us: int) -> dict[str, int]:
    """Return, by type (encoded), how many jobs more could start now than stand in lanes; below 0 if fewer could.

    If jobs wait for more than `_MOST_KEYS` keys, this is an estimate by so many of them.
    """
    number = int(reader.ask_one("zcard", reader.key("waiting_keys")))
    facts = facts_of(reader, some_keys(reader, number))
    standing = {key: its for key, each in facts.items() if (its := _standing(each))}
    later = _later_keys(reader, standing)
    further = facts_of(reader, list({key for keys in later.values() for key in keys} - standing.keys()))
    left = _rooms(reader, {key: facts[key] for key in standing} | further, now_us)
    lanes = [(key, lane) for key in standing for lane in standing[key] if left[key] > 1 or len(standing[key]) > 1]
    lengths = reader.ask([("zcard", reader.key("sublane", key, lane.type, lane.name)) for key, lane in lanes])
    found: Counter[str] = Counter()
    # A job that stands for its first key is in the lane of the next, which is looked at before.
    for (key, lane), length in sorted(zip(lanes, lengths, strict=True), key=lambda each: len(later.get(each[0], ()))):
        its_later = later.get((key, lane), ())
        may_start = min(left[key], int(length), *(1 + left[each] for each in its_later))
        for each in its_later:
            left[each] -= max(0, may_start - 1)
        left[key] -= may_start
        found[lane.type] += may_start - 1
    return {type_: round(jobs * number / len(facts)) for type_, jobs in found.items()}


def _later_keys(reader: Reader, standing: dict[str, list[Lane]]) -> dict[tuple[str, Lane], tuple[str, ...]]:
    """Return the later keys of each job that stands for one of several."""
    places = [(key, lane) for key, lanes in standing.items() for lane in lanes if has_many_keys(lane.job_id)]
    rows = read_jobs(reader, [lane.job_id for _, lane in places], ("rules",))
    found = {}
    for place, row in zip(places, rows, strict=True):
        keys = [stated.key for stated in stated_in(row.rules)]
        if place[0] in keys[:-1]:
            found[place] = tuple(keys[keys.index(place[0]) + 1 :])
    return found


def some_keys(reader: Reader, number: int) -> list[str]:
    """Return the keys for which jobs wait: all of the *number*, or some from everywhere in the index."""
    name = reader.key("waiting_keys")
    if number <= _MOST_KEYS:
        pages = [reader.ask_one("zrange", name, 0, _MOST_KEYS - 1)]
    else:
        windows = _MOST_KEYS // _TOGETHER
        firsts = [number * (2 * window + 1) // (2 * windows) - _TOGETHER // 2 for window in range(windows)]
        pages = reader.ask([("zrange", name, first, first + _TOGETHER - 1) for first in firsts])
    return list(dict.fromkeys(text_of(key) for page in pages for key in page))


def _standing(facts: KeyFacts) -> list[Lane]:
    """Return the lanes in which a job of the key stands, those of the highest priority first."""
    standing = (lane for lane in facts.sublanes if lane.job_id)
    return sorted(standing, key=lambda lane: (lane.on_demand, lane.priority), reverse=True)


def _rooms(reader: Reader, facts: dict[str, KeyFacts], now_us: int) -> dict[str, int]:
    """Return how many jobs more may hold each key, or start; 1 for a key that is kept for a retry."""
    stated = {key: each.stated.values() for key, each in facts.items()}
    setting = limits_in_force(reader)
    rates = rates_of(reader, stated, setting, now_us)
    limits = {key: limit_of(key, setting, its) for key, its in stated.items() if key not in rates}
    held = reader.ask([("zcard", reader.key("held", key)) for key in limits])
    rooms = {key: rate.room(ahead_us) for key, (rate, ahead_us) in rates.items()}
    rooms |= {
        key: sys.maxsize if limit is None else max(0, limit - int(number))
        for (key, limit), number in zip(limits.items(), held, strict=True)
    }
    return {key: min(room, 1) if facts[key].retry else room for key, room in rooms.items()}
