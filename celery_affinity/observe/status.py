"""What an observer sees: it reads, and changes nothing."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..rules.keys import decode, encode, unmarked
from ..rules.rows import number_of, text_of
from ..server.reader import Backlog, Reader, as_text

#: Claims whose types are read one by one, at most: what an observer costs must not grow with the fleet.
MOST_CLAIMS_READ = 1000


@dataclass(frozen=True)
class TypeStatus:
    """A type with pending or claimed jobs, or live workers. *oldest_wait_s*: None if nothing is pending.

    *claimed*: jobs that workers hold; None if versatile workers hold more than `MOST_CLAIMS_READ`.
    """

    type: str
    pending: int
    on_demand: int
    claimed: int | None
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
    """A live worker. *last_beat_s*: seconds since it was heard of. *stalled*: its event loop stands still.

    *withdrawn*: those of its *types* of which it takes none for a moment, too many waiting in it for a rate limit.
    """

    name: str
    id: str
    types: list[str]
    slots: int
    free: int
    draining: bool
    last_beat_s: float
    withdrawn: list[str]
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
        profiles = read.large_hash("profiles")
        free = _free_by_type(profiles, read.large_hash("free_slots"))
        scheduled, dead = read.ask([("zcard", read.key("scheduled")), ("zcard", read.key("dead"))])
        workers = self._workers(profiles, now_us)
        return Status(
            self._types(read.capacity(), free, self._claimed(workers), now_us),
            workers,
            scheduled,
            dead,
            {name: number_of(count) for name, count in sorted(read.hash("counters").items())},
        )

    def _types(
        self, capacity: dict[str, int], free: dict[str, int], claimed: dict[str, int | None], now_us: int
    ) -> list[TypeStatus]:
        backlogs = self._reader.backlogs()
        return [
            _type_status(
                type_, backlogs.get(type_), capacity.get(type_, 0), free.get(type_, 0), claimed.get(type_, 0), now_us
            )
            for type_ in sorted({*capacity, *claimed, *backlogs})
        ]

    def _workers(self, profiles: dict[str, str], now_us: int) -> list[WorkerStatus]:
        read = self._reader
        beats = read.large_zset("beats")
        rows = read.ask([("hgetall", read.key("worker", worker)) for worker in beats])
        workers = []
        for (worker, seen_us), raw in zip(beats.items(), rows, strict=True):
            row = as_text(raw)
            if not row:
                continue  # it left between the two calls
            types = profiles.get(row.get("profile", ""), "").split()
            workers.append(
                WorkerStatus(
                    name=decode(row.get("name", "")),
                    id=worker,
                    types=sorted(decode(unmarked(type_)) for type_ in types),
                    slots=number_of(row.get("slots")),
                    free=number_of(row.get("free")),
                    draining=row.get("accepting") == "0",
                    last_beat_s=max(0.0, now_us - seen_us) / 1e6,
                    withdrawn=[decode(unmarked(type_)) for type_ in types if type_ != unmarked(type_)],
                    stalled=row.get("stalled") == "1",
                )
            )
        return sorted(workers, key=lambda worker: (worker.name, worker.id))

    def _claimed(self, workers: Sequence[WorkerStatus]) -> dict[str, int | None]:
        """Return claimed jobs by type (encoded); None where they are too many to tell.

        A count says it all of a worker that serves one type. What a versatile one holds has to be looked at; it holds
        no more than it has slots.
        """
        read = self._reader
        held = read.held([worker.id for worker in workers])
        claimed: Counter[str] = Counter()
        versatile: list[WorkerStatus] = []
        to_read = 0
        for worker, claims in zip(workers, held, strict=True):
            if claims and len(worker.types) == 1:
                claimed[encode(worker.types[0])] += claims
            elif claims:
                versatile.append(worker)
                to_read += claims
        if to_read > MOST_CLAIMS_READ:
            return {**claimed, **{encode(type_): None for worker in versatile for type_ in worker.types}}
        jobs = read.ask([("hkeys", read.key("claims", worker.id)) for worker in versatile])
        types = read.ask([("hget", read.key("job", text_of(job)), "type") for each in jobs for job in each])
        claimed.update(text_of(type_) for type_ in types if type_ is not None)  # None: ended meanwhile
        return dict(claimed)


def _type_status(
    type_: str, backlog: Backlog | None, slots: int, free: int, claimed: int | None, now_us: int
) -> TypeStatus:
    return TypeStatus(
        type=decode(type_),
        pending=backlog.jobs if backlog else 0,
        on_demand=backlog.on_demand if backlog else 0,
        claimed=claimed,
        oldest_wait_s=max(0, now_us - backlog.oldest_us) / 1e6 if backlog else None,
        slots=slots,
        free=free,
    )


def _free_by_type(profiles: dict[str, str], free_slots: dict[str, str]) -> dict[str, int]:
    free: dict[str, int] = {}
    for profile, types in profiles.items():
        for type_ in types.split():
            free[type_] = free.get(type_, 0) + number_of(free_slots.get(profile))
    return free
