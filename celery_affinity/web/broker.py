"""The way to the broker: one scheduler for all requests, opened anew when the broker was down."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from celery import Celery
from kombu import Connection
from kombu.connection import ConnectionPool
from kombu.exceptions import OperationalError
from redis import exceptions as redis_errors

from ..client.of_app import settings_of
from ..rules.cohorts import DEFAULT
from ..server.fleet import WholeFleet
from ..server.scheduler import Scheduler
from ..transport.reach import channel_on, connect

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
        self._fleet = WholeFleet(names, settings.cohort_of, self._of_cohort, rest_s=_DOWN_S, patience_s=_PATIENCE_S)
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
    def reach(self) -> Iterator[WholeFleet]:
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
                connect(connection)
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
