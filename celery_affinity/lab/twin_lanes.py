"""The waiting jobs of the twin, by lanes, and which of them goes first."""

import heapq
import math
from array import array
from collections.abc import Mapping, Sequence

from ..rules.lanes import number
from ..rules.score import MICRO, Weights
from .scenario import Arrival


class TwinLane:
    """Jobs of one type, mode and priority that may start: a heap of ranks, places in the order of age.

    *standing*: the terms of their score that never change, in micro-points. *withdrawn*: ranks in the heap, but never
    its first, of jobs that a key keeps back.
    """

    __slots__ = ("on_demand", "ranks", "standing", "type", "withdrawn")

    def __init__(self, type_: int, on_demand: bool, priority: int, weights: Weights) -> None:
        self.type, self.on_demand = type_, on_demand
        urgency = math.floor(weights.on_demand * MICRO) if on_demand else 0
        self.standing = math.floor(weights.read(priority) * weights.priority * MICRO) + urgency
        self.ranks: list[int] = []
        self.withdrawn: set[int] = set()


class Lanes:
    """All lanes. `waiting`: of each type, the lanes that have a job."""

    def __init__(self, arrivals: Sequence[Arrival], number_of: Mapping[str, int], weights: Weights) -> None:
        by_age = sorted(range(len(arrivals)), key=lambda nth: (arrivals[nth].enqueued_us, arrivals[nth].number))
        self._position_at = array("q", by_age)
        self._enqueued_at = array("q", (arrivals[nth].enqueued_us for nth in by_age))
        self._rank_of = array("q", bytes(8 * len(by_age)))
        for rank, position in enumerate(by_age):
            self._rank_of[position] = rank
        self._lanes: dict[tuple[int, int], TwinLane] = {}
        self._lane_of = [self._made(each, number_of, weights) for each in arrivals]
        self._weight, self._of_demand = _whole(weights.age), _whole(weights.on_demand_age)
        self._cap_us = weights.on_demand_age_cap_us
        self.waiting: list[list[TwinLane]] = [[] for _ in number_of]

    def _made(self, arrival: Arrival, number_of: Mapping[str, int], weights: Weights) -> TwinLane:
        name = number_of[arrival.type], number(arrival.on_demand, arrival.priority)
        if name not in self._lanes:
            self._lanes[name] = TwinLane(name[0], arrival.on_demand, arrival.priority, weights)
        return self._lanes[name]

    def type_of(self, position: int) -> int:
        return self._lane_of[position].type

    def lane_of(self, position: int) -> TwinLane:
        return self._lane_of[position]

    def rank_of(self, position: int) -> int:
        return self._rank_of[position]

    def is_fresh(self, position: int, now_us: int) -> bool:
        """Return whether the job of *position*, which arrives, has not waited before."""
        return self._enqueued_at[self._rank_of[position]] >= now_us

    def enqueued_at(self, rank: int) -> int:
        return self._enqueued_at[rank]

    def add(self, position: int) -> None:
        self.put(self._lane_of[position], self._rank_of[position])

    def put(self, lane: TwinLane, rank: int) -> None:
        if not lane.ranks:
            self.waiting[lane.type].append(lane)
        if rank in lane.withdrawn:
            lane.withdrawn.remove(rank)
        else:
            heapq.heappush(lane.ranks, rank)

    def first(self, lane: TwinLane) -> int:
        """Return the position of the first job of *lane*."""
        return self._position_at[lane.ranks[0]]

    def pop(self, lane: TwinLane) -> int:
        """Remove the first job of *lane*. Return its position."""
        position = self._position_at[lane.ranks[0]]
        self._pop(lane)
        return position

    def withdraw(self, lane: TwinLane, rank: int) -> None:
        """Remove a job from *lane*, wherever it stands there."""
        if rank == lane.ranks[0]:
            self._pop(lane)
        else:
            lane.withdrawn.add(rank)

    def _pop(self, lane: TwinLane) -> None:
        heapq.heappop(lane.ranks)
        while lane.withdrawn and lane.ranks and lane.ranks[0] in lane.withdrawn:
            lane.withdrawn.remove(heapq.heappop(lane.ranks))
        if not lane.ranks:
            self.waiting[lane.type].remove(lane)

    def oldest(self, types: Sequence[int]) -> TwinLane | None:
        """Return the lane of *types* with the oldest first job."""
        lanes = (lane for type_ in types for lane in self.waiting[type_])
        return min(lanes, key=lambda lane: lane.ranks[0], default=None)

    def best(self, types: Sequence[int], rarity: Sequence[int], now_us: int) -> TwinLane | None:
        """Return the lane of *types* whose first job has the highest score; ties go to the older job.

        *rarity*: that term of each type, by its number. All else is `rules.score.score`.
        """
        best, most, best_rank = None, -1, -1
        enqueued_at, weight, of_demand, cap_us = self._enqueued_at, self._weight, self._of_demand, self._cap_us
        floor = math.floor
        for type_ in types:
            for lane in self.waiting[type_]:
                rank = lane.ranks[0]
                age_us = now_us - enqueued_at[rank]
                if age_us < 0:
                    age_us = 0
                points = lane.standing + rarity[type_] + floor(age_us * weight)
                if lane.on_demand:
                    points += floor((age_us if age_us < cap_us else cap_us) * of_demand)
                if points > most or (points == most and rank < best_rank):
                    best, most, best_rank = lane, points, rank
        return best


def _whole(weight: float) -> float:
    """Return *weight* as an int if it is one: sums of these are faster, and as exact."""
    return int(weight) if weight == int(weight) else weight
