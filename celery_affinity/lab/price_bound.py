"""A lower bound by prices: each job starts where its wait and the price of its slot together cost least.

For any price of a slot's time, by profile and time, no schedule waits less than what all jobs would wait and pay if
each chose freely, less the price of all slots (weak duality, docs/internals/optimum.md). Better prices give a better
bound, and no prices a wrong one. So they may come from anywhere: here they begin as the linear program has them, and
rise where too many jobs would start.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .scenario import Arrival
from .slots_over_time import Open, Profile, slot_s
from .weighing import Weight, since_us

Numbers = NDArray[np.float64]
Whole = NDArray[np.int64]

#: Of the ascent: how far above the best value a step aims, as a part of a good schedule's wait; how much of an average
#: is the newest step; and the length of steps, which grows after a step that was too short, shrinks after so many that
#: were too long, and ends the ascent.
_ABOVE, _NEW = 0.1, 0.07
_FIRST_LENGTH, _LONGER, _SHORTER, _IDLE, _LEAST_LENGTH = 0.1, 1.2, 0.66, 20, 1e-4

#: Starts that an evaluation looks at together, at most: about 50 MB.
_AT_ONCE = 500_000


class Value(NamedTuple):
    """*bound_s*: of the sum of the weighted waits. *starts_s*: by arrival.

    *too_much*: work that the jobs would do in each bin beyond what the slots of a profile can, s: prices rise there.
    *looked_at*: how many starts were compared, which is what an evaluation costs.
    """

    bound_s: float
    starts_s: Numbers
    too_much: Numbers
    looked_at: int


@dataclass(frozen=True)
class _Pairs:
    """Jobs, each with the profiles that serve it. *since_s* to *profile*: by pair, those of a job side by side.

    *places*: of the jobs among all of the market; *begins*: the first pair of each; *pairs*: how many each has.
    """

    since_s: Numbers
    took_s: Numbers
    weight: Numbers
    profile: Whole
    places: Whole
    begins: Whole
    pairs: Whole


class Market:
    """Jobs, slots, and bins of equal width, for which there are prices: an array by profile and bin, by second."""

    def __init__(
        self, jobs: Sequence[Arrival], slots: Sequence[Open], weight: Weight, until_s: float, bins: int
    ) -> None:
        self.jobs, self.slots, self.until_s = len(jobs), slots, until_s
        self.profiles: list[Profile] = sorted({each.profile for each in slots}, key=sorted)
        self.since_s = np.array([since_us(each) for each in jobs]) / 1e6
        self.blocks = list(_blocks(jobs, self.profiles, weight))
        self._divide(bins)

    def _divide(self, bins: int) -> None:
        self.bins, self.width = bins, self.until_s / bins
        self.edges = np.linspace(0.0, self.until_s, bins + 1)
        self.slot_s = np.array([slot_s(self.slots, each, self.edges) for each in self.profiles])

    def finer(self, factor: int) -> "Market":
        """Return this market with *factor* bins for each."""
        found = copy(self)
        found._divide(self.bins * factor)
        return found

    def prices_of(self, by_profile: Mapping[Profile, Numbers], edges_s: Numbers) -> Numbers:
        """Return prices for these bins that are worth those of others, which have *edges_s*; 0 beyond them."""
        found = np.zeros((len(self.profiles), self.bins))
        for number, profile in enumerate(self.profiles):
            if profile in by_profile:
                paid = np.concatenate(([0.0], np.cumsum(by_profile[profile] * np.diff(edges_s))))
                found[number] = np.diff(np.interp(self.edges, edges_s, paid)) / self.width
        return found

    def value(self, prices: Numbers) -> Value:
        paid = np.concatenate((np.zeros((len(self.profiles), 1)), np.cumsum(prices * self.width, axis=1)), axis=1)
        bound, looked_at = -float((prices * self.slot_s).sum()), 0
        starts, used = self.since_s.copy(), np.zeros((len(self.profiles), self.bins + 2))
        for each in self.blocks:
            cost, start, chosen, starts_tried = self._choose(each, paid)
            bound += float((cost - each.weight[chosen] * each.since_s[chosen]).sum())
            starts[each.places] = start
            self._uses(used, each.profile[chosen], start, 1.0)
            self._uses(used, each.profile[chosen], start + each.took_s[chosen], -1.0)
            looked_at += starts_tried
        return Value(bound, starts, np.cumsum(used, axis=1)[:, : self.bins] - self.slot_s, looked_at)

    def _uses(self, used: Numbers, profile: Whole, from_s: Numbers, slots: float) -> None:
        """Add *slots* of each *profile* to what is used from each time on, as steps from bin to bin."""
        place = np.minimum(from_s / self.width, float(self.bins))
        left = place.astype(np.int64)
        np.add.at(used, (profile, left), slots * self.width * (1 - (place - left)))
        np.add.at(used, (profile, left + 1), slots * self.width * (place - left))

    def _choose(self, jobs: _Pairs, paid: Numbers) -> tuple[Numbers, Numbers, Whole, int]:
        """Return, for each job, the lowest weight * start + price of the slot, the start, and the pair; and how many
        starts were looked at.

        Cost is linear between the times at which the start or the end of the run meets an edge. So one of these is
        best, or the arrival itself. No price is below 0: a job that waits longer than what it would pay at its arrival
        does not gain, so later edges are not looked at.
        """
        own, start = jobs.weight * jobs.since_s, jobs.since_s.copy()
        cost = own + self._at(paid, jobs.profile, start + jobs.took_s) - self._at(paid, jobs.profile, start)
        pays = np.repeat(np.minimum.reduceat(cost, jobs.begins), jobs.pairs) - own
        latest, looked_at = jobs.since_s + pays / jobs.weight, len(cost)
        for ahead in (np.zeros(len(cost)), jobs.took_s):  # the start, or the end, is at an edge
            first, count = self._edges_in(jobs.since_s + ahead, latest + ahead)
            looked_at += int(count.sum())
            for part in _parts(count):
                costs, starts = self._cheapest(jobs, part, first[part], count[part], ahead, paid)
                better = costs < cost[part]
                cost[part[better]], start[part[better]] = costs[better], starts[better]
        least, chosen = _least(cost, jobs.begins, jobs.pairs)
        return least, start[chosen], chosen, looked_at

    def _edges_in(self, from_s: Numbers, until_s: Numbers) -> tuple[Whole, Whole]:
        """Return the number of the first edge from each time on, and how many there are until another time."""
        first = np.ceil(from_s / self.width).astype(np.int64)
        last = np.minimum(self.bins, np.floor(until_s / self.width)).astype(np.int64)
        return first, np.maximum(0, last + 1 - first)

    def _cheapest(
        self, jobs: _Pairs, part: Whole, first: Whole, count: Whole, ahead: Numbers, paid: Numbers
    ) -> tuple[Numbers, Numbers]:
        """Return the lowest cost, and its start, of each pair of *part*.

        *first*, *count*: of each, the edges at which the job starts, or is *ahead* of its start.
        """
        each, begins = np.repeat(part, count), np.cumsum(count) - count
        edges = np.repeat(first - begins, count) + np.arange(len(each))
        starts, profile = edges * self.width - ahead[each], jobs.profile[each]
        pays = self._at(paid, profile, starts + jobs.took_s[each]) - self._at(paid, profile, starts)
        costs, chosen = _least(jobs.weight[each] * starts + pays, begins, count)
        return costs, starts[chosen]

    def _at(self, paid: Numbers, profile: Whole, at_s: Numbers) -> Numbers:
        """Return what a slot of each *profile* costs until times between the edges; before the first and beyond the
        last as there.
        """
        place = np.clip(at_s / self.width, 0.0, float(self.bins))
        left = np.minimum(place.astype(np.int64), self.bins - 1)
        curves, left_of = paid.ravel(), profile * (self.bins + 1) + left
        low = curves[left_of]
        between: Numbers = low + (place - left) * (curves[left_of + 1] - low)
        return between


def _blocks(jobs: Sequence[Arrival], profiles: Sequence[Profile], weight: Weight) -> Iterator[_Pairs]:
    """Yield the *jobs* that some of *profiles* serve, in blocks of at most `_AT_ONCE` pairs, or of one job."""
    serving = {type_: [n for n, each in enumerate(profiles) if type_ in each] for type_ in {job.type for job in jobs}}
    count = np.array([len(serving[each.type]) for each in jobs], dtype=np.int64)
    for places in _parts(count):
        own, pairs = [jobs[place] for place in places], count[places]
        yield _Pairs(
            since_s=np.repeat(np.array([since_us(each) for each in own]) / 1e6, pairs),
            took_s=np.repeat(np.array([each.took_us for each in own]) / 1e6, pairs),
            weight=np.repeat(np.array([weight(each) for each in own], dtype=float), pairs),
            profile=np.array([profile for each in own for profile in serving[each.type]], dtype=np.int64),
            places=places,
            begins=np.cumsum(pairs) - pairs,
            pairs=pairs,
        )


def _parts(count: Whole) -> Iterator[Whole]:
    """Yield the places of those that have some of *count*, in parts of at most `_AT_ONCE` together, or of one."""
    some = np.flatnonzero(count)
    sums = np.cumsum(count[some])
    begin = 0
    while begin < len(some):
        before = sums[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(sums, before + _AT_ONCE, side="right")))
        yield some[begin:end]
        begin = end


def _least(costs: Numbers, begins: Whole, count: Whole) -> tuple[Numbers, Whole]:
    """Return the least cost of each group of *count* costs from *begins* on, and the place of the first such one."""
    least = np.minimum.reduceat(costs, begins)
    lowest = np.flatnonzero(costs == np.repeat(least, count))
    return least, lowest[np.searchsorted(lowest, begins)]


class Raised(NamedTuple):
    """*value*: of the best *prices*. *starts_s*: by arrival, as the last steps had them on average.

    *looked_at*: how many starts all steps compared.
    """

    prices: Numbers
    value: Value
    starts_s: Numbers
    looked_at: int


def raise_prices(market: Market, prices: Numbers, *, good_s: float, steps: Iterable[object], looks: int) -> Raised:
    """Return the best prices that as many steps uphill as *steps* has find.

    *good_s*: sum of the weighted waits of a schedule, which no bound passes. *looks*: no step begins after so many
    starts were compared.

    The volume algorithm of Barahona and Anbil: each step begins at the best prices so far. Its direction is an average
    over the steps, in which a long job that jumps to and fro counts as what it does on average. Its length aims at a
    level above the best value, and becomes shorter if nothing better is found for a while.
    """
    best = market.value(prices)
    level, part, idle, looked_at = best.bound_s + _ABOVE * good_s, _FIRST_LENGTH, 0, best.looked_at
    too_much, starts = best.too_much, best.starts_s
    for _ in steps:
        uphill = np.where((prices <= 0) & (too_much < 0), 0.0, too_much)
        length = float((uphill * uphill).sum())
        if length <= 1e-12 or part < _LEAST_LENGTH or looked_at >= looks:
            break
        tried = np.maximum(0.0, prices + part * (level - best.bound_s) / length * too_much)
        value = market.value(tried)
        looked_at += value.looked_at
        is_uphill = float((uphill * value.too_much).sum()) > 0
        too_much = _NEW * value.too_much + (1 - _NEW) * too_much
        starts = _NEW * value.starts_s + (1 - _NEW) * starts
        if value.bound_s > best.bound_s:
            best, prices, idle = value, tried, 0
            part = min(2.0, _LONGER * part) if is_uphill else part
        else:
            idle += 1
            if idle == _IDLE:
                part, idle = _SHORTER * part, 0
        if best.bound_s > level - _ABOVE * good_s / 2:
            level = best.bound_s + _ABOVE * good_s
    return Raised(prices, best, starts, looked_at)
