"""Redis clients for hot paths: a client that keeps one connection, pipelined reads of numbers, and renewed logins.

For each command redis-py takes a connection from its pool, tests it, counts it and releases it. For a publish, this
takes as long as everything else on the way to the server.

Managed servers (IAM) close a connection whose login is old. redis-py sends a renewed login when a connection returns to
its pool, which a persistent connection never does.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any, NamedTuple

import redis


def watch_credentials(pool: redis.ConnectionPool) -> None:
    """Register *pool* with its credential provider, if that provider streams renewed logins."""
    provider = pool.connection_kwargs.get("credential_provider")
    if provider is not None:
        redis.Redis(connection_pool=pool, credential_provider=provider)  # the constructor registers the pool


def reauthenticate(connection: Any) -> None:
    """Send the renewed login of *connection*, if there is one. No reply may be due.

    If the server refuses the login, the connection is closed; the next connection gets a login from the provider.
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
    """True if *provider* streams renewed logins."""
    kind = getattr(redis.credentials, "StreamingCredentialProvider", None)  # redis-py before 5.3 has none
    return kind is not None and isinstance(provider, kind)


#: A connection of redis-py, whose types differ between versions.
AnyConnection = Any

#: A reply as redis-py returns it; the command determines the type.
Reply = Any


class SlotMovedError(redis.ConnectionError):
    """A cluster node refused a command unread, and named the node that has the keys now."""


class PersistentClient(redis.Redis):
    """Runs commands on one connection taken from *pool*; while it is busy, other threads use the pool like any client.

    The pool counts the connection. `give_back` releases it, so a pool limited to one connection is sufficient.
    """

    def __init__(self, pool: redis.ConnectionPool) -> None:
        super().__init__(connection_pool=pool)
        self._persistent: Any = None
        self._owner_pid = 0
        self._busy = threading.Lock()

    def execute_command(self, *args: Any, **options: Any) -> Any:
        if not self._busy.acquire(blocking=False):
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        try:
            return self._execute(*args, **options)
        except SlotMovedError:
            return self._execute(*args, **options)  # reconnects to the other node
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
            _raise_hidden_exit(exc, handled)
            raise

    def _connection(self) -> Any:
        if self._persistent is None or self._owner_pid != os.getpid():  # a forked process must not share it
            self._persistent, self._owner_pid = take_connection(self.connection_pool), os.getpid()
        elif has_readable_data(self._persistent):  # no reply is due: the server closed it
            self._persistent.disconnect()  # the next command opens it
        else:
            reauthenticate(self._persistent)
        return self._persistent

    def give_back(self) -> None:
        """Release the connection until the next command. Does nothing while a command is in progress."""
        if self._busy.acquire(blocking=False):
            try:
                kept, self._persistent = self._persistent, None
                if kept is not None and self._owner_pid == os.getpid():
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
    """Return a connection that *pool* counts, in every version of redis-py."""
    try:
        return pool.get_connection()
    except TypeError:  # redis-py 5.2 requires a command name, later versions deprecate it
        return pool.get_connection("_")


def has_readable_data(connection: AnyConnection) -> bool:
    """True if there is data to read: a reply, the end of the connection, or unsolicited data."""
    handled = sys.exc_info()[1]
    try:
        return bool(connection.can_read())
    except (redis.ConnectionError, redis.TimeoutError, OSError) as exc:
        _raise_hidden_exit(exc, handled)
        return True


def _raise_hidden_exit(exc: BaseException | None, handled: BaseException | None) -> None:
    """Raise the SystemExit or KeyboardInterrupt of a signal handler that *exc* hides.

    *handled* is the exception that was being handled before, if any. A handler, such as that of `celery beat` on
    SIGTERM, closes the connection and ends the process. redis-py then fails on the closed connection, and this error
    must not keep the process alive.
    """
    while exc is not None and exc is not handled:
        if isinstance(exc, SystemExit | KeyboardInterrupt):
            raise exc from None
        exc = exc.__context__


#: Begin and end of a number among the replies, and the number of bytes that are received together.
_NUMBER, _END, _RECEIVED_BYTES = b":", b"\r\n", 65_536
#: A missing value, in both versions of the protocol.
_NONE = (b"_", b"$-1")
#: Number of commands per chunk. Two chunks can be in flight, which keep a server busy for about 1 ms. The bound
#: matters because a server runs all commands it has read from one client before it serves the next client.
_CHUNK_SIZE = 500


class Commands(NamedTuple):
    """Commands in wire format, and their number."""

    packed: bytes
    number: int


def run_pipelined(command: str, prefix: str, names: Sequence[str], rest: Sequence[str] = ()) -> Commands:
    """Return *command* for each of the keys *prefix* + name, for the names in *names*. *rest*: ASCII arguments.

    redis-py packs commands one by one, which takes longer than the server's reply.
    """
    head, length = f"*{2 + len(rest)}\r\n${len(command)}\r\n{command}\r\n$", len(prefix.encode())
    tail = "".join([f"${len(argument)}\r\n{argument}\r\n" for argument in rest])
    if "".join(names).isascii():
        begins = {size: f"{head}{length + size}\r\n{prefix}" for size in set(map(len, names))}
        packed = "".join([f"{begins[len(name)]}{name}\r\n{tail}" for name in names])
    else:  # names written by other programs
        packed = "".join([f"{head}{length + len(name.encode())}\r\n{prefix}{name}\r\n{tail}" for name in names])
    return Commands(packed.encode(), len(names))


def read_numbers(client: redis.Redis, commands: Iterable[Commands]) -> Iterator[list[int]]:
    """Yield the replies to each of *commands*, which are numbers. The number for a key of another type is 0."""
    return _read_overlapping(client, commands, _read_numbers)


def read_values(client: redis.Redis, commands: Iterable[Commands]) -> Iterator[list[Reply]]:
    """Yield the replies to each of *commands*. The reply for a key of another type is None."""
    return _read_overlapping(client, commands, _read_values)


def _read_overlapping(
    client: redis.Redis,
    commands: Iterable[Commands],
    read: Callable[[AnyConnection, Iterator[list[Commands]]], Iterator[list[Reply]]],
) -> Iterator[list[Reply]]:
    """Yield what *read* returns for a connection and the chunks of *commands*.

    The next chunk is sent before the replies to the previous chunk are read, so the server is never idle. Raises the
    first error reply, except for keys of another type, or the connection's error.
    """
    if isinstance(client, PersistentClient):
        client.give_back()  # the pool may have no other connection
    pool: Any = client.connection_pool
    connection = take_connection(pool)
    try:
        yield from read(connection, _chunked(commands))
    except BaseException:
        connection.disconnect()  # replies may still arrive
        raise
    finally:
        pool.release(connection)


def _read_numbers(connection: AnyConnection, chunks: Iterator[list[Commands]]) -> Iterator[list[int]]:
    due, data = _send(connection, next(chunks, []), check_health=True), b""
    while due:
        # A health check would take the reply to a command for its own.
        following = _send(connection, next(chunks, []), check_health=False)
        numbers, data = _receive_numbers(connection, sum(group.number for group in due), data)
        if numbers is None:  # errors, or a push message of the server: redis-py reads them
            connection.disconnect()
            for values in _read_values_one_by_one(connection, chain([due, following], chunks)):
                yield [value or 0 for value in values]
            return
        remaining = iter(numbers)
        for group in due:
            yield list(islice(remaining, group.number))
        due = following
    if data:
        connection.disconnect()


def _read_values(connection: AnyConnection, chunks: Iterator[list[Commands]]) -> Iterator[list[Reply]]:
    due, data = _send(connection, next(chunks, []), check_health=True), b""
    while due:
        following = _send(connection, next(chunks, []), check_health=False)
        rows, data = _receive_rows(connection, sum(group.number for group in due), data)
        if rows is None:  # errors, other replies, or a push message of the server: redis-py reads them
            connection.disconnect()
            yield from _read_values_one_by_one(connection, chain([due, following], chunks))
            return
        remaining = iter(rows)
        for group in due:
            yield list(islice(remaining, group.number))
        due = following
    if data:
        connection.disconnect()


def _read_values_one_by_one(connection: AnyConnection, chunks: Iterator[list[Commands]]) -> Iterator[list[Reply]]:
    for due in chunks:
        _send(connection, due, check_health=False)
        for group in due:
            yield [_read_value(connection.read_response) for _ in range(group.number)]


def _read_value(read: Callable[[], Reply]) -> Reply:
    try:
        return read()
    except redis.ResponseError as exc:
        if not str(exc).startswith("WRONGTYPE"):
            raise
        return None


def _receive_numbers(connection: Any, number: int, data: bytes) -> tuple[list[int] | None, bytes]:
    """Return *number* replies, or None if they are not all numbers, and the data received after them.

    *data*: what was received before. redis-py's parser in Python takes ten times as long for short replies.
    """
    while data.count(_END) < number:
        data += _receive(connection)
    *lines, data = data.split(_END, number)
    if all(line.startswith(_NUMBER) for line in lines):
        return [int(line[1:]) for line in lines], data
    return None, data


def _receive_rows(connection: Any, number: int, data: bytes) -> tuple[list[list[bytes | None]] | None, bytes]:
    """Return *number* replies, or None if they are not all lists of values, and the data received after them."""
    rows: list[list[bytes | None]] = []
    lines, place = data.split(_END), 0
    while len(rows) < number:
        row, after = _row_at(lines, place)
        if row is None:
            return None, b""
        if after:
            rows.append(row)
            place = after
        else:  # the reply is incomplete; the last line is the begin of the next one
            lines, place = (_END.join(lines[place:]) + _receive(connection)).split(_END), 0
    return rows, _END.join(lines[place:])


def _row_at(lines: list[bytes], place: int) -> tuple[list[bytes | None] | None, int]:
    """Return the list of values that begins at *place*, and the place after it, or 0 if it is incomplete.

    The list is None for another reply.
    """
    last = len(lines) - 1
    if place >= last:
        return [], 0
    if lines[place][:1] != b"*" or not lines[place][1:].isdigit():
        return None, 0
    row: list[bytes | None] = []
    number, place = int(lines[place][1:]), place + 1
    for _ in range(number):
        if place >= last:
            return [], 0
        head = lines[place]
        place += 1
        if head in _NONE:
            row.append(None)
            continue
        if head[:1] != b"$" or not head[1:].isdigit():
            return None, 0
        if place >= last:
            return [], 0
        value, size = lines[place], int(head[1:])
        place += 1
        while len(value) < size:  # the value has line breaks
            if place >= last:
                return [], 0
            value += _END + lines[place]
            place += 1
        row.append(value)
    return row, place


def _receive(connection: Any) -> bytes:
    try:
        received: bytes = connection._sock.recv(_RECEIVED_BYTES)
    except TimeoutError as exc:
        raise redis.TimeoutError("Timeout reading from socket") from exc
    except OSError as exc:
        raise redis.ConnectionError(f"Error while reading from socket: {exc}") from exc
    if not received:
        raise redis.ConnectionError("Connection closed by server.")
    return received


def _send(connection: Any, chunk: list[Commands], *, check_health: bool) -> list[Commands]:
    """Send the commands in *chunk*, if any, and return *chunk*."""
    if chunk:
        connection.send_packed_command([b"".join([group.packed for group in chunk])], check_health=check_health)
    return chunk


def _chunked(commands: Iterable[Commands]) -> Iterator[list[Commands]]:
    """Yield *commands* in chunks of at least `_CHUNK_SIZE`, without splitting an item of *commands*."""
    chunk, number = [], 0
    for group in commands:
        chunk.append(group)
        number += group.number
        if number >= _CHUNK_SIZE:
            yield chunk
            chunk, number = [], 0
    if chunk:
        yield chunk
