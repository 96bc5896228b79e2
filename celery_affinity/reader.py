"""Reading what a cohort holds, in few round trips and without writing. The parts are read one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis

from .keys import Keys, encode, marked, unmarked

#: Commands in one round trip: an observer must not hold the server up.
_CHUNK = 500

#: A read command of redis-py: method, key, further arguments.
Command = tuple[Any, ...]


@dataclass(frozen=True)
class Lane:
    """The waiting jobs of one type, mode and priority, and the first of them. *type* is encoded, as in Redis."""

    type: str
    name: str
    enqueued_us: int
    job_id: str

    @property
    def on_demand(self) -> bool:
        return self.name.startswith("demand.")

    @property
    def priority(self) -> int:
        """As its app counts it, 10 highest (see `Weights.turned`)."""
        return int(self.name.rpartition(".")[2])


class Reader:
    """Reads with *client*, which adds no prefix to keys."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client: Any = client  # redis-py's types leave open whether a reply is bytes, str or awaited
        self.key = keys.key

    def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Return the replies to read commands, in their order."""
        replies: list[Any] = []
        for first in range(0, len(commands), _CHUNK):
            with self._client.pipeline(transaction=False) as pipe:
                for name, *arguments in commands[first : first + _CHUNK]:
                    getattr(pipe, name)(*arguments)
                replies.extend(pipe.execute())
        return replies

    def ask_one(self, *command: Any) -> Any:
        """Return the reply to one read command."""
        (reply,) = self.ask([command])
        return reply

    def now_us(self) -> int:
        """Return the server's time."""
        seconds, micros = self._client.time()
        return int(seconds) * 1_000_000 + int(micros)

    def hash(self, name: str, *parts: str) -> dict[str, str]:
        """Return a whole hash."""
        return as_text(self.ask_one("hgetall", self.key(name, *parts)))

    def fields(self, name: str, fields: Sequence[str]) -> dict[str, str]:
        """Return those of *fields* that a hash has."""
        if not fields:
            return {}
        values = self.ask_one("hmget", self.key(name), fields)
        return {field: value.decode() for field, value in zip(fields, values, strict=True) if value is not None}

    def capacity(self, types: Sequence[str] | None = None) -> dict[str, int]:
        """Return the slots of the live workers that serve each of *types* (encoded; None: of all).

        Those count too that have withdrawn from it for a moment: they serve it.
        """
        named = None if types is None else [*types, *(marked(type_) for type_ in types)]
        found = self.hash("capacity") if named is None else self.fields("capacity", named)
        slots: dict[str, int] = {}
        for type_, number in found.items():
            slots[unmarked(type_)] = slots.get(unmarked(type_), 0) + int(number)
        return slots

    def lanes(self, types: Sequence[str] | None = None) -> list[Lane]:
        """Return the lanes of *types* (encoded; None: of all) that are not empty."""
        heads = self.hash("heads") if types is None else self.fields("heads", types)
        return [lane for type_, packed in heads.items() for lane in _unpack(type_, packed)]

    def pending(self, type_: str) -> int:
        """Return the number of pending jobs of a type."""
        return sum(self.ask([("zcard", self.lane_key(lane)) for lane in self.lanes([encode(type_)])]))

    def lane_key(self, lane: Lane) -> str:
        return self.key("lane", lane.type, lane.name)


def as_text(raw: dict[bytes, bytes]) -> dict[str, str]:
    """Return a hash with text for bytes."""
    return {name.decode(): value.decode() for name, value in raw.items()}


def _unpack(type_: str, packed: str) -> list[Lane]:
    words = packed.split()
    rows = zip(words[::3], words[1::3], words[2::3], strict=True)
    return [Lane(type_, name, int(enqueued), job_id) for name, enqueued, job_id in rows]
