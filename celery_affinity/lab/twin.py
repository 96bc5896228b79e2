"""The fast engine: the decisions of the arrows in plain Python, for scenarios whose rules it knows.

It chooses by `rules.score` and `rules.slot`, as ``lua/placing`` does, claim by claim and tie by tie: a property of the
tests compares its claims with those of the `judge`. What it does not know it refuses (`known_rules`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from ..errors import AffinityError
from ..rules.addresses import ALL
from ..rules.encoding import encode
from ..rules.protocol import MOST_MOVES
from ..rules.score import MICRO, goes_by_age
from ..rules.shared_settings import complete, weights
from .binding_keys import KeySettings
from .known_rules import limits_of_types, unknown_rule
from .scenario import Scenario
from .schedule import Schedule
from .timeline import NEVER, Claimed, Timeline
from .twin_keys import TwinKeys
from .twin_lanes import Lanes, TwinLane
from .twin_slots import Slots


class UnknownRuleError(AffinityError):
    """A scenario has a rule that the twin does not know: the judge has to schedule it."""


def schedule(scenario: Scenario, progress: Iterable[object] | None = None) -> Schedule:
    """Return what comes of *scenario*. *progress*: stepped for each job that arrives.

    Raises UnknownRuleError, which names the rule, if the scenario has one that the twin does not know.
    """
    reason = unknown_rule(scenario)
    if reason is not None:
        raise UnknownRuleError(reason)
    return Timeline(scenario, Twin(scenario)).run(progress)


class Twin:
    """A fleet, as `Timeline` asks it. Types and workers are numbers: places in a list."""

    def __init__(self, scenario: Scenario) -> None:
        types = sorted({*(each.type for each in scenario.arrivals), *(t for w in scenario.workers for t in w.types)})
        number_of = {type_: nth for nth, type_ in enumerate(types)}
        found = complete(scenario.settings)
        self._weights = weights(found)
        self._percentage = int(found["priority_percentage"])
        self._claim_number = 0
        self._lanes = Lanes(scenario.arrivals, number_of, self._weights)
        self._slots = Slots(scenario.workers, number_of)
        self._by_free_slots = found["rarity"] == "free"
        self._limits = [limits_of_types(found["limits"]).get(type_) for type_ in types]
        self._paused = [not {type_, ALL}.isdisjoint(scenario.paused) for type_ in types]
        self._running = [0] * len(types)
        self._is_in_force = False
        self._closed = [False] * len(types)
        self._rarity = [0] * len(types)
        self._keys = self._keys_of(scenario, found, types)
        self._now_us = -NEVER

    def _keys_of(self, scenario: Scenario, settings: Mapping[str, str], types: Sequence[str]) -> TwinKeys | None:
        """Return the keys of the jobs; None if no job has one: most fleets have none, and then none is asked for."""
        said = KeySettings(settings["limits"], settings["tenants"])
        key_of = [next(iter(said.of(each)), None) for each in scenario.arrivals]
        if not any(key_of):
            return None
        return TwinKeys(
            key_of,
            self._lanes,
            patience_us=int(settings["key_patience_us"]),
            names=[encode(type_) for type_ in types],
            may_have_turn=lambda type_: self._slots.capacity[type_] > 0 and not self._closed[type_],
        )

    # -- what happens

    def enforce(self) -> None:
        self._is_in_force = True
        self._closed = [self._is_closed(type_) for type_ in range(len(self._closed))]

    def join(self, worker: int, now_us: int) -> Sequence[Claimed]:
        self._now_us = now_us
        self._slots.join(worker, now_us)
        self._weigh(worker)
        return self._fill(self._slots.types_of(worker), now_us)

    def drain(self, worker: int, now_us: int) -> None:
        self._now_us = now_us
        self._slots.drain(worker, now_us)

    def leave(self, worker: int, now_us: int) -> Sequence[Claimed]:
        self._slots.leave(worker)
        self._weigh(worker)
        return ()

    def arrive(self, position: int, now_us: int) -> Sequence[Claimed]:
        self._now_us = now_us
        if self._keys is not None and self._keys.has_one(position):
            return self._arrive_with_key(self._keys, position, now_us)
        type_ = self._lanes.type_of(position)
        others_wait = self._lanes.waiting[type_]
        if not others_wait and not self._closed[type_] and (worker := self._slots.best(type_)) >= 0:
            self._occupy(worker, type_, now_us)
            return ((worker, (position,)),)
        self._lanes.add(position)
        return ()

    def _arrive_with_key(self, keys: TwinKeys, position: int, now_us: int) -> Sequence[Claimed]:
        """A job that came back is fresh no more: its key is as others have said since, and a tick has it wait."""
        type_, is_fresh = self._lanes.type_of(position), self._lanes.is_fresh(position, now_us)
        types = set() if is_fresh and self._lanes.waiting[type_] else {type_}
        types |= keys.enter(position, now_us, is_fresh=is_fresh)
        if not any(self._slots.any_free(each) for each in types):
            return ()
        return self._fill(sorted(types), now_us, fresh=position if is_fresh else -1)

    def end(self, worker: int, positions: Sequence[int], now_us: int) -> Sequence[Claimed]:
        self._now_us = now_us
        to_fill: set[int] = set()
        for position in positions:
            type_ = self._lanes.type_of(position)
            if self._count_end(type_):
                to_fill.add(type_)
            if self._keys is not None and self._keys.has_one(position):
                to_fill |= self._keys.free(position, now_us)
        of_all = any(self._slots.any_free(each) for each in to_fill)  # before the worker's own slots are free
        self._slots.release(worker, len(positions), now_us)
        types = self._slots.types_of(worker)
        if of_all:
            return self._fill(sorted({*types, *to_fill}), now_us)
        return self._fill(types, now_us, worker) if self._slots.free[worker] > 0 else ()

    def tick(self, now_us: int) -> Sequence[Claimed]:
        if self._keys is None:
            return ()
        self._now_us = now_us
        return self._fill(sorted(self._keys.tick(now_us)), now_us)

    def next_tick_us(self) -> int:
        return NEVER if self._keys is None else max(self._now_us, self._keys.next_due_us())

    # -- the choice

    def _fill(self, types: Sequence[int], now_us: int, alone: int = -1, fresh: int = -1) -> Sequence[Claimed]:
        """Give waiting jobs of *types* free slots until none fits: those of the worker *alone*, or all (-1).

        *fresh*: the position of the one job that a publish may place; it leaves others to a further call.
        """
        claims: list[Claimed] = []
        while True:
            waiting = [type_ for type_ in types if self._lanes.waiting[type_] and not self._closed[type_]]
            if not waiting:
                return claims
            counts = len(waiting) > 1
            for _ in range(MOST_MOVES):
                counts = counts or len(self._lanes.waiting[waiting[0]]) > 1
                lane = self._first(waiting, now_us, counts, alone)
                if lane is None:
                    return claims
                if fresh >= 0 and self._lanes.first(lane) != fresh:
                    break
                claims.append(self._claim(lane, now_us, alone))
            types, alone, fresh = waiting, -1, -1  # a call of an arrow moves no more: `claim` goes on

    def _claim(self, lane: TwinLane, now_us: int, alone: int) -> Claimed:
        worker = alone if alone >= 0 else self._slots.best(lane.type)
        position = self._lanes.pop(lane)
        self._occupy(worker, lane.type, now_us)
        if self._keys is not None and self._keys.has_one(position):
            self._keys.hold(position, now_us)
        return worker, (position,)

    def _first(self, types: Sequence[int], now_us: int, counts: bool, alone: int) -> TwinLane | None:
        """Return the lane whose first job goes first of those that a free slot fits; None if none does."""
        slots = self._slots
        if alone >= 0:
            fitting = list(types) if slots.free[alone] > 0 else []
        else:
            fitting = [type_ for type_ in types if self._lanes.waiting[type_] and slots.any_free(type_)]
        fitting = [type_ for type_ in fitting if not self._closed[type_]]
        by_age = counts and self._percentage < 100 and goes_by_age(self._claim_number, self._percentage)
        lane = self._lanes.oldest(fitting) if by_age else self._lanes.best(fitting, self._rarities(fitting), now_us)
        self._claim_number += counts and lane is not None and self._percentage < 100
        return lane

    def _rarities(self, types: Sequence[int]) -> Sequence[int]:
        """Return the points of rarity of each type, in micro-points, by its number."""
        if self._by_free_slots and len(types) > 1:
            for type_ in types:
                self._rarity[type_] = self._points_of(self._slots.free_for(type_))
        return self._rarity

    def _points_of(self, slots_that_fit: int) -> int:
        return math.floor(self._weights.rarity * MICRO / slots_that_fit) if slots_that_fit else 0

    def _weigh(self, worker: int) -> None:
        for type_ in self._slots.types_of(worker):
            self._rarity[type_] = self._points_of(self._slots.capacity[type_])

    # -- limits of types

    def _occupy(self, worker: int, type_: int, now_us: int) -> None:
        self._slots.occupy(worker, now_us)
        if self._limits[type_] is not None:
            self._running[type_] += 1
            self._closed[type_] = self._is_closed(type_)

    def _count_end(self, type_: int) -> bool:
        """Count a job of *type_* no more. Return whether jobs of the type may start that could not."""
        if self._limits[type_] is None:
            return False
        was_closed = self._closed[type_]
        self._running[type_] -= 1
        self._closed[type_] = self._is_closed(type_)
        return was_closed and not self._closed[type_]

    def _is_closed(self, type_: int) -> bool:
        if not self._is_in_force:
            return False
        limit = self._limits[type_]
        return self._paused[type_] or (limit is not None and self._running[type_] >= limit)
