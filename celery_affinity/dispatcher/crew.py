"""Threads for what may hang: foreign code, which the threads that the fleet's life depends on must not wait for."""

import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

#: A thread whose piece of work takes longer than this is not waited for: another one helps, s.
SLOW_AFTER_S = 1.0

#: A thread that has had nothing to do for so long ends, s. A quiet dispatcher looks for work every 5 s.
_IDLE_S = 10.0


class Crew:
    """Up to *most* daemon threads that do pieces of *work*, made when there is some, gone when there is none.

    *work* does one piece and returns whether there is more to do; what it raises goes to the log. It is called by
    several threads at once only while pieces take long. *most* may be changed at any time.
    """

    def __init__(
        self, name: str, work: Callable[[], bool], *, most: int, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.most = most
        self._name = name
        self._work = work
        self._now_s = now_s
        self._since_s: dict[threading.Thread, float | None] = {}  # of each thread's piece; None: it waits for one
        self._news = threading.Condition()
        self._is_wanted = False
        self._is_stopped = False

    @property
    def busy_for_s(self) -> list[float]:
        """How long each thread that is at a piece of work has been at it."""
        with self._news:
            now_s = self._now_s()
            return [now_s - since_s for since_s in self._since_s.values() if since_s is not None]

    def call(self) -> None:
        """Have *work* called soon, in another thread. Does not wait."""
        with self._news:
            self._is_wanted = not self._is_stopped
            if None in self._since_s.values():
                self._news.notify()
            elif self._is_wanted and len(self._since_s) < self.most and not self._has_prompt_one():
                self._add()

    def stop(self, patience_s: float) -> int:
        """Have no further piece begun, and wait for what is under way. Return how many threads are at it still."""
        with self._news:
            self._is_stopped, self._is_wanted = True, False
            self._news.notify_all()
            self._news.wait_for(lambda: not self._since_s, patience_s)
            return len(self._since_s)

    def _has_prompt_one(self) -> bool:
        """Return whether a thread is likely to take the next piece soon."""
        slow_since_s = self._now_s() - SLOW_AFTER_S
        return any(since_s is None or since_s > slow_since_s for since_s in self._since_s.values())

    def _add(self) -> None:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._since_s[thread] = self._now_s()
        try:
            thread.start()
        except RuntimeError as exc:  # the system has no room for one; the next call tries again
            del self._since_s[thread]
            logger.warning("No thread for %s: %s", self._name, exc)

    # -- its threads

    def _run(self) -> None:
        this = threading.current_thread()
        try:
            while self._has_work(this):
                while self._does_a_piece() and not self._is_stopped:
                    self._since_s[this] = self._now_s()
        finally:
            with self._news:
                self._since_s.pop(this, None)
                self._news.notify_all()

    def _has_work(self, this: threading.Thread) -> bool:
        """Wait until there is work. Return False if there is none for long, and forget the thread then."""
        with self._news:
            self._since_s[this] = None
            self._news.wait_for(lambda: self._is_wanted or self._is_stopped, _IDLE_S)
            if not self._is_wanted:
                del self._since_s[this]
                return False
            self._is_wanted = False
            self._since_s[this] = self._now_s()
            return True

    def _does_a_piece(self) -> bool:
        try:
            return self._work()
        except (Exception, SystemExit):
            logger.exception("%s: an error that was not expected; tried again soon", self._name)
            return False
