"""Lower bounds of the weighted wait in any schedule: by prices of slots, and by a linear program.

The bound by prices: for any non-negative prices of slot time, per profile and time, no schedule waits less than the
total of the jobs' waits and payments, if each job chose its start freely, minus the price of all slots (weak duality,
docs/internals/proofs.md). Better prices give a better bound, and no prices give a wrong bound. So any source of prices
is valid: here they start with the linear program's prices, and rise where too many jobs would start.

The linear program, solved by HiGHS, counts classes of jobs with one type, one weight and similar length. Its variables
are sums that exist in each schedule, and its rows hold for each schedule, so its optimum is at most the weighted wait
of the best schedule. For a class c and the edge e_k of a bin:

    U_k   jobs that have arrived by e_k and have not started
    W_k   time that jobs of the class have waited until e_k
    B_k   work that would be done by e_k if each job had started on arrival, minus the work that is done
    y_k   work that slots of a profile do for a type in a bin

The rows of a bin [e, e'] of width d. A: jobs of c that have arrived. X: jobs of c that have started, so U = A - X and
W is the integral of A - X until e. R: work that would be done if each job started on arrival. D: work that is done, so
B = R - D. The lengths of class c lie between p and q. (x)+ is max(x, 0).

    U' - U <= A' - A                    starts are never taken back
    W' - W >= s U' - sum (s - v)+       for s = 0, d/2, d. v: the part of the bin since a job arrived. A job that has
                                        not started at e' has waited for v >= s - (s - v)+
    W' - W <= integral of A - X(e)      X only grows
    B <= W - W(e - q)                   see below; W(e - q) is replaced by its lower bounds
    B >= W - W(e - p)                   see below; W(e - p) is replaced by its upper bounds
    B <= R - integral of A over [e - p, e] + W - W(e - p)
                                        the first p of a job's length is work, too: D >= integral of X over [e - p, e]
    sum of y over profiles = D' - D     over the classes of a type: slots that serve the type do its work
    sum of y over types <= slot time    a slot does one job at a time

A job of length l that arrives at r and starts at S has done min(l, (e - S)+) by e. So B is the sum of
min(l, (e - r)+) - min(l, (e - S)+), which grows with l, since e - r >= e - S. With q for l it is at most the time
within [e - q, e] in which the job waits, in sum W(e) - W(e - q); with p it is at least W(e) - W(e - p).

Between two edges, W is at least its value at the left edge and at most its value at the right edge. The integral of X
is convex, since X grows. So it is at most its chord, and at least its tangent at the left edge, which bounds W from
both sides. Waits after the last edge do not count, and no row requires that jobs have started by then.
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

from .list_schedules import OpenSlots, Profile, Weight, since_us
from .scenario import Arrival

Numbers = NDArray[np.float64]
Indexes = NDArray[np.intp]
#: Parameters of the ascent. A step aims above the best value by a share of a good schedule's wait; the newest step has
#: a share in the average. The step length grows after a step that was too short, and shrinks after a number of steps
#: that were too long; the minimum length ends the ascent.
_AIM_ABOVE, _NEWEST_SHARE = 0.1, 0.07
_FIRST_LENGTH, _GROWTH, _SHRINKAGE, _MAX_IDLE_STEPS, _MIN_LENGTH = 0.1, 1.2, 0.66, 20, 1e-4
#: Maximum number of starts evaluated together: about 50 MB.
_MAX_STARTS_TOGETHER = 500_000


def slot_seconds(slots: Iterable[OpenSlots], profile: Profile, edges_s: Numbers) -> Numbers:
    """Return the work, in seconds of one slot, that the slots of *profile* can do per bin between *edges_s*."""
    total = np.zeros(len(edges_s) - 1)
    for open_slot in slots:
        if open_slot.profile == profile:
            until_s = edges_s[1:] if open_slot.until_us is None else np.minimum(edges_s[1:], open_slot.until_us / 1e6)
            total += open_slot.slots * np.maximum(0.0, until_s - np.maximum(edges_s[:-1], open_slot.from_us / 1e6))
    return total


class Value(NamedTuple):
    bound_s: float  #: lower bound of the total weighted wait
    starts_s: Numbers  #: start per arrival
    too_much: Numbers  #: per profile and bin, work in seconds beyond the slots' capacity: prices rise there
    looked_at: int  #: number of starts compared, which is the cost of an evaluation


@dataclass(frozen=True)
class _Pairs:
    """Pairs of a job and a profile that serves it. The pairs of a job are adjacent."""

    since_s: Numbers  #: this and the next three: per pair
    took_s: Numbers
    weight: Numbers
    profile: Indexes
    places: Indexes  #: per job, its index among all jobs of the market
    begins: Indexes  #: per job, its first pair
    pairs: Indexes  #: per job, its number of pairs


class Market:
    """Jobs, slots, and bins of equal width. Prices are an array by profile and bin, per second."""

    def __init__(
        self, jobs: Sequence[Arrival], slots: Sequence[OpenSlots], weight: Weight, until_s: float, bins: int
    ) -> None:
        self.jobs, self.slots, self.until_s = len(jobs), slots, until_s
        self.profiles: list[Profile] = sorted({open_slots.profile for open_slots in slots}, key=sorted)
        self.since_s = np.array([since_us(job) for job in jobs]) / 1e6
        self.blocks = list(_blocks(jobs, self.profiles, weight))
        self._divide(bins)

    def _divide(self, bins: int) -> None:
        self.bins, self.width = bins, self.until_s / bins
        self.edges = np.linspace(0.0, self.until_s, bins + 1)
        self.slot_s = np.array([slot_seconds(self.slots, profile, self.edges) for profile in self.profiles])

    def finer(self, factor: int) -> "Market":
        finer = copy(self)
        finer._divide(self.bins * factor)
        return finer

    def prices_of(self, by_profile: Mapping[Profile, Numbers], edges_s: Numbers) -> Numbers:
        """Return prices for these bins equivalent to prices for bins with *edges_s*; 0 beyond them."""
        prices = np.zeros((len(self.profiles), self.bins))
        for number, profile in enumerate(self.profiles):
            if profile in by_profile:
                paid = np.concatenate(([0.0], np.cumsum(by_profile[profile] * np.diff(edges_s))))
                prices[number] = np.diff(np.interp(self.edges, edges_s, paid)) / self.width
        return prices

    def value(self, prices: Numbers) -> Value:
        paid = np.concatenate((np.zeros((len(self.profiles), 1)), np.cumsum(prices * self.width, axis=1)), axis=1)
        bound, looked_at = -float((prices * self.slot_s).sum()), 0
        starts, used = self.since_s.copy(), np.zeros((len(self.profiles), self.bins + 2))
        for block in self.blocks:
            cost, start, chosen, starts_tried = self._choose(block, paid)
            bound += float((cost - block.weight[chosen] * block.since_s[chosen]).sum())
            starts[block.places] = start
            self._add_use(used, block.profile[chosen], start, 1.0)
            self._add_use(used, block.profile[chosen], start + block.took_s[chosen], -1.0)
            looked_at += starts_tried
        return Value(bound, starts, np.cumsum(used, axis=1)[:, : self.bins] - self.slot_s, looked_at)

    def _add_use(self, used: Numbers, profile: Indexes, from_s: Numbers, slots: float) -> None:
        """Add *slots* of each *profile* to the use from each time on, as steps between bins."""
        position = np.minimum(from_s / self.width, float(self.bins))
        left_edge = position.astype(np.intp)
        np.add.at(used, (profile, left_edge), slots * self.width * (1 - (position - left_edge)))
        np.add.at(used, (profile, left_edge + 1), slots * self.width * (position - left_edge))

    def _choose(self, jobs: _Pairs, paid: Numbers) -> tuple[Numbers, Numbers, Indexes, int]:
        """Return per job the lowest weight * start + price of the slot, its start and pair; and the number of starts.

        Cost is linear between the times at which the start or the end of the run meets an edge. So one of these times,
        or the arrival, is best. No price is negative: a job that waits longer than the price of a start at its arrival
        gains nothing, so later edges are not evaluated.
        """
        base, start = jobs.weight * jobs.since_s, jobs.since_s.copy()
        cost = base + self._paid_at(paid, jobs.profile, start + jobs.took_s) - self._paid_at(paid, jobs.profile, start)
        pays = np.repeat(np.minimum.reduceat(cost, jobs.begins), jobs.pairs) - base
        latest, looked_at = jobs.since_s + pays / jobs.weight, len(cost)
        for ahead in (np.zeros(len(cost)), jobs.took_s):  # the start, or the end, is at an edge
            first = np.ceil((jobs.since_s + ahead) / self.width).astype(np.intp)
            last = np.minimum(self.bins, np.floor((latest + ahead) / self.width)).astype(np.intp)
            count = np.maximum(0, last + 1 - first)
            looked_at += int(count.sum())
            for part in _parts(count):
                costs, starts = self._cheapest_at_edges(jobs, part, first[part], count[part], ahead, paid)
                better = costs < cost[part]
                cost[part[better]], start[part[better]] = costs[better], starts[better]
        lowest, chosen = _cheapest_of_groups(cost, jobs.begins, jobs.pairs)
        return lowest, start[chosen], chosen, looked_at

    def _cheapest_at_edges(
        self, jobs: _Pairs, part: Indexes, first: Indexes, count: Indexes, ahead: Numbers, paid: Numbers
    ) -> tuple[Numbers, Numbers]:
        """Return the lowest cost, and its start, of each pair in *part*.

        *first*, *count*: per pair, the edges at which the job starts, or is *ahead* of its start.
        """
        pair, begins = np.repeat(part, count), np.cumsum(count) - count
        edges = np.repeat(first - begins, count) + np.arange(len(pair))
        starts, profile = edges * self.width - ahead[pair], jobs.profile[pair]
        pays = self._paid_at(paid, profile, starts + jobs.took_s[pair]) - self._paid_at(paid, profile, starts)
        costs, chosen = _cheapest_of_groups(jobs.weight[pair] * starts + pays, begins, count)
        return costs, starts[chosen]

    def _paid_at(self, paid: Numbers, profile: Indexes, at_s: Numbers) -> Numbers:
        """Return the total price per slot of each *profile* until times between the edges (clamped to the edges)."""
        position = np.clip(at_s / self.width, 0.0, float(self.bins))
        left_edge = np.minimum(position.astype(np.intp), self.bins - 1)
        curves, left_index = paid.ravel(), profile * (self.bins + 1) + left_edge
        left_price = curves[left_index]
        between: Numbers = left_price + (position - left_edge) * (curves[left_index + 1] - left_price)
        return between


def _blocks(jobs: Sequence[Arrival], profiles: Sequence[Profile], weight: Weight) -> Iterator[_Pairs]:
    """Yield the *jobs* that *profiles* serve, in blocks of up to `_MAX_STARTS_TOGETHER` pairs, or of one job."""
    serving = {type_: [n for n, types in enumerate(profiles) if type_ in types] for type_ in {job.type for job in jobs}}
    count = np.array([len(serving[job.type]) for job in jobs], dtype=np.intp)
    for indexes in _parts(count):
        block, pairs = [jobs[index] for index in indexes], count[indexes]
        yield _Pairs(
            since_s=np.repeat(np.array([since_us(job) for job in block]) / 1e6, pairs),
            took_s=np.repeat(np.array([job.took_us for job in block]) / 1e6, pairs),
            weight=np.repeat(np.array([weight(job) for job in block], dtype=float), pairs),
            profile=np.array([profile for job in block for profile in serving[job.type]], dtype=np.intp),
            places=indexes,
            begins=np.cumsum(pairs) - pairs,
            pairs=pairs,
        )


def _parts(count: Indexes) -> Iterator[Indexes]:
    """Yield the indexes with a positive *count*, in parts with a sum up to `_MAX_STARTS_TOGETHER`, or of one."""
    non_empty = np.flatnonzero(count)
    sums = np.cumsum(count[non_empty])
    begin = 0
    while begin < len(non_empty):
        before = sums[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(sums, before + _MAX_STARTS_TOGETHER, side="right")))
        yield non_empty[begin:end]
        begin = end


def _cheapest_of_groups(costs: Numbers, begins: Indexes, count: Indexes) -> tuple[Numbers, Indexes]:
    """Return the lowest cost per group of *count* costs from *begins* on, and the position of its first occurrence."""
    lowest_costs = np.minimum.reduceat(costs, begins)
    positions = np.flatnonzero(costs == np.repeat(lowest_costs, count))
    return lowest_costs, positions[np.searchsorted(positions, begins)]


class RaisedPrices(NamedTuple):
    prices: Numbers
    value: Value
    starts_s: Numbers  #: start per arrival, averaged over the last steps
    looked_at: int  #: number of starts compared in all steps


def raise_prices(
    market: Market, prices: Numbers, *, good_s: float, steps: Iterable[object], looks: int
) -> RaisedPrices:
    """Return the best prices after up to as many steps uphill as *steps* has.

    *good_s*: total weighted wait of a schedule, which no bound exceeds. *looks*: no step begins after this number of
    compared starts.

    The volume algorithm of Barahona and Anbil: each step begins at the best prices so far. Its direction is an average
    over the steps, so a long job that alternates between starts has its average effect. Its length aims at a level
    above the best value, and shrinks if no better value is found for a while.
    """
    best = market.value(prices)
    level, step_length, idle, looked_at = best.bound_s + _AIM_ABOVE * good_s, _FIRST_LENGTH, 0, best.looked_at
    too_much, starts = best.too_much, best.starts_s
    for _ in steps:
        uphill = np.where((prices <= 0) & (too_much < 0), 0.0, too_much)
        length = float((uphill * uphill).sum())
        if length <= 1e-12 or step_length < _MIN_LENGTH or looked_at >= looks:
            break
        tried = np.maximum(0.0, prices + step_length * (level - best.bound_s) / length * too_much)
        value = market.value(tried)
        looked_at += value.looked_at
        is_uphill = float((uphill * value.too_much).sum()) > 0
        too_much = _NEWEST_SHARE * value.too_much + (1 - _NEWEST_SHARE) * too_much
        starts = _NEWEST_SHARE * value.starts_s + (1 - _NEWEST_SHARE) * starts
        if value.bound_s > best.bound_s:
            best, prices, idle = value, tried, 0
            step_length = min(2.0, _GROWTH * step_length) if is_uphill else step_length
        else:
            idle += 1
            if idle == _MAX_IDLE_STEPS:
                step_length, idle = _SHRINKAGE * step_length, 0
        if best.bound_s > level - _AIM_ABOVE * good_s / 2:
            level = best.bound_s + _AIM_ABOVE * good_s
    return RaisedPrices(prices, best, starts, looked_at)


@dataclass(frozen=True)
class JobClass:
    """Jobs of one type, with one weight and similar length."""

    type: str
    weight: float  #: the lowest weight of its jobs
    since_s: Numbers  #: per job, in the order of arrival
    took_s: Numbers

    @cached_property
    def shortest_s(self) -> float:
        return float(self.took_s.min())

    @cached_property
    def longest_s(self) -> float:
        return float(self.took_s.max())

    def come(self, at_s: Numbers) -> Numbers:
        """Return the number of jobs that have arrived by each time."""
        return np.searchsorted(self.since_s, at_s, side="right").astype(float)

    def come_area(self, at_s: Numbers) -> Numbers:
        """Return the area under `come` until each time: the total wait if no job had started."""
        return _area(self.since_s, at_s)

    def max_work(self, at_s: Numbers) -> Numbers:
        """Return the work in seconds done by each time if each job started on arrival."""
        return _area(self.since_s, at_s) - _area(np.sort(self.since_s + self.took_s), at_s)


def _area(steps_s: Numbers, at_s: Numbers) -> Numbers:
    """Return, for each time in *at_s*, the sum of the times since each step in *steps_s* (sorted)."""
    sums = np.concatenate(([0.0], np.cumsum(steps_s)))
    passed = np.searchsorted(steps_s, at_s, side="right")
    return passed * at_s - sums[passed]


def classes_of(arrivals: Sequence[Arrival], weight: Weight, by_length: int) -> list[JobClass]:
    """Return the jobs by type and weight, divided into up to *by_length* classes by length."""
    groups: dict[tuple[str, float], list[Arrival]] = {}
    for job in arrivals:
        groups.setdefault((job.type, weight(job)), []).append(job)
    classes = []
    for (type_, job_weight), jobs in sorted(groups.items()):
        for part in _by_length(jobs, by_length):
            part.sort(key=since_us)
            since = np.array([since_us(job) for job in part]) / 1e6
            classes.append(JobClass(type_, job_weight, since, np.array([job.took_us for job in part]) / 1e6))
    return classes


def _by_length(jobs: list[Arrival], max_classes: int) -> list[list[Arrival]]:
    """Return *jobs* in parts of similar length: equal steps on a logarithmic scale, because errors are relative."""
    lengths = np.log(np.array([max(1, job.took_us) for job in jobs], dtype=float))
    span = float(lengths.max() - lengths.min())
    if span < 1e-9 or max_classes == 1:
        return [jobs]
    steps = np.minimum(max_classes - 1, ((lengths - lengths.min()) / span * max_classes).astype(int))
    return [[job for job, step in zip(jobs, steps, strict=True) if step == nth] for nth in sorted({*steps.tolist()})]


#: Share of the bound that is given up for the tolerances of the solver.
_TOLERANCE = 1e-6


#: Columns of rows, and their values.
_Term = tuple[Indexes, float | Numbers]
#: Limits, and the terms of their rows.
_Bounds = tuple[Numbers, *tuple[_Term, ...]]


class _Rows:
    """Rows ``terms <= limits`` of the program, collected as triples."""

    def __init__(self) -> None:
        self.count = 0
        self.triples: list[tuple[Numbers, Indexes, Indexes]] = []  # value, row, column
        self.limits: list[Numbers] = []

    def add(self, limits: Numbers, *terms: _Term) -> None:
        """Add a row per number in *limits*. *terms*: the columns of the rows, and their values."""
        numbers = np.arange(self.count, self.count + len(limits))
        for columns, values in terms:
            exists = columns >= 0
            all_values = np.broadcast_to(np.asarray(values, dtype=float), columns.shape)
            self.triples.append((all_values[exists], numbers[exists], columns[exists]))
        self.limits.append(np.asarray(limits, dtype=float))
        self.count += len(limits)

    def matrix(self, columns: int) -> csr_matrix:
        values, rows, places = map(np.concatenate, zip(*self.triples, strict=True))
        return csr_matrix((values, (rows, places)), shape=(self.count, columns))


class SolvedProgram(NamedTuple):
    bound_s: float  #: lower bound of the total weighted wait
    prices: dict[Profile, Numbers]  #: value of one slot second, by profile and bin


def pairs_of(classes: Sequence[JobClass], slots: Sequence[OpenSlots]) -> list[tuple[str, Profile]]:
    profiles = sorted({open_slots.profile for open_slots in slots}, key=sorted)
    return [(type_, profile) for type_ in sorted({c.type for c in classes}) for profile in profiles if type_ in profile]


class Program:
    """The rows. Columns: U, W and B of each class at each edge, then y of each pair in each bin.

    *edges_s*: edges of the bins, the first is 0. Waits beyond the last edge are not counted.
    """

    def __init__(self, classes: Sequence[JobClass], slots: Sequence[OpenSlots], edges_s: Numbers) -> None:
        self.classes, self.slots, self.edges = classes, slots, edges_s
        self.bins = len(edges_s) - 1
        self.pairs = pairs_of(classes, slots)
        self.per_class = 3 * (self.bins + 1)
        self.columns = self.per_class * len(classes) + self.bins * len(self.pairs)
        self.at_most, self.equal = _Rows(), _Rows()
        self.highest = np.full(self.columns, np.inf)
        self.cost = np.zeros(self.columns)
        self.slot_rows: dict[Profile, slice] = {}  # rows that limit the work of a profile's slots
        for number, job_class in enumerate(classes):
            self._add_wait_rows(number, job_class)
            self._add_work_rows(number, job_class)
        self._add_slot_rows()

    def solve(self, within_s: float | None = None) -> SolvedProgram | None:
        """Return the optimum, or None if the solver does not finish in *within_s* seconds."""
        solution = linprog(
            self.cost,
            A_ub=self.at_most.matrix(self.columns),
            b_ub=np.concatenate(self.at_most.limits),
            A_eq=self.equal.matrix(self.columns),
            b_eq=np.concatenate(self.equal.limits),
            bounds=np.column_stack((np.zeros(self.columns), self.highest)),
            method="highs",
            options={} if within_s is None else {"time_limit": within_s},
        )
        if solution.status != 0:
            return None
        duals = solution.ineqlin.marginals
        prices = {profile: np.maximum(0.0, -duals[rows]) for profile, rows in self.slot_rows.items()}
        return SolvedProgram(max(0.0, float(solution.fun) * (1 - _TOLERANCE)), prices)

    def _columns_of(self, number: int, which: int) -> Indexes:
        """Return the columns of U (0), W (1) or B (2) of a class, one per edge."""
        begin = number * self.per_class + which * (self.bins + 1)
        return np.arange(begin, begin + self.bins + 1)

    def _add_wait_rows(self, number: int, jobs: JobClass) -> None:
        """Add the rows of U and W: starts are final, and a job waits from its arrival until its start."""
        unstarted, waited = self._columns_of(number, 0), self._columns_of(number, 1)
        come, area, widths = jobs.come(self.edges), jobs.come_area(self.edges), np.diff(self.edges)
        self.highest[unstarted] = come
        self.highest[self._columns_of(number, 1)[0]] = self.highest[self._columns_of(number, 2)[0]] = 0.0
        self.cost[waited[-1]] = jobs.weight
        self.at_most.add(np.diff(come), (unstarted[1:], 1.0), (unstarted[:-1], -1.0))
        for part in (0.0, 0.5, 1.0):
            # Each job that is unstarted at the right edge waited for that part of the bin, if it arrived before.
            from_s = self.edges[1:] - part * widths
            late = jobs.come(self.edges[1:]) * part * widths - (area[1:] - jobs.come_area(from_s))
            self.at_most.add(late, (waited[:-1], 1.0), (waited[1:], -1.0), (unstarted[1:], part * widths))
        max_wait = np.diff(area) - come[:-1] * widths
        self.at_most.add(max_wait, (waited[1:], 1.0), (waited[:-1], -1.0), (unstarted[:-1], -widths))

    def _add_work_rows(self, number: int, jobs: JobClass) -> None:
        """Add the rows of B: a job that started at least p ago has done p of its work."""
        waited, behind = self._columns_of(number, 1)[1:], self._columns_of(number, 2)[1:]
        edges = self.edges[1:]
        for limits, *terms in self._waited_at_least(number, jobs, edges - jobs.longest_s):
            self.at_most.add(limits, (behind, 1.0), (waited, -1.0), *terms)
        for limits, *terms in self._waited_at_most(number, jobs, edges - jobs.shortest_s):
            self.at_most.add(limits, (behind, -1.0), (waited, 1.0), *terms)
        if jobs.longest_s > jobs.shortest_s:
            head = jobs.come_area(edges) - jobs.come_area(edges - jobs.shortest_s)
            more = jobs.max_work(edges) - head
            for limits, *terms in self._waited_at_least(number, jobs, edges - jobs.shortest_s):
                self.at_most.add(limits + more, (behind, 1.0), (waited, -1.0), *terms)

    def _waited_at_least(self, number: int, jobs: JobClass, at_s: Numbers) -> Iterator[_Bounds]:
        """Yield lower bounds of W at times between edges, each as ``- limits + columns * values``."""
        waited, bin_, before = self._columns_of(number, 1), self._bin_of(at_s), at_s <= 0
        part: Numbers = np.clip((at_s - self.edges[bin_]) / np.diff(self.edges)[bin_], 0.0, 1.0)
        yield np.zeros(len(at_s)), (np.where(before, -1, waited[bin_]), 1.0)
        if (part > 0).any():  # the area under the starts is convex: it does not exceed the chord
            area = jobs.come_area(self.edges)
            chord = (1 - part) * area[bin_] + part * area[bin_ + 1]
            low = np.where(before, 0.0, chord - jobs.come_area(at_s))
            left, right = (np.where(before, -1, waited[index]) for index in (bin_, bin_ + 1))
            yield low, (left, 1 - part), (right, part)

    def _waited_at_most(self, number: int, jobs: JobClass, at_s: Numbers) -> Iterator[_Bounds]:
        """Yield upper bounds of W at times between edges, each as ``limits - columns * values``."""
        unstarted, waited, bin_ = self._columns_of(number, 0), self._columns_of(number, 1), self._bin_of(at_s)
        before = at_s <= 0
        yield np.zeros(len(at_s)), (np.where(before, -1, waited[bin_ + 1]), -1.0)
        since_edge = np.where(before, 0.0, at_s - self.edges[bin_])
        come, area = jobs.come(self.edges)[bin_], jobs.come_area(self.edges)[bin_]
        more = np.where(before, 0.0, jobs.come_area(at_s) - area - come * since_edge)
        yield more, (np.where(before, -1, waited[bin_]), -1.0), (np.where(before, -1, unstarted[bin_]), -since_edge)

    def _bin_of(self, at_s: Numbers) -> Indexes:
        """Return the number of the bin that contains each time."""
        return np.clip(np.searchsorted(self.edges, at_s, side="right") - 1, 0, self.bins - 1)

    def _add_slot_rows(self) -> None:
        """Add the rows of y: slots that serve a type do its work, and do no more than time allows."""
        first = self.per_class * len(self.classes)
        of_pair = {pair: first + number * self.bins + np.arange(self.bins) for number, pair in enumerate(self.pairs)}
        for type_ in sorted({job_class.type for job_class in self.classes}):
            done = np.zeros(self.bins)
            terms: list[tuple[Indexes, float | Numbers]] = [(y, 1.0) for (t, _), y in of_pair.items() if t == type_]
            for number, job_class in enumerate(self.classes):
                if job_class.type == type_:
                    behind = self._columns_of(number, 2)
                    done += np.diff(job_class.max_work(self.edges))
                    terms += [(behind[1:], 1.0), (behind[:-1], -1.0)]
            self.equal.add(done, *terms)
        for profile in sorted({profile for _, profile in self.pairs}, key=sorted):
            self.slot_rows[profile] = slice(self.at_most.count, self.at_most.count + self.bins)
            work_columns = [y for (_, served_by), y in of_pair.items() if served_by == profile]
            self.at_most.add(slot_seconds(self.slots, profile, self.edges), *((y, 1.0) for y in work_columns))
