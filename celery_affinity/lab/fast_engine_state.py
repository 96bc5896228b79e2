"""The state of the fast engine: waiting jobs by lane, free slots, and keys (exclusive keys, rates, tenants' maximums).

Slots are chosen like in ``lua/matching/slot_choice.lua``: the worker with the fewest types, then the longest idle, then
the smallest id, which is the index in the scenario. Workers with the same types have one profile.

A job has at most one key. While a key has capacity, it admits the head of each of its sub-lanes (type, mode and
priority) to its lane; all other jobs are blocked. Capacity for one job can be reserved for the type that waited longest
while others got the key: its turn. This reproduces ``lua/keys`` line by line: `admission`, `key_turns`, `capacity`.
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
    """Startable jobs of one type, mode and priority: a heap of ranks (`LaneStates`).

    *constant_points*: the terms of their score that never change, in micro-points. *blocked*: ranks of jobs that a key
    has blocked since; they are in the heap, but never its first entry.
    """

    __slots__ = ("blocked", "constant_points", "on_demand", "ranks", "type")

    def __init__(self, type_: int, on_demand: bool, priority: int, weights: Weights) -> None:
        self.type, self.on_demand = type_, on_demand
        urgency = math.floor(weights.on_demand * MICRO) if on_demand else 0
        self.constant_points = math.floor(weights.read(priority) * weights.priority * MICRO) + urgency
        self.ranks: list[int] = []
        self.blocked: set[int] = set()


class LaneStates:
    """All lanes. `waiting`: per type, the lanes with a job.

    A rank is one integer for the time that orders a job (its enqueue time minus its head start) and its number, so that
    the lower of two ranks is first. `lane_of`, `rank_of`: of an arrival, by its position.
    """

    def __init__(self, arrivals: Sequence[Arrival], number_of: Mapping[str, int], weights: Weights) -> None:
        by_number = sorted(range(len(arrivals)), key=lambda index: arrivals[index].number)
        self._position_at = array("q", by_number)
        self._nth = array("q", bytes(8 * len(by_number)))  # place of a position in this order
        for nth, position in enumerate(by_number):
            self._nth[position] = nth
        self._shift = len(arrivals).bit_length()
        self._mask = (1 << self._shift) - 1
        self._rank_us = array("q", (arrival.enqueued_us for arrival in arrivals))
        self._enqueued_us = array("q", self._rank_us)
        lanes: dict[tuple[int, int], LaneState] = {}
        self.lane_of: list[LaneState] = []
        for arrival in arrivals:
            name = number_of[arrival.type], lane_number(arrival.on_demand, arrival.priority)
            if name not in lanes:
                lanes[name] = LaneState(name[0], arrival.on_demand, arrival.priority, weights)
            self.lane_of.append(lanes[name])
        self._age_weight, self._on_demand_weight = _exact_int(weights.age), _exact_int(weights.on_demand_age)
        self._cap_us = weights.on_demand_age_cap_us
        self.waiting: list[list[LaneState]] = [[] for _ in number_of]

    def put_ahead(self, position: int, head_us: int) -> None:
        """Give a job that does not wait yet a head start."""
        self._rank_us[position] = self._enqueued_us[position] - head_us

    def rank_of(self, position: int) -> int:
        return self._rank_us[position] << self._shift | self._nth[position]

    def rank_us(self, rank: int) -> int:
        return rank >> self._shift

    def enqueued_us(self, rank: int) -> int:
        """Return the true enqueue time of the job with *rank*."""
        return self._enqueued_us[self._position_at[rank & self._mask]]

    def is_fresh(self, position: int, now_us: int) -> bool:
        """True if the job, which arrives, has not waited before."""
        return self._enqueued_us[position] >= now_us

    def put(self, lane: LaneState, rank: int) -> None:
        if not lane.ranks:
            self.waiting[lane.type].append(lane)
        if rank in lane.blocked:
            lane.blocked.remove(rank)
        else:
            heapq.heappush(lane.ranks, rank)

    def first(self, lane: LaneState) -> int:
        return self._position_at[lane.ranks[0] & self._mask]

    def pop(self, lane: LaneState) -> int:
        """Remove the first job of *lane*. Return its position."""
        position = self._position_at[heapq.heappop(lane.ranks) & self._mask]
        while lane.blocked and lane.ranks and lane.ranks[0] in lane.blocked:
            lane.blocked.remove(heapq.heappop(lane.ranks))
        if not lane.ranks:
            self.waiting[lane.type].remove(lane)
        return position

    def withdraw(self, lane: LaneState, rank: int) -> None:
        """Remove a job from any place in *lane*."""
        if rank == lane.ranks[0]:
            self.pop(lane)
        else:
            lane.blocked.add(rank)

    def oldest(self, types: Sequence[int]) -> LaneState | None:
        """Return the lane of *types* with the oldest first job."""
        lanes = (lane for type_ in types for lane in self.waiting[type_])
        return min(lanes, key=lambda lane: lane.ranks[0], default=None)

    def best(self, types: Sequence[int], rarity: Sequence[int], now_us: int) -> LaneState | None:
        """Return the lane of *types* whose head has the highest score. The older job wins a tie.

        *rarity*: this term of the score per type. The other terms are as in `policy.score.score`.
        """
        best, max_points, best_rank = None, -1, -1
        shift, age_weight, floor = self._shift, self._age_weight, math.floor
        on_demand_weight, cap_us = self._on_demand_weight, self._cap_us
        for type_ in types:
            for lane in self.waiting[type_]:
                rank = lane.ranks[0]
                age_us = now_us - (rank >> shift)
                if age_us < 0:
                    age_us = 0
                points = lane.constant_points + rarity[type_] + floor(age_us * age_weight)
                if lane.on_demand:
                    points += floor((age_us if age_us < cap_us else cap_us) * on_demand_weight)
                if points > max_points or (points == max_points and rank < best_rank):
                    best, max_points, best_rank = lane, points, rank
        return best


def _exact_int(weight: float) -> float:
    """Return *weight* as an int if it is an integer: sums of ints are faster, and as exact."""
    return int(weight) if weight == int(weight) else weight


#: Number of heap entries beyond twice the workers; above this, obsolete entries are removed.
_MAX_STALE = 64


class SlotStates:
    """All slots. *free*: free slots per worker. *capacity*: per type, the slots of live workers that serve it."""

    def __init__(self, workers: Sequence[TracedWorker], number_of: Mapping[str, int]) -> None:
        sets = [tuple(sorted({number_of[type_] for type_ in worker.types})) for worker in workers]
        profiles = {types: number for number, types in enumerate(dict.fromkeys(sets))}
        self._slots = [worker.slots for worker in workers]
        self._profile_of = [profiles[types] for types in sets]
        self._types = list(profiles)
        self._members = [sets.count(types) for types in profiles]
        self._accepts = [False] * len(workers)
        self._is_there = [False] * len(workers)
        self._held = [0] * len(workers)
        self._since_us = [0] * len(workers)
        self.free = [0] * len(workers)
        self._free_in = [0] * len(profiles)
        self._idle: list[list[tuple[int, int]]] = [[] for _ in profiles]  # (idle since, worker): a heap
        self.capacity = [0] * len(number_of)
        self._profiles_of = [
            [profile for profile, types in enumerate(self._types) if type_ in types] for type_ in range(len(number_of))
        ]

    def types_of(self, worker: int) -> tuple[int, ...]:
        return self._types[self._profile_of[worker]]

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
        """Free *number* of the worker's slots."""
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
            if len(idle) > 2 * self._members[profile] + _MAX_STALE:
                self._idle[profile] = sorted(entry for entry in set(idle) if self._is_idle(entry))

    def any_free(self, type_: int) -> bool:
        return any(self._free_in[profile] > 0 for profile in self._profiles_of[type_])

    def free_for(self, type_: int) -> int:
        return sum(self._free_in[profile] for profile in self._profiles_of[type_])

    def best(self, type_: int) -> int:
        """Return the worker that gets a job of *type_*, or -1 if no free slot fits."""
        free = [profile for profile in self._profiles_of[type_] if self._free_in[profile] > 0]
        if len(free) == 1:
            return self._longest_idle(free[0])[1]
        idle = [(len(self._types[profile]), *self._longest_idle(profile)) for profile in free]
        return min(idle, default=(0, 0, -1))[2]

    def _longest_idle(self, profile: int) -> tuple[int, int]:
        idle = self._idle[profile]
        while not self._is_idle(idle[0]):
            heapq.heappop(idle)
        return idle[0]

    def _is_idle(self, entry: tuple[int, int]) -> bool:
        since_us, worker = entry
        return self.free[worker] > 0 and self._since_us[worker] == since_us


#: A key, encoded, with the maximum number of jobs that hold it, or that start in a period.
BindingKey = tuple[str, int | StatedRate]
#: A time in µs before all others.
_LONG_AGO_US = -NEVER


class _SubLane:
    """The jobs of a key in one lane: a heap of ranks. *admitted*: rank of the job admitted to the lane, or None."""

    __slots__ = ("admitted", "ranks")

    def __init__(self) -> None:
        self.ranks: list[int] = []
        self.admitted: int | None = None


class KeyState:
    """A key: *held* by this many jobs; for a rate, all starts are available again at *free_us*.

    *limit*: the lowest limit, or the slowest rate, that a task states.
    """

    __slots__ = ("free_us", "had_us", "held", "limit", "stated", "sublanes", "turn")

    def __init__(self, limit: int | StatedRate) -> None:
        self.limit = limit
        self.stated: dict[str | None, int | StatedRate] = {}
        self.held = 0
        self.free_us = _LONG_AGO_US
        self.sublanes: dict[LaneState, _SubLane] = {}
        self.turn: tuple[int, int] | None = None  # type, and end of its turn
        self.had_us: dict[int, int] = {}  # type -> last time when it had the key, or its turn

    def state(self, task: str | None, limit: int | StatedRate, *, is_fresh: bool) -> None:
        """Note the limit of a job that enters. The job of a task that was published last determines its limit."""
        if not (self.sublanes or self.held):
            self.stated.clear()
        if is_fresh or task not in self.stated:
            self.stated[task] = limit
            self.limit = min(self.stated.values(), key=_tightness)


def _tightness(limit: int | StatedRate) -> tuple[float, int]:
    """Return a value by which limits, or rates, are sorted; the tightest comes first."""
    if isinstance(limit, StatedRate):
        return limit.tokens / limit.period_us, limit.tokens
    return limit, 0


class KeyStates:
    """All keys. *key_of*: key and limit of each arrival, or None. *tasks*: its task.

    *names*: encoded names of types, which break ties.
    *may_have_turn*: returns True if a slot serves a type, and no rule blocks it.
    """

    def __init__(
        self,
        key_of: Sequence[BindingKey | None],
        lanes: LaneStates,
        *,
        tasks: Sequence[str | None],
        patience_us: int,
        names: Sequence[str],
        may_have_turn: Callable[[int], bool],
    ) -> None:
        self.key_of, self._lanes, self._tasks = key_of, lanes, tasks
        self._patience_us, self._names, self._may_have_turn = patience_us, names, may_have_turn
        self._keys: dict[str, KeyState] = {}
        self._due: dict[str, int] = {}
        self._by_time: list[tuple[int, str]] = []  # heap of entries in _due; obsolete entries are removed lazily

    # Events. Each method returns the types whose lanes got a job, so that the caller fills slots.

    def enter(self, position: int, now_us: int, *, is_fresh: bool) -> set[int]:
        """Let a job wait."""
        name, limit = self._key_and_limit(position)
        key = self._keys.setdefault(name, KeyState(limit))
        key.state(self._tasks[position], limit, is_fresh=is_fresh)
        lane, rank = self._lanes.lane_of[position], self._lanes.rank_of(position)
        heapq.heappush(key.sublanes.setdefault(lane, _SubLane()).ranks, rank)
        return self._reevaluate(name, key, now_us, fills=True)

    def hold(self, position: int, now_us: int) -> None:
        """Record the claim of a job that has left its lane."""
        name, _ = self._key_and_limit(position)
        key, lane = self._keys[name], self._lanes.lane_of[position]
        sublane = key.sublanes[lane]
        heapq.heappop(sublane.ranks)  # the admitted job is the head of its sub-lane
        sublane.admitted = None
        if not sublane.ranks:
            del key.sublanes[lane]
        if isinstance(key.limit, StatedRate):
            key.free_us = max(min(key.free_us, now_us + key.limit.period_us), now_us) + key.limit.interval_us
        else:
            key.held += 1
            if key.turn is not None and key.turn[0] == lane.type:
                key.turn = None
                self._schedule_tick(name, _LONG_AGO_US)  # the caller fills no slots of other types
            if any(other.type != lane.type for other in key.sublanes):
                key.had_us[lane.type] = now_us
        self._reevaluate(name, key, now_us, fills=False)

    def free(self, position: int, now_us: int) -> set[int]:
        """Record the end of a job."""
        name, _ = self._key_and_limit(position)
        key = self._keys[name]
        if isinstance(key.limit, StatedRate):
            return set()
        key.held -= 1
        if key.turn is None:
            self._give_turn(key, self._lanes.lane_of[position].type, now_us)
        return self._reevaluate(name, key, now_us, fills=True)

    def next_due_us(self) -> int:
        """Return the time of the next tick for a key, or NEVER."""
        by_time = self._by_time
        while by_time and self._due.get(by_time[0][1]) != by_time[0][0]:
            heapq.heappop(by_time)
        return by_time[0][0] if by_time else NEVER

    def tick(self, now_us: int) -> set[int]:
        due = sorted(name for name, at_us in self._due.items() if at_us <= now_us)
        to_fill = set()
        for name in due:
            del self._due[name]
            to_fill |= {
                lane.type for lane, sublane in self._keys[name].sublanes.items() if sublane.admitted is not None
            }
        for name in due:
            to_fill |= self._reevaluate(name, self._keys[name], now_us, fills=True)
        return to_fill

    def _reevaluate(self, name: str, key: KeyState, now_us: int, *, fills: bool) -> set[int]:
        """Re-evaluate a key: admit as many jobs as it has capacity for. Return the types whose lanes got a job.

        Without *fills*, the caller does not fill slots. Then a rate without capacity stays so until a tick.
        """
        if key.turn is not None:
            self._end_expired_turn(name, key, now_us, fills=fills)
        if not key.sublanes:
            self._due.pop(name, None)
            if not key.held:
                key.had_us.clear()
            return set()
        capacity = self._capacity(name, key, now_us, fills=fills)
        to_fill = set()
        for lane, sublane in key.sublanes.items():
            has_capacity = capacity > 1 or (capacity == 1 and (key.turn is None or key.turn[0] == lane.type))
            wanted = sublane.ranks[0] if has_capacity else None
            if wanted == sublane.admitted:
                continue
            if sublane.admitted is not None:
                self._lanes.withdraw(lane, sublane.admitted)
            if wanted is not None:
                self._lanes.put(lane, wanted)
                to_fill.add(lane.type)
            sublane.admitted = wanted
        return to_fill if fills else set()

    def _capacity(self, name: str, key: KeyState, now_us: int, *, fills: bool) -> int:
        """Return a key's capacity for more jobs or starts. For a full rate, schedule a tick for the next start."""
        rate = key.limit
        if not isinstance(rate, StatedRate):
            return rate - key.held
        if not fills and name in self._due:
            return 0
        free_us = min(key.free_us, now_us + rate.period_us)
        capacity = rate.room(free_us - now_us)
        if capacity > 0:
            self._due.pop(name, None)
        else:
            self._schedule_tick(name, free_us - rate.period_us + rate.interval_us)
        return capacity

    def _schedule_tick(self, name: str, at_us: int) -> None:
        if at_us < self._due.get(name, NEVER):
            self._due[name] = at_us
            heapq.heappush(self._by_time, (at_us, name))

    def _end_expired_turn(self, name: str, key: KeyState, now_us: int, *, fills: bool) -> None:
        assert key.turn is not None, "asked by the caller"
        type_, until_us = key.turn
        if until_us > now_us and any(lane.type == type_ for lane in key.sublanes):
            self._schedule_tick(name, until_us)
            return
        key.had_us[type_] = now_us
        key.turn = None
        if not fills:
            self._schedule_tick(name, _LONG_AGO_US)

    def _give_turn(self, key: KeyState, freed_by: int, now_us: int) -> None:
        """After a job of type *freed_by*, give the turn to the type with the earliest rank, if it waited too long."""
        waits = [
            (
                max(self._lanes.rank_us(sublane.ranks[0]), key.had_us.get(lane.type, _LONG_AGO_US)),
                self._names[lane.type],
                lane.type,
            )
            for lane, sublane in key.sublanes.items()
        ]
        since_us, _, next_type = min(waits, default=(now_us, "", freed_by))
        if next_type == freed_by or not self._patience_us or now_us - since_us < self._patience_us:
            return
        first = (sublane.ranks[0] for lane, sublane in key.sublanes.items() if lane.type == next_type)
        since_us = max(min(map(self._lanes.enqueued_us, first)), key.had_us.get(next_type, _LONG_AGO_US))
        if now_us - since_us < self._patience_us:
            return
        if self._may_have_turn(next_type):
            key.turn = next_type, now_us + self._patience_us
        else:
            key.had_us[next_type] = now_us

    def _key_and_limit(self, position: int) -> BindingKey:
        key = self.key_of[position]
        assert key is not None, "asked by the caller"
        return key
