"""The keys of the twin: of exclusive jobs, of rates and of tenants with a maximum. A job has one of them.

While a key has room, the first job of each of its sub-lanes (type, mode and priority) stands in its lane; all others
are kept back. Room for one job may be kept for a type that has waited longest while others got the key: its turn. As
``lua/keyed`` does it, line by line: `key_standing` (renew), `key_turns` and `key_room`.
"""

import heapq
from collections.abc import Callable, Sequence

from ..rules.rule_texts import StatedRate
from .timeline import NEVER
from .twin_lanes import Lanes, TwinLane

#: What jobs may hold of a key: so many at a time, or so many starts in a period.
Limit = int | StatedRate

#: Longer ago than anything, µs.
_EVER = -NEVER


class _SubLane:
    """The jobs of a key in one lane: a heap of ranks. *standing*: the one that stands in the lane; -1: none."""

    __slots__ = ("ranks", "standing")

    def __init__(self) -> None:
        self.ranks: list[int] = []
        self.standing = -1


class TwinKey:
    """A key: *held* by so many jobs, or, of a rate, all of whose starts are free again at *free_us*."""

    __slots__ = ("free_us", "had_us", "held", "limit", "sublanes", "turn")

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.held = 0
        self.free_us = _EVER
        self.sublanes: dict[TwinLane, _SubLane] = {}
        self.turn: tuple[int, int] | None = None  # type, and until when
        self.had_us: dict[int, int] = {}  # type -> when it had the key last, or its turn


class TwinKeys:
    """All keys, by position of the arrivals that have them: *key_of*, None for none.

    *names*: of types, encoded, by which ties go. *may_have_turn*: whether a slot serves a type, and no rule holds it
    back.
    """

    def __init__(
        self,
        key_of: Sequence[tuple[str, Limit] | None],
        lanes: Lanes,
        *,
        patience_us: int,
        names: Sequence[str],
        may_have_turn: Callable[[int], bool],
    ) -> None:
        self._key_of, self._lanes = key_of, lanes
        self._patience_us, self._names, self._may_have_turn = patience_us, names, may_have_turn
        self._keys: dict[str, TwinKey] = {}
        self._due: dict[str, int] = {}
        self._by_time: list[tuple[int, str]] = []  # what was in _due, a heap: entries that are no more go when first

    def has_one(self, position: int) -> bool:
        return self._key_of[position] is not None

    # -- what happens. Each method returns the types of which a job came into its lane, for whoever fills.

    def enter(self, position: int, now_us: int, *, is_fresh: bool) -> set[int]:
        """Have the job of *position* wait. What is stated of a key by the job that was published last counts."""
        name, limit = self._of(position)
        key = self._keys.setdefault(name, TwinKey(limit))
        if is_fresh or not (key.sublanes or key.held):
            key.limit = limit
        lane, rank = self._lanes.lane_of(position), self._lanes.rank_of(position)
        heapq.heappush(key.sublanes.setdefault(lane, _SubLane()).ranks, rank)
        return self._renewed(name, key, now_us, fills=True)

    def hold(self, position: int, now_us: int) -> None:
        """The job of *position*, which was taken from its lane, was claimed."""
        name, _ = self._of(position)
        key, lane = self._keys[name], self._lanes.lane_of(position)
        self._remove(key, lane)
        if isinstance(key.limit, StatedRate):
            key.free_us = max(self._free_at(key, key.limit, now_us), now_us) + key.limit.interval_us
        else:
            key.held += 1
            if key.turn is not None and key.turn[0] == lane.type:
                self._end_turn(name, key)
            if any(other.type != lane.type for other in key.sublanes):
                key.had_us[lane.type] = now_us
        self._renewed(name, key, now_us, fills=False)

    def free(self, position: int, now_us: int) -> set[int]:
        """The job of *position* has ended."""
        name, _ = self._of(position)
        key = self._keys[name]
        if isinstance(key.limit, StatedRate):
            return set()
        key.held -= 1
        if key.turn is None:
            self._give_turn(key, self._lanes.type_of(position), now_us)
        return self._renewed(name, key, now_us, fills=True)

    def next_due_us(self) -> int:
        """Return when a tick is to look at a key; NEVER for none."""
        by_time = self._by_time
        while by_time and self._due.get(by_time[0][1]) != by_time[0][0]:
            heapq.heappop(by_time)
        return by_time[0][0] if by_time else NEVER

    def tick(self, now_us: int) -> set[int]:
        due = sorted(name for name, at_us in self._due.items() if at_us <= now_us)
        to_fill = set()
        for name in due:
            del self._due[name]
            to_fill |= {lane.type for lane, its in self._keys[name].sublanes.items() if its.standing >= 0}
        for name in due:
            to_fill |= self._renewed(name, self._keys[name], now_us, fills=True)
        return to_fill

    # -- which jobs stand

    def _renewed(self, name: str, key: TwinKey, now_us: int, *, fills: bool) -> set[int]:
        """Have those jobs of a key stand that it has room for. Return the types of those that come into their lanes.

        Not *fills*: nobody fills slots with these. Then a rate that lets no job start goes on so until a tick.
        """
        if key.turn is not None:
            self._end_turn_in_vain(name, key, now_us, fills=fills)
        if not key.sublanes:
            self._forget(name, key)
            return set()
        room = self._room(name, key, now_us, fills=fills)
        to_fill = set()
        for lane, its in key.sublanes.items():
            has_room = room > 1 or (room == 1 and (key.turn is None or key.turn[0] == lane.type))
            wanted = its.ranks[0] if has_room else -1
            if wanted == its.standing:
                continue
            if its.standing >= 0:
                self._lanes.withdraw(lane, its.standing)
            if wanted >= 0:
                self._lanes.put(lane, wanted)
                to_fill.add(lane.type)
            its.standing = wanted
        return to_fill if fills else set()

    def _remove(self, key: TwinKey, lane: TwinLane) -> None:
        """Remove the job that stands in *lane*: the first of its sub-lane."""
        its = key.sublanes[lane]
        heapq.heappop(its.ranks)
        its.standing = -1
        if not its.ranks:
            del key.sublanes[lane]

    def _forget(self, name: str, key: TwinKey) -> None:
        self._due.pop(name, None)
        if not key.held:
            key.had_us.clear()

    # -- room

    def _room(self, name: str, key: TwinKey, now_us: int, *, fills: bool) -> int:
        """Return how many jobs more may hold a key, or start now; else a tick looks at a rate when the next one may."""
        rate = key.limit
        if not isinstance(rate, StatedRate):
            return rate - key.held
        if not fills and name in self._due:
            return 0
        free_us = self._free_at(key, rate, now_us)
        room = rate.room(free_us - now_us)
        if room > 0:
            self._due.pop(name, None)
        else:
            self._look_at(name, free_us - rate.period_us + rate.interval_us)
        return room

    def _free_at(self, key: TwinKey, rate: StatedRate, now_us: int) -> int:
        return min(key.free_us, now_us + rate.period_us)

    def _look_at(self, name: str, at_us: int) -> None:
        if at_us < self._due.get(name, NEVER):
            self._due[name] = at_us
            heapq.heappush(self._by_time, (at_us, name))

    # -- turns

    def _end_turn(self, name: str, key: TwinKey) -> None:
        """A turn ends, and nobody fills the slots of others that may have room now: a tick does at once."""
        key.turn = None
        self._look_at(name, _EVER)

    def _end_turn_in_vain(self, name: str, key: TwinKey, now_us: int, *, fills: bool) -> None:
        assert key.turn is not None, "asked by the caller"
        type_, until_us = key.turn
        if until_us > now_us and any(lane.type == type_ for lane in key.sublanes):
            self._look_at(name, until_us)
            return
        key.had_us[type_] = now_us
        key.turn = None
        if not fills:
            self._look_at(name, _EVER)

    def _give_turn(self, key: TwinKey, its_type: int, now_us: int) -> None:
        """A job of *its_type* freed a key: it is the turn of the type that has waited longest, if that was too long."""
        waits = [
            (
                max(self._lanes.enqueued_at(its.ranks[0]), key.had_us.get(lane.type, _EVER)),
                self._names[lane.type],
                lane.type,
            )
            for lane, its in key.sublanes.items()
        ]
        since_us, _, longest = min(waits, default=(now_us, "", its_type))
        if since_us >= now_us or longest == its_type or not self._patience_us or now_us - since_us < self._patience_us:
            return
        if self._may_have_turn(longest):
            key.turn = longest, now_us + self._patience_us
        else:
            key.had_us[longest] = now_us

    def _of(self, position: int) -> tuple[str, Limit]:
        found = self._key_of[position]
        assert found is not None, "asked by the caller"
        return found
