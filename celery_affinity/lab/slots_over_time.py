"""Slots by profile over time: what a bound may count on, whatever a schedule does."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .scenario import Arrival
from .trace import TracedWorker

Numbers = NDArray[np.float64]
Profile = frozenset[str]


@dataclass(frozen=True)
class Open:
    """*slots* of a profile that may do work from *from_us* until *until_us* (None: for ever)."""

    profile: Profile
    slots: int
    from_us: int
    until_us: int | None


def slot_s(slots: Iterable[Open], profile: Profile, edges_s: Numbers) -> Numbers:
    """Return how much work, s of one slot, the slots of *profile* can do in each bin between *edges_s*."""
    total = np.zeros(len(edges_s) - 1)
    for each in slots:
        if each.profile == profile:
            until_s = edges_s[1:] if each.until_us is None else np.minimum(edges_s[1:], each.until_us / 1e6)
            total += each.slots * np.maximum(0.0, until_s - np.maximum(edges_s[:-1], each.from_us / 1e6))
    return total


def open_slots(workers: Sequence[TracedWorker], arrivals: Iterable[Arrival]) -> list[Open]:
    """Return the slots of *workers* that can do work of *arrivals*, each with the types of these alone.

    A worker that leaves takes no more jobs, and those that it has may end later: its slots count for the length of the
    longest job that they serve, beyond the time at which it left. That is more than it could do, never less.
    """
    longest: dict[str, int] = {}
    for each in arrivals:
        longest[each.type] = max(longest.get(each.type, 0), each.took_us)
    found: dict[tuple[Profile, int, int | None], int] = {}
    for worker in workers:
        profile = frozenset(worker.types).intersection(longest)
        if not profile or worker.slots <= 0:
            continue
        until_us = None if worker.left_us is None else worker.left_us + max(longest[each] for each in profile)
        key = (profile, max(0, worker.joined_us), until_us)
        found[key] = found.get(key, 0) + worker.slots
    return [Open(profile, slots, from_us, until_us) for (profile, from_us, until_us), slots in found.items()]
