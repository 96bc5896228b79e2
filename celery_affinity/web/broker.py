"""The way to the broker: one scheduler for all requests, opened anew when the broker was down.

Threads for work that waits: for the broker, or for foreign code, which may hang.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import TypeVar

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

#: Timeouts, s, of a connection, unless the app's transport options say others: a client waits for the answer.
_CONNECT_TIMEOUT_S, _REPLY_TIMEOUT_S = 1.0, 3.0

#: Largest number of connections for kombu's own ways: one for each thread that runs foreign code.
_MOST_CONNECTIONS = 8

#: Time, s, for which a broker that did not answer is not asked again: a request must not wait behind others.
_DOWN_S = 0.5

#: Longest wait, s, for another cohort: that of a connection, and that of a reply.
_PATIENCE_S = _CONNECT_TIMEOUT_S + _REPLY_TIMEOUT_S

#: Errors of a connection that is lost, or of a server in a state that will pass.
_NO_ANSWER = (OperationalError, redis_errors.ConnectionError, redis_errors.TimeoutError, OSError)


class BrokerDownError(Exception):
    """The broker does not answer."""


class Broker:
    """The broker of *app*, for any number of threads."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._scheduler: Scheduler | None = None
        settings = settings_of(app)
        names = [DEFAULT, *settings.cohorts]
        self._fleet = Cohorts(names, settings.cohort_of, self._of_cohort, rest_s=_DOWN_S, patience_s=_PATIENCE_S)
        self._others: dict[str, Scheduler] = {}
        self._locks = {name: threading.Lock() for name in names}
        self._lock = threading.Lock()
        self._connections: ConnectionPool | None = None
        self._lock_of_pool = threading.Lock()
        self._down_until_s = 0.0

    def call(self, function: Callable[..., T], *args: object) -> T:
        """Return what *function* does, twice if the connection was lost. Raises BrokerDownError.

        All that is done on the broker may be repeated.
        """
        if time.monotonic() < self._down_until_s:
            raise BrokerDownError(self._words())
        used = self._scheduler
        try:
            return function(*args)
        except _NO_ANSWER:
            self._forget(used)  # closed as idle; or another URL of a failover list answers by now
        try:
            return function(*args)
        except _NO_ANSWER as exc:
            for cause in (exc.__cause__, exc.__context__):
                if isinstance(cause, redis_errors.NoPermissionError):  # kombu makes a lost connection of it
                    raise cause from exc
            self._down_until_s = time.monotonic() + _DOWN_S
            raise BrokerDownError(self._words()) from exc

    @contextmanager
    def reach(self) -> Iterator[Cohorts]:
        """Yield the cohorts, within `call`."""
        self._main()
        yield self._fleet

    def _of_cohort(self, name: str) -> Scheduler:
        if name == DEFAULT:
            return self._main()
        with self._locks[name]:  # one thread connects; those for other cohorts do not wait for it
            if name not in self._others:
                self._others[name] = self._opened(name)
            return self._others[name]

    def _main(self) -> Scheduler:
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
        """Yield a connection for kombu's own ways, within `call`: messages that Celery makes, broadcasts."""
        with self._pool().acquire(block=True, timeout=_REPLY_TIMEOUT_S) as connection:
            try:
                connect_app(connection)
                yield connection
            except _NO_ANSWER:
                connection.close()  # even in a pool: who has it next connects anew
                raise

    def _pool(self) -> ConnectionPool:
        with self._lock_of_pool:
            if self._connections is None:
                origin = self._app.connection_for_write()
                options = {
                    "socket_connect_timeout": _CONNECT_TIMEOUT_S,
                    "socket_timeout": _REPLY_TIMEOUT_S,
                    **origin.transport.client.transport_options,  # with the scheme: a clone has no URL
                }
                self._connections = origin.clone(transport_options=options).Pool(limit=_MOST_CONNECTIONS)
            return self._connections

    def opened(self) -> Scheduler:
        """Return a scheduler on connections of its own. Raises what a broker raises that does not answer."""
        try:
            return self._opened(DEFAULT)
        except _NO_ANSWER:
            self._down_until_s = time.monotonic() + _DOWN_S
            raise

    def _opened(self, cohort: str) -> Scheduler:
        with self.connection() as connection:
            return channel_on(connection, self._app.conf.broker_transport).scheduler_of_its_own(cohort)

    def _forget(self, used: Scheduler | None) -> None:
        with self._lock:
            if used is not None and self._scheduler is used:
                self._scheduler = None
                with suppress(Exception):
                    used.close()

    def _words(self) -> str:
        return f"the broker {self._app.connection_for_write().as_uri()} does not answer"


logger = limited_logger(__name__)


class BusyError(Exception):
    """There was no thread in time, or the work took too long."""


class RequestThreads:
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
