"""What an observer sees: it reads, and changes nothing."""

from dataclasses import dataclass
from typing import Any

import redis

from .keys import Keys, decode

#: Commands in one round trip: an observer must not hold the server up.
_CHUNK = 500


@dataclass(frozen=True)
class TypeStatus:
    """A type with pending jobs or live workers. *oldest_wait_s*: None if nothing is pending."""

    type: str
    pending: int
    on_demand: int
    oldest_wait_s: float | None
    slots: int
    free: int

    @property
    def busy(self) -> int:
        return self.slots - self.free

    @property
    def unserved(self) -> bool:
        """Whether jobs wait that no live worker can take."""
        return self.pending > 0 and self.slots == 0


@dataclass(frozen=True)
class WorkerStatus:
    """A live worker. *last_beat_s*: seconds since it was heard of."""

    name: str
    id: str
    types: list[str]
    slots: int
    free: int
    draining: bool
    last_beat_s: float


@dataclass(frozen=True)
class DeadLetter:
    """A job that will not run again, and why: "lost", "rejected" or "max_deliveries"."""

    job_id: str
    task_id: str
    task: str
    type: str
    reason: str
    ended_s: float


@dataclass(frozen=True)
class Status:
    """The fleet at a glance. *scheduled*: jobs that wait for their ETA; *dead*: kept dead letters."""

    types: list[TypeStatus]
    workers: list[WorkerStatus]
    scheduled: int
    dead: int


class Report:
    """Reads the state of one cohort."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client: Any = client  # redis-py's types leave open whether a reply is bytes, str or awaited
        self._keys = keys

    def status(self) -> Status:
        """Return types, workers and counts; the parts are read one after the other, not at one instant."""
        key = self._keys.key
        seconds, micros = self._client.time()
        now_us = seconds * 1_000_000 + micros
        heads, capacity, profiles, free_slots = self._ask(
            [("hgetall", key(name)) for name in ("heads", "capacity", "profiles", "free_slots")]
        )
        scheduled, dead = self._ask([("zcard", key("scheduled")), ("zcard", key("dead"))])
        free = _free_by_type(_text(profiles), _text(free_slots))
        return Status(
            self._types(_text(heads), _text(capacity), free, now_us),
            self._workers(_text(profiles), now_us),
            scheduled,
            dead,
        )

    def dead(self, limit: int = 100) -> list[DeadLetter]:
        """Return the last *limit* dead letters, the newest first."""
        found = self._client.zrange(self._keys.key("dead"), 0, limit - 1, desc=True, withscores=True)
        rows = self._ask([("hgetall", self._keys.key("job", job_id.decode())) for job_id, _ in found])
        letters = []
        for (job_id, ended_us), raw in zip(found, rows, strict=True):
            row = _text(raw)
            if row:
                letters.append(
                    DeadLetter(
                        job_id.decode(), row["task"], row["name"], decode(row["type"]), row["reason"], ended_us / 1e6
                    )
                )
        return letters

    def _types(
        self, heads: dict[str, str], capacity: dict[str, str], free: dict[str, int], now_us: int
    ) -> list[TypeStatus]:
        lanes = [(type_, *lane) for type_, packed in heads.items() for lane in _lanes(packed)]
        lengths = self._ask([("zcard", self._keys.key("lane", type_, lane)) for type_, lane, _ in lanes])
        pending: dict[str, int] = {}
        on_demand: dict[str, int] = {}
        oldest: dict[str, int] = {}
        for (type_, lane, enqueued_us), length in zip(lanes, lengths, strict=True):
            pending[type_] = pending.get(type_, 0) + length
            on_demand[type_] = on_demand.get(type_, 0) + (length if lane.startswith("demand.") else 0)
            oldest[type_] = min(oldest.get(type_, enqueued_us), enqueued_us)
        return [
            TypeStatus(
                type=decode(type_),
                pending=pending.get(type_, 0),
                on_demand=on_demand.get(type_, 0),
                oldest_wait_s=max(0, now_us - oldest[type_]) / 1e6 if type_ in oldest else None,
                slots=int(capacity.get(type_, 0)),
                free=free.get(type_, 0),
            )
            for type_ in sorted({*pending, *capacity})
        ]

    def _workers(self, profiles: dict[str, str], now_us: int) -> list[WorkerStatus]:
        beats = self._client.zrange(self._keys.key("beats"), 0, -1, withscores=True)
        rows = self._ask([("hgetall", self._keys.key("worker", worker.decode())) for worker, _ in beats])
        workers = []
        for (worker, seen_us), raw in zip(beats, rows, strict=True):
            row = _text(raw)
            if not row:
                continue  # it left between the two calls
            workers.append(
                WorkerStatus(
                    name=decode(row["name"]),
                    id=worker.decode(),
                    types=[decode(type_) for type_ in profiles.get(row["profile"], "").split()],
                    slots=int(row["slots"]),
                    free=int(row["free"]),
                    draining=row["accepting"] == "0",
                    last_beat_s=max(0.0, now_us - seen_us) / 1e6,
                )
            )
        return sorted(workers, key=lambda worker: (worker.name, worker.id))

    def _ask(self, commands: list[tuple[str, str]]) -> list[Any]:
        """Run read commands on one key each, in few round trips."""
        replies: list[Any] = []
        for first in range(0, len(commands), _CHUNK):
            with self._client.pipeline(transaction=False) as pipe:
                for command, key in commands[first : first + _CHUNK]:
                    getattr(pipe, command)(key)
                replies.extend(pipe.execute())
        return replies


def _text(raw: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in raw.items()}


def _lanes(packed: str) -> list[tuple[str, int]]:
    """Return name and oldest enqueue time, µs, of each lane in a value of `heads`."""
    words = packed.split()
    return [(lane, int(enqueued)) for lane, enqueued in zip(words[::3], words[1::3], strict=True)]


def _free_by_type(profiles: dict[str, str], free_slots: dict[str, str]) -> dict[str, int]:
    free: dict[str, int] = {}
    for profile, types in profiles.items():
        for type_ in types.split():
            free[type_] = free.get(type_, 0) + int(free_slots.get(profile, 0))
    return free
