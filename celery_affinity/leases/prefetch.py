"""Jobs that a worker holds beyond its slots (`affinity_lookahead`), for tasks that are shorter than a round trip.

Such jobs wait in the worker's own memory, unknown to the pool, and start when a slot is free. The server asks for them
when another worker has nothing to do, or when a job on demand waits.
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

#: Time, s, within which a job that is held beyond the slots is to start. Jobs that could not are left to other workers.
STARTS_WITHIN_S = 0.5

#: Longest time, s, that the end of a task waits for other ends while there are jobs to start: one call tells all ends.
_ENDS_WAIT_S = 0.01

#: Weight of the last task, or of the last start, in an average.
_SHARE_OF_THE_LAST = 1 / 8

#: Number of types whose jobs are taken ahead by how long they take: those of which a job has ended last.
_MOST_TYPES = 20

#: Shortest time, s, that a job is expected to take.
_SHORTEST_S = 0.00005


class Prefetch:
    """The jobs that have not started, in the order in which they were claimed, each with its delivery tag.

    *most*: how many at most; or `AUTO`: as many as are expected to keep all slots busy for *work_s*. How long a job of
    a type keeps them busy is its average length by the number of slots, or the time between two starts if that is
    longer. No job is taken ahead that would take longer than *work_s*, or whose type is unknown. Any thread may `add`
    jobs, note a length or `forget` one; the rest is for the event loop.
    """

    def __init__(self, most: int | str, work_s: float) -> None:
        self._most, self._work_s = most, work_s
        self._waiting: deque[tuple[Claim, str, float]] = deque()
        self._lock = threading.RLock()  # reentrant: see `claims`
        self._average_s = 0.0
        self._averages_s: OrderedDict[str, float] = OrderedDict()
        self._between_starts_s = 0.0
        self._last_start_s: float | None = None
        self._ends_wait_since_s: float | None = None

    @property
    def is_off(self) -> bool:
        return self._most == 0 or (self._most == AUTO and self._work_s == 0)

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, tag: str) -> bool:
        with self._lock:
            return any(tag == each for _, each, _ in tuple(self._waiting))

    # -- how many

    def room(self, slots: int) -> PrefetchLimit:
        """Return what the worker may hold beyond its *slots* by now."""
        if isinstance(self._most, int):
            return PrefetchLimit(self._most_jobs(self._most, slots))
        with self._lock:
            averages_s = list(self._averages_s.items())
        costs = {
            type_: round(max(average_s / slots, self._between_starts_s, _SHORTEST_S) * SECOND_US)
            for type_, average_s in averages_s
            if average_s <= min(self._work_s * slots, STARTS_WITHIN_S)
        }
        room_us = round(self._work_s * SECOND_US) - sum(
            costs.get(claim.type, 0) for claim, _, _ in tuple(self._waiting)
        )
        return PrefetchLimit(0, room_us, costs) if costs and min(costs.values()) <= room_us else NOTHING

    def _most_jobs(self, most: int, slots: int) -> int:
        """Return *most*, or fewer if tasks are long."""
        if self._average_s * most <= STARTS_WITHIN_S * slots:
            return most
        return int(STARTS_WITHIN_S * slots / self._average_s)

    def note_length(self, type_: str, seconds: float) -> None:
        """Record for how long a task of a job of *type_* has run."""
        with self._lock:
            self._average_s += (seconds - self._average_s) * _SHARE_OF_THE_LAST
            before_s = self._averages_s.pop(type_, seconds)
            self._averages_s[type_] = before_s + (seconds - before_s) * _SHARE_OF_THE_LAST
            if len(self._averages_s) > _MOST_TYPES:
                self._averages_s.popitem(last=False)

    def forget(self, type_: str) -> None:
        """Take no jobs of *type_* ahead by how long they take: it is as if that were not known."""
        with self._lock:
            self._averages_s.pop(type_, None)

    # -- the jobs

    def add(self, claim: Claim, tag: str) -> None:
        """Add a job, before those with a higher fencing number: a reply may pass a claim that is still in the inbox."""
        with self._lock:
            at = len(self._waiting)
            while at and int(self._waiting[at - 1][0].fence) > int(claim.fence):
                at -= 1
            self._waiting.insert(at, (claim, tag, time.monotonic()))

    def next(self) -> tuple[Claim, str]:
        """Remove and return the job that is to start next."""
        claim, tag, _ = self._waiting.popleft()
        now_s = time.monotonic()
        if self._last_start_s is not None:
            between_s = now_s - self._last_start_s
            self._between_starts_s += (between_s - self._between_starts_s) * _SHARE_OF_THE_LAST
        self._last_start_s = now_s if self._waiting else None  # without others to start, a pause says nothing
        return claim, tag

    def first(self, count: int) -> list[tuple[Claim, str]]:
        """Return the *count* jobs that are to start next, in their order."""
        with self._lock:
            return [(claim, tag) for claim, tag, _ in islice(self._waiting, count)]

    def discard(self, tag: str) -> None:
        """Remove a job that does not wait any more: it has ended without a start."""
        with self._lock:
            self._waiting = deque(each for each in self._waiting if each[1] != tag)

    def give_back(self, types: Collection[str], at_most: int) -> list[str]:
        """Remove jobs of *types*, the last first. Return their tags: they will not start here."""
        given: list[tuple[Claim, str, float]] = []
        with self._lock:
            for each in reversed(self._waiting):
                if len(given) < at_most and each[0].type in types:
                    given.append(each)
            for each in given:
                self._waiting.remove(each)
        return [tag for _, tag, _ in given]

    def give_back_what_is_late(self) -> list[str]:
        """Remove the jobs that could not start in time, since longer tasks have the slots. Return their tags."""
        latest_s = time.monotonic() - STARTS_WITHIN_S
        with self._lock:
            if not self._waiting or self._waiting[0][2] >= latest_s:  # each iteration of the loop asks, mostly in vain
                return []
            late = [each for each in self._waiting if each[2] < latest_s]
            for each in late:
                self._waiting.remove(each)
        return [tag for _, tag, _ in late]

    def clear(self) -> None:
        """Drop all jobs: none of them starts."""
        self._waiting.clear()

    def ends_can_wait(self, host: WorkerLoop) -> bool:
        """Return whether ends may wait for further ends: one release brings as many jobs as there is room for.

        If so, *host* has its event loop iterate when the ends have waited long enough.
        """
        now_s = time.monotonic()
        if self._is_nearly_empty():
            self._ends_wait_since_s = None
        elif self._ends_wait_since_s is None:
            self._ends_wait_since_s = now_s
            host.wake_in(_ENDS_WAIT_S)
        elif now_s - self._ends_wait_since_s >= _ENDS_WAIT_S:
            self._ends_wait_since_s = None
        return self._ends_wait_since_s is not None

    def _is_nearly_empty(self) -> bool:
        if isinstance(self._most, int):
            return len(self._waiting) <= self._most // 4
        return len(self._waiting) * max(self._between_starts_s, _SHORTEST_S) <= self._work_s / 4
