"""A lower bound by prices: each job starts where its wait and the price of its slot together cost least.

For any price of a slot's time, by profile and time, no schedule waits less than what all jobs would wait and pay if
each chose freely, less the price of all slots (weak duality, docs/internals/optimum.md). Better prices give a better
bound, and no prices a wrong one. So they may come from anywhere: here they begin as the linear program has them, and
rise where too many jobs would start.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .scenario import Arrival
from .slots_over_time import Open, Profile, slot_s
from .weighing import Weight, since_us

Numbers = NDArray[np.float64]
Whole = NDArray[np.int64]

#: Numbers that one step of an evaluation holds at most, by type: about 64 MB.
_AT_ONCE = 4_000_000


class Value(NamedTuple):
    """*bound_s*: of the sum of the weighted waits. *starts_s*: by arrival.

    *too_much*: work that the jobs would do in each bin beyond what the slots of a profile can, s: prices rise there.
    """

    bound_s: float
    starts_s: Numbers
    too_much: Numbers


@dataclass(frozen=True)
class _Rows:
    """Jobs of a type; each has a row of those of the same length and weight."""

    serving: list[int]
    at: Whole
    since_s: Numbers
    took_s: Numbers
    weight: Numbers
    row: Whole
    row_took_s: Numbers
    row_weight: Numbers


class Market:
    """Jobs, slots, and bins of equal width, for which there are prices: an array by profile and bin, by second."""

    def __init__(
        self, jobs: Sequence[Arrival], slots: Sequence[Open], weight: Weight, until_s: float, bins: int
    ) -> None:
        self.jobs, self.slots, self.weight, self.bins = jobs, slots, weight, bins
        self.until_s, self.width = until_s, until_s / bins
        self.edges = np.linspace(0.0, until_s, bins + 1)
        self.profiles: list[Profile] = sorted({each.profile for each in slots}, key=sorted)
        self.slot_s = np.array([slot_s(slots, each, self.edges) for each in self.profiles])

    def finer(self, factor: int) -> "Market":
        """Return this market with *factor* bins for each."""
        return Market(self.jobs, self.slots, self.weight, self.until_s, self.bins * factor)

    def prices_of(self, by_profile: Mapping[Profile, Numbers], edges_s: Numbers) -> Numbers:
        """Return prices for these bins that are worth those of others, which have *edges_s*; 0 beyond them."""
        found = np.zeros((len(self.profiles), self.bins))
        for number, profile in enumerate(self.profiles):
            if profile in by_profile:
                paid = np.concatenate(([0.0], np.cumsum(by_profile[profile] * np.diff(edges_s))))
                found[number] = np.diff(np.interp(self.edges, edges_s, paid)) / self.width
        return found

    def rows(self, rounded: float = 0.0) -> list[_Rows]:
        """Return the jobs by type. *rounded*: lengths are rounded to powers of 1 + this, so that there are fewer rows.

        Only without it, the value of prices is a bound.
        """
        found = []
        for type_ in sorted({each.type for each in self.jobs}):
            at = np.array([n for n, each in enumerate(self.jobs) if each.type == type_])
            took = np.array([self.jobs[n].took_us for n in at]) / 1e6
            if rounded:
                took = np.exp(np.round(np.log(np.maximum(took, 1e-4)) / rounded) * rounded)
            weight = np.array([self.weight(self.jobs[n]) for n in at])
            since = np.array([since_us(self.jobs[n]) for n in at]) / 1e6
            distinct, row = np.unique(np.column_stack((took, weight)), axis=0, return_inverse=True)
            serving = [n for n, profile in enumerate(self.profiles) if type_ in profile]
            found.append(_Rows(serving, at, since, took, weight, row.reshape(-1), distinct[:, 0], distinct[:, 1]))
        return found

    def value(self, prices: Numbers, rows: Sequence[_Rows]) -> Value:
        paid = np.concatenate((np.zeros((len(self.profiles), 1)), np.cumsum(prices * self.width, axis=1)), axis=1)
        bound = -float((prices * self.slot_s).sum())
        starts, used = np.zeros(len(self.jobs)), np.zeros((len(self.profiles), self.bins + 2))
        for each in rows:
            cost, start, serving = self._choose(each, paid)
            bound += float((cost - each.weight * each.since_s).sum())
            starts[each.at] = start
            self._uses(used, serving, start, 1.0)
            self._uses(used, serving, start + each.took_s, -1.0)
        return Value(bound, starts, np.cumsum(used, axis=1)[:, : self.bins] - self.slot_s)

    def _uses(self, used: Numbers, serving: Whole, from_s: Numbers, slots: float) -> None:
        """Add *slots* of the profiles *serving* to what is used from each time on, as steps from bin to bin."""
        place = np.minimum(from_s / self.width, float(self.bins))
        left = place.astype(np.int64)
        np.add.at(used, (serving, left), slots * self.width * (1 - (place - left)))
        np.add.at(used, (serving, left + 1), slots * self.width * (place - left))

    def _choose(self, jobs: _Rows, paid: Numbers) -> tuple[Numbers, Numbers, Whole]:
        """Return, for each job, the lowest weight * start + price of the slot, the start, and the profile.

        Cost is linear between the times at which the start or the end of the run meets an edge. So one of these is
        best, or the arrival itself.
        """
        cost, start = np.full(len(jobs.at), np.inf), np.zeros(len(jobs.at))
        serving = np.zeros(len(jobs.at), dtype=np.int64)
        for profile in jobs.serving:
            curve = paid[profile]
            here = (
                jobs.weight * jobs.since_s + self._at(curve, jobs.since_s + jobs.took_s) - self._at(curve, jobs.since_s)
            )
            self._take(here, jobs.since_s, profile, cost, start, serving)
            step = max(1, _AT_ONCE // (self.bins + 1))
            for begin in range(0, len(jobs.row_took_s), step):
                inside = np.flatnonzero((jobs.row >= begin) & (jobs.row < begin + step))
                took, weight = jobs.row_took_s[begin : begin + step, None], jobs.row_weight[begin : begin + step, None]
                for ends_there in (False, True):
                    since = jobs.since_s[inside] + (jobs.took_s[inside] if ends_there else 0.0)
                    starts = (
                        self.edges - took if ends_there else np.broadcast_to(self.edges, (len(took), self.bins + 1))
                    )
                    costs = weight * starts + self._at(curve, starts + took) - self._at(curve, starts)
                    first = np.minimum(self.bins, np.ceil(since / self.width - 1e-9).astype(np.int64))
                    least, which = _least_from(costs, jobs.row[inside] - begin, first)
                    when = np.maximum(jobs.since_s[inside], starts[jobs.row[inside] - begin, which])
                    self._take(least, when, profile, cost, start, serving, inside)
        return cost, start, serving

    def _take(
        self,
        costs: Numbers,
        starts: Numbers,
        profile: int,
        cost: Numbers,
        start: Numbers,
        serving: Whole,
        inside: Whole | None = None,
    ) -> None:
        """Write the cheaper ones of *costs* over what is there."""
        places = np.arange(len(costs)) if inside is None else inside
        better = costs < cost[places]
        cost[places[better]], start[places[better]] = costs[better], starts[better]
        serving[places[better]] = profile

    def _at(self, curve: Numbers, at_s: Numbers) -> Numbers:
        """Return a *curve* of the edges at times between them; before the first and beyond the last as there."""
        place = np.clip(at_s / self.width, 0.0, float(self.bins))
        left = np.minimum(place.astype(np.int64), self.bins - 1)
        low = curve[left]
        between: Numbers = low + (place - left) * (curve[left + 1] - low)
        return between


def _least_from(costs: Numbers, rows: Whole, first: Whole) -> tuple[Numbers, Whole]:
    """Return the least cost in a row from column *first* on, and its column, for each pair of *rows* and *first*."""
    least = np.minimum.accumulate(costs[:, ::-1], axis=1)[:, ::-1]
    columns = np.arange(costs.shape[1])
    record = np.where(costs <= least, columns, costs.shape[1] - 1)
    which = np.minimum.accumulate(record[:, ::-1], axis=1)[:, ::-1]
    return least[rows, first], which[rows, first]


def raise_prices(
    market: Market, prices: Numbers, rows: Sequence[_Rows], *, good_s: float, steps: Iterable[object], gap: float
) -> tuple[Numbers, Value]:
    """Return the best prices of as many steps uphill as *steps* has, and their value.

    *good_s*: sum of the weighted waits of a schedule, which no bound passes. A step aims at a level above the best
    value, at first by the part *gap* of *good_s*; the level is lowered when there is no progress (Polyak's step with a
    target). A direction is smoothed over a few steps.
    """
    best, best_prices, aim = market.value(prices, rows), prices, gap * good_s
    value, direction, idle = best, best.too_much, 0
    for _ in steps:
        uphill = np.where((prices <= 0) & (direction < 0), 0.0, direction)
        length = float((uphill * uphill).sum())
        if length <= 1e-12 or aim < 3e-4 * good_s:
            break
        prices = np.maximum(0.0, prices + (best.bound_s + aim - value.bound_s) / length * direction)
        value = market.value(prices, rows)
        idle = 0 if value.bound_s > best.bound_s + 1e-4 * good_s else idle + 1
        if value.bound_s > best.bound_s:
            best, best_prices = value, prices
        direction = 0.4 * value.too_much + 0.6 * direction
        if idle > 20:
            aim, idle = 0.6 * aim, 0
            prices, value, direction = best_prices, best, best.too_much
    return best_prices, best
