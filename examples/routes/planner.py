"""Plans the tours of a city's agents. Independent of Celery.

The sweep algorithm (Gillett and Miller, 1974) sorts the stops by their direction from the base, and gives each agent a
sector of consecutive stops. Within a sector, nearest neighbour builds a tour from each start stop, and 2-opt improves
it until no exchange of two legs makes it shorter. The planner tries all first directions, and sectors that differ by a
few stops, and returns the shortest plan.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from math import atan2, cos, inf, radians
from typing import NamedTuple

from examples.routes.cities import Stop, distance_km

#: Maximum difference between the number of stops in a sector and an equal share.
MAX_DIFFERENCE = 4

#: Gains of 2-opt below this are rounding errors.
MIN_GAIN_KM = 1e-9

Order = tuple[int, ...]
Table = Sequence[Sequence[float]]


class Plan(NamedTuple):
    """A tour per agent: its stops in order, without the base at both ends."""

    tours: list[list[Stop]]
    km: float


def plan(base: Stop, stops: Sequence[Stop], agents: int) -> Plan:
    """Return the shortest plan found. This is slow, because it improves some thousand tours."""
    around = sorted(stops, key=lambda stop: _direction(base, stop))
    table = distances([base, *around])

    @cache
    def tour_of(first: int, size: int) -> tuple[Order, float]:
        """Return the best tour through a sector as indices of the table (0 is the base), and its length."""
        return best_tour(table, [1 + (first + nth) % len(around) for nth in range(size)])

    best: tuple[float, list[Order]] = (inf, [])
    for sectors in _divisions(len(around), agents):
        tours = [tour_of(first, size) for first, size in sectors]
        best = min(best, (sum(km for _, km in tours), [order for order, _ in tours]))
    km, orders = best
    return Plan([[around[place - 1] for place in order] for order in orders], km if orders else 0.0)


def by_nearest_neighbour(base: Stop, stops: Sequence[Stop], agents: int) -> Plan:
    """Return a simple plan: the first division into equal sectors, and nearest-neighbour tours from the base."""
    around = sorted(stops, key=lambda stop: _direction(base, stop))
    table = distances([base, *around])
    sectors = next(_divisions(len(around), agents, max_difference=0), [])
    orders = [nearest_neighbour(table, [0, *range(1 + first, 1 + first + size)])[1:] for first, size in sectors]
    km = sum(length(table, (0, *order)) for order in orders)
    return Plan([[around[place - 1] for place in order] for order in orders], km)


def _divisions(stops: int, agents: int, max_difference: int = MAX_DIFFERENCE) -> Iterator[list[tuple[int, int]]]:
    """Yield divisions into sectors, each as (first stop, number of stops). There are at most as many as stops."""
    agents = min(agents, stops)
    if not agents:
        return
    quotient, remainder = divmod(stops, agents)
    equal = [quotient + (nth < remainder) for nth in range(agents)]
    for changes in product(range(-max_difference, max_difference + 1), repeat=agents - 1):
        sizes = [size + change for size, change in zip(equal, (*changes, -sum(changes)), strict=True)]
        if min(sizes) < 1 or abs(sum(changes)) > max_difference:
            continue
        for rotation in range(stops if max_difference else 1):
            yield [((rotation + sum(sizes[:nth])) % stops, size) for nth, size in enumerate(sizes)]


def best_tour(table: Table, places: Sequence[int]) -> tuple[Order, float]:
    """Return the shortest closed tour found through *places* and the base, without the base, and its length."""
    tours = (two_opt(table, nearest_neighbour(table, [start, *others])) for start, others in _starts([0, *places]))
    best = min(tours, key=lambda order: length(table, order))
    base = best.index(0)
    return best[base + 1 :] + best[:base], length(table, best)


def _starts(places: list[int]) -> Iterator[tuple[int, list[int]]]:
    for nth, start in enumerate(places):
        yield start, places[:nth] + places[nth + 1 :]


def nearest_neighbour(table: Table, places: Sequence[int]) -> Order:
    """Return a tour that begins at the first of *places* and always continues to the nearest remaining place."""
    order, remaining = [places[0]], list(places[1:])
    while remaining:
        nearest = min(remaining, key=table[order[-1]].__getitem__)
        remaining.remove(nearest)
        order.append(nearest)
    return tuple(order)


def two_opt(table: Table, order: Order) -> Order:
    """Reverse parts of a closed tour until no reversal makes it shorter."""
    tour = list(order)
    is_better = True
    while is_better:
        is_better = False
        for i in range(len(tour) - 2):
            a, b = tour[i], tour[i + 1]
            for j in range(i + 2, len(tour) - (i == 0)):
                c, d = tour[j], tour[(j + 1) % len(tour)]
                if table[a][c] + table[b][d] < table[a][b] + table[c][d] - MIN_GAIN_KM:
                    tour[i + 1 : j + 1] = reversed(tour[i + 1 : j + 1])
                    b = tour[i + 1]
                    is_better = True
    return tuple(tour)


def length(table: Table, order: Sequence[int]) -> float:
    """Return the length of a closed tour in km."""
    return sum(table[a][b] for a, b in zip(order, (*order[1:], *order[:1]), strict=True))


def distances(stops: Sequence[Stop]) -> Table:
    return [[distance_km(a, b) for b in stops] for a in stops]


def _direction(base: Stop, stop: Stop) -> float:
    return atan2(stop.latitude - base.latitude, (stop.longitude - base.longitude) * cos(radians(base.latitude)))
