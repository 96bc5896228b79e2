"""Jobs that a worker holds beyond its slots (`affinity_lookahead`), for tasks that are shorter than a round trip.

They wait here, in the worker's own memory, and start when a slot is free; nothing of them is in the pool. The server
asks for them when another worker has nothing to do.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection

from ..server.replies import Claim

#: What is ahead is to be started within so many seconds, or it is not taken ahead: others may have the time for it.
STARTS_WITHIN_S = 0.5

#: So long, s, the ends of tasks wait for others while there is something to start: then they are told together.
_ENDS_WAIT_S = 0.01

#: Weight of the last task in the average of their lengths.
_SHARE_OF_THE_LAST = 1 / 8


class Ahead:
    """At most *most* jobs that have not started, in the order in which they were claimed, each with its delivery tag.

    Any thread may `add`; the rest is for the event loop.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[tuple[Claim, str]] = deque()
        self._lock = threading.Lock()
        self._average_s = 0.0
        self._news_since_s: float | None = None

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
        """Note for how long a task has run."""
        self._average_s += (seconds - self._average_s) * _SHARE_OF_THE_LAST

    def add(self, claim: Claim, tag: str) -> None:
        with self._lock:
            at = len(self._waiting)
            while at and int(self._waiting[at - 1][0].fence) > int(claim.fence):
                at -= 1  # a reply of the server may pass what is still in the inbox
            self._waiting.insert(at, (claim, tag))

    def next(self) -> tuple[Claim, str]:
        """Take the job that is to start next."""
        return self._waiting.popleft()

    def give_back(self, types: Collection[str], at_most: int) -> list[str]:
        """Return the tags of jobs of *types* that will not start here, those that came last."""
        given: list[tuple[Claim, str]] = []
        with self._lock:
            for each in reversed(self._waiting):
                if len(given) < at_most and each[0].type in types:
                    given.append(each)
            for each in given:
                self._waiting.remove(each)
        return [tag for _, tag in given]

    def clear(self) -> None:
        """Start none of them."""
        self._waiting.clear()

    def ends_can_wait(self, call_later: Callable[[float, Callable[[], object]], object]) -> bool:
        """Return whether to tell later what has ended: a release brings as many jobs as there is room for.

        *call_later* makes the event loop turn then.
        """
        now_s = time.monotonic()
        if len(self._waiting) <= self._most // 4:
            self._news_since_s = None
        elif self._news_since_s is None:
            self._news_since_s = now_s
            call_later(_ENDS_WAIT_S, lambda: None)
        elif now_s - self._news_since_s >= _ENDS_WAIT_S:
            self._news_since_s = None
        return self._news_since_s is not None
