"""Threads that a fleet's life depends on: work that is repeated until it is stopped, and foreign code that may hang.

A call that repeats: every so often, and at once when woken, in a thread of its own.

Daemon threads for foreign code, which may hang: threads that keep the fleet alive must not wait for such code.
"""

import threading
import time
from collections.abc import Callable

from .log_limit import limited_logger

logger = limited_logger(__name__)

#: Pause, s, after a call that raised.
_PAUSE_AFTER_ERROR_S = 1.0

#: Longest wait, s, of `stop` for a call under way. A broker that does not answer makes a call take longer.
_PATIENCE_S = 5.0


class PeriodicThread:
    """Make *call* every *interval_s* seconds, and whenever `wake` is called, in a daemon thread.

    The event loop's timers would not do: they stop in a soft shutdown, in a long task of the solo pool, and while a
    threads pool drains. *call* returns the seconds until the next call, or None for *interval_s*, and should not raise.
    """

    def __init__(self, name: str, call: Callable[[], float | None], interval_s: float) -> None:
        self._call = call
        self._name = name
        self._interval_s = interval_s
        self._is_woken = False
        # Its lock is reentrant: a signal's handler may interrupt `wake`, and call it.
        self._news = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Make the next call now."""
        with self._news:
            self._is_woken = True
            self._news.notify_all()

    def stop(self) -> None:
        """Make no further call. Waits for a call under way, for 5 s at most."""
        self._stopped = True
        self.wake()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE_S)
            if self._thread.is_alive():
                logger.warning(
                    "%s: ending without waiting for work that takes longer than %g s", self._name, _PATIENCE_S
                )

    def _run(self) -> None:
        pause_s: float | None = None
        while True:
            with self._news:
                self._news.wait_for(lambda: self._is_woken, self._interval_s if pause_s is None else pause_s)
                self._is_woken = False
            if self._stopped:
                return
            try:
                pause_s = self._call()
            except Exception:
                # A thread that ended here would end a worker's heartbeats: the healthy worker would be taken for dead.
                logger.exception("%s: a call failed; the next one is in %g s", self._name, _PAUSE_AFTER_ERROR_S)
                pause_s = _PAUSE_AFTER_ERROR_S


#: Time, s, after which the piece of work of a thread counts as slow: the next call adds a thread instead of waiting.
SLOW_AFTER_S = 1.0

#: Time, s, after which a thread without work ends. Above the 5 s at which a quiet dispatcher looks for work.
_IDLE_S = 10.0


class DaemonPool:
    """Do pieces of *work* in up to *most* daemon threads, which start when there is work and end when there is none.

    *work* does one piece and returns whether more is waiting; an exception goes to the log. Several threads call *work*
    at once only while pieces take long. *most* may be changed at any time.
    """

    def __init__(
        self, name: str, work: Callable[[], bool], *, most: int, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.most = most
        self._name = name
        self._work = work
        self._now_s = now_s
        self._since_s: dict[threading.Thread, float | None] = {}  # start of each thread's piece; None: no piece yet
        self._news = threading.Condition()
        self._is_wanted = False
        self._is_stopped = False

    @property
    def busy_for_s(self) -> list[float]:
        """Time, s, that each busy thread has spent on its piece so far."""
        with self._news:
            now_s = self._now_s()
            return [now_s - since_s for since_s in self._since_s.values() if since_s is not None]

    def call(self) -> None:
        """Have a thread call *work* soon. Does not wait."""
        with self._news:
            self._is_wanted = not self._is_stopped
            if None in self._since_s.values():
                self._news.notify()
            elif self._is_wanted and len(self._since_s) < self.most and not self._has_prompt_one():
                self._add()

    def stop(self, patience_s: float) -> int:
        """Begin no further piece, and wait *patience_s* for those begun. Return the number of threads still busy."""
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
        except RuntimeError as exc:  # the system has no room for a thread; the next call tries again
            del self._since_s[thread]
            logger.warning("The system has no further thread for %s: %s", self._name, exc)

    # -- in the threads

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
        """Wait for work. Return False, with the thread forgotten, if none comes for long."""
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
            logger.exception("%s: unexpected error; retrying soon", self._name)
            return False
