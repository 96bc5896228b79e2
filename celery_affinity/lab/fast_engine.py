"""The keys of a job that may keep it back, with their limits: those of settings, or else those that its task states.

What the twin knows of a scenario's rules, and what it leaves to the judge.

The fast engine: the decisions of the arrows in plain Python, for scenarios whose rules it knows.

It chooses by `rules.score` and `rules.slot`, as ``lua/placing`` does, claim by claim and tie by tie: a property of the
tests compares its claims with those of the `judge`. What it does not know it refuses (`known_rules`).
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
    """A key, encoded, and how many jobs may hold it, or start in a period."""

    name: str
    limit: int | StatedRate


class KeySettings(NamedTuple):
    """What the settings `limits` and `tenants`, as Redis has them, say of keys."""

    limits: str
    tenants: str

    def of(self, arrival: Arrival) -> Sequence[BindingKey]:
        """Return the keys that may keep *arrival* back. Raises OptionError, which names the job, for a bad limit."""
        if arrival.exclusive is arrival.rate is arrival.tenant is None:
            return ()
        try:
            return (
                *_exclusive(self.limits, arrival.exclusive, arrival.exclusive_limit),
                *_rate(self.limits, arrival.rate, arrival.rate_limit),
                *_tenant(self.tenants, arrival.tenant),
            )
        except OptionError as exc:
            raise OptionError(f"job {arrival.number} of the trace: {exc}") from exc


@lru_cache(maxsize=100_000)
def _exclusive(limits: str, key: str | None, stated: str | None) -> Sequence[BindingKey]:
    if key is None:
        return ()
    given = limit_set(encode_part(key), limits)
    return (BindingKey(encode_part(key), limit_of_key(stated) if given is None else given),)


@lru_cache(maxsize=100_000)
def _rate(limits: str, key: str | None, stated: str | None) -> Sequence[BindingKey]:
    if key is None:
        return ()
    name, said = RATE_PREFIX + encode_part(key), as_explicit(stated or "")
    rate = rate_in(as_stated(said)) if is_rate(said) else None
    if rate is None:
        raise OptionError(f"rate_limit must be a whole number above 0 for each s, m or h, got: {said!r}")
    return (BindingKey(name, rate_set(name, limits) or rate),)


@lru_cache(maxsize=100_000)
def _tenant(tenants: str, name: str | None) -> Sequence[BindingKey]:
    """Return the key of a tenant with a maximum: one without keeps nobody back."""
    most = None if name is None else maximum_of(TENANT_PREFIX + encode_part(name), tenants)
    return () if name is None or most is None else (BindingKey(TENANT_PREFIX + encode_part(name), most),)


def unknown_rule(scenario: Scenario) -> str | None:
    """Return a sentence that names a rule of *scenario* which the twin does not know; None if it knows all.

    Raises OptionError for a job whose limit or rate is none.
    """
    settings = complete_settings(scenario.settings)
    if settings["reserve"].strip():
        return _sentence("a reserve (the setting 'reserve')")
    if any(quota.min for quota in quotas_in(settings["tenants"]).values()):
        return _sentence("a minimum of a tenant (the setting 'tenants')")
    has_shares = settings["tenant_turns"] == SHARE
    keys = KeySettings(settings["limits"], settings["tenants"])
    sublanes: dict[str, set[tuple[str, bool, int]]] = {}
    for arrival in scenario.arrivals:
        if rule := _rule_of(arrival, has_shares, keys, sublanes):
            return _sentence(f"{rule}, which job {arrival.number} has")
    return _too_wide(scenario)


def _rule_of(
    arrival: Arrival, has_shares: bool, keys: KeySettings, sublanes: dict[str, set[tuple[str, bool, int]]]
) -> str | None:
    """Return the rule of *arrival* that the twin does not know. *sublanes*: of each key, the lanes of those before."""
    if arrival.merge is not None:
        return "merging"
    if has_shares and arrival.tenant is not None:
        return "a share of a tenant"
    if arrival.exclusive is arrival.rate is arrival.tenant is None:
        return None
    found = keys.of(arrival)
    if len(found) > 1:
        return "two keys at once (exclusive, rate, or a tenant with a maximum)"
    for each in found:
        its = sublanes.setdefault(each.name, set())
        its.add((arrival.type, arrival.on_demand, arrival.priority))
        if len(its) > MOST_OPENED:
            return f"a key with more than {MOST_OPENED} types, modes and priorities"
    return None


def _too_wide(scenario: Scenario) -> str | None:
    profiles = {frozenset(each.types) for each in scenario.workers}
    if any(len(types) > MOST_CHOSEN_FROM for types in profiles):
        return _sentence(f"workers that serve more than {MOST_CHOSEN_FROM} types")
    if len(profiles) > MOST_COMPARED:
        return _sentence(f"more than {MOST_COMPARED} sets of types that workers serve")
    return None


def _sentence(rule: str) -> str:
    return f"the fast engine does not know {rule}: --engine judge schedules this"


def limits_of_types(text: str) -> Mapping[str, int]:
    """Return the limits of types that the setting ``limits``, as Redis has it, says."""
    limits = typed_limits(text) or {}
    return {
        pattern.removeprefix(OF_TYPE): limit
        for pattern, limit in limits.items()
        if pattern.startswith(OF_TYPE) and isinstance(limit, int)
    }


class UnknownRuleError(AffinityError):
    """A scenario has a rule that the twin does not know: the judge has to schedule it."""


def schedule_fast(scenario: Scenario, progress: Iterable[object] | None = None) -> Schedule:
    """Return what comes of *scenario*. *progress*: stepped for each job that arrives.

    Raises UnknownRuleError, which names the rule, if the scenario has one that the twin does not know.
    """
    reason = unknown_rule(scenario)
    if reason is not None:
        raise UnknownRuleError(reason)
    return Simulation(scenario, FastEngine(scenario)).run(progress)


class FastEngine:
    """A fleet, as `Timeline` asks it. Types and workers are numbers: places in a list."""

    def __init__(self, scenario: Scenario) -> None:
        types = sorted({*(each.type for each in scenario.arrivals), *(t for w in scenario.workers for t in w.types)})
        number_of = {type_: nth for nth, type_ in enumerate(types)}
        found = complete_settings(scenario.settings)
        self._weights = weights_of(found)
        self._percentage = int(found["priority_percentage"])
        self._claim_number = 0
        self._lanes = LaneStates(scenario.arrivals, number_of, self._weights)
        self._slots = SlotStates(scenario.workers, number_of)
        self._by_free_slots = found["rarity"] == "free"
        self._limits = [limits_of_types(found["limits"]).get(type_) for type_ in types]
        self._paused = [not {type_, ALL}.isdisjoint(scenario.paused) for type_ in types]
        self._running = [0] * len(types)
        self._is_in_force = False
        self._closed = [False] * len(types)
        self._rarity = [0] * len(types)
        self._keys = self._keys_of(scenario, found, types)
        self._now_us = -NEVER

    def _keys_of(self, scenario: Scenario, settings: Mapping[str, str], types: Sequence[str]) -> KeyStates | None:
        """Return the keys of the jobs; None if no job has one: most fleets have none, and then none is asked for."""
        said = KeySettings(settings["limits"], settings["tenants"])
        key_of = [next(iter(said.of(each)), None) for each in scenario.arrivals]
        if not any(key_of):
            return None
        return KeyStates(
            key_of,
            self._lanes,
            patience_us=int(settings["key_patience_us"]),
            names=[encode_part(type_) for type_ in types],
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

    def _arrive_with_key(self, keys: KeyStates, position: int, now_us: int) -> Sequence[Claimed]:
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

    def _claim(self, lane: LaneState, now_us: int, alone: int) -> Claimed:
        worker = alone if alone >= 0 else self._slots.best(lane.type)
        position = self._lanes.pop(lane)
        self._occupy(worker, lane.type, now_us)
        if self._keys is not None and self._keys.has_one(position):
            self._keys.hold(position, now_us)
        return worker, (position,)

    def _first(self, types: Sequence[int], now_us: int, counts: bool, alone: int) -> LaneState | None:
        """Return the lane whose first job goes first of those that a free slot fits; None if none does."""
        slots = self._slots
        if alone >= 0:
            fitting = list(types) if slots.free[alone] > 0 else []
        else:
            fitting = [type_ for type_ in types if self._lanes.waiting[type_] and slots.any_free(type_)]
        fitting = [type_ for type_ in fitting if not self._closed[type_]]
        by_age = counts and self._percentage < 100 and is_by_age(self._claim_number, self._percentage)
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
