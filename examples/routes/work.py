"""Decides beforehand which changes come, and when, so that all sides get exactly the same work.

Where calls merge, many times as many come.
"""

import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import count, cycle
from pathlib import Path

from examples.routes.books import Change
from examples.routes.cities import City, all_cities
from examples.routes.planner import plan

SEED = 7

#: No batch of changes comes for this city. Four slots plan the others: without a reserve they would all be busy.
AT_REST = "Lübeck"

#: Where calls merge nobody changes a stop of that city: then it is planned again after so many seconds.
STALE_AFTER_S = 1.0

#: Users who ask: in each city under the flood, and in the one at rest.
USERS = 2
USERS_AT_REST = 4

#: Changes of the flood for each city: enough of them that a user who asks in between finds some left, and at most.
MIN_ROUNDS, MAX_ROUNDS = 6, 40

#: Changes for each planned second where calls merge, fewest and most of them, and the part of that time in which they
#: come.
MANY_A_SECOND, MIN_OF_MANY, MAX_OF_MANY = 150, 120, 1000
COME_WITHIN = 0.5

#: What a run takes beyond its planning: a part of that, for messages, files, and slots that share the cores.
OVERHEAD = 1.15


@dataclass(frozen=True)
class Request:
    """A change of a city: at once, or by a user, *after* so many changes of the flood: of that city, or in all.

    *at_s*: where calls merge, when it comes, s after the first.
    """

    city: str
    mode: str
    change: Change
    after: int = 0
    at_s: float = 0.0

    @property
    def is_at_rest(self) -> bool:
        return self.city == AT_REST


def make(seconds: float) -> list[Request]:
    """Return work that takes two cores, or all if they are fewer, about *seconds*."""
    a_round_s = OVERHEAD * sum(_cost_s(all_cities()[city]) for city in flooded()) / min(2, cores())
    rounds = max(MIN_ROUNDS, min(MAX_ROUNDS, round(seconds / a_round_s) - USERS))
    return _requests([*_users(rounds), *_users_at_rest(rounds)], rounds)


def make_many(seconds: float) -> list[Request]:
    """Return the work where calls merge, each change with its time. Users come in between; nobody changes `AT_REST`."""
    rounds = max(MIN_OF_MANY, min(MAX_OF_MANY, round(MANY_A_SECOND * seconds))) // len(flooded())
    requests = _requests(list(_users(rounds)), rounds)
    users = [each for each in requests if each.after]
    mixed = [each for each in requests if not each.after]
    for nth, user in reversed(list(enumerate(users, 1))):
        mixed.insert(nth * len(mixed) // (len(users) + 1), user)
    step_s = COME_WITHIN * seconds / len(mixed)
    return [replace(each, after=0, at_s=nth * step_s) for nth, each in enumerate(mixed)]


def flooded() -> list[str]:
    """Return the cities for which changes come in numbers."""
    return [city for city in all_cities() if city != AT_REST]


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _requests(users: list[tuple[str, int]], rounds: int) -> list[Request]:
    """Return so many changes for each city of the flood, mixed, and then those of users."""
    rng = random.Random(SEED)
    stops = {
        city.name: rng.sample([stop.name for stop in city.stops], len(city.stops)) for city in all_cities().values()
    }
    numbers = count(1)
    # Users' stops first: no change of the flood concerns them.
    asked = [Request(city, "on_demand", _change(numbers, stops[city].pop(), False), after) for city, after in users]
    changes = {city: _drop_and_bring_back(stops[city], numbers) for city in flooded()}
    flood = [Request(city, "queued", next(changes[city])) for city in flooded() for _ in range(rounds)]
    return [*_shuffled(flood, rng), *asked]


def _users(rounds: int) -> Iterator[tuple[str, int]]:
    """Yield the city of each user under the flood, and after how many changes of that city."""
    for nth in range(1, USERS + 1):
        yield from ((city, rounds * nth // (USERS + 1)) for city in flooded())


def _users_at_rest(rounds: int) -> Iterator[tuple[str, int]]:
    for nth in range(1, USERS_AT_REST + 1):
        yield AT_REST, len(flooded()) * rounds * nth // (USERS_AT_REST + 1)


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
