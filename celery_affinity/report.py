"""What an observer sees: it reads, and changes nothing."""

from dataclasses import dataclass

from .keys import decode
from .reader import Lane, Reader, as_text


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
    """A live worker. *last_beat_s*: seconds since it was heard of. *stalled*: its event loop stands still."""

    name: str
    id: str
    types: list[str]
    slots: int
    free: int
    draining: bool
    last_beat_s: float
    stalled: bool = False


@dataclass(frozen=True)
class Status:
    """The fleet at a glance. *scheduled*: jobs that wait for their ETA; *dead*: kept dead letters.

    *counters*: what was counted since the cohort's first day: jobs published for a type that nobody served
    ("unserved"), and dead letters by their reason.
    """

    types: list[TypeStatus]
    workers: list[WorkerStatus]
    scheduled: int
    dead: int
    counters: dict[str, int]


class Report:
    """Reads the state of one cohort."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def status(self) -> Status:
        """Return types, workers and counts; the parts are read one after the other, not at one instant."""
        read = self._reader
        now_us = read.now_us()
        profiles = read.hash("profiles")
        free = _free_by_type(profiles, read.hash("free_slots"))
        scheduled, dead = read.ask([("zcard", read.key("scheduled")), ("zcard", read.key("dead"))])
        return Status(
            self._types(read.hash("capacity"), free, now_us),
            self._workers(profiles, now_us),
            scheduled,
            dead,
            {name: int(count) for name, count in sorted(read.hash("counters").items())},
        )

    def _types(self, capacity: dict[str, str], free: dict[str, int], now_us: int) -> list[TypeStatus]:
        lanes = self._reader.lanes()
        lengths = self._reader.ask([("zcard", self._reader.lane_key(lane)) for lane in lanes])
        by_type: dict[str, list[tuple[Lane, int]]] = {type_: [] for type_ in capacity}
        for lane, length in zip(lanes, lengths, strict=True):
            by_type.setdefault(lane.type, []).append((lane, length))
        return [
            _type_status(type_, waiting, int(capacity.get(type_, 0)), free.get(type_, 0), now_us)
            for type_, waiting in sorted(by_type.items())
        ]

    def _workers(self, profiles: dict[str, str], now_us: int) -> list[WorkerStatus]:
        read = self._reader
        beats = read.ask_one("zrange", read.key("beats"), 0, -1, False, True)
        rows = read.ask([("hgetall", read.key("worker", worker.decode())) for worker, _ in beats])
        workers = []
        for (worker, seen_us), raw in zip(beats, rows, strict=True):
            row = as_text(raw)
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
                    stalled=row.get("stalled") == "1",
                )
            )
        return sorted(workers, key=lambda worker: (worker.name, worker.id))


def _type_status(type_: str, waiting: list[tuple[Lane, int]], slots: int, free: int, now_us: int) -> TypeStatus:
    oldest_us = min((lane.enqueued_us for lane, _ in waiting), default=None)
    return TypeStatus(
        type=decode(type_),
        pending=sum(length for _, length in waiting),
        on_demand=sum(length for lane, length in waiting if lane.on_demand),
        oldest_wait_s=None if oldest_us is None else max(0, now_us - oldest_us) / 1e6,
        slots=slots,
        free=free,
    )


def _free_by_type(profiles: dict[str, str], free_slots: dict[str, str]) -> dict[str, int]:
    free: dict[str, int] = {}
    for profile, types in profiles.items():
        for type_ in types.split():
            free[type_] = free.get(type_, 0) + int(free_slots.get(profile, 0))
    return free
