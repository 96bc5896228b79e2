"""Share the slots of one pool among cohorts, and move idle slots to the cohorts where jobs wait.

To move a slot, the worker first lowers its slot count in the donor cohort. Once the donor's server confirms that the
remaining claims fit, no job can arrive for the slot, and the receiving cohort's count is raised. So there are never
more claims than slots, regardless of the servers' actions. A cohort whose server does not answer keeps its slots.
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
    """The number of slots of *pool* per cohort. All numbers and the slots in transit always add up to the pool's size.

    A slot is taken from one cohort (`take`) before it is given to another (`give`); in between, it belongs to none.
    """

    def __init__(self, pool: PoolPort, cohorts: Sequence[str]) -> None:
        self._pool, self._cohorts = pool, cohorts
        self._lock = threading.RLock()  # reentrant: a signal handler can interrupt the thread that holds it
        self._size = 0
        self._slots: dict[str, int] = dict.fromkeys(cohorts, 0)
        #: Slots in transit, by the cohort that had them.
        self._taken: Counter[str] = Counter()

    def of(self, cohort: str) -> int:
        """Return the current number of slots of *cohort*, after adjusting to changes of the pool's size."""
        if self._pool.size() != self._size:
            self._resize()
        return self._slots[cohort]

    def taken_from(self, cohort: str) -> int:
        """Return the number of slots taken from *cohort* and not given to a cohort yet."""
        return self._taken[cohort]

    def take(self, cohort: str) -> None:
        with self._lock:
            if self._slots[cohort] > 0:
                self._slots[cohort] -= 1
                self._taken[cohort] += 1

    def give(self, taken_from: str, to: str) -> None:
        """Give a taken slot to another cohort, or back to the same one."""
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
                fewest = min(self._slots, key=lambda cohort: (self._slots[cohort], cohort))
                self._slots[fewest] += 1
            for _ in range(self._size - size):
                largest = max(self._slots, key=lambda cohort: (self._slots[cohort], cohort))
                if self._slots[largest] > 0:
                    self._slots[largest] -= 1
                else:
                    self._taken[max(self._taken, key=lambda cohort: self._taken[cohort])] -= 1
            self._size = size


logger = limited_logger(__name__)

#: Seconds between checks whether a cohort's server has confirmed that slots were taken.
_CONFIRM_PAUSE_S = 0.05

#: Maximum number of seconds between two checks of the cohorts.
_MAX_PAUSE_S = 1.0


@dataclass(frozen=True)
class _CohortState:
    """A server's data about a worker. *is_confirmed* is True if it has the slot count that the worker last reported."""

    load: CohortLoad
    is_confirmed: bool


class SlotMover:
    """Moves *slots* among cohorts, in its own thread.

    *members* returns the membership in each cohort, or None if no slots were reported to its server.
    """

    def __init__(
        self, slots: SharedSlots, members: Callable[[], Mapping[str, Member | None]], heartbeat_s: float
    ) -> None:
        self._slots, self._members = slots, members
        self._failed_looks: dict[str, int] = {}
        self._thread = PeriodicThread("affinity-slots", self.look, min(_MAX_PAUSE_S, heartbeat_s / 2))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._thread.stop()

    def look(self) -> float | None:
        """Transfer freed slots and reclaim idle ones. Return the seconds until the next check; None for the default."""
        members = self._members()
        states = {
            name: state for name, member in members.items() if (state := self._query_state(name, member)) is not None
        }
        changed = self._give(states)
        loads = {name: state.load for name, state in states.items()}
        in_transit = sum(map(self._slots.taken_from, states))
        while (donor_load := donor(list(loads.values()), in_transit)) is not None:
            self._slots.take(donor_load.cohort)
            loads[donor_load.cohort] = loads[donor_load.cohort].plus(-1)
            in_transit += 1
            changed.add(donor_load.cohort)
        for changed_member in (members[name] for name in changed):
            if changed_member is not None:
                changed_member.notice_slots()
        return _CONFIRM_PAUSE_S if changed else None

    def _give(self, states: dict[str, _CohortState]) -> set[str]:
        """Transfer the slots that no claim occupies any longer. Return the cohorts that gained slots."""
        changed = set()
        for name, state in states.items():
            free = self._slots.taken_from(name) + min(0, state.load.free) if state.is_confirmed else 0
            for _ in range(free):
                receiving = receiver([other.load for other in states.values()])
                to_name = name if receiving is None else receiving.cohort
                self._slots.give(name, to_name)
                states[to_name] = _CohortState(states[to_name].load.plus(1), states[to_name].is_confirmed)
                changed.add(to_name)
        return changed

    def _query_state(self, name: str, member: Member | None) -> _CohortState | None:
        """Query the server of a cohort. Return None if it does not answer, or does not know the worker."""
        if member is None:
            slots = self._slots.of(name)
            return _CohortState(CohortLoad(name, slots, slots), is_confirmed=True)
        reader, reported, prefetched = member.scheduler.reader, member.capacity.confirmed, len(member.lookahead)
        try:
            # Read the claims last, so that jobs arriving in between belong to reported slots.
            (server_slots, other), claims = reader.ask(
                [
                    ("hmget", reader.key("worker", member.id), ["slots", "other"]),
                    ("hlen", reader.key("claims", member.id)),
                ]
            )
            backlogs = reader.backlogs([encode_part(type_) for type_ in member.capacity.types])
        except (RedisError, OSError):
            return None
        if server_slots is None or other is None:
            return None
        # Exclude prefetched jobs: they start when the cohort's slots permit.
        running = claims + decode_number(other) - min(prefetched, len(member.lookahead))
        waiting = sum(backlog.jobs - backlog.kept_back for backlog in backlogs.values())
        slots = self._slots.of(name)
        load = CohortLoad(name, slots, slots - running, 0 if member.claims.is_closed else waiting)
        self._failed_looks[name] = self._failed_looks.get(name, 0) + 1 if load.lacks and load.slots == 0 else 0
        is_confirmed = reported == load.slots == decode_number(server_slots, -1)
        return _CohortState(
            CohortLoad(name, load.slots, load.free, load.waiting, self._failed_looks[name]), is_confirmed
        )
