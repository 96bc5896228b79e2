"""The loop that ticks: what no event triggers. Every worker embeds one; `celery affinity dispatcher` runs one alone."""

import time
from collections.abc import Callable

from kombu.log import get_logger
from redis.exceptions import RedisError, ResponseError

from .beats import Beats
from .scheduler import Scheduler

logger = get_logger(__name__)

#: Longest pause between two ticks, s: a job that is scheduled meanwhile is late by no more.
LONGEST_PAUSE_S = 0.2

#: Pause of a dispatcher that others tick for, s.
QUIET_PAUSE_S = 5.0

#: Stock Celery's lists are looked at so often, s; again with the next tick where there was something.
INGEST_PAUSE_S = 1.0

#: Pause after a tick that the server did not answer, s.
_PAUSE_AFTER_ERROR_S = 1.0


class Dispatcher:
    """Ticks *scheduler* until it is stopped, from a thread. Any number may run; they elect nobody.

    *announce* tells the ends that no worker tells; *ingest* moves what stock producers sent, and returns how much.
    """

    def __init__(
        self, scheduler: Scheduler, announce: Callable[[Scheduler], None], ingest: Callable[[Scheduler], int]
    ) -> None:
        self._scheduler = scheduler
        self._announce = announce
        self._ingest = ingest
        self._ingest_at_s = 0.0
        self._ingest_fails = False
        self._quiet = False
        self._in_trouble = False
        self._beats = Beats("affinity-dispatcher", self._tick, LONGEST_PAUSE_S)

    def start(self) -> None:
        self._beats.start()

    def stop(self) -> None:
        self._beats.stop()

    def use(self, scheduler: Scheduler, *, quiet: bool) -> None:
        """Go on with *scheduler*; *quiet*: do not tick, others do."""
        was_quiet, self._quiet = self._quiet, quiet
        if was_quiet and not quiet:
            self._ingest_at_s = 0.0
        self._scheduler = scheduler
        if was_quiet and not quiet:
            self._beats.wake()

    def _tick(self) -> float:
        try:
            if self._quiet:
                # Those that tick may be of other apps, which cannot tell what ended of this one's.
                self._announce(self._scheduler)
                return QUIET_PAUSE_S
            ticked = self._scheduler.tick()
            if ticked.untold:
                self._announce(self._scheduler)
            self._ingest_now_and_then()
        except (RedisError, OSError) as exc:
            if not self._in_trouble:
                logger.warning("The broker does not answer a tick, scheduled jobs wait: %s", exc)
            self._in_trouble = True
            return _PAUSE_AFTER_ERROR_S
        if self._in_trouble:
            logger.info("The broker answers ticks again")
        self._in_trouble = False
        if ticked.dead_workers:
            logger.warning(
                "%d silent worker(s) taken for dead, %d of their jobs back", ticked.dead_workers, ticked.recovered
            )
        if ticked.next_due_s is None:
            return LONGEST_PAUSE_S
        return min(LONGEST_PAUSE_S, ticked.next_due_s)

    def _ingest_now_and_then(self) -> None:
        now_s = time.monotonic()
        if now_s < self._ingest_at_s:
            return
        try:
            moved = self._ingest(self._scheduler)
        except ResponseError as exc:  # of one list, say, that is none: what is due must not wait for it
            if not self._ingest_fails:
                logger.warning("Cannot schedule what stock Celery's producers sent: %s", exc)
            self._ingest_fails = True
            moved = 0
        else:
            self._ingest_fails = False
        self._ingest_at_s = now_s if moved else now_s + INGEST_PAUSE_S
