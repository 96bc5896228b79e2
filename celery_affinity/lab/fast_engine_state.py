"""The waiting jobs of the twin, by lanes, and which of them goes first.

The slots of the twin: which are free, and which of them a job gets.

The rule is `rules.slot.choose`: the fewest types, then the longest idle, then the smaller id, which is the place in the
scenario. Workers that serve the same types have one profile.

The keys of the twin: of exclusive jobs, of rates and of tenants with a maximum. A job has one of them.

While a key has room, the first job of each of its sub-lanes (type, mode and priority) stands in its lane; all others
are kept back. Room for one job may be kept for a type that has waited longest while others got the key: its turn. As
``lua/keyed`` does it, line by line: `key_standing` (renew), `key_turns` and `key_room`.
"""

import heapq
import math
from array import array
from collections.abc import Callable, Mapping, Sequence

from ..policy.score import MICRO, Weights
from ..schema.rules_codec import StatedRate
from ..schema.values import lane_number
from .scenario import Arrival
from .simulation import NEVER
from .trace import TracedWorker


class LaneState:
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


class LaneStates:
    """All lanes. `waiting`: of each type, the lanes that have a job."""

    def __init__(self, arrivals: Sequence[Arrival], number_of: Mapping[str, int], weights: Weights) -> None:
        by_age = sorted(range(len(arrivals)), key=lambda nth: (arrivals[nth].enqueued_us, arrivals[nth].number))
        self._position_at = array("q", by_age)
        self._enqueued_at = array("q", (arrivals[nth].enqueued_us for nth in by_age))
        self._rank_of = array("q", bytes(8 * len(by_age)))
        for rank, position in enumerate(by_age):
            self._rank_of[position] = rank
        self._lanes: dict[tuple[int, int], LaneState] = {}
        self._lane_of = [self._made(each, number_of, weights) for each in arrivals]
        self._weight, self._of_demand = _whole(weights.age), _whole(weights.on_demand_age)
        self._cap_us = weights.on_demand_age_cap_us
        self.waiting: list[list[LaneState]] = [[] for _ in number_of]

    def _made(self, arrival: Arrival, number_of: Mapping[str, int], weights: Weights) -> LaneState:
        name = number_of[arrival.type], lane_number(arrival.on_demand, arrival.priority)
        if name not in self._lanes:
            self._lanes[name] = LaneState(name[0], arrival.on_demand, arrival.priority, weights)
        return self._lanes[name]

    def type_of(self, position: int) -> int:
        return self._lane_of[position].type

    def lane_of(self, position: int) -> LaneState:
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

    def put(self, lane: LaneState, rank: int) -> None:
        if not lane.ranks:
            self.waiting[lane.type].append(lane)
        if rank in lane.withdrawn:
            lane.withdrawn.remove(rank)
        else:
            heapq.heappush(lane.ranks, rank)

    def first(self, lane: LaneState) -> int:
        """Return the position of the first job of *lane*."""
        return self._position_at[lane.ranks[0]]

    def pop(self, lane: LaneState) -> int:
        """Remove the first job of *lane*. Return its position."""
        position = self._position_at[lane.ranks[0]]
        self._pop(lane)
        return position

    def withdraw(self, lane: LaneState, rank: int) -> None:
        """Remove a job from *lane*, wherever it stands there."""
        if rank == lane.ranks[0]:
            self._pop(lane)
        else:
            lane.withdrawn.add(rank)

    def _pop(self, lane: LaneState) -> None:
        heapq.heappop(lane.ranks)
        while lane.withdrawn and lane.ranks and lane.ranks[0] in lane.withdrawn:
            lane.withdrawn.remove(heapq.heappop(lane.ranks))
        if not lane.ranks:
            self.waiting[lane.type].remove(lane)

    def oldest(self, types: Sequence[int]) -> LaneState | None:
        """Return the lane of *types* with the oldest first job."""
        lanes = (lane for type_ in types for lane in self.waiting[type_])
        return min(lanes, key=lambda lane: lane.ranks[0], default=None)

    def best(self, types: Sequence[int], rarity: Sequence[int], now_us: int) -> LaneState | None:
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


#: Entries of a heap beyond twice its workers, from which on those that hold no more are thrown away.
_SLACK = 64


class SlotStates:
    """All slots. *free*: those of each worker; *capacity*: of each type, the slots of live workers that serve it."""

    def __init__(self, workers: Sequence[TracedWorker], number_of: Mapping[str, int]) -> None:
        sets = [tuple(sorted({number_of[type_] for type_ in each.types})) for each in workers]
        profiles = {types: nth for nth, types in enumerate(dict.fromkeys(sets))}
        self._slots = [each.slots for each in workers]
        self._profile_of = [profiles[types] for types in sets]
        self._types = list(profiles)
        self._members = [sets.count(types) for types in profiles]
        self._accepts = [False] * len(workers)
        self._is_there = [False] * len(workers)
        self._held = [0] * len(workers)
        self._since_us = [0] * len(workers)
        self.free = [0] * len(workers)
        self._free_in = [0] * len(profiles)
        self._idle: list[list[tuple[int, int]]] = [[] for _ in profiles]  # (since when, worker): a heap
        self.capacity = [0] * len(number_of)
        #: type -> profiles that serve it, in groups of as many types, the fewest first
        self._serving = [_grouped(type_, self._types) for type_ in range(len(number_of))]
        self._profiles_of = [[each for group in groups for each in group] for groups in self._serving]

    def types_of(self, worker: int) -> tuple[int, ...]:
        return self._types[self._profile_of[worker]]

    # -- changes

    def join(self, worker: int, now_us: int) -> None:
        self._accepts[worker] = self._slots[worker] > 0
        if not self._is_there[worker]:
            self._is_there[worker] = True
            for type_ in self.types_of(worker):
                self.capacity[type_] += self._slots[worker]
        self._recount(worker, now_us)

    def drain(self, worker: int, now_us: int) -> None:
        self._accepts[worker] = False
        self._recount(worker, now_us)

    def leave(self, worker: int) -> None:
        for type_ in self.types_of(worker):
            self.capacity[type_] -= self._slots[worker]

    def occupy(self, worker: int, now_us: int) -> None:
        self._held[worker] += 1
        self._recount(worker, now_us)

    def release(self, worker: int, number: int, now_us: int) -> None:
        """Have *number* of the worker's slots be free."""
        self._held[worker] -= number
        self._recount(worker, now_us)

    def _recount(self, worker: int, now_us: int) -> None:
        free = self._slots[worker] - self._held[worker] if self._accepts[worker] else 0
        profile = self._profile_of[worker]
        self._free_in[profile] += free - self.free[worker]
        self.free[worker] = free
        self._since_us[worker] = now_us
        if free > 0:
            idle = self._idle[profile]
            heapq.heappush(idle, (now_us, worker))
            if len(idle) > 2 * self._members[profile] + _SLACK:
                self._idle[profile] = sorted(each for each in set(idle) if self._is_idle(each))

    # -- the choice

    def any_free(self, type_: int) -> bool:
        """Return whether a free slot fits *type_*."""
        return any(self._free_in[profile] > 0 for profile in self._profiles_of[type_])

    def free_for(self, type_: int) -> int:
        """Return how many free slots fit *type_*."""
        return sum(self._free_in[profile] for profile in self._profiles_of[type_])

    def best(self, type_: int) -> int:
        """Return the worker that a job of *type_* goes to; -1 if no free slot fits."""
        for group in self._serving[type_]:
            longest = [self._longest_idle(profile) for profile in group if self._free_in[profile] > 0]
            if longest:
                return min(longest)[1]
        return -1

    def _longest_idle(self, profile: int) -> tuple[int, int]:
        idle = self._idle[profile]
        while not self._is_idle(idle[0]):
            heapq.heappop(idle)
        return idle[0]

    def _is_idle(self, entry: tuple[int, int]) -> bool:
        since_us, worker = entry
        return self.free[worker] > 0 and self._since_us[worker] == since_us


def _grouped(type_: int, profiles: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Return the *profiles* that serve *type_*, by their place: those of one size together, the smallest first."""
    found: dict[int, list[int]] = {}
    for nth, types in enumerate(profiles):
        if type_ in types:
            found.setdefault(len(types), []).append(nth)
    return [found[size] for size in sorted(found)]


#: What jobs may hold of a key: so many at a time, or so many starts in a period.
Limit = int | StatedRate

#: Longer ago than anything, µs.
_EVER = -NEVER


class _SubLane:
    """The jobs of a key in one lane: a heap of ranks. *standing*: the one that stands in the lane; -1: none."""

    __slots__ = ("ranks", "standing")

    def __init__(self) -> None:
        self.ranks: list[int] = []
        self.standing = -1


class KeyState:
    """A key: *held* by so many jobs, or, of a rate, all of whose starts are free again at *free_us*."""

    __slots__ = ("free_us", "had_us", "held", "limit", "sublanes", "turn")

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.held = 0
        self.free_us = _EVER
        self.sublanes: dict[LaneState, _SubLane] = {}
        self.turn: tuple[int, int] | None = None  # type, and until when
        self.had_us: dict[int, int] = {}  # type -> when it had the key last, or its turn


class KeyStates:
    """All keys, by position of the arrivals that have them: *key_of*, None for none.

    *names*: of types, encoded, by which ties go. *may_have_turn*: whether a slot serves a type, and no rule holds it
    back.
    """

    def __init__(
        self,
        key_of: Sequence[tuple[str, Limit] | None],
        lanes: LaneStates,
        *,
        patience_us: int,
        names: Sequence[str],
        may_have_turn: Callable[[int], bool],
    ) -> None:
        self._key_of, self._lanes = key_of, lanes
        self._patience_us, self._names, self._may_have_turn = patience_us, names, may_have_turn
        self._keys: dict[str, KeyState] = {}
        self._due: dict[str, int] = {}
        self._by_time: list[tuple[int, str]] = []  # what was in _due, a heap: entries that are no more go when first

    def has_one(self, position: int) -> bool:
        return self._key_of[position] is not None

    # -- what happens. Each method returns the types of which a job came into its lane, for whoever fills.

    def enter(self, position: int, now_us: int, *, is_fresh: bool) -> set[int]:
        """Have the job of *position* wait. What is stated of a key by the job that was published last counts."""
        name, limit = self._of(position)
        key = self._keys.setdefault(name, KeyState(limit))
        if is_fresh or not (key.sublanes or key.held):
            key.limit = limit
        lane, rank = self._lanes.lane_of(position), self._lanes.rank_of(position)
        heapq.heappush(key.sublanes.setdefault(lane, _SubLane()).ranks, rank)
        return self._renewed(name, key, now_us, fills=True)

    def hold(self, position: int, now_us: int) -> None:
        """The job of *position*, which was taken from its lane, was claimed."""
        name, _ = self._of(position)
        key, lane = self._keys[name], self._lanes.lane_of(position)
        self._remove(key, lane)
        if isinstance(key.limit, StatedRate):
            key.free_us = max(self._free_at(key, key.limit, now_us), now_us) + key.limit.interval_us
        else:
            key.held += 1
            if key.turn is not None and key.turn[0] == lane.type:
                self._end_turn(name, key)
            if any(other.type != lane.type for other in key.sublanes):
                key.had_us[lane.type] = now_us
        self._renewed(name, key, now_us, fills=False)

    def free(self, position: int, now_us: int) -> set[int]:
        """The job of *position* has ended."""
        name, _ = self._of(position)
        key = self._keys[name]
        if isinstance(key.limit, StatedRate):
            return set()
        key.held -= 1
        if key.turn is None:
            self._give_turn(key, self._lanes.type_of(position), now_us)
        return self._renewed(name, key, now_us, fills=True)

    def next_due_us(self) -> int:
        """Return when a tick is to look at a key; NEVER for none."""
        by_time = self._by_time
        while by_time and self._due.get(by_time[0][1]) != by_time[0][0]:
            heapq.heappop(by_time)
        return by_time[0][0] if by_time else NEVER

    def tick(self, now_us: int) -> set[int]:
        due = sorted(name for name, at_us in self._due.items() if at_us <= now_us)
        to_fill = set()
        for name in due:
            del self._due[name]
            to_fill |= {lane.type for lane, its in self._keys[name].sublanes.items() if its.standing >= 0}
        for name in due:
            to_fill |= self._renewed(name, self._keys[name], now_us, fills=True)
        return to_fill

    # -- which jobs stand

    def _renewed(self, name: str, key: KeyState, now_us: int, *, fills: bool) -> set[int]:
        """Have those jobs of a key stand that it has room for. Return the types of those that come into their lanes.

        Not *fills*: nobody fills slots with these. Then a rate that lets no job start goes on so until a tick.
        """
        if key.turn is not None:
            self._end_turn_in_vain(name, key, now_us, fills=fills)
        if not key.sublanes:
            self._forget(name, key)
            return set()
        room = self._room(name, key, now_us, fills=fills)
        to_fill = set()
        for lane, its in key.sublanes.items():
            has_room = room > 1 or (room == 1 and (key.turn is None or key.turn[0] == lane.type))
            wanted = its.ranks[0] if has_room else -1
            if wanted == its.standing:
                continue
            if its.standing >= 0:
                self._lanes.withdraw(lane, its.standing)
            if wanted >= 0:
                self._lanes.put(lane, wanted)
                to_fill.add(lane.type)
            its.standing = wanted
        return to_fill if fills else set()

    def _remove(self, key: KeyState, lane: LaneState) -> None:
        """Remove the job that stands in *lane*: the first of its sub-lane."""
        its = key.sublanes[lane]
        heapq.heappop(its.ranks)
        its.standing = -1
        if not its.ranks:
            del key.sublanes[lane]

    def _forget(self, name: str, key: KeyState) -> None:
        self._due.pop(name, None)
        if not key.held:
            key.had_us.clear()

    # -- room

    def _room(self, name: str, key: KeyState, now_us: int, *, fills: bool) -> int:
        """Return how many jobs more may hold a key, or start now; else a tick looks at a rate when the next one may."""
        rate = key.limit
        if not isinstance(rate, StatedRate):
            return rate - key.held
        if not fills and name in self._due:
            return 0
        free_us = self._free_at(key, rate, now_us)
        room = rate.room(free_us - now_us)
        if room > 0:
            self._due.pop(name, None)
        else:
            self._look_at(name, free_us - rate.period_us + rate.interval_us)
        return room

    def _free_at(self, key: KeyState, rate: StatedRate, now_us: int) -> int:
        return min(key.free_us, now_us + rate.period_us)

    def _look_at(self, name: str, at_us: int) -> None:
        if at_us < self._due.get(name, NEVER):
            self._due[name] = at_us
            heapq.heappush(self._by_time, (at_us, name))

    # -- turns

    def _end_turn(self, name: str, key: KeyState) -> None:
        """A turn ends, and nobody fills the slots of others that may have room now: a tick does at once."""
        key.turn = None
        self._look_at(name, _EVER)

    def _end_turn_in_vain(self, name: str, key: KeyState, now_us: int, *, fills: bool) -> None:
        assert key.turn is not None, "asked by the caller"
        type_, until_us = key.turn
        if until_us > now_us and any(lane.type == type_ for lane in key.sublanes):
            self._look_at(name, until_us)
            return
        key.had_us[type_] = now_us
        key.turn = None
        if not fills:
            self._look_at(name, _EVER)

    def _give_turn(self, key: KeyState, its_type: int, now_us: int) -> None:
        """A job of *its_type* freed a key: it is the turn of the type that has waited longest, if that was too long."""
        waits = [
            (
                max(self._lanes.enqueued_at(its.ranks[0]), key.had_us.get(lane.type, _EVER)),
                self._names[lane.type],
                lane.type,
            )
            for lane, its in key.sublanes.items()
        ]
        since_us, _, longest = min(waits, default=(now_us, "", its_type))
        if since_us >= now_us or longest == its_type or not self._patience_us or now_us - since_us < self._patience_us:
            return
        if self._may_have_turn(longest):
            key.turn = longest, now_us + self._patience_us
        else:
            key.had_us[longest] = now_us

    def _of(self, position: int) -> tuple[str, Limit]:
        found = self._key_of[position]
        assert found is not None, "asked by the caller"
        return found
