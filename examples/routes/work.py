"""Decides beforehand which changes come, and when, so that all sides get exactly the same work."""

import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count, cycle
from pathlib import Path

from examples.routes.books import Change
from examples.routes.cities import City, all_cities
from examples.routes.planner import plan

SEED = 7

#: No batch of changes comes for this city. Four slots plan the others: without a reserve they would all be busy.
AT_REST = "Lübeck"

#: Users who ask: in each city under the flood, and in the one at rest.
USERS = 2
USERS_AT_REST = 4

#: Changes of the flood for each city: enough of them that a user who asks in between finds some left, and at most.
FEWEST, MOST = 6, 40

#: What a run takes beyond its planning: a part of that, for messages, files, and slots that share the cores.
OVERHEAD = 1.15


@dataclass(frozen=True)
class Request:
    """A change of a city: at once, or by a user, *after* so many changes of the flood: of that city, or in all."""

    city: str
    mode: str
    change: Change
    after: int = 0

    @property
    def is_at_rest(self) -> bool:
        return self.city == AT_REST


def make(seconds: float) -> list[Request]:
    """Return work that takes two cores, or all if they are fewer, about *seconds*."""
    flooded = [city for city in all_cities().values() if city.name != AT_REST]
    cores = min(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    a_round_s = OVERHEAD * sum(_cost_s(city) for city in flooded) / cores
    rounds = max(FEWEST, min(MOST, round(seconds / a_round_s) - USERS))
    rng = random.Random(SEED)
    stops = {
        city.name: rng.sample([stop.name for stop in city.stops], len(city.stops)) for city in all_cities().values()
    }
    numbers = count(1)
    # Users' stops first: no change of the flood concerns them.
    users = [
        Request(city, "on_demand", _change(numbers, stops[city].pop(), False), after)
        for city, after in _users([city.name for city in flooded], rounds)
    ]
    changes = {city.name: _drop_and_bring_back(stops[city.name], numbers) for city in flooded}
    flood = [Request(city.name, "queued", next(changes[city.name])) for city in flooded for _ in range(rounds)]
    return [*_shuffled(flood, rng), *users]


def _users(flooded: list[str], rounds: int) -> Iterator[tuple[str, int]]:
    """Yield the city of each user, and after how many changes of the flood."""
    for nth in range(1, USERS + 1):
        yield from ((city, rounds * nth // (USERS + 1)) for city in flooded)
    for nth in range(1, USERS_AT_REST + 1):
        yield AT_REST, len(flooded) * rounds * nth // (USERS_AT_REST + 1)


def _drop_and_bring_back(stops: list[str], numbers: Iterator[int]) -> Iterator[Change]:
    for stop in cycle(stops):
        yield _change(numbers, stop, False)
        yield _change(numbers, stop, True)


def _change(numbers: Iterator[int], stop: str, is_wanted: bool) -> Change:
    return {"number": next(numbers), "stop": stop, "is_wanted": is_wanted}


def _shuffled(flood: list[Request], rng: random.Random) -> list[Request]:
    """Mix the cities, and leave the changes of each in their order."""
    of_city = {city: iter([each for each in flood if each.city == city]) for city in {each.city: 0 for each in flood}}
    return [next(of_city[each.city]) for each in rng.sample(flood, len(flood))]


def _cost_s(city: City) -> float:
    """Return how long a plan of *city* takes, s."""
    started = time.perf_counter()
    plan(city.base, city.stops, city.agents)
    return time.perf_counter() - started


def save(requests: list[Request], path: Path) -> None:
    path.write_text(json.dumps([asdict(request) for request in requests], ensure_ascii=False), encoding="utf-8")


def load(path: Path) -> list[Request]:
    return [Request(**fields) for fields in json.loads(path.read_text(encoding="utf-8"))]
