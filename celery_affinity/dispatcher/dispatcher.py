"""Run the work that no event triggers, in a loop of ticks. Each worker embeds a dispatcher.

`celery affinity dispatcher` runs a stand-alone one. The ticking thread only calls the broker. Untrusted code runs in
daemon threads: results and signals of ended jobs, messages of stock producers, and recurring calls.
"""

import random
import time
from collections.abc import Sequence

import redis
from redis.exceptions import RedisError, ResponseError

from ..background import DaemonPool, PeriodicThread
from ..clock import SECOND_US, ClockWatch, ServerTime
from ..log_limit import limited_logger
from ..reports import history, type_metrics
from ..reports.blockers import ReservedSlots, reserve_too_large
from ..reports.render import printable_cell
from ..reports.requeues import SILENT, read_requeues
from ..results.unrun_jobs import UnrunJobReporter
from ..scheduler.messages import TickReply
from ..scheduler.scheduler import Scheduler
from ..schema.constants import REPAIRED_EVERY_US, TICK_US
from .ingest import Ingest
from .recurring import RecurringCalls

logger = limited_logger(__name__)


#: Seconds between two notes, and seconds for which the notes are kept without further ones.
_TREND_INTERVAL_S = 60.0
_TREND_KEPT_S = 3_600


class TrendNotes:
    """Records the pending jobs by type once a minute. One of the ticking processes writes the note for all readers."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def write(self, scheduler: Scheduler) -> None:
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + _TREND_INTERVAL_S
        client, key = scheduler.client, scheduler.keys.key
        try:
            if client.set(key("trend_written"), 1, nx=True, px=int(0.9 * _TREND_INTERVAL_S * 1000)):
                note = type_metrics.note_trends(scheduler.reader)
                with client.pipeline(transaction=False) as pipe:
                    pipe.lpush(key("trend"), note)
                    pipe.ltrim(key("trend"), 0, type_metrics.KEPT - 1)
                    pipe.expire(key("trend"), _TREND_KEPT_S)
                    pipe.execute()
        except ResponseError as exc:  # foreign data at the key, or missing rights: ticks continue
            logger.debug("No note of what waits: %s", exc)


#: Milliseconds after a point in which no other process writes one.
_HISTORY_LOCK_MS = 5_000


class HistoryWriter:
    """Writes a point of the history every 10 s. One of the ticking processes writes it for all readers."""

    def __init__(self) -> None:
        self._number = 0

    def write(self, scheduler: Scheduler, now_us: int) -> None:
        """Write a point if the first tick of a 10 s interval is this process's. *now_us*: the server's time."""
        number = now_us // (history.SHORT_S * SECOND_US)
        if number == self._number:
            return
        self._number = number
        client, key = scheduler.client, scheduler.keys.key
        try:
            if not client.set(key("history_written"), 1, nx=True, px=_HISTORY_LOCK_MS):
                return
            points = history.new_points(scheduler.reader, now_us)
            with client.pipeline(transaction=False) as pipe:
                for point in points:
                    values = ("history", point.point), ("history_base", point.base)
                    for (name, value), kept in zip(values, history.KEPT[point.step_s], strict=True):
                        pipe.lpush(key(name, str(point.step_s)), value)
                        pipe.ltrim(key(name, str(point.step_s)), 0, kept - 1)
                        pipe.expire(key(name, str(point.step_s)), history.EXPIRES_S)
                if names := points[0].names:
                    if client.hlen(key("history_names")) > history.MAX_NAMES:
                        pipe.delete(key("history_names"))
                    pipe.hset(key("history_names"), mapping=names)
                    pipe.expire(key("history_names"), history.EXPIRES_S)
                pipe.execute()
        except ResponseError as exc:  # foreign data at the key, or missing rights: ticks continue
            logger.debug("No point of the history: %s", exc)


#: Maximum number of workers, and of tasks, that one line of the log names.
_MAX_NAMED = 10


def _listed(names: Sequence[str]) -> str:
    """Return the first *names* as text, with the number of the others."""
    others = len(names) - _MAX_NAMED
    listed = ", ".join(map(printable_cell, names[:_MAX_NAMED]))
    return f"{listed} and {others} more: see `celery affinity requeues`" if others > 0 else listed


#: Seconds without a call until a library is deleted.
IDLE_S = 86_400
#: Seconds between two checks.
_COLLECTION_INTERVAL_S = 3_600.0
#: Name prefix of all versions' libraries.
_LIBRARY_PREFIX = "affinity_"


class LibraryCollector:
    """Deletes unused libraries of other versions, at most once an hour. A server never deletes libraries by itself.

    The library itself records its last call, so a library that processes of any namespace still call is kept.
    """

    def __init__(self) -> None:
        self._next_s = time.monotonic()

    def delete(self, scheduler: Scheduler) -> None:
        """Delete libraries that were not called for `IDLE_S`, if an hour has passed. Raises connection errors."""
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _COLLECTION_INTERVAL_S
            for name in delete_idle_libraries(scheduler):
                logger.info("The library %s of another version was deleted: no process has called it for a day", name)


def delete_idle_libraries(scheduler: Scheduler, idle_s: float = IDLE_S) -> list[str]:
    """Delete all libraries except *scheduler*'s that were not called for *idle_s*. Return their names."""
    deleted = []
    try:
        reply = scheduler.client.execute_command("FUNCTION", "LIST", "LIBRARYNAME", f"{_LIBRARY_PREFIX}*")
        for entry in reply:
            row = entry if isinstance(entry, dict) else dict(zip(entry[::2], entry[1::2], strict=True))
            name = row[b"library_name"].decode()
            if name != scheduler.library.name and _idle_s(scheduler, name) >= idle_s:
                scheduler.client.execute_command("FUNCTION", "DELETE", name)
                deleted.append(name)
    except redis.ResponseError as exc:  # missing rights, or a server without functions
        logger.debug("Libraries of other versions are left as they are: %s", exc)
    return deleted


def _idle_s(scheduler: Scheduler, name: str) -> float:
    """Return the seconds since the library's last call, or -1 for a foreign library of that name."""
    try:
        return float(scheduler.client.execute_command("FCALL", f"{name}_idle", 0))
    except (redis.ResponseError, TypeError, ValueError):
        return -1.0


#: Maximum seconds between two ticks in a worker. `publish` wakes the worker for a job that is due sooner.
MAX_PAUSE_S = TICK_US / SECOND_US
#: Maximum seconds between two ticks of a stand-alone dispatcher, which publishers cannot wake, and of every dispatcher
#: for 10 s after a message of a stock producer, because such messages wait in a list for the next tick.
SHORT_PAUSE_S = 0.2
#: Seconds for which further messages are expected after a stock producer's message.
_PRODUCERS_SEND_S = 10.0
#: Seconds between two reads of a quiet dispatcher, which leaves ticking to others.
QUIET_PAUSE_S = 5.0
#: Seconds between two repairs of keys that other programs deleted or overwrote, and checks of reserves.
_REPAIR_INTERVAL_S = REPAIRED_EVERY_US / SECOND_US
#: Seconds to pause after a tick that the server did not answer.
_PAUSE_AFTER_ERROR_S = 1.0
#: Seconds until moving messages is logged as hanging. Moving a few hundred takes 0.2 s.
_MAX_MOVE_S = 30.0
#: Maximum seconds that `stop` waits for messages being moved. Moving a message is atomic.
_MAX_STOP_S = 1.0


class Dispatcher:
    """Ticks *scheduler* from a thread until stopped. Any number of dispatchers can run, without an election.

    *announcer* reports ends of jobs without a worker, *ingest* moves messages of stock producers, and *recurring*
    publishes recurring calls. *pause_s* is the maximum pause between two ticks.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        announcer: UnrunJobReporter,
        ingest: Ingest,
        recurring: RecurringCalls,
        *,
        pause_s: float = MAX_PAUSE_S,
    ) -> None:
        self._scheduler = scheduler
        self._announcer = announcer
        self._ingest = ingest
        self._recurring = recurring
        #: True if only other dispatchers tick.
        self.is_quiet = False
        self._is_down = False
        self._pause_s = pause_s
        self._expects_messages_until_s = 0.0
        self._mover = DaemonPool("affinity-ingest", self._move, max_threads=1)
        self._to_move: list[str] | None = None  # lists with messages; None: ticks may read the lists
        self._is_move_hanging = False
        self._next_repair_s = time.monotonic() + _REPAIR_INTERVAL_S * random.random()  # noqa: S311  # spread over the processes
        #: The reserves that exceed their types' numbers of slots, as of the last check.
        self._large_reserves: set[ReservedSlots] = set()
        self._trend = TrendNotes()
        self._history = HistoryWriter()
        self._old_libraries = LibraryCollector()
        self._clock = ClockWatch()
        self._thread = PeriodicThread("affinity-dispatcher", self._tick, pause_s)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop ticking. Wait at most a few seconds, and log the threads still running."""
        self._thread.stop()
        self._announcer.stop()
        self._recurring.stop()
        if self._mover.stop(_MAX_STOP_S):
            logger.warning(
                "The dispatcher ends without waiting for messages of stock producers that are still being moved"
            )

    def wake(self) -> None:
        """Tick now."""
        self._thread.wake()

    def use(self, scheduler: Scheduler, *, quiet: bool) -> None:
        """Continue with *scheduler*. *quiet*: leave ticking to others."""
        was_quiet, self.is_quiet = self.is_quiet, quiet
        self._scheduler = scheduler
        if was_quiet and not quiet:
            self._thread.wake()

    def declare_again(self) -> None:
        """Send the app's recurring calls to the server again, which may have lost them."""
        self._recurring.declare_again()

    def _repair_if_due(self) -> None:
        if time.monotonic() >= self._next_repair_s:
            self._next_repair_s = time.monotonic() + _REPAIR_INTERVAL_S
            self._scheduler.repair()
            large_reserves = {*reserve_too_large(self._scheduler.reader)}
            for reserve in sorted(large_reserves - self._large_reserves, key=str):  # once, and again if that recurs
                logger.warning("%s Lower the reserve, or start more workers.", reserve.sentence)
            self._large_reserves = large_reserves
            self._old_libraries.delete(self._scheduler)

    def _tick(self) -> float:
        try:
            # A quiet dispatcher also reads unreported ends and due calls, because the ticking dispatchers may belong to
            # other apps without this app's tasks.
            ticked = None if self.is_quiet else self._scheduler.tick(self._lists_to_read())
            reader = self._scheduler.reader
            unreported = reader.has_unreported_ends() if ticked is None else ticked.unreported
            due = reader.has_due() if ticked is None else ticked.recurring
            if ticked is not None:
                self._record_clock_step(ticked.time)
                self._repair_if_due()
                self._trend.write(self._scheduler)
                self._history.write(self._scheduler, ticked.time.now_us)
        except (RedisError, OSError) as exc:
            if not self._is_down:
                logger.warning("The broker does not answer the dispatcher, scheduled jobs wait: %s", exc)
            self._is_down = True
            return _PAUSE_AFTER_ERROR_S
        if self._is_down:
            logger.info("The broker answers the dispatcher again")
        self._is_down = False
        self._announcer.announce(self._scheduler, unreported=unreported)
        self._recurring.look(self._scheduler, due=due)
        if ticked is None:
            return QUIET_PAUSE_S
        if ticked.dead_workers:
            self._log_dead_workers(ticked)
        if ticked.lists:
            self._to_move = ticked.lists
            self._mover.call()
            self._expects_messages_until_s = time.monotonic() + _PRODUCERS_SEND_S
        pause_s = SHORT_PAUSE_S if time.monotonic() < self._expects_messages_until_s else self._pause_s
        return pause_s if ticked.next_due_s is None else min(pause_s, ticked.next_due_s)

    def _log_dead_workers(self, ticked: TickReply) -> None:
        """Name the silent workers that the tick removed, and the tasks whose jobs it reclaimed."""
        names: list[str] = []
        try:
            rows = read_requeues(self._scheduler.reader, ticked.time.now_us) if ticked.recovered else []
            names = [row.task_id or row.job_id for row in rows if row.cause == SILENT]
        except (RedisError, OSError) as exc:
            logger.debug("The ids of reclaimed tasks cannot be read: %s", exc)
        logger.warning(
            "%d silent worker(s) declared dead: %s; jobs reclaimed from them: %d%s",
            *(len(ticked.dead_workers), _listed(ticked.dead_workers), ticked.recovered),
            f" ({_listed(names)})" if names else "",
        )

    def _record_clock_step(self, time: ServerTime) -> None:
        """Log a step of the server's clock, and store it for `check`."""
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
        except ResponseError as exc:  # no memory: it is in the log
            logger.debug("The step of the server's clock is not written down: %s", exc)

    def _lists_to_read(self) -> list[str]:
        """Return the lists for the tick to read, or [] while messages of an earlier tick are being moved."""
        if self._to_move is None:
            return self._ingest.lists(self._scheduler)
        busy_for_s = self._mover.busy_for_s
        if not busy_for_s:
            self._mover.call()  # the system could not start a thread
        elif busy_for_s[0] > _MAX_MOVE_S and not self._is_move_hanging:
            self._is_move_hanging = True
            logger.error(
                "Reading a message of a stock producer is blocked: the messages in lists %s wait", self._to_move
            )
        return []

    def _move(self) -> bool:
        """Move messages from the lists of an earlier tick. Return False: the next tick shows if there are more."""
        has_more = False
        try:
            has_more = self._ingest.move(self._scheduler, self._to_move or [])
        except (RedisError, OSError) as exc:
            logger.warning("The broker does not answer the dispatcher, messages of stock producers wait: %s", exc)
        finally:
            self._to_move, self._is_move_hanging = None, False
        if has_more:
            self._thread.wake()
        return False
