"""A call that repeats: every so often, and at once when woken, in a thread of its own."""

import threading
from collections.abc import Callable

from ..log_limit import limited_logger

logger = limited_logger(__name__)

#: Pause, s, after a call that raised.
_PAUSE_AFTER_ERROR_S = 1.0

#: Longest wait, s, of `stop` for a call under way. A broker that does not answer makes a call take longer.
_PATIENCE_S = 5.0


class Repeating:
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
