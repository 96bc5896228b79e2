"""The claims that ended while a recording was on, until the heartbeats' thread hands them over (`recording`)."""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from .held import ACKED, IGNORED, REJECTED, RETURNED, UNSETTLED, Held

#: Largest number of claims that a worker remembers until it can hand them over; it counts those beyond.
MOST = 50_000

#: Outcome of a claim, as the server is told -> as a trace has it; others are the same word.
_IN_A_TRACE = {ACKED: "done", IGNORED: "done", REJECTED: "rejected", UNSETTLED: "returned", RETURNED: "returned"}


@dataclass
class Left:
    """A claim that ended at *ended_s*, by the monotonic clock. *outcome*: as a trace has it."""

    held: Held
    ended_s: float
    outcome: str


class Records:
    """The claims that ended while a recording was on. Any thread may call any method."""

    def __init__(self) -> None:
        self.is_on = False
        self._lock = threading.RLock()  # reentrant: see `claims`
        self._left: list[Left] = []
        self._number = 0

    def ended(self, ends: Iterable[Held]) -> None:
        """Note claims of whose end the server knows."""
        if self.is_on:
            now_s = time.monotonic()
            for held in ends:
                if not held.void:  # then it was noted as it became void
                    self._note(Left(held, held.ended_s or now_s, _IN_A_TRACE.get(held.ended_how, held.ended_how)))

    def gone(self, gone: Iterable[Held]) -> None:
        """Note claims that the worker gave back now, or that are no longer its own."""
        if self.is_on:
            now_s = time.monotonic()
            for held in gone:
                self._note(Left(held, now_s, _IN_A_TRACE[RETURNED]))

    def _note(self, left: Left) -> None:
        with self._lock:
            self._number += 1
            if len(self._left) < MOST:
                self._left.append(left)

    def begin(self) -> None:
        """Note what ends from now on."""
        with self._lock:
            self._left, self._number = [], 0
        self.is_on = True

    def stop(self) -> None:
        self.is_on = False
        with self._lock:
            self._left = []

    def take(self) -> tuple[list[Left], int]:
        """Return what was noted, and the number of claims that ended since `begin`."""
        with self._lock:
            left, self._left = self._left, []
            return left, self._number
