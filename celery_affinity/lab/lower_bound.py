"""A lower bound of the wait in any schedule: a linear program over (class, bin) and (type, profile, bin), by HiGHS.

Its variables are sums that each schedule has, and its rows hold for each schedule, so that its optimum is at most the
weighted wait of the best one. docs/internals/optimum.md derives each row. For a class c and the edge e_k of a bin:

    U_k   jobs that have come by e_k and have not started
    W_k   time that jobs of the class have waited until e_k
    B_k   work that would be done by e_k, had each job started as it came, less the work that is done
    y_k   work that slots of a profile do of a type in a bin
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from .job_classes import JobClass, Numbers
from .slots_over_time import Open, Profile, slot_s

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


class Solved(NamedTuple):
    """*bound_s*: a number that the sum of the weighted waits, s, is never below.

    *prices*: what a second of a slot is worth, by profile and bin.
    """

    bound_s: float
    prices: dict[Profile, Numbers]


def solve(
    classes: Sequence[JobClass], slots: Sequence[Open], edges_s: Numbers, *, within_s: float | None = None
) -> Solved | None:
    """Return the optimum of the program; None if the solver does not come to an end in *within_s*.

    *edges_s*: the edges of the bins, of which the first is 0. What jobs wait beyond the last edge does not count.
    """
    return Program(classes, slots, edges_s).solve(within_s)


def size(classes: Sequence[JobClass], slots: Sequence[Open], bins: int) -> int:
    """Return the number of variables of the program."""
    return bins * (3 * len(classes) + len(_pairs(classes, slots)))


def _pairs(classes: Sequence[JobClass], slots: Sequence[Open]) -> list[tuple[str, Profile]]:
    profiles = sorted({each.profile for each in slots}, key=sorted)
    return [(type_, each) for type_ in sorted({each.type for each in classes}) for each in profiles if type_ in each]


class Program:
    """The rows, for columns in this order: of each class U, W and B at each edge, then y of each pair in each bin."""

    def __init__(self, classes: Sequence[JobClass], slots: Sequence[Open], edges_s: Numbers) -> None:
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

    def solve(self, within_s: float | None) -> Solved | None:
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
        return Solved(max(0.0, float(found.fun) * (1 - _TOLERANCE)), prices)

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
            self.at_most.add(slot_s(self.slots, profile, self.edges), *((y, 1.0) for y in own))
