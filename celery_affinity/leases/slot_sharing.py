"""The slots of one pool, shared out among cohorts: each slot belongs to one cohort, or is on its way to another one.

Moves the idle slots of a worker to the cohorts where jobs wait for it, in a thread of its own.

First the cohort that has the slot is told of one fewer. When its server says that this many claims fit, the slot is
free, and no job can come for it any more; only then another cohort is told of one more. So there are never more claims
than slots, whatever the servers do meanwhile. A cohort whose server does not answer keeps its slots.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from redis.exceptions import RedisError

from ..background import PeriodicThread
from ..log_limit import limited_logger
from ..policy.slot_math import CohortLoad, divide_slots, donor, receiver
from ..schema.values import decode_number, encode_part
from .held_claim import PoolPort
from .member import Member


class SharedSlots:
    """How many slots of *pool* each of *cohorts* has. All numbers together are the size of the pool, at any time.

    A slot is taken from a cohort (`take`) before it is given to another (`give`): meanwhile nobody has it.
    """

    def __init__(self, pool: PoolPort, cohorts: Sequence[str]) -> None:
        self._pool, self._cohorts = pool, cohorts
        self._lock = threading.RLock()  # reentrant: a signal's handler may interrupt the thread that has it
        self._size = 0
        self._slots: dict[str, int] = dict.fromkeys(cohorts, 0)
        #: Slots that were taken, by the cohort that had them.
        self._taken: Counter[str] = Counter()

    def of(self, cohort: str) -> int:
        """Return the slots of *cohort*, after the pool has grown or shrunk, too."""
        if self._pool.size() != self._size:
            self._resize()
        return self._slots[cohort]

    def taken_from(self, cohort: str) -> int:
        """Return how many slots were taken from *cohort*, and not given on yet."""
        return self._taken[cohort]

    def take(self, cohort: str) -> None:
        with self._lock:
            if self._slots[cohort] > 0:
                self._slots[cohort] -= 1
                self._taken[cohort] += 1

    def give(self, taken_from: str, to: str) -> None:
        """Give a slot on, or back."""
        with self._lock:
            if self._taken[taken_from] > 0:
                self._taken[taken_from] -= 1
                self._slots[to] += 1

    def _resize(self) -> None:
        with self._lock:
            size = self._pool.size()
            if self._size == 0:
                self._slots = divide_slots(size, self._cohorts)
                self._taken.clear()
            for _ in range(size - self._size if self._size else 0):
                fewest = min(self._slots, key=lambda each: (self._slots[each], each))
                self._slots[fewest] += 1
            for _ in range(self._size - size):
                self._remove_one()
            self._size = size

    def _remove_one(self) -> None:
        most = max(self._slots, key=lambda each: (self._slots[each], each))
        if self._slots[most] > 0:
            self._slots[most] -= 1
        else:
            self._taken[max(self._taken, key=lambda each: self._taken[each])] -= 1


logger = limited_logger(__name__)

#: Pause, s, after slots were taken from a cohort, until its server has confirmed that.
_CONFIRMED_WITHIN_S = 0.05

#: Longest pause, s, between two looks at the cohorts.
_LOOKS_EVERY_S = 1.0


@dataclass(frozen=True)
class _Seen:
    """What a server says of a worker. *is_confirmed*: whether it has the slots that the worker has told last."""

    seat: CohortLoad
    is_confirmed: bool


class SlotMover:
    """Moves *slots* among cohorts. *members* returns the membership in each; None: no server was told of any slot."""

    def __init__(
        self, slots: SharedSlots, members: Callable[[], Mapping[str, Member | None]], heartbeat_s: float
    ) -> None:
        self._slots, self._members = slots, members
        self._in_vain: dict[str, int] = {}
        self._looking = PeriodicThread("affinity-slots", self.look, min(_LOOKS_EVERY_S, heartbeat_s / 2))

    def start(self) -> None:
        self._looking.start()

    def stop(self) -> None:
        self._looking.stop()

    def look(self) -> float | None:
        """Give on the slots that are free by now, and take others. Return the pause, s, if it is to be short."""
        members = self._members()
        seen = {name: found for name, each in members.items() if (found := self._look_at(name, each)) is not None}
        changed = self._give(seen)
        seats = {name: each.seat for name, each in seen.items()}
        coming = sum(map(self._slots.taken_from, seen))
        while (of := donor(list(seats.values()), coming)) is not None:
            self._slots.take(of.cohort)
            seats[of.cohort] = seats[of.cohort].plus(-1)
            coming += 1
            changed.add(of.cohort)
        for its in (members[name] for name in changed):
            if its is not None:
                its.notice_slots()
        return _CONFIRMED_WITHIN_S if changed else None

    def _give(self, seen: dict[str, _Seen]) -> set[str]:
        """Give on the slots that no claim has any more. Return the cohorts that have more slots now."""
        changed = set()
        for name, each in seen.items():
            free = self._slots.taken_from(name) + min(0, each.seat.free) if each.is_confirmed else 0
            for _ in range(free):
                to = receiver([found.seat for found in seen.values()])
                to_name = name if to is None else to.cohort
                self._slots.give(name, to_name)
                seen[to_name] = _Seen(seen[to_name].seat.plus(1), seen[to_name].is_confirmed)
                changed.add(to_name)
        return changed

    def _look_at(self, name: str, members: Member | None) -> _Seen | None:
        """Return what the server of a cohort says; None if it does not answer, or does not know the worker."""
        if members is None:
            slots = self._slots.of(name)
            return _Seen(CohortLoad(name, slots, slots), is_confirmed=True)
        reader, told, ahead = members.scheduler.reader, members.capacity.confirmed, len(members.lookahead)
        try:
            # The claims last: jobs that come meanwhile come for slots that the worker has told of.
            (known_slots, other), claims = reader.ask(
                [
                    ("hmget", reader.key("worker", members.id), ["slots", "other"]),
                    ("hlen", reader.key("claims", members.id)),
                ]
            )
            backlogs = reader.backlogs([encode_part(each) for each in members.capacity.types])
        except (RedisError, OSError):
            return None
        if known_slots is None or other is None:
            return None
        # Jobs that are held beyond the slots start when the seat's slots let them.
        running = claims + decode_number(other) - min(ahead, len(members.lookahead))
        waiting = sum(each.jobs - each.kept_back for each in backlogs.values())
        slots = self._slots.of(name)
        seat = CohortLoad(name, slots, slots - running, 0 if members.claims.is_closed else waiting)
        self._in_vain[name] = self._in_vain.get(name, 0) + 1 if seat.lacks and seat.slots == 0 else 0
        is_confirmed = told == seat.slots == decode_number(known_slots, -1)
        return _Seen(CohortLoad(name, seat.slots, seat.free, seat.waiting, self._in_vain[name]), is_confirmed)
