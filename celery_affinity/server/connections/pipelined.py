"""Many commands that each return a number, at the least cost for the server and for the client.

The next commands go out before the last ones are answered, so that the server is never without work. Their number is
bounded, because a server runs all commands that it has read of one client before it goes on to the next client.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import redis

from .kept import KeptClient, taken_from

#: Number of commands that are sent together. As many again may be on their way: all keep a server busy for under 1 ms.
_AT_ONCE = 200


class Commands(NamedTuple):
    """Commands as they go over the wire, and their number."""

    packed: bytes
    number: int


def for_each(command: str, prefix: str, names: Sequence[str]) -> Commands:
    """Return *command* for each of the keys that begin with *prefix* and end with one of *names*.

    redis-py would pack one command after the other, which takes longer than the server's reply.
    """
    head, length = f"*2\r\n${len(command)}\r\n{command}\r\n$", len(prefix.encode())
    if "".join(names).isascii():
        packed = "".join([f"{head}{length + len(name)}\r\n{prefix}{name}\r\n" for name in names])
    else:  # names that this package has not written
        packed = "".join([f"{head}{length + len(name.encode())}\r\n{prefix}{name}\r\n" for name in names])
    return Commands(packed.encode(), len(names))


def numbers(client: redis.Redis, commands: Iterable[Commands]) -> Iterator[list[int]]:
    """Yield the replies to each of *commands*. Commands are made, and replies used, while the server is at work.

    The number for a key of another type is 0. Raises any other error among the replies, or that of the connection.
    """
    if isinstance(client, KeptClient):
        client.give_back()  # the pool may have no other connection
    pool: Any = client.connection_pool
    connection = taken_from(pool)
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
