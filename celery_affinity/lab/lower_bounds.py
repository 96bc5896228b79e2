"""A lower bound by prices: each job starts where its wait and the price of its slot together cost least.

For any price of a slot's time, by profile and time, no schedule waits less than what all jobs would wait and pay if
each chose freely, less the price of all slots (weak duality, docs/internals/optimum.md). Better prices give a better
bound, and no prices a wrong one. So they may come from anywhere: here they begin as the linear program has them, and
rise where too many jobs would start.

Classes of jobs of one type, one weight and about one length: the linear program counts each class as a whole.

A lower bound of the wait in any schedule: a linear program over (class, bin) and (type, profile, bin), by HiGHS.

Its variables are sums that each schedule has, and its rows hold for each schedule, so that its optimum is at most the
weighted wait of the best one. docs/internals/optimum.md derives each row. For a class c and the edge e_k of a bin:

    U_k   jobs that have come by e_k and have not started
    W_k   time that jobs of the class have waited until e_k
    B_k   work that would be done by e_k, had each job started as it came, less the work that is done
    y_k   work that slots of a profile do of a type in a bin
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from .list_schedules import OpenSlots, Profile, Weight, since_us, slot_seconds
from .scenario import Arrival

PriceNumbers = NDArray[np.float64]
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
    starts_s: PriceNumbers
    too_much: PriceNumbers
    looked_at: int


@dataclass(frozen=True)
class _Pairs:
    """Jobs, each with the profiles that serve it. *since_s* to *profile*: by pair, those of a job side by side.

    *places*: of the jobs among all of the market; *begins*: the first pair of each; *pairs*: how many each has.
    """

    since_s: PriceNumbers
    took_s: PriceNumbers
    weight: PriceNumbers
    profile: Whole
    places: Whole
    begins: Whole
    pairs: Whole


class Market:
    """Jobs, slots, and bins of equal width, for which there are prices: an array by profile and bin, by second."""

    def __init__(
        self, jobs: Sequence[Arrival], slots: Sequence[OpenSlots], weight: Weight, until_s: float, bins: int
    ) -> None:
        self.jobs, self.slots, self.until_s = len(jobs), slots, until_s
        self.profiles: list[Profile] = sorted({each.profile for each in slots}, key=sorted)
        self.since_s = np.array([since_us(each) for each in jobs]) / 1e6
        self.blocks = list(_blocks(jobs, self.profiles, weight))
        self._divide(bins)

    def _divide(self, bins: int) -> None:
        self.bins, self.width = bins, self.until_s / bins
        self.edges = np.linspace(0.0, self.until_s, bins + 1)
        self.slot_s = np.array([slot_seconds(self.slots, each, self.edges) for each in self.profiles])

    def finer(self, factor: int) -> "Market":
        """Return this market with *factor* bins for each."""
        found = copy(self)
        found._divide(self.bins * factor)
        return found

    def prices_of(self, by_profile: Mapping[Profile, PriceNumbers], edges_s: PriceNumbers) -> PriceNumbers:
        """Return prices for these bins that are worth those of others, which have *edges_s*; 0 beyond them."""
        found = np.zeros((len(self.profiles), self.bins))
        for number, profile in enumerate(self.profiles):
            if profile in by_profile:
                paid = np.concatenate(([0.0], np.cumsum(by_profile[profile] * np.diff(edges_s))))
                found[number] = np.diff(np.interp(self.edges, edges_s, paid)) / self.width
        return found

    def value(self, prices: PriceNumbers) -> Value:
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

    def _uses(self, used: PriceNumbers, profile: Whole, from_s: PriceNumbers, slots: float) -> None:
        """Add *slots* of each *profile* to what is used from each time on, as steps from bin to bin."""
        place = np.minimum(from_s / self.width, float(self.bins))
        left = place.astype(np.int64)
        np.add.at(used, (profile, left), slots * self.width * (1 - (place - left)))
        np.add.at(used, (profile, left + 1), slots * self.width * (place - left))

    def _choose(self, jobs: _Pairs, paid: PriceNumbers) -> tuple[PriceNumbers, PriceNumbers, Whole, int]:
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

    def _edges_in(self, from_s: PriceNumbers, until_s: PriceNumbers) -> tuple[Whole, Whole]:
        """Return the number of the first edge from each time on, and how many there are until another time."""
        first = np.ceil(from_s / self.width).astype(np.int64)
        last = np.minimum(self.bins, np.floor(until_s / self.width)).astype(np.int64)
        return first, np.maximum(0, last + 1 - first)

    def _cheapest(
        self, jobs: _Pairs, part: Whole, first: Whole, count: Whole, ahead: PriceNumbers, paid: PriceNumbers
    ) -> tuple[PriceNumbers, PriceNumbers]:
        """Return the lowest cost, and its start, of each pair of *part*.

        *first*, *count*: of each, the edges at which the job starts, or is *ahead* of its start.
        """
        each, begins = np.repeat(part, count), np.cumsum(count) - count
        edges = np.repeat(first - begins, count) + np.arange(len(each))
        starts, profile = edges * self.width - ahead[each], jobs.profile[each]
        pays = self._at(paid, profile, starts + jobs.took_s[each]) - self._at(paid, profile, starts)
        costs, chosen = _least(jobs.weight[each] * starts + pays, begins, count)
        return costs, starts[chosen]

    def _at(self, paid: PriceNumbers, profile: Whole, at_s: PriceNumbers) -> PriceNumbers:
        """Return what a slot of each *profile* costs until times between the edges; before the first and beyond the
        last as there.
        """
        place = np.clip(at_s / self.width, 0.0, float(self.bins))
        left = np.minimum(place.astype(np.int64), self.bins - 1)
        curves, left_of = paid.ravel(), profile * (self.bins + 1) + left
        low = curves[left_of]
        between: PriceNumbers = low + (place - left) * (curves[left_of + 1] - low)
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


def _least(costs: PriceNumbers, begins: Whole, count: Whole) -> tuple[PriceNumbers, Whole]:
    """Return the least cost of each group of *count* costs from *begins* on, and the place of the first such one."""
    least = np.minimum.reduceat(costs, begins)
    lowest = np.flatnonzero(costs == np.repeat(least, count))
    return least, lowest[np.searchsorted(lowest, begins)]


class RaisedPrices(NamedTuple):
    """*value*: of the best *prices*. *starts_s*: by arrival, as the last steps had them on average.

    *looked_at*: how many starts all steps compared.
    """

    prices: PriceNumbers
    value: Value
    starts_s: PriceNumbers
    looked_at: int


def raise_prices(
    market: Market, prices: PriceNumbers, *, good_s: float, steps: Iterable[object], looks: int
) -> RaisedPrices:
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
    return RaisedPrices(prices, best, starts, looked_at)


Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class JobClass:
    """*since_s*, *took_s*: of each job, in the order of arrival. *weight*: the lowest of its jobs."""

    type: str
    weight: float
    since_s: Numbers
    took_s: Numbers

    @cached_property
    def shortest_s(self) -> float:
        return float(self.took_s.min())

    @cached_property
    def longest_s(self) -> float:
        return float(self.took_s.max())

    def come(self, at_s: Numbers) -> Numbers:
        """Return how many jobs have come by each time."""
        return np.searchsorted(self.since_s, at_s, side="right").astype(float)

    def come_area(self, at_s: Numbers) -> Numbers:
        """Return the area under `come` until each time: the time that jobs would have waited if none had started."""
        return _area(self.since_s, at_s)

    def most_work(self, at_s: Numbers) -> Numbers:
        """Return how much work, s, would be done by each time if each job started as it comes."""
        return _area(self.since_s, at_s) - _area(np.sort(self.since_s + self.took_s), at_s)


def _area(steps_s: Numbers, at_s: Numbers) -> Numbers:
    """Return the sum, over *steps_s* (sorted), of the time since each step: for each time in *at_s*."""
    sums = np.concatenate(([0.0], np.cumsum(steps_s)))
    passed = np.searchsorted(steps_s, at_s, side="right")
    return passed * at_s - sums[passed]


def classes_of(arrivals: Sequence[Arrival], weight: Weight, by_length: int) -> list[JobClass]:
    """Return the jobs by type and weight, and those of a type and weight by length: *by_length* classes at most."""
    groups: dict[tuple[str, float], list[Arrival]] = {}
    for each in arrivals:
        groups.setdefault((each.type, weight(each)), []).append(each)
    found = []
    for (type_, weighs), jobs in sorted(groups.items()):
        for part in _by_length(jobs, by_length):
            part.sort(key=since_us)
            since = np.array([since_us(job) for job in part]) / 1e6
            found.append(JobClass(type_, weighs, since, np.array([job.took_us for job in part]) / 1e6))
    return found


def _by_length(jobs: list[Arrival], most: int) -> list[list[Arrival]]:
    """Return *jobs* in parts of like length: equal steps on a scale of powers, since errors are shares of a length."""
    lengths = np.log(np.array([max(1, job.took_us) for job in jobs], dtype=float))
    span = float(lengths.max() - lengths.min())
    if span < 1e-9 or most == 1:
        return [jobs]
    steps = np.minimum(most - 1, ((lengths - lengths.min()) / span * most).astype(int))
    return [[job for job, step in zip(jobs, steps, strict=True) if step == each] for each in sorted({*steps.tolist()})]


#: Part of the bound that is given away, for the tolerances of the solver.
_TOLERANCE = 1e-6


#: Columns of the program, or rows of it, or bins.
Places = NDArray[np.intp]


@dataclass
class _Rows:
    """Rows ``terms <= most`` of the program, gathered as triples."""

    count: int = 0

    def __post_init__(self) -> None:
        self.rows: list[Places] = []
        self.columns: list[Places] = []
        self.values: list[Numbers] = []
        self.most: list[Numbers] = []

    def add(self, most: Numbers, *terms: tuple[Places, "float | Numbers"]) -> None:
        """Add a row for each number of *most*. *terms*: the columns of the rows, and their values."""
        numbers = np.arange(self.count, self.count + len(most))
        for columns, values in terms:
            there = columns >= 0
            self.rows.append(numbers[there])
            self.columns.append(columns[there])
            self.values.append(np.broadcast_to(np.asarray(values, dtype=float), columns.shape)[there])
        self.most.append(np.asarray(most, dtype=float))
        self.count += len(most)

    def matrix(self, columns: int) -> csr_matrix:
        values, rows, places = (np.concatenate(each) for each in (self.values, self.rows, self.columns))
        return csr_matrix((values, (rows, places)), shape=(self.count, columns))


class SolvedProgram(NamedTuple):
    """*bound_s*: a number that the sum of the weighted waits, s, is never below.

    *prices*: what a second of a slot is worth, by profile and bin.
    """

    bound_s: float
    prices: dict[Profile, Numbers]


def solve_program(
    classes: Sequence[JobClass], slots: Sequence[OpenSlots], edges_s: Numbers, *, within_s: float | None = None
) -> SolvedProgram | None:
    """Return the optimum of the program; None if the solver does not come to an end in *within_s*.

    *edges_s*: the edges of the bins, of which the first is 0. What jobs wait beyond the last edge does not count.
    """
    return Program(classes, slots, edges_s).solve(within_s)


def program_size(classes: Sequence[JobClass], slots: Sequence[OpenSlots], bins: int) -> int:
    """Return the number of variables of the program."""
    return bins * (3 * len(classes) + len(_pairs(classes, slots)))


def _pairs(classes: Sequence[JobClass], slots: Sequence[OpenSlots]) -> list[tuple[str, Profile]]:
    profiles = sorted({each.profile for each in slots}, key=sorted)
    return [(type_, each) for type_ in sorted({each.type for each in classes}) for each in profiles if type_ in each]


class Program:
    """The rows, for columns in this order: of each class U, W and B at each edge, then y of each pair in each bin."""

    def __init__(self, classes: Sequence[JobClass], slots: Sequence[OpenSlots], edges_s: Numbers) -> None:
        self.classes, self.slots, self.edges = classes, slots, edges_s
        self.bins = len(edges_s) - 1
        self.pairs = _pairs(classes, slots)
        self.per_class = 3 * (self.bins + 1)
        self.columns = self.per_class * len(classes) + self.bins * len(self.pairs)
        self.at_most, self.equal = _Rows(), _Rows()
        self.highest = np.full(self.columns, np.inf)
        self.cost = np.zeros(self.columns)
        self.slot_rows: dict[Profile, slice] = {}  # rows that say what the slots of a profile can do

        for number, each in enumerate(classes):
            self._starts_and_waits(number, each)
            self._work(number, each)
        self._slots()

    def solve(self, within_s: float | None) -> SolvedProgram | None:
        """Return the optimum, as `solve` does."""
        found = linprog(
            self.cost,
            A_ub=self.at_most.matrix(self.columns),
            b_ub=np.concatenate(self.at_most.most),
            A_eq=self.equal.matrix(self.columns),
            b_eq=np.concatenate(self.equal.most),
            bounds=np.column_stack((np.zeros(self.columns), self.highest)),
            method="highs",
            options={} if within_s is None else {"time_limit": within_s},
        )
        if found.status != 0:
            return None
        prices = {each: np.maximum(0.0, -found.ineqlin.marginals[rows]) for each, rows in self.slot_rows.items()}
        return SolvedProgram(max(0.0, float(found.fun) * (1 - _TOLERANCE)), prices)

    def _of(self, number: int, which: int) -> Places:
        """Return the columns of U (0), W (1) or B (2) of a class, one for each edge."""
        begin = number * self.per_class + which * (self.bins + 1)
        return np.arange(begin, begin + self.bins + 1)

    def _starts_and_waits(self, number: int, jobs: JobClass) -> None:
        """Rows of U and W: starts are never taken back, and a job waits from its arrival until its start."""
        unstarted, waited = self._of(number, 0), self._of(number, 1)
        come, area, widths = jobs.come(self.edges), jobs.come_area(self.edges), np.diff(self.edges)
        self.highest[unstarted] = come
        self.highest[self._of(number, 1)[0]] = self.highest[self._of(number, 2)[0]] = 0.0
        self.cost[waited[-1]] = jobs.weight
        self.at_most.add(np.diff(come), (unstarted[1:], 1.0), (unstarted[:-1], -1.0))
        for part in (0.0, 0.5, 1.0):
            # Each job unstarted at the right edge waited for that part of the bin, if it came before.
            from_s = self.edges[1:] - part * widths
            late = jobs.come(self.edges[1:]) * part * widths - (area[1:] - jobs.come_area(from_s))
            self.at_most.add(late, (waited[:-1], 1.0), (waited[1:], -1.0), (unstarted[1:], part * widths))
        most = np.diff(area) - come[:-1] * widths
        self.at_most.add(most, (waited[1:], 1.0), (waited[:-1], -1.0), (unstarted[:-1], -widths))

    def _work(self, number: int, jobs: JobClass) -> None:
        """Rows of B: a job that started p ago, or earlier, has done p of its work."""
        waited, behind = self._of(number, 1)[1:], self._of(number, 2)[1:]
        edges = self.edges[1:]
        for most, columns, values in self._waited_at_least(number, jobs, edges - jobs.longest_s):
            self.at_most.add(most, (behind, 1.0), (waited, -1.0), *zip(columns, values, strict=True))
        for most, columns, values in self._waited_at_most(number, jobs, edges - jobs.shortest_s):
            self.at_most.add(most, (behind, -1.0), (waited, 1.0), *zip(columns, values, strict=True))
        if jobs.longest_s > jobs.shortest_s:
            head = jobs.come_area(edges) - jobs.come_area(edges - jobs.shortest_s)
            more = jobs.most_work(edges) - head
            for most, columns, values in self._waited_at_least(number, jobs, edges - jobs.shortest_s):
                self.at_most.add(most + more, (behind, 1.0), (waited, -1.0), *zip(columns, values, strict=True))

    def _waited_at_least(
        self, number: int, jobs: JobClass, at_s: Numbers
    ) -> Iterator[tuple[Numbers, list[Places], list["float | Numbers"]]]:
        """Yield lower bounds of W at times between edges, each as ``- most + columns * values``."""
        waited, left, part = self._of(number, 1), self._left_of(at_s), self._part(at_s)
        before = at_s <= 0
        yield np.zeros(len(at_s)), [np.where(before, -1, waited[left])], [1.0]
        if (part > 0).any():  # the area under the starts is convex: it is at most the chord
            area = jobs.come_area(self.edges)
            chord = (1 - part) * area[left] + part * area[left + 1]
            low = np.where(before, 0.0, chord - jobs.come_area(at_s))
            columns = [np.where(before, -1, waited[left]), np.where(before, -1, waited[left + 1])]
            yield low, columns, [1 - part, part]

    def _waited_at_most(
        self, number: int, jobs: JobClass, at_s: Numbers
    ) -> Iterator[tuple[Numbers, list[Places], list["float | Numbers"]]]:
        """Yield upper bounds of W at times between edges, each as ``most - columns * values``."""
        unstarted, waited, left = self._of(number, 0), self._of(number, 1), self._left_of(at_s)
        before = at_s <= 0
        yield np.zeros(len(at_s)), [np.where(before, -1, waited[left + 1])], [-1.0]
        since_edge = np.where(before, 0.0, at_s - self.edges[left])
        come, area = jobs.come(self.edges)[left], jobs.come_area(self.edges)[left]
        more = np.where(before, 0.0, jobs.come_area(at_s) - area - come * since_edge)
        columns = [np.where(before, -1, waited[left]), np.where(before, -1, unstarted[left])]
        yield more, columns, [-1.0, -since_edge]

    def _left_of(self, at_s: Numbers) -> Places:
        """Return the number of the bin that each time is in."""
        return np.clip(np.searchsorted(self.edges, at_s, side="right") - 1, 0, self.bins - 1)

    def _part(self, at_s: Numbers) -> Numbers:
        """Return how much of its bin has passed at each time, 0 to 1."""
        left = self._left_of(at_s)
        part: Numbers = np.clip((at_s - self.edges[left]) / np.diff(self.edges)[left], 0.0, 1.0)
        return part

    def _slots(self) -> None:
        """Rows of y: the work of a type is done by slots that serve it, and slots do no more than time allows."""
        first = self.per_class * len(self.classes)
        of_pair = {pair: first + number * self.bins + np.arange(self.bins) for number, pair in enumerate(self.pairs)}
        for type_ in sorted({each.type for each in self.classes}):
            done = np.zeros(self.bins)
            terms: list[tuple[Places, float | Numbers]] = [(y, 1.0) for (t, _), y in of_pair.items() if t == type_]
            for number, each in enumerate(self.classes):
                if each.type == type_:
                    behind = self._of(number, 2)
                    done += np.diff(each.most_work(self.edges))
                    terms += [(behind[1:], 1.0), (behind[:-1], -1.0)]
            self.equal.add(done, *terms)
        for profile in sorted({profile for _, profile in self.pairs}, key=sorted):
            self.slot_rows[profile] = slice(self.at_most.count, self.at_most.count + self.bins)
            own = [y for (_, each), y in of_pair.items() if each == profile]
            self.at_most.add(slot_seconds(self.slots, profile, self.edges), *((y, 1.0) for y in own))
