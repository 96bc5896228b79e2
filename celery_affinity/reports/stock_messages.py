"""Find messages in stock Celery's lists: messages in queues without a worker, and the message of one task.

A producer without this transport publishes calls to these lists. Workers with this transport ingest the lists of the
queues that they serve. Calls in other lists wait, and are not jobs of the fleet. Only lists named in the app's
configuration and in kombu's bindings are searched, because finding other lists would require a scan of all keys.
"""

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ..clock import SECOND_US
from ..scheduler.reader import Command, Reader
from ..schema.keys import MAX_QUEUES, StockLists
from ..schema.untrusted import bounded_text, is_number, loads
from ..schema.values import decode_number, decode_text, is_readable

#: Maximum number of queues per report with their oldest message. The report contains only counts of other queues.
MAX_SHOWN = 20

#: Maximum number of bindings of an exchange. The bindings of a larger exchange are not read.
_MAX_BINDINGS = 1000

#: Messages per command, and messages per end of a list, that a search for a task reads.
_PAGE, _MAX_SEARCHED = 10, 100

#: Bytes after which a search for a task ends, so that it does not overload a server that is already in trouble.
_MAX_BYTES = 5_000_000

#: Maximum size of a parsed message, in bytes.
_MAX_MESSAGE_BYTES = 1_000_000

#: Maximum age of a message, in seconds. Older timestamps are ignored.
_MAX_AGE_S = 10 * 366 * 86_400


@dataclass(frozen=True)
class StockQueue:
    """Messages that wait in the lists of one queue."""

    queue: str
    #: Names of the non-empty lists, without kombu's key prefix.
    lists: list[str]
    messages: int
    #: Age of the oldest message in seconds, or None if it has no timestamp. Celery's own messages have none.
    oldest_s: float | None = None
    #: Task name in the oldest message, or None if the message is unreadable.
    oldest_task: str | None = None


@dataclass(frozen=True)
class StockMessage:
    """The message of one task in a list."""

    queue: str
    #: Name of the list, without kombu's key prefix.
    list: str
    task: str | None
    #: True if workers of this transport serve the queue.
    is_served: bool


class StockMessages:
    """Reads stock Celery's lists. *prefix*: kombu's key prefix. *types*: additional queues that may have lists."""

    def __init__(self, reader: Reader, lists: StockLists, prefix: str, types: Iterable[str] = ()) -> None:
        self._reader, self._lists, self._prefix = reader, lists, prefix
        self._all = [queue for queue in dict.fromkeys([*lists.queues, *types, *self._bound()]) if is_readable(queue)]

    @property
    def are_all(self) -> bool:
        """False if there are more queues than one report reads."""
        return len(self._all) <= MAX_QUEUES

    def waiting(self) -> list[StockQueue]:
        """Return the queues with messages."""
        lengths_by_queue: dict[str, dict[str, int]] = {}
        for queue, name, length in self._lengths():
            lengths_by_queue.setdefault(queue, {})[name] = length
        return [
            StockQueue(queue, [self._shown(name) for name in lengths], sum(lengths.values()))
            for queue, lengths in lengths_by_queue.items()
        ]

    def unserved(self, served: Collection[str]) -> list[StockQueue]:
        """Return the scheduled queues with messages that are not in *served*, with their oldest messages.

        Queues served by kombu (see ``affinity_queues``) are excluded, because the fleet does not know their workers.
        """
        unserved = [one for one in self.waiting() if one.queue not in served and self._lists.schedules(one.queue)]
        return [self._with_oldest(queue) if i < MAX_SHOWN else queue for i, queue in enumerate(unserved)]

    def find(self, task_id: str, served: Collection[str]) -> StockMessage | None:
        """Return the message of *task_id* from the oldest and newest messages of each list, or None."""
        pattern, remaining = json.dumps(task_id).encode(), _MAX_BYTES
        for queue, name, length in self._lengths():
            for first, last in _pages(length):
                for raw in self._read(name, first, last):
                    remaining -= len(raw)
                    if pattern in raw and (task := _task_in(raw, task_id)) is not None:
                        return StockMessage(queue, self._shown(name), task or None, queue in served)
                if remaining < 0:
                    return None
        return None

    def _shown(self, name: str) -> str:
        return name.removeprefix(self._prefix)

    def _lengths(self) -> Iterator[tuple[str, str, int]]:
        """Yield the queue, name and length of each non-empty list."""
        queues = self._all[:MAX_QUEUES]
        named = [(queue, name) for queue in queues for name in self._lists.lists(self._prefix, queue)]
        replies = self._ask([("llen", name) for _, name in named])
        for (queue, name), length in zip(named, replies, strict=True):
            if length:
                yield queue, name, decode_number(length)

    def _bound(self) -> list[str]:
        """Return the queues that kombu has bound to the app's exchanges."""
        keys = [self._lists.binding(self._prefix, exchange) for exchange in self._lists.exchanges]
        small = [
            key
            for key, count in zip(keys, self._ask([("scard", key) for key in keys]), strict=True)
            if 0 < decode_number(count) <= _MAX_BINDINGS
        ]
        queues = [
            decode_text(member).rpartition(self._lists.sep)[2]
            for members in self._ask([("smembers", key) for key in small])
            for member in members or ()
        ]
        return sorted(filter(None, queues))

    def _with_oldest(self, queue: StockQueue) -> StockQueue:
        now_s = self._reader.now_us() / SECOND_US
        heads = [_header(raw) for name in queue.lists for raw in self._read(f"{self._prefix}{name}", -1, -1)]
        ages = [age for head in heads if head and (age := _age_s(head, now_s)) is not None]
        task = next((name for head in heads if head and (name := _task_of(head))), None)
        return StockQueue(queue.queue, queue.lists, queue.messages, max(ages, default=None), task)

    def _read(self, name: str, first: int, last: int) -> list[bytes]:
        (reply,) = self._ask([("lrange", name, first, last)])
        return reply or []

    def _ask(self, commands: list[Command]) -> list[Any]:
        return self._reader.ask(commands, may_lack_rights=True)


def _pages(length: int) -> Iterator[tuple[int, int]]:
    """Yield the page bounds at both ends of a list with *length* messages, starting with the oldest (on the right)."""
    at_the_right = range(-1, -min(length, _MAX_SEARCHED) - 1, -_PAGE)
    yield from ((max(last - _PAGE + 1, -length), last) for last in at_the_right)
    others = min(length - _MAX_SEARCHED, _MAX_SEARCHED)
    yield from ((first, min(first + _PAGE, others) - 1) for first in range(0, others, _PAGE))


def _header(raw: bytes) -> dict[str, Any] | None:
    """Return the headers and properties of an untrusted message, or None if the message is unreadable.

    This module reads messages only here: as JSON of limited size and depth, without kombu's special objects.
    """
    try:
        message = loads(raw, longest=_MAX_MESSAGE_BYTES)
    except ValueError:
        return None
    parts = [message.get("properties"), message.get("headers")] if isinstance(message, dict) else []
    return {name: value for part in parts if isinstance(part, dict) for name, value in part.items()}


def _task_in(raw: bytes, task_id: str) -> str | None:
    """Return the task's name ("" if unreadable) if *raw* is the message of *task_id*, or None otherwise."""
    head = _header(raw)
    if head is None or task_id not in (head.get("id"), head.get("correlation_id")):
        return None
    return _task_of(head)


def _task_of(head: dict[str, Any]) -> str:
    name = bounded_text(head.get("task")) or ""
    return name if is_readable(name) else ""


def _age_s(head: dict[str, Any], now_s: float) -> float | None:
    """Return the age of a message in seconds, or None unless it has a valid AMQP property ``timestamp``."""
    sent_s: Any = head.get("timestamp")
    if not is_number(sent_s):
        return None
    age_s: float = now_s - sent_s
    return age_s if 0 <= age_s <= _MAX_AGE_S else None
