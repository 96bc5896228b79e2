"""A lower bound by one fast slot: quick, and exact in time, so that it stands where a linear program gets too large.

All slots that serve a group of types are taken as one slot of as many times their speed, which may interrupt a job and
may give it all of its speed. docs/internals/optimum.md proves the bound.
"""

import heapq
import math
from collections.abc import Collection, Iterable, Sequence

from .scenario import Arrival
from .slots_over_time import Open
from .weighing import Weight, since_us


def weighted_wait_us(arrivals: Sequence[Arrival], slots: Sequence[Open], weight: Weight) -> float:
    """Return a number that the sum of the weighted waits, µs, of *arrivals* is never below, in any schedule.

    Of two ways to group the types the better one counts: each type for itself, or all that share slots together.
    """
    types = {each.type for each in arrivals}
    groupings = ([{each} for each in sorted(types)], _that_share_slots(types, slots))
    return max(
        sum(
            _of_group(
                [job for job in arrivals if job.type in group], [each for each in slots if each.profile & group], weight
            )
            for group in groups
        )
        for groups in groupings
    )


def of_keys_us(arrivals: Sequence[Arrival], weight: Weight) -> float:
    """Return the same for the jobs of exclusive keys, by the limits of these: the limit of a key is as many slots."""
    by_key: dict[str, list[Arrival]] = {}
    for each in arrivals:
        if each.exclusive is not None:
            by_key.setdefault(each.exclusive, []).append(each)
    # Jobs of a key may state different limits: the highest is the one that no schedule exceeds.
    limits = {key: max(int(job.exclusive_limit or 1) for job in jobs) for key, jobs in by_key.items()}
    return sum(_of_group(jobs, [Open(frozenset(), limits[key], 0, None)], weight) for key, jobs in by_key.items())


def _that_share_slots(types: Iterable[str], slots: Iterable[Open]) -> list[set[str]]:
    groups = [{each} for each in sorted(types)]
    for each in slots:
        joined = [group for group in groups if group & each.profile]
        if len(joined) > 1:
            groups = [group for group in groups if group not in joined] + [set().union(*joined)]
    return groups


def _of_group(jobs: Sequence[Arrival], slots: Collection[Open], weight: Weight) -> float:
    """Return the bound of jobs on slots: shortest weighted time first, with interruptions, on one fast slot.

    The sums of its busy periods count where they are above 0: they have no work in common, and no wait is below 0.
    """
    total = period = speed = now_us = 0.0
    coming = sorted(((since_us(job), job.took_us, weight(job)) for job in jobs if job.took_us > 0), reverse=True)
    changes = _changes(slots)
    ready: list[tuple[float, float, float, float]] = []  # time by weight; time, weight, work left
    while ready or coming:
        if not ready:
            total, period = total + max(0.0, period), 0.0
            now_us = max(now_us, coming[-1][0])
        while coming and coming[-1][0] <= now_us:
            since, took, weighs = coming.pop()
            heapq.heappush(ready, (took / weighs, took, weighs, took))
            # Wait of a run = middle of its work - half of its length - arrival; the middle is added piece by piece.
            period -= weighs * (took / 2 + since)
        while changes and changes[-1][0] <= now_us:
            speed += changes.pop()[1]
        until_us = min(coming[-1][0] if coming else math.inf, changes[-1][0] if changes else math.inf)
        if speed:
            ends_us, done = _first_works(ready, now_us, until_us, speed)
            period += done * (now_us + ends_us) / 2
            now_us = ends_us
        elif until_us == math.inf:
            break  # no slot is left for what waits: no schedule runs it
        else:
            now_us = until_us
    return total + max(0.0, period)


def _changes(slots: Iterable[Open]) -> list[tuple[float, int]]:
    """Return when the number of slots changes, and by how much; the first change last."""
    opened = [(float(each.from_us), each.slots) for each in slots]
    closed = [(float(each.until_us), -each.slots) for each in slots if each.until_us is not None]
    return sorted(opened + closed, reverse=True)


def _first_works(
    ready: list[tuple[float, float, float, float]], now_us: float, until_us: float, speed: float
) -> tuple[float, float]:
    """Let the first job of *ready* work until it ends, at the latest *until_us*; return when, and its work by ratio."""
    ratio, took, weighs, left = ready[0]
    ends_us = now_us + left / speed
    if ends_us <= until_us:
        heapq.heappop(ready)
        return ends_us, left / ratio
    done = min(left, (until_us - now_us) * speed)
    heapq.heapreplace(ready, (ratio, took, weighs, left - done))
    return until_us, done / ratio
