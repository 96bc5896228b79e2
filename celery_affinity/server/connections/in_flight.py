"""Commands that were sent and are not answered yet: an event loop goes on, and reads when there is a reply."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import redis

from .kept import is_readable, taken_from


class InFlight:
    """One exchange with the server at a time, on a connection of its own, from *pool*.

    Whatever fails closes the connection: nobody takes a late reply for that of the next exchange.
    """

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self._pool: Any = pool
        self._connection: Any = None
        self._due = 0
        self._sent_s = 0.0
        self._has_answered = False
        #: Called when there is a new connection.
        self.on_open: Callable[[], object] = lambda: None
        #: Called before the connection is closed: its file descriptor may be another's a moment later.
        self.on_close: Callable[[], object] = lambda: None

    @property
    def socket(self) -> Any:
        """What gets readable with the reply, or when the server closes the connection; None: there is no connection."""
        return self._connection and self._connection._sock

    @property
    def is_under_way(self) -> bool:
        return self._due > 0

    @property
    def is_readable(self) -> bool:
        """Whether there is a reply to be read, or the end of the connection."""
        return self._connection is not None and is_readable(self._connection)

    @property
    def is_proven(self) -> bool:
        """Whether the server has answered on this connection, and has not closed it since, as far as one sees here."""
        return self._has_answered and (self.is_under_way or not self.is_readable)

    @property
    def is_late(self) -> bool:
        """Whether there is no reply for longer than one takes; not if it is there, and nobody had time to read it."""
        return self._is_overdue and not is_readable(self._connection)

    @property
    def is_unread(self) -> bool:
        """Whether a reply is there for longer than it takes to read one."""
        return self._is_overdue and is_readable(self._connection)

    @property
    def _is_overdue(self) -> bool:
        return self.is_under_way and time.monotonic() - self._sent_s >= self._connection.socket_timeout

    def send(self, commands: Sequence[Sequence[Any]]) -> None:
        """Send *commands*, and expect no reply to those before. Raises a redis error if there is no connection."""
        if self.is_under_way:
            self.close()
        self.go_on(commands)

    def go_on(self, commands: Sequence[Sequence[Any]]) -> None:
        """Send more commands of the same exchange: the server is at work on the first meanwhile."""
        try:
            if self._connection is None:
                self._connection = taken_from(self._pool)
                self.on_open()
            packed = self._connection.pack_commands(commands)
            # redis-py's own PING, after an idle time, would take the first reply that is due for its own.
            self._connection.send_packed_command(packed, check_health=not self.is_under_way)
        except BaseException:
            self.close()
            raise
        self._due, self._sent_s = self._due + len(commands), time.monotonic()

    def receive(self, most: int | None = None) -> list[Any]:
        """Return the replies, the first *most* of them; waits for them.

        Raises the first error among them, or that of the connection.
        """
        count = self._due if most is None else min(most, self._due)
        try:
            replies = [self._connection.read_response() for _ in range(count)]
        except BaseException:
            self.close()
            raise
        self._due -= count
        self._has_answered = self._has_answered or count > 0
        return replies

    def give_back(self) -> None:
        """Let others have the connection until the next exchange; one that is under way ends here."""
        if self.is_under_way:
            self.close()
        elif self._connection is not None:
            connection, self._connection, self._has_answered = self._connection, None, False
            self._pool.release(connection)

    def close(self) -> None:
        """Close the connection; what is under way is not answered any more."""
        connection, self._connection, self._due = self._connection, None, 0
        self._has_answered = False
        if connection is not None:
            self.on_close()
            try:
                connection.disconnect()
            finally:
                self._pool.release(connection)
