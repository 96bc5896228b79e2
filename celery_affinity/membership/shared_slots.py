"""The slots of one pool, shared out among cohorts: each slot belongs to one cohort, or is on its way to another one."""

import threading
from collections import Counter
from collections.abc import Sequence

from ..rules.slot_moves import divided
from .host import Pool


class SharedSlots:
    """How many slots of *pool* each of *cohorts* has. All numbers together are the size of the pool, at any time.

    A slot is taken from a cohort (`take`) before it is given to another (`give`): meanwhile nobody has it.
    """

    def __init__(self, pool: Pool, cohorts: Sequence[str]) -> None:
        self._pool, self._cohorts = pool, cohorts
        self._lock = threading.RLock()  # reentrant: a signal's handler may interrupt the thread that has it
        self._size = 0
        self._slots: dict[str, int] = dict.fromkeys(cohorts, 0)
        #: Slots that were taken, by the cohort that had them.
        self._taken: Counter[str] = Counter()

    def of(self, cohort: str) -> int:
        """Return the slots of *cohort*, after the pool has grown or shrunk, too."""
        if self._pool.size() != self._size:
            self._resize()
        return self._slots[cohort]

    def taken_from(self, cohort: str) -> int:
        """Return how many slots were taken from *cohort*, and not given on yet."""
        return self._taken[cohort]

    def take(self, cohort: str) -> None:
        with self._lock:
            if self._slots[cohort] > 0:
                self._slots[cohort] -= 1
                self._taken[cohort] += 1

    def give(self, taken_from: str, to: str) -> None:
        """Give a slot on, or back."""
        with self._lock:
            if self._taken[taken_from] > 0:
                self._taken[taken_from] -= 1
                self._slots[to] += 1

    def _resize(self) -> None:
        with self._lock:
            size = self._pool.size()
            if self._size == 0:
                self._slots = divided(size, self._cohorts)
                self._taken.clear()
            for _ in range(size - self._size if self._size else 0):
                fewest = min(self._slots, key=lambda each: (self._slots[each], each))
                self._slots[fewest] += 1
            for _ in range(self._size - size):
                self._remove_one()
            self._size = size

    def _remove_one(self) -> None:
        most = max(self._slots, key=lambda each: (self._slots[each], each))
        if self._slots[most] > 0:
            self._slots[most] -= 1
        else:
            self._taken[max(self._taken, key=lambda each: self._taken[each])] -= 1
