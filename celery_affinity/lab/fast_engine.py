"""The fast engine: the decisions of the server functions in plain Python, for scenarios whose rules it supports.

It chooses with `policy.score`, like ``lua/matching``, claim by claim and tie by tie: a property test compares its
claims with the exact engine's. It rejects scenarios with other rules (`unknown_rule`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from ..errors import AffinityError
from ..policy.score import MICRO, is_by_age
from ..schema.constants import MAX_CHOSEN_FROM, MAX_COMPARED, MAX_MOVES, MAX_OPENED
from ..schema.keys import ALL, OF_TYPE
from ..schema.rules_codec import decode_rules
from ..schema.values import encode_part
from ..settings.limits import limit_in_force, typed_limits
from ..settings.table import SHARE
from ..settings.tenants import maximum_of, quotas_in
from ..settings.wire import complete_settings, weights_of
from .fast_engine_state import BindingKey, KeyStates, LaneState, LaneStates, SlotStates
from .head_starts import HeadStarts
from .scenario import Arrival, Scenario, Schedule, closed_keys, rules_text
from .simulation import NEVER, Claimed, Simulation


def binding_keys(arrival: Arrival, settings: Mapping[str, str]) -> tuple[BindingKey, ...]:
    """Return the keys that can block *arrival*. Raises OptionError, which names the job, for an invalid limit.

    A tenant without a maximum blocks no jobs.
    """
    if arrival.exclusive is arrival.rate is arrival.tenant is None:
        return ()
    limits = " ".join([settings["limits"], *closed_keys([arrival])])
    return _binding_keys(rules_text(arrival), limits, settings["tenants"])


@lru_cache(maxsize=100_000)
def _binding_keys(rules: str, limits: str, tenants: str) -> tuple[BindingKey, ...]:
    in_force = [
        (key.key, maximum_of(key.key, tenants) if key.is_of_tenant else limit_in_force(key, limits))
        for key in decode_rules(rules).keys
    ]
    return tuple((name, limit) for name, limit in in_force if limit is not None)


def unknown_rule(scenario: Scenario) -> str | None:
    """Return a sentence about an unsupported rule of *scenario*, or None. Raises OptionError for an invalid limit."""
    settings = complete_settings(scenario.settings)
    profiles = {frozenset(worker.types) for worker in scenario.workers}
    rule: str | None = None
    if settings["reserve"].strip():
        rule = "a reserve (the setting 'reserve')"
    elif any(quota.min for quota in quotas_in(settings["tenants"]).values()):
        rule = "a minimum of a tenant (the setting 'tenants')"
    elif of_job := _unknown_rule_of_jobs(scenario.arrivals, settings):
        rule = of_job
    elif any(len(types) > MAX_CHOSEN_FROM for types in profiles):
        rule = f"workers that serve more than {MAX_CHOSEN_FROM} types"
    elif len(profiles) > MAX_COMPARED:
        rule = f"more than {MAX_COMPARED} sets of types that workers serve"
    return rule and f"the fast engine does not know {rule}: --engine judge schedules this"


def _unknown_rule_of_jobs(arrivals: Iterable[Arrival], settings: Mapping[str, str]) -> str | None:
    has_shares = settings["tenant_turns"] == SHARE
    sublanes: dict[str, set[tuple[str, bool, int]]] = {}  # key -> lanes of its jobs so far
    for arrival in arrivals:
        has = f", which job {arrival.number} has"
        if arrival.merge is not None:
            return f"merging{has}"
        if has_shares and arrival.tenant is not None:
            return f"a share of a tenant{has}"
        keys = binding_keys(arrival, settings)
        if len(keys) > 1:
            return f"two keys at once (exclusive, rate, or a tenant with a maximum){has}"
        for name, _ in keys:
            lanes = sublanes.setdefault(name, set())
            lanes.add((arrival.type, arrival.on_demand, arrival.priority))
            if len(lanes) > MAX_OPENED:
                return f"a key with more than {MAX_OPENED} types, modes and priorities{has}"
    return None


def limits_of_types(text: str) -> Mapping[str, int]:
    """Return the limits of types in the setting ``limits`` in Redis format."""
    limits = typed_limits(text) or {}
    return {
        pattern.removeprefix(OF_TYPE): limit
        for pattern, limit in limits.items()
        if pattern.startswith(OF_TYPE) and isinstance(limit, int)
    }


class UnknownRuleError(AffinityError):
    """A scenario has a rule that the fast engine lacks: it needs the exact engine."""


def schedule_fast(scenario: Scenario, progress: Iterable[object] | None = None) -> Schedule:
    """Return the schedule of *scenario*. *progress*: stepped per arriving job.

    Raises UnknownRuleError, which names the rule, if the scenario has a rule that the fast engine lacks.
    """
    if reason := unknown_rule(scenario):
        raise UnknownRuleError(reason)
    return Simulation(scenario, FastEngine(scenario)).run(progress)


class FastEngine:
    """A `SimulatedFleet`. Types and workers are indexes in lists."""

    def __init__(self, scenario: Scenario) -> None:
        types = sorted(
            {
                *(arrival.type for arrival in scenario.arrivals),
                *(type_ for worker in scenario.workers for type_ in worker.types),
            }
        )
        number_of = {type_: number for number, type_ in enumerate(types)}
        settings = complete_settings(scenario.settings)
        self._types = types
        self._arrivals, self.head_starts = scenario.arrivals, HeadStarts(scenario)
        self._weights = weights_of(settings)
        self._percentage = int(settings["priority_percentage"])
        self._claim_number = 0
        self._lanes = LaneStates(scenario.arrivals, number_of, self._weights)
        self._slots = SlotStates(scenario.workers, number_of)
        self._by_free_slots = settings["rarity"] == "free"
        self._limits = [limits_of_types(settings["limits"]).get(type_) for type_ in types]
        self._paused = [not {type_, ALL}.isdisjoint(scenario.paused) for type_ in types]
        self._running = [0] * len(types)
        self._is_in_force = False
        self._closed = [False] * len(types)
        self._rarity = [0] * len(types)
        self._now_us = -NEVER
        self._keys = KeyStates(
            [next(iter(binding_keys(arrival, settings)), None) for arrival in scenario.arrivals],
            self._lanes,
            tasks=[arrival.task for arrival in scenario.arrivals],
            patience_us=int(settings["key_patience_us"]),
            names=[encode_part(type_) for type_ in types],
            may_have_turn=lambda type_: self._slots.capacity[type_] > 0 and not self._closed[type_],
        )

    def enforce(self) -> None:
        self._is_in_force = True
        self._closed = [self._is_closed(type_) for type_ in range(len(self._closed))]

    def join(self, worker: int, now_us: int) -> Sequence[Claimed]:
        self._now_us = now_us
        self._slots.join(worker, now_us)
        self._update_rarity(worker)
        return self._fill_slots(self._slots.types_of(worker), now_us)

    def drain(self, worker: int, now_us: int) -> None:
        self._now_us = now_us
        self._slots.drain(worker, now_us)

    def leave(self, worker: int, now_us: int) -> Sequence[Claimed]:
        self._slots.leave(worker)
        for type_ in self._slots.types_of(worker) if self.head_starts.learns else ():
            if not self._slots.capacity[type_]:
                self.head_starts.forget(self._types[type_])
        self._update_rarity(worker)
        return ()

    def arrive(self, position: int, now_us: int) -> Sequence[Claimed]:
        self._now_us = now_us
        type_ = self._lanes.lane_of[position].type
        if self.head_starts.are_possible and (head_us := self.head_starts.begin(self._arrivals[position])):
            self._lanes.put_ahead(position, head_us)
        others_wait = self._lanes.waiting[type_]
        if self._keys.key_of[position] is not None:
            # A requeued job does not change the key's limit, and a tick enqueues it.
            is_fresh = self._lanes.is_fresh(position, now_us)
            types = set() if is_fresh and others_wait else {type_}
            types |= self._keys.enter(position, now_us, is_fresh=is_fresh)
            if not any(self._slots.any_free(other) for other in types):
                return ()
            return self._fill_slots(sorted(types), now_us, fresh=position if is_fresh else -1)
        if not others_wait and not self._closed[type_] and (worker := self._slots.best(type_)) >= 0:
            self._occupy_slot(worker, type_, now_us)
            return ((worker, (position,)),)
        self._lanes.put(self._lanes.lane_of[position], self._lanes.rank_of(position))
        return ()

    def end(self, worker: int, positions: Sequence[int], now_us: int) -> Sequence[Claimed]:
        self._now_us = now_us
        to_fill: set[int] = set()
        for position in positions:
            type_ = self._lanes.lane_of[position].type
            if self.head_starts.learns:
                self.head_starts.learn(self._arrivals[position])
            if self._limits[type_] is not None:
                was_closed = self._closed[type_]
                self._running[type_] -= 1
                self._closed[type_] = self._is_closed(type_)
                to_fill |= {type_} if was_closed and not self._closed[type_] else set()
            if self._keys.key_of[position] is not None:
                to_fill |= self._keys.free(position, now_us)
        fills_all = any(self._slots.any_free(type_) for type_ in to_fill)  # before the worker's own slots are free
        self._slots.release(worker, len(positions), now_us)
        types = self._slots.types_of(worker)
        if fills_all:
            return self._fill_slots(sorted({*types, *to_fill}), now_us)
        return self._fill_slots(types, now_us, worker) if self._slots.free[worker] > 0 else ()

    def tick(self, now_us: int) -> Sequence[Claimed]:
        self._now_us = now_us
        return self._fill_slots(sorted(self._keys.tick(now_us)), now_us)

    def next_tick_us(self) -> int:
        return max(self._now_us, self._keys.next_due_us())

    def _fill_slots(
        self, types: Sequence[int], now_us: int, only_worker: int = -1, fresh: int = -1
    ) -> Sequence[Claimed]:
        """Claim waiting jobs of *types* until no free slot fits: slots of *only_worker*, or all slots (-1).

        *fresh*: position of the only job that a publish can place; other jobs are left to another invocation.
        """
        claims: list[Claimed] = []
        while True:
            waiting = [type_ for type_ in types if self._lanes.waiting[type_] and not self._closed[type_]]
            if not waiting:
                return claims
            is_choice = len(waiting) > 1
            for _ in range(MAX_MOVES):
                is_choice = is_choice or len(self._lanes.waiting[waiting[0]]) > 1
                lane = self._first_lane(waiting, now_us, is_choice, only_worker)
                if lane is None:
                    return claims
                if fresh >= 0 and self._lanes.first(lane) != fresh:
                    break
                worker = only_worker if only_worker >= 0 else self._slots.best(lane.type)
                position = self._lanes.pop(lane)
                self._occupy_slot(worker, lane.type, now_us)
                if self._keys.key_of[position] is not None:
                    self._keys.hold(position, now_us)
                claims.append((worker, (position,)))
            types, only_worker, fresh = waiting, -1, -1  # an invocation moves no more jobs; `claim` continues

    def _first_lane(self, types: Sequence[int], now_us: int, is_choice: bool, only_worker: int) -> LaneState | None:
        """Return the lane whose head is claimed next, or None if no free slot fits."""
        slots = self._slots
        if only_worker >= 0:
            fitting = list(types) if slots.free[only_worker] > 0 else []
        else:
            fitting = [type_ for type_ in types if self._lanes.waiting[type_] and slots.any_free(type_)]
        fitting = [type_ for type_ in fitting if not self._closed[type_]]
        if self._by_free_slots and len(fitting) > 1:
            for type_ in fitting:
                self._rarity[type_] = self._rarity_points(self._slots.free_for(type_))
        by_age = is_choice and self._percentage < 100 and is_by_age(self._claim_number, self._percentage)
        lane = self._lanes.oldest(fitting) if by_age else self._lanes.best(fitting, self._rarity, now_us)
        self._claim_number += is_choice and lane is not None and self._percentage < 100
        return lane

    def _rarity_points(self, slots_that_fit: int) -> int:
        return math.floor(self._weights.rarity * MICRO / slots_that_fit) if slots_that_fit else 0

    def _update_rarity(self, worker: int) -> None:
        for type_ in self._slots.types_of(worker):
            self._rarity[type_] = self._rarity_points(self._slots.capacity[type_])

    def _occupy_slot(self, worker: int, type_: int, now_us: int) -> None:
        self._slots.occupy(worker, now_us)
        if self._limits[type_] is not None:
            self._running[type_] += 1
            self._closed[type_] = self._is_closed(type_)

    def _is_closed(self, type_: int) -> bool:
        limit = self._limits[type_]
        is_full = limit is not None and self._running[type_] >= limit
        return self._is_in_force and (self._paused[type_] or is_full)
