"""The loop that ticks: what no event triggers. Every worker embeds one; `celery affinity dispatcher` runs one alone."""

import time
from collections.abc import Callable

from kombu.log import get_logger
from redis.exceptions import RedisError

from .beats import Beats
from .ingest import Ingest
from .scheduler import Scheduler

logger = get_logger(__name__)

#: Longest pause between two ticks, s. A worker is told of a job that is due sooner (`publish`). It does not divide the
#: 5 s between two syncs: at one and the same time each would need a connection of its own.
LONGEST_PAUSE_S = 1.4

#: The same of a dispatcher alone, which nobody tells, and of all while stock Celery's producers send: messages wait.
SHORT_PAUSE_S = 0.2

#: So long after the last message of a stock producer the next is expected, s.
_PRODUCERS_SEND_S = 10.0

#: Pause of a dispatcher that others tick for, s.
QUIET_PAUSE_S = 5.0

#: Pause after a tick that the server did not answer, s.
_PAUSE_AFTER_ERROR_S = 1.0


class Dispatcher:
    """Ticks *scheduler* until it is stopped, from a thread. Any number may run; they elect nobody.

    *announce* tells the ends that no worker tells; *ingest* moves what stock producers sent. *pause_s*: the longest.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        announce: Callable[[Scheduler], None],
        ingest: Ingest,
        *,
        pause_s: float = LONGEST_PAUSE_S,
    ) -> None:
        self._scheduler = scheduler
        self._announce = announce
        self._ingest = ingest
        self._quiet = False
        self._in_trouble = False
        self._pause_s = pause_s
        self._expects_messages_until_s = 0.0
        self._beats = Beats("affinity-dispatcher", self._tick, pause_s)

    @property
    def is_quiet(self) -> bool:
        """Whether others tick for it."""
        return self._quiet

    def start(self) -> None:
        self._beats.start()

    def stop(self) -> None:
        self._beats.stop()

    def wake(self) -> None:
        """Tick now."""
        self._beats.wake()

    def use(self, scheduler: Scheduler, *, quiet: bool) -> None:
        """Go on with *scheduler*; *quiet*: do not tick, others do."""
        was_quiet, self._quiet = self._quiet, quiet
        self._scheduler = scheduler
        if was_quiet and not quiet:
            self._beats.wake()

    def _tick(self) -> float:
        try:
            # A quiet one looks as well: those that tick may be of other apps, which cannot tell what ended of its own.
            ticked = None if self._quiet else self._scheduler.tick(self._ingest.lists(self._scheduler))
            if ticked is None or ticked.untold:
                self._announce(self._scheduler)
            goes_on = ticked is not None and self._ingest.move(self._scheduler, ticked.lists)
        except (RedisError, OSError) as exc:
            if not self._in_trouble:
                logger.warning("The broker does not answer the dispatcher, scheduled jobs wait: %s", exc)
            self._in_trouble = True
            return _PAUSE_AFTER_ERROR_S
        if self._in_trouble:
            logger.info("The broker answers the dispatcher again")
        self._in_trouble = False
        if ticked is None:
            return QUIET_PAUSE_S
        if ticked.dead_workers:
            logger.warning(
                "%d silent worker(s) taken for dead, %d of their jobs back", ticked.dead_workers, ticked.recovered
            )
        if ticked.lists:
            self._expects_messages_until_s = time.monotonic() + _PRODUCERS_SEND_S
        if goes_on:
            return 0.0
        pause_s = SHORT_PAUSE_S if time.monotonic() < self._expects_messages_until_s else self._pause_s
        return pause_s if ticked.next_due_s is None else min(pause_s, ticked.next_due_s)
