"""Commands in flight: sent without waiting for the reply, so that the event loop can continue meanwhile."""

import socket as sockets
import time
from collections.abc import Callable, Sequence
from typing import Any

import redis

from .client import AnyConnection, Reply, has_readable_data, reauthenticate, take_connection


class InFlightCommands:
    """One exchange with the server at a time, on a connection from *pool*.

    Every failure closes the connection. Otherwise a late reply could be taken for a reply of the next exchange.
    """

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self._pool: Any = pool
        self._connection: AnyConnection = None
        self._due = 0
        self._sent_s = 0.0
        self._has_answered = False
        #: Callback that runs when there is a new connection.
        self.on_open: Callable[[], object] = lambda: None
        #: Callback that runs before the connection is closed, because its file descriptor can be reused immediately.
        self.on_close: Callable[[], object] = lambda: None

    @property
    def socket(self) -> sockets.socket | None:
        """The socket, readable on a reply or the end of the connection, or None if there is no connection."""
        connected: sockets.socket | None = self._connection and self._connection._sock
        return connected

    @property
    def is_under_way(self) -> bool:
        return self._due > 0

    @property
    def is_readable(self) -> bool:
        """True if a reply, or the end of the connection, can be read."""
        return self._connection is not None and self._has_input

    @property
    def is_proven(self) -> bool:
        """True if the server has answered on this connection and, as far as this end knows, has not closed it since."""
        return self._has_answered and (self.is_under_way or not self.is_readable)

    @property
    def is_late(self) -> bool:
        """True if no reply has arrived within `socket_timeout`. A reply that has arrived but is unread is not late."""
        return self._is_overdue and not self._has_input

    @property
    def is_unread(self) -> bool:
        """True if a reply has arrived but was not read within `socket_timeout` of the command."""
        return self._is_overdue and self._has_input

    @property
    def _has_input(self) -> bool:
        # If redis-py detects the end of a connection, it closes it. The next check would open it again.
        return self.socket is None or has_readable_data(self._connection)

    @property
    def _is_overdue(self) -> bool:
        return self.is_under_way and time.monotonic() - self._sent_s >= self._connection.socket_timeout

    def send(self, commands: Sequence[Sequence[object]]) -> None:
        """Send *commands*, abandoning an exchange in progress. Raises a redis error if there is no connection."""
        if self.is_under_way:
            self.close()
        self.send_more(commands)

    def send_more(self, commands: Sequence[Sequence[object]]) -> None:
        """Send more commands of the exchange, while the server runs the first ones."""
        try:
            if self._connection is None:
                self._connection = take_connection(self._pool)
                self.on_open()
            elif not self.is_under_way:
                reauthenticate(self._connection)
            first, *further = commands  # usually only one
            connection = self._connection
            packed = connection.pack_commands(commands) if further else connection.pack_command(*first)
            # redis-py's PING after an idle time would take the first pending reply for its own.
            connection.send_packed_command(packed, check_health=not self.is_under_way)
        except BaseException:
            self.close()
            raise
        self._due, self._sent_s = self._due + len(commands), time.monotonic()

    def receive(self, max_replies: int | None = None) -> list[Reply]:
        """Wait for the replies, or for the first *max_replies* replies, and return them.

        Raises the first error among the replies, or the connection's error.
        """
        count = self._due if max_replies is None else min(max_replies, self._due)
        try:
            if count and self.socket is None:
                raise redis.ConnectionError("the server closed the connection before it replied")
            replies = [self._connection.read_response() for _ in range(count)]
        except BaseException:
            self.close()
            raise
        self._due -= count
        self._has_answered = self._has_answered or count > 0
        return replies

    def give_back(self) -> None:
        """Release the connection until the next exchange. An exchange in progress is abandoned."""
        if self.is_under_way:
            self.close()
        elif self._connection is not None:
            connection, self._connection, self._has_answered = self._connection, None, False
            self._pool.release(connection)

    def close(self) -> None:
        """Close the connection, abandoning an exchange in progress."""
        connection, self._connection, self._due = self._connection, None, 0
        self._has_answered = False
        if connection is not None:
            self.on_close()
            try:
                connection.disconnect()
            finally:
                self._pool.release(connection)
