"""The slots of the twin: which are free, and which of them a job gets.

The rule is `rules.slot.choose`: the fewest types, then the longest idle, then the smaller id, which is the place in the
scenario. Workers that serve the same types have one profile.
"""

import heapq
from collections.abc import Mapping, Sequence

from .trace import TracedWorker

#: Entries of a heap beyond twice its workers, from which on those that hold no more are thrown away.
_SLACK = 64


class Slots:
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
