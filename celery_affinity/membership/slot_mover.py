"""Moves the idle slots of a worker to the cohorts where jobs wait for it, in a thread of its own.

First the cohort that has the slot is told of one fewer. When its server says that this many claims fit, the slot is
free, and no job can come for it any more; only then another cohort is told of one more. So there are never more claims
than slots, whatever the servers do meanwhile. A cohort whose server does not answer keeps its slots.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from redis.exceptions import RedisError

from ..log_limit import limited_logger
from ..rules.encoding import encode
from ..rules.rows import number_of
from ..rules.slot_moves import SeatAsSeen, giver, taker
from ..threads.repeating import Repeating
from .membership import Membership
from .shared_slots import SharedSlots

logger = limited_logger(__name__)

#: Pause, s, after slots were taken from a cohort, until its server has confirmed that.
_CONFIRMED_WITHIN_S = 0.05

#: Longest pause, s, between two looks at the cohorts.
_LOOKS_EVERY_S = 1.0


@dataclass(frozen=True)
class _Seen:
    """What a server says of a worker. *is_confirmed*: whether it has the slots that the worker has told last."""

    seat: SeatAsSeen
    is_confirmed: bool


class SlotMover:
    """Moves *slots* among cohorts. *members* returns the membership in each; None: no server was told of any slot."""

    def __init__(
        self, slots: SharedSlots, members: Callable[[], Mapping[str, Membership | None]], heartbeat_s: float
    ) -> None:
        self._slots, self._members = slots, members
        self._in_vain: dict[str, int] = {}
        self._looking = Repeating("affinity-slots", self.look, min(_LOOKS_EVERY_S, heartbeat_s / 2))

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
        while (of := giver(list(seats.values()), coming)) is not None:
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
                to = taker([found.seat for found in seen.values()])
                to_name = name if to is None else to.cohort
                self._slots.give(name, to_name)
                seen[to_name] = _Seen(seen[to_name].seat.plus(1), seen[to_name].is_confirmed)
                changed.add(to_name)
        return changed

    def _look_at(self, name: str, members: Membership | None) -> _Seen | None:
        """Return what the server of a cohort says; None if it does not answer, or does not know the worker."""
        if members is None:
            slots = self._slots.of(name)
            return _Seen(SeatAsSeen(name, slots, slots), is_confirmed=True)
        reader, told, ahead = members.scheduler.reader, members.capacity.confirmed, len(members.lookahead)
        try:
            # The claims last: jobs that come meanwhile come for slots that the worker has told of.
            (known_slots, other), claims = reader.ask(
                [
                    ("hmget", reader.key("worker", members.id), ["slots", "other"]),
                    ("hlen", reader.key("claims", members.id)),
                ]
            )
            backlogs = reader.backlogs([encode(each) for each in members.capacity.types])
        except (RedisError, OSError):
            return None
        if known_slots is None or other is None:
            return None
        # Jobs that are held beyond the slots start when the seat's slots let them.
        running = claims + number_of(other) - min(ahead, len(members.lookahead))
        waiting = sum(each.jobs - each.kept_back for each in backlogs.values())
        slots = self._slots.of(name)
        seat = SeatAsSeen(name, slots, slots - running, 0 if members.claims.is_closed else waiting)
        self._in_vain[name] = self._in_vain.get(name, 0) + 1 if seat.lacks and seat.slots == 0 else 0
        is_confirmed = told == seat.slots == number_of(known_slots, -1)
        return _Seen(SeatAsSeen(name, seat.slots, seat.free, seat.waiting, self._in_vain[name]), is_confirmed)
