"""Warnings of reserves for which a type has no more slots than they keep free.

Notes of what waits, by type, once a minute: one process of those that tick writes them, for all who look.

Libraries of other versions that nobody calls any more: a server keeps each library until somebody deletes it.

A library itself knows when it was called last. So a library that processes of any namespace still call stays.

The loop that ticks, for the work that no event triggers. Each worker embeds a dispatcher.

`celery affinity dispatcher` runs one alone.

The ticking thread calls nothing but the broker. Foreign code runs in daemon threads: results and signals of jobs that
ended (`announcer`), messages of stock producers (`ingest`), and calls that recur (`recurring_calls`).
"""

import random
import time

import redis
from redis.exceptions import RedisError, ResponseError

from ..background import DaemonPool, PeriodicThread
from ..clock import SECOND_US, ClockWatch, ServerTime
from ..log_limit import limited_logger
from ..reports import type_metrics
from ..reports.blockers import ReservedSlots, reserve_too_large
from ..results.unrun_jobs import UnrunJobReporter
from ..scheduler.reader import Reader
from ..scheduler.scheduler import Scheduler
from ..schema.constants import REPAIRED_EVERY_US, TICK_US
from .ingest import Ingest
from .recurring import RecurringCalls

logger = limited_logger(__name__)


class ReserveWarnings:
    """Warns once of each reserve that is too large, and again if it is after it was not."""

    def __init__(self) -> None:
        self._known: set[ReservedSlots] = set()

    def warn(self, reader: Reader) -> None:
        found = {*reserve_too_large(reader)}
        for each in sorted(found - self._known, key=str):
            logger.warning("%s Lower the reserve, or start more workers.", each.sentence)
        self._known = found


#: Interval, s, of the notes, and the time for which they are kept without further ones.
_TREND_PERIOD_S = 60.0
_KEPT_S = 3_600


class TrendNotes:
    """Writes a note when a minute is over and no other process has."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def write(self, scheduler: Scheduler) -> None:
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + _TREND_PERIOD_S
        try:
            self._write(scheduler)
        except ResponseError as exc:  # somebody else's data stand there, or rights are missing: ticks go on
            logger.debug("No note of what waits: %s", exc)

    def _write(self, scheduler: Scheduler) -> None:
        client, key = scheduler.client, scheduler.keys.key
        if not client.set(key("trend_written"), 1, nx=True, px=int(0.9 * _TREND_PERIOD_S * 1000)):
            return
        note = type_metrics.note_trends(scheduler.reader)
        with client.pipeline(transaction=False) as pipe:
            pipe.lpush(key("trend"), note)
            pipe.ltrim(key("trend"), 0, type_metrics.KEPT - 1)
            pipe.expire(key("trend"), _KEPT_S)
            pipe.execute()


#: Time, s, without a call after which a library is deleted.
IDLE_S = 86_400

#: Pause, s, between two looks.
_COLLECTION_PERIOD_S = 3_600.0

#: What begins the names of all versions' libraries.
_OURS = "affinity_"


class LibraryCollector:
    """Looks for old libraries, once an hour at most."""

    def __init__(self) -> None:
        self._at_s = time.monotonic()

    def delete(self, scheduler: Scheduler) -> None:
        """Delete libraries that nobody has called for `IDLE_S`, if an hour has passed. Raises errors of connections."""
        if time.monotonic() >= self._at_s:
            self._at_s = time.monotonic() + _COLLECTION_PERIOD_S
            for name in delete_idle_libraries(scheduler):
                logger.info("The library %s of another version was deleted: nobody has called it for a day", name)


def delete_idle_libraries(scheduler: Scheduler, idle_s: float = IDLE_S) -> list[str]:
    """Delete all libraries but *scheduler*'s that were not called for *idle_s*. Return their names."""
    deleted = []
    try:
        for name in _names(scheduler):
            if name != scheduler.library.name and _idle_s(scheduler, name) >= idle_s:
                scheduler.client.execute_command("FUNCTION", "DELETE", name)
                deleted.append(name)
    except redis.ResponseError as exc:  # the user has no right, or the server has no functions
        logger.debug("Libraries of other versions are left as they are: %s", exc)
    return deleted


def _names(scheduler: Scheduler) -> list[str]:
    found = scheduler.client.execute_command("FUNCTION", "LIST", "LIBRARYNAME", f"{_OURS}*")
    rows = (each if isinstance(each, dict) else dict(zip(each[::2], each[1::2], strict=True)) for each in found)
    return [row[b"library_name"].decode() for row in rows]


def _idle_s(scheduler: Scheduler, name: str) -> float:
    """Return for how long nobody has called the library; -1 if it does not say, as one that somebody else named so."""
    try:
        return float(scheduler.client.execute_command("FCALL", f"{name}_idle", 0))
    except (redis.ResponseError, TypeError, ValueError):
        return -1.0


#: Longest pause, s, between two ticks in a worker: `publish` wakes the worker for a job that is due sooner.
LONGEST_PAUSE_S = TICK_US / SECOND_US

#: Longest pause, s, of a stand-alone dispatcher (no publisher can wake it), and of every dispatcher for 10 s after a
#: stock producer sent something: its messages lie in a list until the next tick.
SHORT_PAUSE_S = 0.2

#: Time, s, for which further messages are expected after one of a stock producer.
_PRODUCERS_SEND_S = 10.0

#: Pause, s, of a quiet dispatcher, for which others tick.
QUIET_PAUSE_S = 5.0

#: Interval, s, at which a ticking dispatcher repairs what other programs deleted or overwrote, and looks at reserves.
_REPAIRS_EVERY_S = REPAIRED_EVERY_US / SECOND_US

#: Pause, s, after a tick that the server did not answer.
_PAUSE_AFTER_ERROR_S = 1.0

#: Time, s, after which moving messages counts as hanging, and the log says so: a few hundred take 0.2 s.
_MOVES_WITHIN_S = 30.0

#: Longest wait, s, of `stop` for messages being moved. Each message is moved whole or not at all.
_PATIENCE_S = 1.0


class Dispatcher:
    """Tick *scheduler* from a thread until stopped. Any number of dispatchers may run; they elect nobody.

    *announcer* tells the ends that no worker tells; *ingest* moves messages of stock producers; *recurring* makes calls
    that recur. *pause_s*: the longest pause between two ticks.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        announcer: UnrunJobReporter,
        ingest: Ingest,
        recurring: RecurringCalls,
        *,
        pause_s: float = LONGEST_PAUSE_S,
    ) -> None:
        self._scheduler = scheduler
        self._announcer = announcer
        self._ingest = ingest
        self._recurring = recurring
        self._quiet = False
        self._in_trouble = False
        self._pause_s = pause_s
        self._expects_messages_until_s = 0.0
        self._mover = DaemonPool("affinity-ingest", self._move, most=1)
        self._to_move: list[str] | None = None  # lists with messages; None: ticks may look for some
        self._hangs_in_a_message = False
        self._repairs_at_s = time.monotonic() + _REPAIRS_EVERY_S * random.random()  # noqa: S311  # not all at once
        self._reserves = ReserveWarnings()
        self._trend = TrendNotes()
        self._old_libraries = LibraryCollector()
        self._clock = ClockWatch()
        self._ticking = PeriodicThread("affinity-dispatcher", self._tick, pause_s)

    @property
    def is_quiet(self) -> bool:
        """Whether other dispatchers tick, and this one does not."""
        return self._quiet

    def start(self) -> None:
        self._ticking.start()

    def stop(self) -> None:
        """Tick no more. Waits a few seconds at most, and logs what still runs then."""
        self._ticking.stop()
        self._announcer.stop()
        self._recurring.stop()
        if self._mover.stop(_PATIENCE_S):
            logger.warning(
                "The dispatcher ends without waiting for messages of stock producers that are still being moved"
            )

    def wake(self) -> None:
        """Tick now."""
        self._ticking.wake()

    def use(self, scheduler: Scheduler, *, quiet: bool) -> None:
        """Go on with *scheduler*. *quiet*: leave ticking to others."""
        was_quiet, self._quiet = self._quiet, quiet
        self._scheduler = scheduler
        if was_quiet and not quiet:
            self._ticking.wake()

    def declare_again(self) -> None:
        """Bring the app's recurring calls to the server again, which may have lost them."""
        self._recurring.declare_again()

    def _repair_now_and_then(self) -> None:
        if time.monotonic() >= self._repairs_at_s:
            self._repairs_at_s = time.monotonic() + _REPAIRS_EVERY_S
            self._scheduler.repair()
            self._reserves.warn(self._scheduler.reader)
            self._old_libraries.delete(self._scheduler)

    def _tick(self) -> float:
        try:
            # A quiet dispatcher asks for untold ends and calls that are due, too: the ticking ones may belong to other
            # apps, which have not the tasks of this one.
            ticked = None if self._quiet else self._scheduler.tick(self._lists())
            reader = self._scheduler.reader
            untold = reader.has_unreported_ends() if ticked is None else ticked.untold
            due = reader.has_due() if ticked is None else ticked.recurring
            if ticked is not None:
                self._note_step(ticked.time)
                self._repair_now_and_then()
                self._trend.write(self._scheduler)
        except (RedisError, OSError) as exc:
            if not self._in_trouble:
                logger.warning("The broker does not answer the dispatcher, scheduled jobs wait: %s", exc)
            self._in_trouble = True
            return _PAUSE_AFTER_ERROR_S
        if self._in_trouble:
            logger.info("The broker answers the dispatcher again")
        self._in_trouble = False
        self._announcer.announce(self._scheduler, untold=untold)
        self._recurring.look(self._scheduler, due=due)
        if ticked is None:
            return QUIET_PAUSE_S
        if ticked.dead_workers:
            logger.warning(
                "%d silent worker(s) taken for dead; jobs taken back from them: %d",
                ticked.dead_workers,
                ticked.recovered,
            )
        if ticked.lists:
            self._to_move = ticked.lists
            self._mover.call()
            self._expects_messages_until_s = time.monotonic() + _PRODUCERS_SEND_S
        pause_s = SHORT_PAUSE_S if time.monotonic() < self._expects_messages_until_s else self._pause_s
        return pause_s if ticked.next_due_s is None else min(pause_s, ticked.next_due_s)

    def _note_step(self, time: ServerTime) -> None:
        """Log a step of the server's clock, and write it down for `check`."""
        step = self._clock.step(time)
        if step is None:
            return
        logger.warning(
            "The server's clock went %s by %s s (it was set, another server took over, or this machine was suspended): "
            "what waits for a time (eta, countdown, expires, the end of a pause) is due that much %s. Due times are "
            "not moved",
            *(step.direction, f"{abs(step.size_us) / SECOND_US:,.0f}", "earlier" if step.size_us > 0 else "later"),
        )
        scheduler = self._scheduler
        try:
            scheduler.client.hset(scheduler.keys.key("clock"), "stepped", step.text)
        except ResponseError as exc:  # no memory: the log has it
            logger.debug("The step of the server's clock is not written down: %s", exc)

    def _lists(self) -> list[str]:
        """Return the lists that the tick looks at: none while messages that an earlier tick found are being moved."""
        if self._to_move is None:
            return self._ingest.lists(self._scheduler)
        busy_for_s = self._mover.busy_for_s
        if not busy_for_s:
            self._mover.call()  # the system had no room for a thread
        elif busy_for_s[0] > _MOVES_WITHIN_S and not self._hangs_in_a_message:
            self._hangs_in_a_message = True
            logger.error("Reading a message of a stock producer hangs: the messages in lists %s wait", self._to_move)
        return []

    def _move(self) -> bool:
        """Move messages from the lists that a tick found. Return False: the next tick says whether there are more."""
        goes_on = False
        try:
            goes_on = self._ingest.move(self._scheduler, self._to_move or [])
        except (RedisError, OSError) as exc:
            logger.warning("The broker does not answer the dispatcher, messages of stock producers wait: %s", exc)
        finally:
            self._to_move, self._hangs_in_a_message = None, False
        if goes_on:
            self._ticking.wake()
        return False
