"""A thread that beats: one call every so often, and at once when it is woken."""

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)

_PAUSE_AFTER_ERROR_S = 1.0

#: Who stops waits so long for a beat that is under way, s. A broker that does not answer makes one take longer.
_PATIENCE_S = 5.0


class Beats:
    """Call *beat* every *interval_s* seconds, and whenever `wake` is called, in a daemon thread of its own.

    A thread, since the event loop's timers stop in a soft shutdown, in a long task of the solo pool, and while a
    threads pool drains. *beat* returns the seconds until it wants to be called again, or None for *interval_s*;
    it raises nothing.
    """

    def __init__(self, name: str, beat: Callable[[], float | None], interval_s: float) -> None:
        self._beat = beat
        self._name = name
        self._interval_s = interval_s
        self._woken = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Have the next beat now."""
        self._woken.set()

    def stop(self) -> None:
        """Have no further beat; wait for one that is under way, but not for ever."""
        self._stopped = True
        self._woken.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE_S)
            if self._thread.is_alive():
                logger.warning("%s: what it does takes longer than %g s, it is not waited for", self._name, _PATIENCE_S)

    def _run(self) -> None:
        pause_s: float | None = None
        while True:
            self._woken.wait(self._interval_s if pause_s is None else pause_s)
            self._woken.clear()
            if self._stopped:
                return
            try:
                pause_s = self._beat()
            except Exception:
                # Without its beats a healthy worker would be taken for dead.
                logger.exception("A beat failed; the next one is tried in %s s", _PAUSE_AFTER_ERROR_S)
                pause_s = _PAUSE_AFTER_ERROR_S
