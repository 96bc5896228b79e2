"""The loop that ticks: what no event triggers. Every worker embeds one; `celery affinity dispatcher` runs one alone.

The thread that ticks calls nothing but the broker. Whatever runs foreign code has threads of its own: results and
signals of what ended (`announcer`), and messages that stock producers sent (`ingest`).
"""

import logging
import random
import time

from redis.exceptions import RedisError

from ..server.scheduler import Scheduler
from .announcer import Announcer
from .crew import Crew
from .ingest import Ingest
from .repeating import Beats

logger = logging.getLogger(__name__)

#: Longest pause between two ticks, s. A worker is told of a job that is due sooner (`publish`). It does not divide the
#: 5 s between two syncs: at one and the same time each would need a connection of its own.
LONGEST_PAUSE_S = 1.4

#: The same of a dispatcher alone, which nobody tells, and of all while stock Celery's producers send: messages wait.
SHORT_PAUSE_S = 0.2

#: So long after the last message of a stock producer the next is expected, s.
_PRODUCERS_SEND_S = 10.0

#: Pause of a dispatcher that others tick for, s.
QUIET_PAUSE_S = 5.0

#: So often one that ticks looks for what somebody else deleted or overwrote, s.
_REPAIRS_EVERY_S = 60.0

#: Pause after a tick that the server did not answer, s.
_PAUSE_AFTER_ERROR_S = 1.0

#: Some hundred messages of stock producers take 0.2 s to move: after so long it is said that something hangs, s.
_MOVES_WITHIN_S = 30.0

#: Who stops waits so long for messages that are being moved, s: each is moved at once, or not.
_PATIENCE_S = 1.0


class Dispatcher:
    """Ticks *scheduler* until it is stopped, from a thread. Any number may run; they elect nobody.

    *announcer* tells the ends that no worker tells; *ingest* moves what stock producers sent. *pause_s*: the longest.
    """

    def __init__(
        self, scheduler: Scheduler, announcer: Announcer, ingest: Ingest, *, pause_s: float = LONGEST_PAUSE_S
    ) -> None:
        self._scheduler = scheduler
        self._announcer = announcer
        self._ingest = ingest
        self._quiet = False
        self._in_trouble = False
        self._pause_s = pause_s
        self._expects_messages_until_s = 0.0
        self._mover = Crew("affinity-ingest", self._move, most=1)
        self._to_move: list[str] | None = None  # lists; until they are None again no others are looked for
        self._hangs_in_a_message = False
        self._repairs_at_s = time.monotonic() + _REPAIRS_EVERY_S * random.random()  # noqa: S311  # not all at once
        self._beats = Beats("affinity-dispatcher", self._tick, pause_s)

    @property
    def is_quiet(self) -> bool:
        """Whether others tick for it."""
        return self._quiet

    def start(self) -> None:
        self._beats.start()

    def stop(self) -> None:
        """Tick no more. Waits for some seconds at most, and says in the log for what it did not."""
        self._beats.stop()
        self._announcer.stop()
        if self._mover.stop(_PATIENCE_S):
            logger.warning("Messages of stock producers are being moved still; that is not waited for")

    def wake(self) -> None:
        """Tick now."""
        self._beats.wake()

    def use(self, scheduler: Scheduler, *, quiet: bool) -> None:
        """Go on with *scheduler*; *quiet*: do not tick, others do."""
        was_quiet, self._quiet = self._quiet, quiet
        self._scheduler = scheduler
        if was_quiet and not quiet:
            self._beats.wake()

    def _repair_now_and_then(self) -> None:
        if time.monotonic() >= self._repairs_at_s:
            self._repairs_at_s = time.monotonic() + _REPAIRS_EVERY_S
            self._scheduler.repair()

    def _tick(self) -> float:
        try:
            # A quiet one looks as well: those that tick may be of other apps, which cannot tell what ended of its own.
            ticked = None if self._quiet else self._scheduler.tick(self._lists())
            untold = self._scheduler.has_untold() if ticked is None else ticked.untold
            if ticked is not None:
                self._repair_now_and_then()
        except (RedisError, OSError) as exc:
            if not self._in_trouble:
                logger.warning("The broker does not answer the dispatcher, scheduled jobs wait: %s", exc)
            self._in_trouble = True
            return _PAUSE_AFTER_ERROR_S
        if self._in_trouble:
            logger.info("The broker answers the dispatcher again")
        self._in_trouble = False
        self._announcer.look(self._scheduler, untold=untold)
        if ticked is None:
            return QUIET_PAUSE_S
        if ticked.dead_workers:
            logger.warning(
                "%d silent worker(s) taken for dead, %d of their jobs back", ticked.dead_workers, ticked.recovered
            )
        if ticked.lists:
            self._to_move = ticked.lists
            self._mover.call()
            self._expects_messages_until_s = time.monotonic() + _PRODUCERS_SEND_S
        pause_s = SHORT_PAUSE_S if time.monotonic() < self._expects_messages_until_s else self._pause_s
        return pause_s if ticked.next_due_s is None else min(pause_s, ticked.next_due_s)

    def _lists(self) -> list[str]:
        """Return the lists that the tick is to look at: none while what the last one found is still being moved."""
        if self._to_move is None:
            return self._ingest.lists(self._scheduler)
        busy_for_s = self._mover.busy_for_s
        if not busy_for_s:
            self._mover.call()  # there was no room for a thread
        elif busy_for_s[0] > _MOVES_WITHIN_S and not self._hangs_in_a_message:
            self._hangs_in_a_message = True
            logger.error("Reading a message of stock producers does not end: those of lists %s wait", self._to_move)
        return []

    def _move(self) -> bool:
        """Move what is in the lists that a tick found."""
        goes_on = False
        try:
            goes_on = self._ingest.move(self._scheduler, self._to_move or [])
        except (RedisError, OSError) as exc:
            logger.warning("The broker does not answer the dispatcher, messages of stock producers wait: %s", exc)
        finally:
            self._to_move, self._hangs_in_a_message = None, False
        if goes_on:
            self._beats.wake()
        return False
