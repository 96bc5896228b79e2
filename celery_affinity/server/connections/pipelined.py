"""Many commands that each return a number, at the least cost for the server and for who asks.

The next commands go out before the last ones are answered, so the server is never without work; and only so many are on
their way, because a server does all that it has read of one client before it turns to the next.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import redis

from .kept import Line, taken_from

#: Commands that are sent together; so many again may be on their way. Both keep a server busy for less than 1 ms.
_AT_ONCE = 200


class Commands(NamedTuple):
    """Commands as they go over the wire, and how many they are."""

    packed: bytes
    number: int


def of_each(command: str, prefix: str, names: Sequence[str]) -> Commands:
    """Return *command* for each key that is *prefix* and one of *names*.

    redis-py packs one command after the other, which takes longer than a server's answer.
    """
    head, length = f"*2\r\n${len(command)}\r\n{command}\r\n$", len(prefix.encode())
    if "".join(names).isascii():
        packed = "".join([f"{head}{length + len(name)}\r\n{prefix}{name}\r\n" for name in names])
    else:  # none that we wrote
        packed = "".join([f"{head}{length + len(name.encode())}\r\n{prefix}{name}\r\n" for name in names])
    return Commands(packed.encode(), len(names))


def numbers(client: redis.Redis, commands: Iterable[Commands]) -> Iterator[list[int]]:
    """Return the replies to each of *commands*; both sides may be made and used while the server is at work.

    0 for a key that is of another type. Raises any other error among the replies, or that of the connection.
    """
    if isinstance(client, Line):
        client.give_back()  # a pool may have no other
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
        # A check of health reads a reply: it would be that of a command.
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
    """Return what was sent."""
    if chunk:
        connection.send_packed_command([b"".join([some.packed for some in chunk])], check_health=check_health)
    return chunk


def _together(commands: Iterable[Commands]) -> Iterator[list[Commands]]:
    """Return *commands* in chunks of `_AT_ONCE`, or of as many more as the last of a chunk has."""
    chunk, number = [], 0
    for some in commands:
        chunk.append(some)
        number += some.number
        if number >= _AT_ONCE:
            yield chunk
            chunk, number = [], 0
    if chunk:
        yield chunk
