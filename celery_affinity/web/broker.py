"""Connect to the broker: one scheduler for all requests, reopened after an outage, and threads for blocking work."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from celery import Celery
from kombu import Connection
from kombu.connection import ConnectionPool
from kombu.exceptions import OperationalError
from redis import exceptions as redis_errors

from ..log_limit import limited_logger
from ..publishing.app_config import settings_of
from ..scheduler.cohorts import Cohorts
from ..scheduler.scheduler import Scheduler
from ..settings.cohorts import DEFAULT
from ..transport.app_api import channel_on, connect_app

T = TypeVar("T")

#: Timeouts of a connection in seconds, unless the app's transport options set them: a client waits for the reply.
_CONNECT_TIMEOUT_S, _REPLY_TIMEOUT_S = 1.0, 3.0

#: Maximum number of connections for kombu's own use: one for each thread that runs untrusted code.
_MAX_CONNECTIONS = 8

#: Seconds for which an unresponsive broker is not contacted again, so that requests do not queue up.
_DOWN_S = 0.5

#: Maximum seconds to wait for another cohort, for its connection and its reply.
_PATIENCE_S = _CONNECT_TIMEOUT_S + _REPLY_TIMEOUT_S

#: Errors of a lost connection, or of a server in a temporary state.
_NO_ANSWER = (OperationalError, redis_errors.ConnectionError, redis_errors.TimeoutError, OSError)


class BrokerDownError(Exception):
    """The broker does not answer."""


class Broker:
    """The broker of *app*. Any number of threads can use it."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._scheduler: Scheduler | None = None
        settings = settings_of(app)
        names = [DEFAULT, *settings.cohorts]
        self._fleet = Cohorts(names, settings.cohort_of, self._scheduler_of, rest_s=_DOWN_S, patience_s=_PATIENCE_S)
        self._others: dict[str, Scheduler] = {}
        self._locks = {name: threading.Lock() for name in names}
        self._lock = threading.Lock()
        self._connections: ConnectionPool | None = None
        self._pool_lock = threading.Lock()
        self._down_until_s = 0.0

    def call(self, function: Callable[..., T], *args: object) -> T:
        """Return the result of *function*, which is repeated once if the connection was lost. Raises BrokerDownError.

        All actions on the broker can be repeated.
        """
        if time.monotonic() < self._down_until_s:
            raise BrokerDownError(self._describe_outage())
        used = self._scheduler
        try:
            return function(*args)
        except _NO_ANSWER:
            self._forget(used)  # it was closed as idle, or another URL of a failover list answers now
        try:
            return function(*args)
        except _NO_ANSWER as exc:
            for cause in (exc.__cause__, exc.__context__):
                if isinstance(cause, redis_errors.NoPermissionError):  # kombu turns this error into a lost connection
                    raise cause from exc
            self._down_until_s = time.monotonic() + _DOWN_S
            raise BrokerDownError(self._describe_outage()) from exc

    @contextmanager
    def reach(self) -> Iterator[Cohorts]:
        """Yield the cohorts. For use within `call`."""
        self._main_scheduler()
        yield self._fleet

    def with_fleet(self, function: Callable[..., T], *args: object) -> T:
        """Return the result of *function*, whose first argument is the cohorts. For use within `call`."""
        with self.reach() as fleet:
            return function(fleet, *args)

    def _scheduler_of(self, name: str) -> Scheduler:
        if name == DEFAULT:
            return self._main_scheduler()
        with self._locks[name]:  # one thread connects; threads for other cohorts do not wait for it
            if name not in self._others:
                self._others[name] = self._open(name)
            return self._others[name]

    def _main_scheduler(self) -> Scheduler:
        scheduler = self._scheduler
        if scheduler is None:
            with self._lock:  # one thread connects, the others wait for it
                if self._scheduler is None:
                    if time.monotonic() < self._down_until_s:
                        raise redis_errors.ConnectionError("the broker is down")
                    self._scheduler = self.opened()
                scheduler = self._scheduler
        return scheduler

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Yield a connection for kombu's own use within `call`: messages that Celery makes, and broadcasts."""
        with self._pool().acquire(block=True, timeout=_REPLY_TIMEOUT_S) as connection:
            try:
                connect_app(connection)
                yield connection
            except _NO_ANSWER:
                connection.close()  # even in a pool: its next user reconnects
                raise

    def _pool(self) -> ConnectionPool:
        with self._pool_lock:
            if self._connections is None:
                origin = self._app.connection_for_write()
                options = {
                    "socket_connect_timeout": _CONNECT_TIMEOUT_S,
                    "socket_timeout": _REPLY_TIMEOUT_S,
                    **origin.transport.client.transport_options,  # includes the scheme, because a clone has no URL
                }
                self._connections = origin.clone(transport_options=options).Pool(limit=_MAX_CONNECTIONS)
            return self._connections

    def opened(self) -> Scheduler:
        """Return a scheduler on its own connections. Raises the errors of an unresponsive broker."""
        try:
            return self._open(DEFAULT)
        except _NO_ANSWER:
            self._down_until_s = time.monotonic() + _DOWN_S
            raise

    def _open(self, cohort: str) -> Scheduler:
        with self.connection() as connection:
            return channel_on(connection, self._app.conf.broker_transport).scheduler_of_its_own(cohort)

    def _forget(self, scheduler: Scheduler | None) -> None:
        with self._lock:
            if scheduler is not None and self._scheduler is scheduler:
                self._scheduler = None
                with suppress(Exception):
                    scheduler.close()

    def _describe_outage(self) -> str:
        return f"the broker {self._app.connection_for_write().as_uri()} does not answer"


logger = limited_logger(__name__)


class BusyError(Exception):
    """No thread was available in time, or the work took too long."""


class RequestThreads:
    """Runs pieces of work in up to *max_threads* daemon threads. A piece that exceeds *deadline_s* is abandoned.

    A blocked thread is lost, but its request is still answered. Daemon threads do not delay the exit of the process.
    """

    def __init__(self, name: str, max_threads: int, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self._name, self._max_threads = name, max_threads
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._threads = self._idle = self._queued = 0
        self._lock = threading.Lock()

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Run *function* in a thread and return its result. Raises its errors, or BusyError."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def piece() -> None:
            if future.done():
                return  # the request was abandoned
            try:
                result = function(*args)
            except BaseException as exc:  # untrusted code can raise SystemExit
                error = exc if isinstance(exc, Exception) else RuntimeError(f"{type(exc).__name__}: {exc}")
                loop.call_soon_threadsafe(_settle, future, future.set_exception, error)
            else:
                loop.call_soon_threadsafe(_settle, future, future.set_result, result)

        self._put(piece)
        try:
            async with asyncio.timeout(self.deadline_s) as limit:
                return await future
        except TimeoutError:
            if limit.expired():  # otherwise the piece raised it, or ended at this moment
                raise BusyError(f"no answer within {self.deadline_s:g} s") from None
            raise

    def _put(self, piece: Callable[[], None]) -> None:
        with self._lock:
            self._queued += 1
            if self._queued > self._idle and self._threads < self._max_threads:
                try:
                    threading.Thread(target=self._run, name=self._name, daemon=True).start()
                    self._threads += 1
                except RuntimeError as exc:  # the system cannot start another thread
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
            except RuntimeError:  # the loop is closed because the process exits
                return


def _settle(future: "asyncio.Future[Any]", settle: Callable[[Any], object], outcome: object) -> None:
    if not future.done():
        settle(outcome)
