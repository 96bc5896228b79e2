"""A client that keeps its connection from one command to the next.

For each command redis-py takes a connection from its pool, tests it, counts it and gives it back, which for a publish
takes as long as all the rest of the way to the server.
"""

import os
import sys
import threading
from typing import Any

import redis

from .renewed import renew_login

#: A connection of redis-py, whose types differ from version to version.
Connection = Any

#: A reply as redis-py returns it: the caller knows the type, which follows from the command.
Reply = Any


class SlotMovedError(redis.ConnectionError):
    """A node of a cluster refused a command unread, and said which node has the keys by now."""


class KeptClient(redis.Redis):
    """Commands on one connection of *pool*; a second thread that comes meanwhile uses the pool as any client does.

    The pool counts the connection. `give_back` lets others have it, so that one connection is enough for a pool that
    may open no other.
    """

    def __init__(self, pool: redis.ConnectionPool) -> None:
        super().__init__(connection_pool=pool)
        self._kept: Any = None
        self._kept_by = 0
        self._busy = threading.Lock()

    def execute_command(self, *args: Any, **options: Any) -> Any:
        if not self._busy.acquire(blocking=False):
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        try:
            return self._execute(*args, **options)
        except SlotMovedError:
            return self._execute(*args, **options)  # which leads to the other node
        finally:
            self._busy.release()

    def _execute(self, *args: Any, **options: Any) -> Any:
        connection, handled = None, sys.exc_info()[1]
        try:
            connection = self._connection()
            connection.send_command(*args)
            return self.parse_response(connection, args[0], **options)  # type: ignore[no-untyped-call]
        except redis.ResponseError:
            raise
        except BaseException as exc:
            if connection is not None:
                connection.disconnect()  # the next command must not read a reply to this one
            _end_if_told(exc, handled)
            raise

    def _connection(self) -> Any:
        if self._kept is None or self._kept_by != os.getpid():  # a connection is its process's own
            self._kept, self._kept_by = taken_from(self.connection_pool), os.getpid()
        elif is_readable(self._kept):  # no reply is due: the server closed it
            self._kept.disconnect()  # the next command opens it
        else:
            renew_login(self._kept)
        return self._kept

    def give_back(self) -> None:
        """Let others have the connection until the next command. Does nothing while a command is under way."""
        if self._busy.acquire(blocking=False):
            try:
                kept, self._kept = self._kept, None
                if kept is not None and self._kept_by == os.getpid():
                    self.connection_pool.release(kept)
            finally:
                self._busy.release()

    def close(self) -> None:
        self.give_back()
        super().close()

    def pipeline(self, *args: Any, **options: Any) -> Any:
        self.give_back()
        return super().pipeline(*args, **options)


def taken_from(pool: redis.ConnectionPool) -> Connection:
    """Return a connection of *pool*, which counts it, in every version of redis-py."""
    try:
        return pool.get_connection()
    except TypeError:  # redis-py 5.2 wants a name of a command, later ones warn of it
        return pool.get_connection("_")


def is_readable(connection: Connection) -> bool:
    """Return whether there is something to read: a reply, the end of the connection, or data that nobody asked for."""
    handled = sys.exc_info()[1]
    try:
        return bool(connection.can_read())
    except (redis.ConnectionError, redis.TimeoutError, OSError) as exc:
        _end_if_told(exc, handled)
        return True


def _end_if_told(exc: BaseException | None, handled: BaseException | None) -> None:
    """Raise the exception of a signal's handler that *exc* hides. *handled*: what was being handled before.

    A handler closes the connection, as `celery beat` does on SIGTERM, and ends the process: redis-py fails on what is
    closed, and its error must not keep the process alive.
    """
    while exc is not None and exc is not handled:
        if isinstance(exc, SystemExit | KeyboardInterrupt):
            raise exc from None
        exc = exc.__context__
