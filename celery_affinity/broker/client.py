"""Logins that a provider renews while a connection is open: managed servers (IAM) end a connection whose login is old.

redis-py hands a new login to the connections in use, and sends it when they come back to their pool: those that are
kept for long never do.

A client that keeps its connection from one command to the next.

For each command redis-py takes a connection from its pool, tests it, counts it and gives it back, which for a publish
takes as long as all the rest of the way to the server.

Many commands that each return a number, at the least cost for the server and for the client.

The next commands go out before the last ones are answered, so that the server is never without work. Their number is
bounded, because a server runs all commands that it has read of one client before it goes on to the next client.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import redis


def watch_credentials(pool: redis.ConnectionPool) -> None:
    """Have the connections of *pool* told of new logins, if they log in by a provider that streams them."""
    provider = pool.connection_kwargs.get("credential_provider")
    if provider is not None:
        redis.Redis(connection_pool=pool, credential_provider=provider)  # a client registers its pool when it is made


def reauthenticate(connection: Any) -> None:
    """Send the new login of a connection that has one. No reply may be due.

    A login that the server refuses closes the connection: the next one asks the provider.
    """
    if getattr(connection, "_re_auth_token", None) is None or connection._sock is None:
        return
    try:
        connection.re_auth()
    except (redis.RedisError, OSError):
        connection.set_re_auth_token(None)
        with suppress(redis.RedisError, OSError):
            connection.disconnect()


def credential_streams(provider: Any) -> bool:
    """Return whether *provider* brings new logins by itself."""
    kind = getattr(redis.credentials, "StreamingCredentialProvider", None)  # redis-py before 5.3 has none
    return kind is not None and isinstance(provider, kind)


#: A connection of redis-py, whose types differ from version to version.
AnyConnection = Any

#: A reply as redis-py returns it: the caller knows the type, which follows from the command.
Reply = Any


class SlotMovedError(redis.ConnectionError):
    """A node of a cluster refused a command unread, and said which node has the keys by now."""


class PersistentClient(redis.Redis):
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
            self._kept, self._kept_by = take_connection(self.connection_pool), os.getpid()
        elif has_readable_data(self._kept):  # no reply is due: the server closed it
            self._kept.disconnect()  # the next command opens it
        else:
            reauthenticate(self._kept)
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


def take_connection(pool: redis.ConnectionPool) -> AnyConnection:
    """Return a connection of *pool*, which counts it, in every version of redis-py."""
    try:
        return pool.get_connection()
    except TypeError:  # redis-py 5.2 wants a name of a command, later ones warn of it
        return pool.get_connection("_")


def has_readable_data(connection: AnyConnection) -> bool:
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


#: Number of commands that are sent together. As many again may be on their way: all keep a server busy for under 1 ms.
_AT_ONCE = 200


class Commands(NamedTuple):
    """Commands as they go over the wire, and their number."""

    packed: bytes
    number: int


def run_pipelined(command: str, prefix: str, names: Sequence[str]) -> Commands:
    """Return *command* for each of the keys that begin with *prefix* and end with one of *names*.

    redis-py would pack one command after the other, which takes longer than the server's reply.
    """
    head, length = f"*2\r\n${len(command)}\r\n{command}\r\n$", len(prefix.encode())
    if "".join(names).isascii():
        packed = "".join([f"{head}{length + len(name)}\r\n{prefix}{name}\r\n" for name in names])
    else:  # names that this package has not written
        packed = "".join([f"{head}{length + len(name.encode())}\r\n{prefix}{name}\r\n" for name in names])
    return Commands(packed.encode(), len(names))


def read_numbers(client: redis.Redis, commands: Iterable[Commands]) -> Iterator[list[int]]:
    """Yield the replies to each of *commands*. Commands are made, and replies used, while the server is at work.

    The number for a key of another type is 0. Raises any other error among the replies, or that of the connection.
    """
    if isinstance(client, PersistentClient):
        client.give_back()  # the pool may have no other connection
    pool: Any = client.connection_pool
    connection = take_connection(pool)
    try:
        yield from _replies(connection, _together(commands))
    except BaseException:
        connection.disconnect()  # replies may still be to come
        raise
    finally:
        pool.release(connection)


def _replies(connection: Any, chunks: Iterator[list[Commands]]) -> Iterator[list[int]]:
    read = connection.read_response
    due = _send(connection, next(chunks, []), check_health=True)
    while due:
        # A check of health would read the reply to a command as its own.
        following = _send(connection, next(chunks, []), check_health=False)
        for some in due:
            yield [_number(read) for _ in range(some.number)]
        due = following


def _number(read: Callable[[], Any]) -> int:
    try:
        number: int = read()
    except redis.ResponseError as exc:
        if not str(exc).startswith("WRONGTYPE"):
            raise
        return 0
    return number


def _send(connection: Any, chunk: list[Commands], *, check_health: bool) -> list[Commands]:
    """Send the commands in *chunk*, if there are any. Return *chunk*."""
    if chunk:
        connection.send_packed_command([b"".join([some.packed for some in chunk])], check_health=check_health)
    return chunk


def _together(commands: Iterable[Commands]) -> Iterator[list[Commands]]:
    """Yield *commands* in chunks of `_AT_ONCE`, or more: the last of a chunk is not divided."""
    chunk, number = [], 0
    for some in commands:
        chunk.append(some)
        number += some.number
        if number >= _AT_ONCE:
            yield chunk
            chunk, number = [], 0
    if chunk:
        yield chunk
