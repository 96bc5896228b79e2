"""Jobs that a worker holds beyond its slots (`affinity_lookahead`), for tasks that are shorter than a round trip.

Such jobs wait in the worker's own memory, unknown to the pool, and start when a slot is free. The server asks for them
when another worker has nothing to do.
"""

import threading
import time
from collections import deque
from collections.abc import Collection

from ..server.replies import Claim
from .host import Host

#: Time, s, within which a job that is held beyond the slots is to start. Jobs that could not are left to other workers.
STARTS_WITHIN_S = 0.5

#: Longest time, s, that the end of a task waits for other ends while there are jobs to start: one call tells all ends.
_ENDS_WAIT_S = 0.01

#: Weight of the last task in the average of their lengths.
_SHARE_OF_THE_LAST = 1 / 8


class Lookahead:
    """At most *most* jobs that have not started, in the order in which they were claimed, each with its delivery tag.

    Any thread may `add`; the rest is for the event loop.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[tuple[Claim, str]] = deque()
        self._lock = threading.RLock()  # reentrant: see `claims`
        self._average_s = 0.0
        self._ends_wait_since_s: float | None = None

    @property
    def is_off(self) -> bool:
        return self._most == 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, tag: str) -> bool:
        with self._lock:
            return any(tag == each for _, each in tuple(self._waiting))

    def most(self, slots: int) -> int:
        """Return how many jobs to hold beyond *slots*: fewer if tasks are long."""
        if self._average_s * self._most <= STARTS_WITHIN_S * slots:
            return self._most
        return int(STARTS_WITHIN_S * slots / self._average_s)

    def note_length(self, seconds: float) -> None:
        """Record for how long a task has run."""
        self._average_s += (seconds - self._average_s) * _SHARE_OF_THE_LAST

    def add(self, claim: Claim, tag: str) -> None:
        """Add a job, before those with a higher fencing number: a reply may pass a claim that is still in the inbox."""
        with self._lock:
            at = len(self._waiting)
            while at and int(self._waiting[at - 1][0].fence) > int(claim.fence):
                at -= 1
            self._waiting.insert(at, (claim, tag))

    def next(self) -> tuple[Claim, str]:
        """Remove and return the job that is to start next."""
        return self._waiting.popleft()

    def give_back(self, types: Collection[str], at_most: int) -> list[str]:
        """Remove jobs of *types*, the last first. Return their tags: they will not start here."""
        given: list[tuple[Claim, str]] = []
        with self._lock:
            for each in reversed(self._waiting):
                if len(given) < at_most and each[0].type in types:
                    given.append(each)
            for each in given:
                self._waiting.remove(each)
        return [tag for _, tag in given]

    def clear(self) -> None:
        """Drop all jobs: none of them starts."""
        self._waiting.clear()

    def ends_can_wait(self, host: Host) -> bool:
        """Return whether ends may wait for further ends: one release brings as many jobs as there is room for.

        If so, *host* turns its event loop when the ends have waited long enough.
        """
        now_s = time.monotonic()
        if len(self._waiting) <= self._most // 4:
            self._ends_wait_since_s = None
        elif self._ends_wait_since_s is None:
            self._ends_wait_since_s = now_s
            host.wake_in(_ENDS_WAIT_S)
        elif now_s - self._ends_wait_since_s >= _ENDS_WAIT_S:
            self._ends_wait_since_s = None
        return self._ends_wait_since_s is not None
