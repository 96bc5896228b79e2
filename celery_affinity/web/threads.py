"""Threads for work that waits: for the broker, or for foreign code, which may hang."""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

from ..log_limit import limited_logger

T = TypeVar("T")

logger = limited_logger(__name__)


class BusyError(Exception):
    """There was no thread in time, or the work took too long."""


class Threads:
    """Do pieces of work in up to *most* daemon threads. A piece that takes longer than *deadline_s* is given up.

    A thread that hangs is lost, and its request is answered all the same. Daemon threads do not hold up the end of the
    process.
    """

    def __init__(self, name: str, most: int, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self._name, self._most = name, most
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._threads = self._idle = self._queued = 0
        self._lock = threading.Lock()

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Return what *function* does, in a thread. Raises what it raises, or BusyError."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def piece() -> None:
            if future.done():
                return  # nobody waits any longer
            try:
                result = function(*args)
            except BaseException as exc:  # foreign code may raise SystemExit
                error = exc if isinstance(exc, Exception) else RuntimeError(f"{type(exc).__name__}: {exc}")
                loop.call_soon_threadsafe(_fail, future, error)
            else:
                loop.call_soon_threadsafe(_settle, future, result)

        self._put(piece)
        try:
            async with asyncio.timeout(self.deadline_s) as limit:
                return await future
        except TimeoutError:
            if limit.expired():  # the piece itself may have raised one; or it ends at this very moment
                raise BusyError(f"no answer within {self.deadline_s:g} s") from None
            raise

    def _put(self, piece: Callable[[], None]) -> None:
        with self._lock:
            self._queued += 1
            if self._queued > self._idle and self._threads < self._most:
                try:
                    threading.Thread(target=self._run, name=self._name, daemon=True).start()
                    self._threads += 1
                except RuntimeError as exc:  # the system has no room for one more
                    logger.warning("The system has no further thread for %s: %s", self._name, exc)
        self._work.put(piece)

    def _run(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            piece = self._work.get()
            with self._lock:
                self._idle -= 1
                self._queued -= 1
            try:
                piece()
            except RuntimeError:  # the loop is closed: the process ends
                return


def _settle(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[T]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
