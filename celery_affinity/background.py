"""Daemon threads: one that repeats a call periodically, and a pool for code that can hang, such as user code.

Threads that keep the fleet alive must not wait for code that can hang.
"""

import threading
import time
from collections.abc import Callable

from .log_limit import limited_logger

logger = limited_logger(__name__)

#: Pause after a call that raised, in seconds.
_PAUSE_AFTER_ERROR_S = 1.0

#: Maximum time that `stop` waits for a running call, in seconds. A call to a broker that is down takes longer.
_STOP_TIMEOUT_S = 5.0


class PeriodicThread:
    """Runs *call* in a daemon thread every *interval_s* seconds, and whenever `wake` is called.

    The event loop's timers do not suffice: they stop in a soft shutdown, during a long task of the solo pool, and while
    a threads pool drains. *call* returns the seconds until the next call, or None for *interval_s*, and should not
    raise.
    """

    def __init__(self, name: str, call: Callable[[], float | None], interval_s: float) -> None:
        self._call = call
        self._name = name
        self._interval_s = interval_s
        self._is_woken = False
        # The lock is reentrant, because a signal handler can interrupt `wake` and call it.
        self._condition = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Make the next call immediately."""
        with self._condition:
            self._is_woken = True
            self._condition.notify_all()

    def stop(self) -> None:
        """Make no further call. Wait at most 5 s for a running call."""
        self._stopped = True
        self.wake()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_STOP_TIMEOUT_S)
            if self._thread.is_alive():
                logger.warning(
                    "%s: ending without waiting for work that takes longer than %g s", self._name, _STOP_TIMEOUT_S
                )

    def _run(self) -> None:
        pause_s: float | None = None
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._is_woken, self._interval_s if pause_s is None else pause_s)
                self._is_woken = False
            if self._stopped:
                return
            try:
                pause_s = self._call()
            except Exception:
                # If the thread ended here, heartbeats would end too, and a healthy worker would be declared dead.
                logger.exception("%s: a call failed; the next one is in %g s", self._name, _PAUSE_AFTER_ERROR_S)
                pause_s = _PAUSE_AFTER_ERROR_S


#: Seconds after which a thread's piece of work is slow: the next call adds a thread instead of waiting.
SLOW_AFTER_S = 1.0

#: Seconds after which an idle thread ends. Longer than the 5 s at which a quiet dispatcher checks for work.
_IDLE_S = 10.0


class DaemonPool:
    """Runs pieces of *work* in at most *max_threads* daemon threads, which start on demand and end when idle.

    *work* does one piece and returns True if more is waiting; its exceptions are logged. Threads call *work*
    concurrently only while pieces are slow. *max_threads* can be changed at any time.
    """

    def __init__(
        self, name: str, work: Callable[[], bool], *, max_threads: int, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_threads = max_threads
        self._name = name
        self._work = work
        self._now_s = now_s
        self._since_s: dict[threading.Thread, float | None] = {}  # start of each thread's piece, or None if idle
        self._condition = threading.Condition()
        self._is_wanted = False
        self._is_stopped = False

    @property
    def busy_for_s(self) -> list[float]:
        """Seconds that each busy thread has spent on its current piece."""
        with self._condition:
            now_s = self._now_s()
            return [now_s - since_s for since_s in self._since_s.values() if since_s is not None]

    def call(self) -> None:
        """Make a thread call *work* soon, without waiting."""
        with self._condition:
            self._is_wanted = not self._is_stopped
            if None in self._since_s.values():
                self._condition.notify()
            elif self._is_wanted and len(self._since_s) < self.max_threads and not self._has_prompt_thread():
                self._start_thread()

    def stop(self, patience_s: float) -> int:
        """Start no further piece, wait *patience_s* for running pieces, and return the number of busy threads."""
        with self._condition:
            self._is_stopped, self._is_wanted = True, False
            self._condition.notify_all()
            self._condition.wait_for(lambda: not self._since_s, patience_s)
            return len(self._since_s)

    def _has_prompt_thread(self) -> bool:
        """True if a thread is likely to take the next piece soon."""
        slow_since_s = self._now_s() - SLOW_AFTER_S
        return any(since_s is None or since_s > slow_since_s for since_s in self._since_s.values())

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._since_s[thread] = self._now_s()
        try:
            thread.start()
        except RuntimeError as exc:  # the system cannot start a thread; the next call tries again
            del self._since_s[thread]
            logger.warning("The system has no further thread for %s: %s", self._name, exc)

    def _run(self) -> None:
        this = threading.current_thread()
        try:
            while self._wait_for_work(this):
                while self._do_piece() and not self._is_stopped:
                    self._since_s[this] = self._now_s()
        finally:
            with self._condition:
                self._since_s.pop(this, None)
                self._condition.notify_all()

    def _wait_for_work(self, this: threading.Thread) -> bool:
        """Wait for work. Return False, after forgetting the thread, if there is none within `_IDLE_S`."""
        with self._condition:
            self._since_s[this] = None
            self._condition.wait_for(lambda: self._is_wanted or self._is_stopped, _IDLE_S)
            if not self._is_wanted:
                del self._since_s[this]
                return False
            self._is_wanted = False
            self._since_s[this] = self._now_s()
            return True

    def _do_piece(self) -> bool:
        try:
            return self._work()
        except (Exception, SystemExit):
            logger.exception("%s: unexpected error; retrying soon", self._name)
            return False
