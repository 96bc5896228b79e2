"""Inboxes of workers that wait for jobs, read by a thread for each 50 of them: a wait costs no thread of its own.

A thread waits for all of its inboxes with one BRPOP, and says meanwhile that their workers live. Somebody who begins to
wait ends the BRPOP by a nudge, so that the next one has their inbox, too.
"""

import asyncio
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from redis.exceptions import RedisError

from ..log_limit import limited_logger
from ..rules.rows import text_of
from ..server.scheduler import Scheduler
from .incarnation import unknown

logger = limited_logger(__name__)

#: Workers whose inboxes one thread reads, at most, and threads, at most.
_MOST_OF_ONE, _MOST_THREADS = 50, 40

#: Longest time, s, of one BRPOP: within the reply timeout of a connection.
_ROUND_S = 1

#: The item for who waits no more, since another request waits for the same worker.
NOBODY = b""

#: Time, s, for which a nudge is kept that nobody reads, and for which a thread outlasts those that wait.
_NUDGE_KEPT_S, _OUTLASTS_S = 10, 5.0


class TooManyError(Exception):
    """No more workers can wait in this process."""


@dataclass(eq=False)
class _Waiting:
    """A worker that waits. *item*: what its inbox had; set in the loop of whoever waits."""

    worker: str
    loop: asyncio.AbstractEventLoop
    item: asyncio.Future[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.item = self.loop.create_future()

    def resolve(self, item: bytes | BaseException, given_back: Callable[[bytes], object]) -> None:
        """Hand over an item, or an error, from another thread."""

        def resolve() -> None:
            if self.item.done():
                if isinstance(item, bytes):
                    given_back(item)
            elif isinstance(item, bytes):
                self.item.set_result(item)
            else:
                self.item.set_exception(item)

        try:
            self.loop.call_soon_threadsafe(resolve)
        except RuntimeError:  # the loop is closed: the process ends
            logger.debug("Nobody waits for worker %s any more", self.worker)


class _Line:
    """A thread, and the workers that wait there."""

    def __init__(self, opened: Callable[[], Scheduler], heartbeat_every_s: float) -> None:
        self._opened, self._heartbeat_every_s = opened, heartbeat_every_s
        self.waiting: dict[str, _Waiting] = {}
        self.lock = threading.Lock()
        self.has_ended = False
        self._id = uuid.uuid4().hex
        self._strays: list[tuple[str, bytes]] = []
        self._heartbeat_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="affinity-web-listening", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def nudge(self, scheduler: Scheduler) -> None:
        """Have the thread read the inboxes of those who wait now."""
        key = scheduler.keys.key("nudges", self._id)
        with scheduler.client.pipeline(transaction=False) as pipe:
            pipe.lpush(key, "").expire(key, _NUDGE_KEPT_S).execute()

    def _run(self) -> None:
        scheduler = None
        try:
            scheduler = self._opened()
            idle_since_s = time.monotonic()
            while True:
                with self.lock:
                    waiting = dict(self.waiting)
                    if waiting or self._strays:
                        idle_since_s = time.monotonic()
                    elif time.monotonic() - idle_since_s > _OUTLASTS_S:
                        self.has_ended = True
                        return
                self._round(scheduler, waiting)
        except Exception as exc:  # the broker is down, or says no: who waits hears it, and asks again
            self._fail(exc)
        finally:
            if scheduler is not None:
                scheduler.close()

    def _round(self, scheduler: Scheduler, waiting: dict[str, _Waiting]) -> None:
        key = scheduler.keys.key
        inboxes = {key("inbox", each): each for each in waiting}
        reply = scheduler.client.execute_command("BRPOP", *inboxes, key("nudges", self._id), _ROUND_S)
        worker = inboxes.get(text_of(reply[0])) if reply else None
        if worker is not None:
            with self.lock:
                one = self.waiting.pop(worker, None)
            stray = self._stray(worker)
            if one is None:
                stray(reply[1])
            else:
                one.resolve(reply[1], stray)
        self._give_back(scheduler)
        if time.monotonic() - self._heartbeat_s > self._heartbeat_every_s:
            self._send_heartbeats(scheduler)

    def _stray(self, worker: str) -> Callable[[bytes], object]:
        return lambda item: self._strays.append((worker, item))

    def _give_back(self, scheduler: Scheduler) -> None:
        """Give back jobs that came when nobody waited any more; their age stays intact."""
        while self._strays:
            worker, item = self._strays[0]
            if not item.startswith(b"\n"):
                job_id, fence = text_of(item).split(" ", 2)[:2]
                scheduler.requeue(worker, [(job_id, fence)], counted=False)
            del self._strays[0]

    def _send_heartbeats(self, scheduler: Scheduler) -> None:
        self._heartbeat_s = time.monotonic()
        with self.lock:
            waiting = list(self.waiting.values())
        known = scheduler.heartbeats([each.worker for each in waiting])
        for each, is_known in zip(waiting, known, strict=True):
            if not is_known:
                with self.lock:
                    self.waiting.pop(each.worker, None)
                each.resolve(unknown(each.worker), lambda _: None)

    def _fail(self, exc: Exception) -> None:
        if not isinstance(exc, (RedisError, OSError)):
            logger.exception("A thread that reads inboxes has ended")
        with self.lock:
            self.has_ended = True
            waiting, self.waiting = list(self.waiting.values()), {}
        for each in waiting:
            each.resolve(exc, lambda _: None)


class Listening:
    """Waits for the inboxes of any number of workers, on one event loop. *opened* returns a scheduler of its own."""

    def __init__(self, opened: Callable[[], Scheduler], heartbeat_every_s: float) -> None:
        self._opened, self._heartbeat_every_s = opened, heartbeat_every_s
        self._lines: list[_Line] = []
        self._of: dict[str, _Line] = {}

    def begin(self, worker: str) -> tuple[_Line, "asyncio.Future[bytes]"]:
        """Begin to wait for a worker; whoever waited for it before waits no more. Raises TooManyError."""
        self.end(worker)
        one = _Waiting(worker, asyncio.get_running_loop())
        self._lines = [each for each in self._lines if not each.has_ended]
        for line in self._lines:
            with line.lock:
                if len(line.waiting) < _MOST_OF_ONE and not line.has_ended:
                    line.waiting[worker] = one
                    self._of[worker] = line
                    return line, one.item
        if len(self._lines) >= _MOST_THREADS:
            raise TooManyError(f"{_MOST_OF_ONE * _MOST_THREADS:,} workers wait in this process already")
        line = _Line(self._opened, self._heartbeat_every_s)
        line.waiting[worker] = one
        self._lines.append(line)
        self._of[worker] = line
        line.start()
        return line, one.item

    def end(self, worker: str, item: "asyncio.Future[bytes] | None" = None) -> None:
        """Wait no more for a worker. *item*: only if this one is still what waits."""
        line = self._of.get(worker)
        if line is not None:
            with line.lock:
                one = line.waiting.get(worker)
                if one is None or item in (None, one.item):
                    self._of.pop(worker)
                    line.waiting.pop(worker, None)
                    item = item if one is None else one.item
        if item is not None and not item.done():
            item.set_result(NOBODY)  # what still comes for it is given back
