"""The event loop of a simulated scenario. The two engines differ only in the `SimulatedFleet`, which decides.

At one time in µs, jobs end first, in the order of their claims. Then follow a due tick of the fleet, workers that join
or begin to leave, and arrivals. Jobs of one worker that end at the same time end in one invocation, as a worker reports
them: only then are all their slots free. A leaving worker takes no more jobs, finishes its running jobs, and leaves
after the last of them: a warm shutdown. No time passes between the end of a job and the next claim of its slot: the
fleet's delay there is part of the job's slot time (`scenario.slot_time_us`).

A job that a worker had when the scenario began is assigned to that worker without a choice. It arrives at its claim
time, while no other worker takes jobs, and before the rules of types are in force.
"""

import heapq
from collections.abc import Iterable, Sequence
from typing import Protocol

from .head_starts import HeadStarts
from .scenario import Scenario, Schedule, ScheduledRun

#: A claim: the worker's position in the scenario, and the positions of its arrivals: one, or several merged ones.
Claimed = tuple[int, tuple[int, ...]]
#: Maximum number of consecutive ticks without another event and without a start: the jobs then wait forever.
_MAX_IDLE_TICKS = 1_000
#: A time in µs after all others.
NEVER = 1 << 62


class SimulatedFleet(Protocol):
    """Decides claims. *worker*, *position*: indexes in the scenario. Methods return the resulting claims in order."""

    head_starts: HeadStarts

    def enforce(self) -> None:
        """Enforce pauses, limits of types and reserves from now on."""

    def join(self, worker: int, now_us: int) -> Sequence[Claimed]:
        """Let *worker* take jobs, also after `drain`."""

    def drain(self, worker: int, now_us: int) -> None:
        """Place no more jobs on *worker*."""

    def leave(self, worker: int, now_us: int) -> Sequence[Claimed]:
        """Remove *worker*, which holds no jobs."""

    def arrive(self, position: int, now_us: int) -> Sequence[Claimed]: ...

    def end(self, worker: int, positions: Sequence[int], now_us: int) -> Sequence[Claimed]:
        """End jobs of *worker*. A merged claim is identified by the position of its first arrival."""

    def tick(self, now_us: int) -> Sequence[Claimed]: ...

    def next_tick_us(self) -> int:
        """Return the time of the next tick that lets jobs start, or NEVER."""


class Simulation:
    def __init__(self, scenario: Scenario, fleet: SimulatedFleet) -> None:
        self._scenario, self._fleet = scenario, fleet
        self._runs: list[ScheduledRun] = []
        self._ends: list[tuple[int, int, int, int]] = []  # end time, claim number, worker, position
        self._claims = 0
        self._held = [0] * len(scenario.workers)
        self._is_leaving = [False] * len(scenario.workers)
        self._moves = _worker_moves(scenario)
        self._has_arrived: set[int] = set()

    def run(self, progress: Iterable[object] | None = None) -> Schedule:
        """Return the schedule. *progress*: stepped once per arriving job."""
        steps = iter(progress or ())
        arrivals, ends, moves, fleet = self._scenario.arrivals, self._ends, self._moves, self._fleet
        move_index = self._join_initial_workers()
        position, idle_ticks = 0, 0
        while True:
            while position in self._has_arrived:
                position += 1
                next(steps, None)
            arrives_us = arrivals[position].since_us if position < len(arrivals) else NEVER
            ends_us = ends[0][0] if ends else NEVER
            moves_us = moves[move_index][0] if move_index < len(moves) else NEVER
            now_us = min(arrives_us, ends_us, moves_us)
            tick_us = fleet.next_tick_us()
            if now_us == tick_us == NEVER or idle_ticks > _MAX_IDLE_TICKS:
                break
            if tick_us < ends_us and tick_us <= now_us:
                before = self._claims
                self._record_claims(fleet.tick(tick_us), tick_us)
                idle_ticks = idle_ticks + 1 if self._claims == before else 0
            elif ends_us == now_us:
                self._end_jobs(now_us)
            elif moves_us == now_us:
                self._move_worker(*moves[move_index])
                move_index += 1
            else:
                self._record_claims(fleet.arrive(position, now_us), now_us)
                position += 1
                next(steps, None)
            idle_ticks = idle_ticks if tick_us <= now_us else 0
        return Schedule(self._scenario, tuple(self._runs), self._fleet.head_starts.by_number)

    def _join_initial_workers(self) -> int:
        """Let the initial workers join with the jobs that they had. Return the number of these workers."""
        arrivals, fleet = self._scenario.arrivals, self._fleet
        held = [position for position, arrival in enumerate(arrivals) if arrival.held_by is not None]
        if not held:
            fleet.enforce()
            return 0
        begins_us = self._moves[0][0] if self._moves else 0
        present = [worker for at_us, leaves, worker in self._moves if at_us == begins_us and not leaves]
        worker_named = {self._scenario.workers[worker].name: worker for worker in reversed(present)}
        for position in sorted(held, key=lambda index: arrivals[index].held_since_us):
            worker = worker_named.get(arrivals[position].held_by or "")
            if worker is not None:
                self._has_arrived.add(position)
                since_us = min(begins_us, arrivals[position].held_since_us)
                self._record_claims(fleet.join(worker, since_us), begins_us)
                self._record_claims(fleet.arrive(position, since_us), begins_us)
                fleet.drain(worker, since_us)
        fleet.enforce()
        for worker in present:
            self._record_claims(fleet.join(worker, begins_us), begins_us)
        return len(present)

    def _record_claims(self, claims: Sequence[Claimed], now_us: int) -> None:
        arrivals, workers = self._scenario.arrivals, self._scenario.workers
        for worker, positions in claims:
            ended_us = now_us + max(arrivals[nth].took_us for nth in positions)
            self._runs += [
                ScheduledRun(arrivals[nth].number, workers[worker].name, now_us, ended_us) for nth in positions
            ]
            heapq.heappush(self._ends, (ended_us, self._claims, worker, positions[0]))
            self._claims += 1
            self._held[worker] += 1

    def _end_jobs(self, now_us: int) -> None:
        ends, ended = self._ends, dict[int, list[int]]()
        while ends and ends[0][0] == now_us:
            _, _, worker, position = heapq.heappop(ends)
            ended.setdefault(worker, []).append(position)
        for worker, positions in ended.items():
            self._held[worker] -= len(positions)
            self._record_claims(self._fleet.end(worker, positions, now_us), now_us)
            self._leave_if_idle(worker, now_us)

    def _move_worker(self, now_us: int, leaves: bool, worker: int) -> None:
        if leaves:
            self._is_leaving[worker] = True
            self._fleet.drain(worker, now_us)
            self._leave_if_idle(worker, now_us)
        else:
            self._record_claims(self._fleet.join(worker, now_us), now_us)

    def _leave_if_idle(self, worker: int, now_us: int) -> None:
        if self._is_leaving[worker] and not self._held[worker]:
            self._is_leaving[worker] = False
            self._record_claims(self._fleet.leave(worker, now_us), now_us)


def _worker_moves(scenario: Scenario) -> list[tuple[int, bool, int]]:
    """Return when workers join (False) and begin to leave (True), in order. Initial workers come first."""
    begins_us = min([0, *(arrival.since_us for arrival in scenario.arrivals[:1])])
    moves = []
    for index, worker in enumerate(scenario.workers):
        joined_us = begins_us if worker.joined_us <= 0 else worker.joined_us
        moves.append((joined_us, False, index))
        if worker.left_us is not None:
            moves.append((max(worker.left_us, joined_us), True, index))
    return sorted(moves)
