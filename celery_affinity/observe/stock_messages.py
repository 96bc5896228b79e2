"""Messages in stock Celery's lists: those of queues that nobody serves, and the message of one task.

A producer without this transport puts its calls there. Workers of this transport take over the lists of the queues that
they serve; the calls in other lists wait, and no job here stands for them. Only lists whose names are known are looked
at: Redis finds others only by reading all keys.
"""

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ..clock import SECOND_US
from ..rules.rows import number_of, text_of
from ..rules.stock_lists import MOST_QUEUES, StockLists
from ..rules.unreadable import is_text
from ..rules.untrusted import is_number, loads, text
from ..server.reader import Command, Reader

#: Maximum number of queues of one report; the number of the others is counted.
MOST_SHOWN = 20

#: Maximum number of bindings that are read of one exchange.
_MOST_BOUND = 1000

#: Messages that are read in one command, and from each end of one list, in search of a task.
_PAGE, _MOST_SEARCHED = 10, 100

#: Bytes after which a search for a task ends: a server that is in trouble must not send everything it has.
_MOST_BYTES = 5_000_000

#: Maximum size of a message that is parsed, in bytes.
_LARGEST = 1_000_000

#: Oldest time that counts as the time of a message, in seconds before now.
_LONGEST_AGE_S = 10 * 366 * 86_400


@dataclass(frozen=True)
class StockQueue:
    """Messages that wait in the lists of one queue."""

    queue: str
    #: Names of the lists that have messages, without kombu's prefix for keys.
    lists: list[str]
    messages: int
    #: Age of the oldest message in seconds; None if the message does not tell. Celery's own messages do not.
    oldest_s: float | None = None
    #: Task of the oldest message; None if it cannot be read.
    oldest_task: str | None = None


@dataclass(frozen=True)
class StockMessage:
    """The message of one task in a list."""

    queue: str
    #: Name of the list, without kombu's prefix for keys.
    list: str
    task: str | None
    #: True if workers of this transport serve the queue.
    is_served: bool


class StockMessages:
    """Reads stock Celery's lists. *prefix*: that of kombu's own keys. *types*: further queues that may have lists."""

    def __init__(self, reader: Reader, lists: StockLists, prefix: str, types: Iterable[str] = ()) -> None:
        self._reader, self._lists, self._prefix = reader, lists, prefix
        self._all = [each for each in dict.fromkeys([*lists.queues, *types, *self._bound()]) if is_text(each)]

    @property
    def are_all(self) -> bool:
        """False if there are more queues than one report looks at."""
        return len(self._all) <= MOST_QUEUES

    def waiting(self) -> list[StockQueue]:
        """Return the queues with messages."""
        found: dict[str, dict[str, int]] = {}
        for queue, name, length in self._lengths():
            found.setdefault(queue, {})[name] = length
        return [
            StockQueue(queue, [self._shown(name) for name in lengths], sum(lengths.values()))
            for queue, lengths in found.items()
        ]

    def unserved(self, served: Collection[str]) -> list[StockQueue]:
        """Return the queues with messages that should be *served* and are not, with their oldest messages.

        Queues that are left to kombu (``affinity_queues``) are none of them: who serves these is not known here.
        """
        found = [each for each in self.waiting() if each.queue not in served and self._lists.schedules(each.queue)]
        return [self._with_oldest(each) if at < MOST_SHOWN else each for at, each in enumerate(found)]

    def find(self, task_id: str, served: Collection[str]) -> StockMessage | None:
        """Look for the message of *task_id* among the oldest and the newest messages of each list."""
        sought, left = json.dumps(task_id).encode(), _MOST_BYTES
        for queue, name, length in self._lengths():
            for first, last in _pages(length):
                for raw in self._read(name, first, last):
                    left -= len(raw)
                    if sought in raw and (task := _task_in(raw, task_id)) is not None:
                        return StockMessage(queue, self._shown(name), task or None, queue in served)
                if left < 0:
                    return None
        return None

    def _shown(self, name: str) -> str:
        return name.removeprefix(self._prefix)

    def _lengths(self) -> Iterator[tuple[str, str, int]]:
        """Yield queue, list and length of each list that has messages."""
        queues = self._all[:MOST_QUEUES]
        named = [(queue, name) for queue in queues for name in self._lists.lists(self._prefix, queue)]
        replies = self._ask([("llen", name) for _, name in named])
        for (queue, name), length in zip(named, replies, strict=True):
            if length:
                yield queue, name, number_of(length)

    def _bound(self) -> list[str]:
        """Return the queues that kombu has bound to the known exchanges."""
        keys = [self._lists.binding(self._prefix, each) for each in self._lists.exchanges]
        small = [
            key
            for key, count in zip(keys, self._ask([("scard", each) for each in keys]), strict=True)
            if 0 < number_of(count) <= _MOST_BOUND
        ]
        found = [
            text_of(member).rpartition(self._lists.sep)[2]
            for members in self._ask([("smembers", each) for each in small])
            for member in members or ()
        ]
        return sorted(filter(None, found))

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
    """Yield the bounds of the pages at both ends of a list of *length*, the oldest messages (at the right) first."""
    at_the_right = range(-1, -min(length, _MOST_SEARCHED) - 1, -_PAGE)
    yield from ((max(last - _PAGE + 1, -length), last) for last in at_the_right)
    others = min(length - _MOST_SEARCHED, _MOST_SEARCHED)
    yield from ((first, min(first + _PAGE, others) - 1) for first in range(0, others, _PAGE))


def _header(raw: bytes) -> dict[str, Any] | None:
    """Return the headers and properties of a message that anybody may have written; None if it has none.

    The one way to read such a message here: JSON of a bounded size and depth, without kombu's special objects.
    """
    try:
        message = loads(raw, longest=_LARGEST)
    except ValueError:
        return None
    parts = [message.get("properties"), message.get("headers")] if isinstance(message, dict) else []
    return {name: value for part in parts if isinstance(part, dict) for name, value in part.items()}


def _task_in(raw: bytes, task_id: str) -> str | None:
    """Return the task's name, "" for an unknown one, if *raw* is the message of *task_id*; None otherwise."""
    head = _header(raw)
    if head is None or task_id not in (head.get("id"), head.get("correlation_id")):
        return None
    return _task_of(head)


def _task_of(head: dict[str, Any]) -> str:
    name = text(head.get("task")) or ""
    return name if is_text(name) else ""


def _age_s(head: dict[str, Any], now_s: float) -> float | None:
    """Return the age of a message with AMQP's property ``timestamp``, in seconds."""
    sent_s: Any = head.get("timestamp")
    if not is_number(sent_s):
        return None
    age_s: float = now_s - sent_s
    return age_s if 0 <= age_s <= _LONGEST_AGE_S else None
