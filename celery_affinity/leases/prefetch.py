"""Jobs that a worker prefetches beyond its slots (`affinity_lookahead`), for tasks shorter than a round trip.

Prefetched jobs wait in the worker's memory, unknown to the pool, and start when a slot is free. The server requests
them back when another worker is idle, or when an on-demand job waits.
"""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Collection
from itertools import islice

from ..clock import SECOND_US
from ..policy.slot_math import NOTHING, PrefetchLimit
from ..scheduler.messages import Claim
from ..settings.table import AUTO
from .held_claim import WorkerLoop

#: Seconds within which a prefetched job should start. Jobs that cannot are returned to other workers.
STARTS_WITHIN_S = 0.5

#: Maximum number of seconds for which ends are batched while there are jobs to start.
_MAX_ENDS_WAIT_S = 0.01

#: Weight of the latest task, or of the latest start, in a moving average.
_LATEST_WEIGHT = 1 / 8

#: Maximum number of types with a known average duration, the most recently ended ones.
_MAX_TYPES = 20

#: Minimum expected duration of a job in seconds.
_MIN_DURATION_S = 0.00005


class Prefetch:
    """The prefetched jobs in fencing-token order, each with its delivery tag.

    *most* is the maximum number of jobs. With `AUTO`, the worker prefetches as many as are expected to keep all slots
    busy for *work_s* seconds. The expected cost of a job is its type's average duration divided by the number of slots,
    or the time between two starts if that is longer. A job is not prefetched if it would take longer than *work_s*, or
    if its type has no average yet.

    Any thread can call `add`, `note_length` and `forget`. The other methods are for the event loop.
    """

    def __init__(self, most: int | str, work_s: float) -> None:
        self._max_count, self._work_s = most, work_s
        self._waiting: deque[tuple[Claim, str, float]] = deque()
        self._lock = threading.RLock()  # reentrant: see `claims`
        self._average_s = 0.0
        self._averages_s: OrderedDict[str, float] = OrderedDict()
        self._between_starts_s = 0.0
        self._last_start_s: float | None = None
        self._ends_wait_since_s: float | None = None

    @property
    def is_off(self) -> bool:
        return self._max_count == 0 or (self._max_count == AUTO and self._work_s == 0)

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, tag: str) -> bool:
        with self._lock:
            return any(tag == waiting_tag for _, waiting_tag, _ in tuple(self._waiting))

    def room(self, slots: int) -> PrefetchLimit:
        """Return the limit on further prefetching, given the worker's *slots*."""
        if isinstance(self._max_count, int):
            is_short = self._average_s * self._max_count <= STARTS_WITHIN_S * slots
            return PrefetchLimit(self._max_count if is_short else int(STARTS_WITHIN_S * slots / self._average_s))
        with self._lock:
            averages_s = list(self._averages_s.items())
        costs = {
            type_: round(max(average_s / slots, self._between_starts_s, _MIN_DURATION_S) * SECOND_US)
            for type_, average_s in averages_s
            if average_s <= min(self._work_s * slots, STARTS_WITHIN_S)
        }
        capacity_us = round(self._work_s * SECOND_US) - sum(
            costs.get(claim.type, 0) for claim, _, _ in tuple(self._waiting)
        )
        return PrefetchLimit(0, capacity_us, costs) if costs and min(costs.values()) <= capacity_us else NOTHING

    def note_length(self, type_: str, seconds: float) -> None:
        """Record that a task of a job of *type_* ran for *seconds*."""
        with self._lock:
            self._average_s += (seconds - self._average_s) * _LATEST_WEIGHT
            previous_s = self._averages_s.pop(type_, seconds)
            self._averages_s[type_] = previous_s + (seconds - previous_s) * _LATEST_WEIGHT
            if len(self._averages_s) > _MAX_TYPES:
                self._averages_s.popitem(last=False)

    def forget(self, type_: str) -> None:
        """Drop the average duration of *type_*, so that `AUTO` does not prefetch its jobs."""
        with self._lock:
            self._averages_s.pop(type_, None)

    def add(self, claim: Claim, tag: str) -> None:
        """Insert a job by its fencing token: a reply can overtake a claim that is still in the inbox."""
        with self._lock:
            index = len(self._waiting)
            while index and int(self._waiting[index - 1][0].fence) > int(claim.fence):
                index -= 1
            self._waiting.insert(index, (claim, tag, time.monotonic()))

    def next(self) -> tuple[Claim, str]:
        """Remove and return the next job to start."""
        claim, tag, _ = self._waiting.popleft()
        now_s = time.monotonic()
        if self._last_start_s is not None:
            between_s = now_s - self._last_start_s
            self._between_starts_s += (between_s - self._between_starts_s) * _LATEST_WEIGHT
        self._last_start_s = now_s if self._waiting else None  # if no other job waits, the next interval is meaningless
        return claim, tag

    def first(self, count: int) -> list[tuple[Claim, str]]:
        """Return the next *count* jobs to start, in order."""
        with self._lock:
            return [(claim, tag) for claim, tag, _ in islice(self._waiting, count)]

    def discard(self, tag: str) -> None:
        """Remove a job that has ended without a start."""
        with self._lock:
            self._waiting = deque(item for item in self._waiting if item[1] != tag)

    def give_back(self, types: Collection[str], at_most: int) -> list[str]:
        """Remove at most *at_most* jobs of *types*, the last first. Return their tags: they will not start here."""
        removed: list[tuple[Claim, str, float]] = []
        with self._lock:
            for item in reversed(self._waiting):
                if len(removed) < at_most and item[0].type in types:
                    removed.append(item)
            for item in removed:
                self._waiting.remove(item)
        return [tag for _, tag, _ in removed]

    def give_back_what_is_late(self) -> list[str]:
        """Remove the jobs that could not start in time because longer tasks occupy the slots. Return their tags."""
        deadline_s = time.monotonic() - STARTS_WITHIN_S
        with self._lock:
            if not self._waiting or self._waiting[0][2] >= deadline_s:  # the usual case, in each loop iteration
                return []
            late = [item for item in self._waiting if item[2] < deadline_s]
            for item in late:
                self._waiting.remove(item)
        return [tag for _, tag, _ in late]

    def clear(self) -> None:
        self._waiting.clear()

    def ends_can_wait(self, host: WorkerLoop) -> bool:
        """Return True if ends can wait for further ends: one release brings as many jobs as there is capacity for.

        If so, *host* makes its event loop iterate when the ends have waited long enough.
        """
        now_s = time.monotonic()
        if self._is_nearly_empty():
            self._ends_wait_since_s = None
        elif self._ends_wait_since_s is None:
            self._ends_wait_since_s = now_s
            host.wake_in(_MAX_ENDS_WAIT_S)
        elif now_s - self._ends_wait_since_s >= _MAX_ENDS_WAIT_S:
            self._ends_wait_since_s = None
        return self._ends_wait_since_s is not None

    def _is_nearly_empty(self) -> bool:
        if isinstance(self._max_count, int):
            return len(self._waiting) <= self._max_count // 4
        return len(self._waiting) * max(self._between_starts_s, _MIN_DURATION_S) <= self._work_s / 4
