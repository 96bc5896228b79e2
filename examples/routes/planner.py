"""Plans the tours of a city's agents. Knows nothing of Celery.

A ray turns around the base and deals out the stops in the order in which it meets them (the sweep of Gillett and
Miller, 1974): each agent has a sector. Within a sector a tour begins as nearest neighbour, from each of its stops in
turn, and 2-opt takes out crossings until no exchange of two legs pays. Of all first directions of the ray, and of
sectors that differ by a few stops, the shortest plan counts.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from math import atan2, cos, inf, radians
from typing import NamedTuple

from examples.routes.cities import Stop, distance_km

#: How many stops a sector may have more, or fewer, than an equal share.
UNEQUAL = 4

#: Shorter gains of 2-opt, km, are rounding.
LEAST_GAIN_KM = 1e-9

Order = tuple[int, ...]
Table = Sequence[Sequence[float]]


class Plan(NamedTuple):
    """A tour for each agent: stops in order, without the base at both ends."""

    tours: list[list[Stop]]
    km: float


def plan(base: Stop, stops: Sequence[Stop], agents: int) -> Plan:
    """Return the shortest plan that is found. It takes its time: some thousand tours are improved."""
    around = sorted(stops, key=lambda stop: _direction(base, stop))
    table = distances([base, *around])

    @cache
    def tour_of(first: int, size: int) -> tuple[Order, float]:
        """Return the best tour through a sector, and its length: places in the table, 0 is the base."""
        return best_tour(table, [1 + (first + nth) % len(around) for nth in range(size)])

    best: tuple[float, list[Order]] = (inf, [])
    for sectors in _divisions(len(around), agents):
        tours = [tour_of(first, size) for first, size in sectors]
        best = min(best, (sum(km for _, km in tours), [order for order, _ in tours]))
    km, orders = best
    return Plan([[around[place - 1] for place in order] for order in orders], km if orders else 0.0)


def by_nearest_neighbour(base: Stop, stops: Sequence[Stop], agents: int) -> Plan:
    """Return what a plan is without trying: the first equal division, and from the base always on to the nearest."""
    around = sorted(stops, key=lambda stop: _direction(base, stop))
    table = distances([base, *around])
    sectors = next(_divisions(len(around), agents, unequal=0), [])
    orders = [nearest_neighbour(table, [0, *range(1 + first, 1 + first + size)])[1:] for first, size in sectors]
    km = sum(length(table, (0, *order)) for order in orders)
    return Plan([[around[place - 1] for place in order] for order in orders], km)


def _divisions(stops: int, agents: int, unequal: int = UNEQUAL) -> Iterator[list[tuple[int, int]]]:
    """Yield divisions into sectors: the first stop and the number of stops of each. Fewer stops, fewer agents."""
    agents = min(agents, stops)
    if not agents:
        return
    least, more = divmod(stops, agents)
    equal = [least + (nth < more) for nth in range(agents)]
    for changes in product(range(-unequal, unequal + 1), repeat=agents - 1):
        sizes = [size + change for size, change in zip(equal, (*changes, -sum(changes)), strict=True)]
        if min(sizes) < 1 or abs(sum(changes)) > unequal:
            continue
        for turned in range(stops if unequal else 1):
            yield [((turned + sum(sizes[:nth])) % stops, size) for nth, size in enumerate(sizes)]


def best_tour(table: Table, places: Sequence[int]) -> tuple[Order, float]:
    """Return the shortest closed tour that is found through *places* and the base: without the base, and its length."""
    tours = (two_opt(table, nearest_neighbour(table, [start, *others])) for start, others in _starts([0, *places]))
    best = min(tours, key=lambda order: length(table, order))
    base = best.index(0)
    return best[base + 1 :] + best[:base], length(table, best)


def _starts(places: list[int]) -> Iterator[tuple[int, list[int]]]:
    for nth, start in enumerate(places):
        yield start, places[:nth] + places[nth + 1 :]


def nearest_neighbour(table: Table, places: Sequence[int]) -> Order:
    """Return a tour that begins at the first of *places* and always goes on to the nearest that is left."""
    order, left = [places[0]], list(places[1:])
    while left:
        nearest = min(left, key=table[order[-1]].__getitem__)
        left.remove(nearest)
        order.append(nearest)
    return tuple(order)


def two_opt(table: Table, order: Order) -> Order:
    """Turn parts of a closed tour round as long as that makes it shorter."""
    tour = list(order)
    is_better = True
    while is_better:
        is_better = False
        for i in range(len(tour) - 2):
            a, b = tour[i], tour[i + 1]
            for j in range(i + 2, len(tour) - (i == 0)):
                c, d = tour[j], tour[(j + 1) % len(tour)]
                if table[a][c] + table[b][d] < table[a][b] + table[c][d] - LEAST_GAIN_KM:
                    tour[i + 1 : j + 1] = reversed(tour[i + 1 : j + 1])
                    b = tour[i + 1]
                    is_better = True
    return tuple(tour)


def length(table: Table, order: Sequence[int]) -> float:
    """Return the length of a closed tour, km."""
    return sum(table[a][b] for a, b in zip(order, (*order[1:], *order[:1]), strict=True))


def distances(stops: Sequence[Stop]) -> Table:
    return [[distance_km(a, b) for b in stops] for a in stops]


def _direction(base: Stop, stop: Stop) -> float:
    return atan2(stop.latitude - base.latitude, (stop.longitude - base.longitude) * cos(radians(base.latitude)))
