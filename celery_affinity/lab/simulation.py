"""What happens in a scenario, in its order: the two engines differ only in who decides, a `SimulatedFleet`.

At one time, µs, jobs end first, in the order of their claims; then comes a tick, if the fleet has one due; then workers
join and begin to leave; then jobs arrive. Jobs of one worker that end at one time end in one call, as a worker tells
the server of them: only then are all their slots free. A worker that leaves takes no further job, ends those that it
runs, and is gone with the last of them: a warm shutdown. Between the end of a job and the next claim of its slot no
time passes: what passed in the fleet is part of how long the job had the slot (`slot_times`).

A job that a worker had as the scenario begins is that worker's: nobody chooses it. It arrives when that worker claimed
it, while no other one takes jobs, and before the rules of types are in force.
"""

import heapq
from collections.abc import Iterable, Sequence
from typing import Protocol

from .scenario import Scenario, Schedule, ScheduledRun

#: A claim: the position of its worker in the scenario, and the positions of its arrivals: one, or those that merged.
Claimed = tuple[int, tuple[int, ...]]

#: Largest number of ticks in a row, without any other event, that let no job start: what waits then waits for ever.
_MOST_TICKS_IN_VAIN = 1_000

#: A time after all others, µs.
NEVER = 1 << 62


class SimulatedFleet(Protocol):
    """Who decides. *worker*, *position*: places in the scenario. Methods return the claims that follow, in order."""

    def enforce(self) -> None:
        """Have pauses, limits of types and reserves be in force, from now on."""

    def join(self, worker: int, now_us: int) -> Sequence[Claimed]:
        """Have *worker* take jobs, also one that was drained."""

    def drain(self, worker: int, now_us: int) -> None:
        """Let no job be placed on *worker* any more."""

    def leave(self, worker: int, now_us: int) -> Sequence[Claimed]:
        """Take out *worker*, which holds nothing."""

    def arrive(self, position: int, now_us: int) -> Sequence[Claimed]: ...

    def end(self, worker: int, positions: Sequence[int], now_us: int) -> Sequence[Claimed]:
        """End jobs of *worker*: each is that of the arrival that is the first of its claim."""

    def tick(self, now_us: int) -> Sequence[Claimed]: ...

    def next_tick_us(self) -> int:
        """Return when a tick is due that lets jobs start; NEVER for none."""


class Simulation:
    """A scenario under way. `run` makes its schedule."""

    def __init__(self, scenario: Scenario, fleet: SimulatedFleet) -> None:
        self._scenario, self._fleet = scenario, fleet
        self._runs: list[ScheduledRun] = []
        self._ends: list[tuple[int, int, int, int]] = []  # when, number of the claim, worker, position
        self._claims = 0
        self._held = [0] * len(scenario.workers)
        self._is_leaving = [False] * len(scenario.workers)
        self._moves = _moves(scenario)
        self._has_arrived: set[int] = set()

    def run(self, progress: Iterable[object] | None = None) -> Schedule:
        """Return the schedule. *progress*: stepped once for each job that arrives."""
        steps = iter(progress or ())
        arrivals, ends, moves, fleet = self._scenario.arrivals, self._ends, self._moves, self._fleet
        nth_move = self._begin()
        position, in_vain = 0, 0
        while True:
            while position in self._has_arrived:
                position += 1
                next(steps, None)
            arrives_us = arrivals[position].since_us if position < len(arrivals) else NEVER
            ends_us = ends[0][0] if ends else NEVER
            moves_us = moves[nth_move][0] if nth_move < len(moves) else NEVER
            now_us = min(arrives_us, ends_us, moves_us)
            tick_us = fleet.next_tick_us()
            if now_us == tick_us == NEVER or in_vain > _MOST_TICKS_IN_VAIN:
                break
            if tick_us < ends_us and tick_us <= now_us:
                before = self._claims
                self._claimed(fleet.tick(tick_us), tick_us)
                in_vain = in_vain + 1 if self._claims == before else 0
            elif ends_us == now_us:
                self._end(now_us)
            elif moves_us == now_us:
                self._move(moves[nth_move])
                nth_move += 1
            else:
                claims = fleet.arrive(position, now_us)
                if claims:
                    self._claimed(claims, now_us)
                position += 1
                next(steps, None)
            in_vain = in_vain if tick_us <= now_us else 0
        return Schedule(self._scenario, tuple(self._runs))

    def _begin(self) -> int:
        """Have the workers that are there at the beginning join with the jobs that they had. Return how many joined."""
        arrivals = self._scenario.arrivals
        held = [position for position, arrival in enumerate(arrivals) if arrival.held_by is not None]
        if not held:
            self._fleet.enforce()
            return 0
        begins_us = self._moves[0][0] if self._moves else 0
        there = [worker for at_us, leaves, worker in self._moves if at_us == begins_us and not leaves]
        of_name = {self._scenario.workers[worker].name: worker for worker in reversed(there)}
        for position in sorted(held, key=lambda each: arrivals[each].held_since_us):
            worker = of_name.get(arrivals[position].held_by or "")
            if worker is not None:
                self._has_arrived.add(position)
                self._hold(worker, position, begins_us)
        self._fleet.enforce()
        for worker in there:
            self._claimed(self._fleet.join(worker, begins_us), begins_us)
        return len(there)

    def _hold(self, worker: int, position: int, begins_us: int) -> None:
        """Have *worker* claim what it had as the scenario began, which is when it has that."""
        since_us = min(begins_us, self._scenario.arrivals[position].held_since_us)
        self._claimed(self._fleet.join(worker, since_us), begins_us)
        self._claimed(self._fleet.arrive(position, since_us), begins_us)
        self._fleet.drain(worker, since_us)

    def _claimed(self, claims: Sequence[Claimed], now_us: int) -> None:
        arrivals, workers = self._scenario.arrivals, self._scenario.workers
        for worker, positions in claims:
            ended_us = now_us + max(arrivals[each].took_us for each in positions)
            self._runs += [
                ScheduledRun(arrivals[each].number, workers[worker].name, now_us, ended_us) for each in positions
            ]
            heapq.heappush(self._ends, (ended_us, self._claims, worker, positions[0]))
            self._claims += 1
            self._held[worker] += 1

    def _end(self, now_us: int) -> None:
        ends, ended = self._ends, dict[int, list[int]]()
        while ends and ends[0][0] == now_us:
            _, _, worker, position = heapq.heappop(ends)
            ended.setdefault(worker, []).append(position)
        for worker, positions in ended.items():
            self._held[worker] -= len(positions)
            claims = self._fleet.end(worker, positions, now_us)
            if claims:
                self._claimed(claims, now_us)
            self._leave_if_idle(worker, now_us)

    def _move(self, move: tuple[int, bool, int]) -> None:
        now_us, leaves, worker = move
        if leaves:
            self._is_leaving[worker] = True
            self._fleet.drain(worker, now_us)
            self._leave_if_idle(worker, now_us)
        else:
            self._claimed(self._fleet.join(worker, now_us), now_us)

    def _leave_if_idle(self, worker: int, now_us: int) -> None:
        if self._is_leaving[worker] and not self._held[worker]:
            self._is_leaving[worker] = False
            self._claimed(self._fleet.leave(worker, now_us), now_us)


def _moves(scenario: Scenario) -> list[tuple[int, bool, int]]:
    """Return when workers join (False) and begin to leave (True), in order. Who was there at the beginning is first."""
    begins_us = min([0, *(each.since_us for each in scenario.arrivals[:1])])
    joins = [
        (begins_us if each.joined_us <= 0 else each.joined_us, False, nth) for nth, each in enumerate(scenario.workers)
    ]
    leaves = [
        (max(each.left_us, joins[nth][0]), True, nth)
        for nth, each in enumerate(scenario.workers)
        if each.left_us is not None
    ]
    return sorted(joins + leaves)
