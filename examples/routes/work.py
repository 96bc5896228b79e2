"""Plans the changes and their times in advance, so that all compared sides get exactly the same work.

The side whose calls merge gets many more changes.
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

#: The city without a flood. The changes of the other cities would occupy all four slots if there were no reserve.
AT_REST = "Lübeck"

#: On the merged side, AT_REST has no changes. A recurring call plans it again after this number of seconds.
STALE_AFTER_S = 1.0

#: Number of users' changes per flooded city, and in AT_REST.
USERS = 2
USERS_AT_REST = 4

#: Minimum and maximum number of flood changes per city. The minimum ensures that some still wait when users arrive.
MIN_ROUNDS, MAX_ROUNDS = 6, 40

#: Changes on the merged side: number per planned second, minimum, and maximum.
MERGED_PER_S, MIN_MERGED, MAX_MERGED = 150, 120, 1000

#: The fraction of the planned duration within which the changes of the merged side are published.
PUBLISH_WITHIN = 0.5

#: Factor on the planning time of a run for messages, files, and slots that share the cores.
OVERHEAD = 1.15


@dataclass(frozen=True)
class Request:
    """A change of the flood, or a user's change."""

    city: str
    mode: str
    change: Change
    #: A user's change is published after this number of planned flood changes: in its city, or in total for AT_REST.
    after: int = 0
    #: On the merged side: when it is published, in seconds after the first change.
    at_s: float = 0.0

    @property
    def is_at_rest(self) -> bool:
        return self.city == AT_REST


def make(seconds: float) -> list[Request]:
    """Return work that takes about *seconds* on two cores, or on one core if there is only one."""
    round_s = OVERHEAD * sum(_cost_s(all_cities()[city]) for city in flooded()) / min(2, cores())
    rounds = max(MIN_ROUNDS, min(MAX_ROUNDS, round(seconds / round_s) - USERS))
    return _requests([*_users(rounds), *_users_at_rest(rounds)], rounds)


def make_many(seconds: float) -> list[Request]:
    """Return the work of the merged side: flood and users' changes, evenly mixed, none of them in AT_REST."""
    rounds = max(MIN_MERGED, min(MAX_MERGED, round(MERGED_PER_S * seconds))) // len(flooded())
    requests = _requests(list(_users(rounds)), rounds)
    users = [request for request in requests if request.after]
    mixed = [request for request in requests if not request.after]
    for nth, user in reversed(list(enumerate(users, 1))):
        mixed.insert(nth * len(mixed) // (len(users) + 1), user)
    step_s = PUBLISH_WITHIN * seconds / len(mixed)
    return [replace(request, after=0, at_s=nth * step_s) for nth, request in enumerate(mixed)]


def flooded() -> list[str]:
    """Return the cities with a flood of changes."""
    return [city for city in all_cities() if city != AT_REST]


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _requests(users: list[tuple[str, int]], rounds: int) -> list[Request]:
    """Return *rounds* changes for each flooded city, in mixed order, and then the users' changes."""
    rng = random.Random(SEED)
    stops = {
        city.name: rng.sample([stop.name for stop in city.stops], len(city.stops)) for city in all_cities().values()
    }
    numbers = count(1)
    # Choose the users' stops first: the flood does not change them.
    users_changes = [
        Request(city, "on_demand", _change(numbers, stops[city].pop(), False), after) for city, after in users
    ]
    changes = {city: _drop_and_add_again(stops[city], numbers) for city in flooded()}
    flood = [Request(city, "queued", next(changes[city])) for city in flooded() for _ in range(rounds)]
    return [*_shuffled(flood, rng), *users_changes]


def _users(rounds: int) -> Iterator[tuple[str, int]]:
    """Yield the city of each user in a flooded city, and the number of the city's changes to wait for."""
    for nth in range(1, USERS + 1):
        yield from ((city, rounds * nth // (USERS + 1)) for city in flooded())


def _users_at_rest(rounds: int) -> Iterator[tuple[str, int]]:
    for nth in range(1, USERS_AT_REST + 1):
        yield AT_REST, len(flooded()) * rounds * nth // (USERS_AT_REST + 1)


def _drop_and_add_again(stops: list[str], numbers: Iterator[int]) -> Iterator[Change]:
    for stop in cycle(stops):
        yield _change(numbers, stop, False)
        yield _change(numbers, stop, True)


def _change(numbers: Iterator[int], stop: str, is_wanted: bool) -> Change:
    return {"number": next(numbers), "stop": stop, "is_wanted": is_wanted}


def _shuffled(flood: list[Request], rng: random.Random) -> list[Request]:
    """Mix the cities, and keep the order of each city's changes."""
    cities = dict.fromkeys(request.city for request in flood)
    by_city = {city: iter([request for request in flood if request.city == city]) for city in cities}
    return [next(by_city[request.city]) for request in rng.sample(flood, len(flood))]


def _cost_s(city: City) -> float:
    """Measure how long the planning of *city* takes, in seconds."""
    started = time.perf_counter()
    plan(city.base, city.stops, city.agents)
    return time.perf_counter() - started


def save(requests: list[Request], path: Path) -> None:
    path.write_text(json.dumps([asdict(request) for request in requests], ensure_ascii=False), encoding="utf-8")


def load(path: Path) -> list[Request]:
    return [Request(**fields) for fields in json.loads(path.read_text(encoding="utf-8"))]
