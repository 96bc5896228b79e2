"""The fast engine: the decisions of the server functions in plain Python, for scenarios whose rules it supports.

It chooses with `policy.score` and `policy.placement`, like ``lua/matching``, claim by claim and tie by tie: a property
test compares its claims with the exact engine's. It rejects scenarios with other rules (`unknown_rule`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from ..errors import AffinityError, OptionError
from ..options.keys import as_explicit, as_stated, is_rate
from ..policy.score import MICRO, is_by_age
from ..schema.constants import MOST_CHOSEN_FROM, MOST_COMPARED, MOST_MOVES, MOST_OPENED, RATE_PREFIX, TENANT_PREFIX
from ..schema.keys import ALL, OF_TYPE
from ..schema.rules_codec import StatedRate, rate_in
from ..schema.values import encode_part
from ..settings.limits import limit_set, rate_set, typed_limits
from ..settings.table import SHARE
from ..settings.tenants import maximum_of, quotas_in
from ..settings.wire import complete_settings, weights_of
from .fast_engine_state import KeyStates, LaneState, LaneStates, SlotStates
from .scenario import Arrival, Scenario, Schedule, limit_of_key
from .simulation import NEVER, Claimed, Simulation


class BindingKey(NamedTuple):
    """A key, encoded, with the maximum number of jobs that hold it, or that start in a period."""

    name: str
    limit: int | StatedRate


class KeySettings(NamedTuple):
    """The limits of keys in the settings `limits` and `tenants`, in Redis format."""

    limits: str
    tenants: str

    def of(self, arrival: Arrival) -> Sequence[BindingKey]:
        """Return the keys that can block *arrival*. Raises OptionError, which names the job, for an invalid limit."""
        if arrival.exclusive is arrival.rate is arrival.tenant is None:
            return ()
        try:
            return (
                *_exclusive_key(self.limits, arrival.exclusive, arrival.exclusive_limit),
                *_rate_key(self.limits, arrival.rate, arrival.rate_limit),
                *_tenant_key(self.tenants, arrival.tenant),
            )
        except OptionError as exc:
            raise OptionError(f"job {arrival.number} of the trace: {exc}") from exc


@lru_cache(maxsize=100_000)
def _exclusive_key(limits: str, key: str | None, stated: str | None) -> Sequence[BindingKey]:
    if key is None:
        return ()
    limit_in_settings = limit_set(encode_part(key), limits)
    return (BindingKey(encode_part(key), limit_of_key(stated) if limit_in_settings is None else limit_in_settings),)


@lru_cache(maxsize=100_000)
def _rate_key(limits: str, key: str | None, stated: str | None) -> Sequence[BindingKey]:
    if key is None:
        return ()
    name, explicit = RATE_PREFIX + encode_part(key), as_explicit(stated or "")
    rate = rate_in(as_stated(explicit)) if is_rate(explicit) else None
    if rate is None:
        raise OptionError(f"rate_limit must be a whole number above 0 for each s, m or h, got: {explicit!r}")
    return (BindingKey(name, rate_set(name, limits) or rate),)


@lru_cache(maxsize=100_000)
def _tenant_key(tenants: str, name: str | None) -> Sequence[BindingKey]:
    """Return the key of a tenant with a maximum. A tenant without a maximum blocks no jobs."""
    maximum = None if name is None else maximum_of(TENANT_PREFIX + encode_part(name), tenants)
    return () if name is None or maximum is None else (BindingKey(TENANT_PREFIX + encode_part(name), maximum),)


def unknown_rule(scenario: Scenario) -> str | None:
    """Return a sentence about an unsupported rule of *scenario*, or None. Raises OptionError for an invalid limit."""
    settings = complete_settings(scenario.settings)
    if settings["reserve"].strip():
        return _unknown_rule_text("a reserve (the setting 'reserve')")
    if any(quota.min for quota in quotas_in(settings["tenants"]).values()):
        return _unknown_rule_text("a minimum of a tenant (the setting 'tenants')")
    has_shares = settings["tenant_turns"] == SHARE
    keys = KeySettings(settings["limits"], settings["tenants"])
    sublanes: dict[str, set[tuple[str, bool, int]]] = {}
    for arrival in scenario.arrivals:
        if rule := _unknown_rule_of(arrival, has_shares, keys, sublanes):
            return _unknown_rule_text(f"{rule}, which job {arrival.number} has")
    return _too_many_types(scenario)


def _unknown_rule_of(
    arrival: Arrival, has_shares: bool, keys: KeySettings, sublanes: dict[str, set[tuple[str, bool, int]]]
) -> str | None:
    """Return the rule of *arrival* that the fast engine lacks. *sublanes*: key -> lanes of the jobs before."""
    if arrival.merge is not None:
        return "merging"
    if has_shares and arrival.tenant is not None:
        return "a share of a tenant"
    if arrival.exclusive is arrival.rate is arrival.tenant is None:
        return None
    binding = keys.of(arrival)
    if len(binding) > 1:
        return "two keys at once (exclusive, rate, or a tenant with a maximum)"
    for key in binding:
        lanes = sublanes.setdefault(key.name, set())
        lanes.add((arrival.type, arrival.on_demand, arrival.priority))
        if len(lanes) > MOST_OPENED:
            return f"a key with more than {MOST_OPENED} types, modes and priorities"
    return None


def _too_many_types(scenario: Scenario) -> str | None:
    profiles = {frozenset(worker.types) for worker in scenario.workers}
    if any(len(types) > MOST_CHOSEN_FROM for types in profiles):
        return _unknown_rule_text(f"workers that serve more than {MOST_CHOSEN_FROM} types")
    if len(profiles) > MOST_COMPARED:
        return _unknown_rule_text(f"more than {MOST_COMPARED} sets of types that workers serve")
    return None


def _unknown_rule_text(rule: str) -> str:
    return f"the fast engine does not know {rule}: --engine judge schedules this"


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
    reason = unknown_rule(scenario)
    if reason is not None:
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
        self._keys = self._make_keys(scenario, settings, types)
        self._now_us = -NEVER

    def _make_keys(self, scenario: Scenario, settings: Mapping[str, str], types: Sequence[str]) -> KeyStates | None:
        """Return the keys of the jobs, or None if no job has a key, as in most fleets: then no key is checked."""
        key_settings = KeySettings(settings["limits"], settings["tenants"])
        key_of = [next(iter(key_settings.of(arrival)), None) for arrival in scenario.arrivals]
        if not any(key_of):
            return None
        return KeyStates(
            key_of,
            self._lanes,
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
        self._update_rarity(worker)
        return ()

    def arrive(self, position: int, now_us: int) -> Sequence[Claimed]:
        self._now_us = now_us
        if self._keys is not None and self._keys.has_one(position):
            return self._arrive_with_key(self._keys, position, now_us)
        type_ = self._lanes.type_of(position)
        others_wait = self._lanes.waiting[type_]
        if not others_wait and not self._closed[type_] and (worker := self._slots.best(type_)) >= 0:
            self._occupy_slot(worker, type_, now_us)
            return ((worker, (position,)),)
        self._lanes.add(position)
        return ()

    def _arrive_with_key(self, keys: KeyStates, position: int, now_us: int) -> Sequence[Claimed]:
        """Enqueue a job with a key. A requeued job does not change the key's limit, and a tick enqueues it."""
        type_, is_fresh = self._lanes.type_of(position), self._lanes.is_fresh(position, now_us)
        types = set() if is_fresh and self._lanes.waiting[type_] else {type_}
        types |= keys.enter(position, now_us, is_fresh=is_fresh)
        if not any(self._slots.any_free(other) for other in types):
            return ()
        return self._fill_slots(sorted(types), now_us, fresh=position if is_fresh else -1)

    def end(self, worker: int, positions: Sequence[int], now_us: int) -> Sequence[Claimed]:
        self._now_us = now_us
        to_fill: set[int] = set()
        for position in positions:
            type_ = self._lanes.type_of(position)
            if self._count_end(type_):
                to_fill.add(type_)
            if self._keys is not None and self._keys.has_one(position):
                to_fill |= self._keys.free(position, now_us)
        fills_all = any(self._slots.any_free(type_) for type_ in to_fill)  # before the worker's own slots are free
        self._slots.release(worker, len(positions), now_us)
        types = self._slots.types_of(worker)
        if fills_all:
            return self._fill_slots(sorted({*types, *to_fill}), now_us)
        return self._fill_slots(types, now_us, worker) if self._slots.free[worker] > 0 else ()

    def tick(self, now_us: int) -> Sequence[Claimed]:
        if self._keys is None:
            return ()
        self._now_us = now_us
        return self._fill_slots(sorted(self._keys.tick(now_us)), now_us)

    def next_tick_us(self) -> int:
        return NEVER if self._keys is None else max(self._now_us, self._keys.next_due_us())

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
            for _ in range(MOST_MOVES):
                is_choice = is_choice or len(self._lanes.waiting[waiting[0]]) > 1
                lane = self._first_lane(waiting, now_us, is_choice, only_worker)
                if lane is None:
                    return claims
                if fresh >= 0 and self._lanes.first(lane) != fresh:
                    break
                claims.append(self._claim_job(lane, now_us, only_worker))
            types, only_worker, fresh = waiting, -1, -1  # an invocation moves no more jobs; `claim` continues

    def _claim_job(self, lane: LaneState, now_us: int, only_worker: int) -> Claimed:
        worker = only_worker if only_worker >= 0 else self._slots.best(lane.type)
        position = self._lanes.pop(lane)
        self._occupy_slot(worker, lane.type, now_us)
        if self._keys is not None and self._keys.has_one(position):
            self._keys.hold(position, now_us)
        return worker, (position,)

    def _first_lane(self, types: Sequence[int], now_us: int, is_choice: bool, only_worker: int) -> LaneState | None:
        """Return the lane whose head is claimed next, or None if no free slot fits."""
        slots = self._slots
        if only_worker >= 0:
            fitting = list(types) if slots.free[only_worker] > 0 else []
        else:
            fitting = [type_ for type_ in types if self._lanes.waiting[type_] and slots.any_free(type_)]
        fitting = [type_ for type_ in fitting if not self._closed[type_]]
        by_age = is_choice and self._percentage < 100 and is_by_age(self._claim_number, self._percentage)
        lane = self._lanes.oldest(fitting) if by_age else self._lanes.best(fitting, self._rarities(fitting), now_us)
        self._claim_number += is_choice and lane is not None and self._percentage < 100
        return lane

    def _rarities(self, types: Sequence[int]) -> Sequence[int]:
        """Return the rarity of each type in micro-points, by its number."""
        if self._by_free_slots and len(types) > 1:
            for type_ in types:
                self._rarity[type_] = self._rarity_points(self._slots.free_for(type_))
        return self._rarity

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

    def _count_end(self, type_: int) -> bool:
        """Uncount a job of *type_*. Return True if the type is open again."""
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
