"""The claims that ended while a recording was on, until the heartbeats hand them over (`recording`).

A task's end notes values alone: it is on the way to the next task. The heartbeat puts them into words, many at a time.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

from ..clock import SECOND_US
from ..scheduler.messages import Claim, ClaimRow, Kind
from ..schema import rules_codec, values
from ..schema.constants import MAX_PRIORITY
from .held_claim import ACKED, IGNORED, REJECTED, RETURNED, WAITS_AGAIN, HeldClaim
from .lease import ServerClock

#: Largest number of claims that a worker remembers until it can hand them over; it counts those beyond.
MOST = 50_000

#: The outcome of a claim that has not ended, and that of most that have. After others, the job may have been another
#: worker's, or have no time of its end.
_RUNNING, _DONE = "running", "done"
_PLAIN = {_RUNNING, _DONE}

#: Outcome of a claim, as the server is told -> as a trace has it; others are the same word.
_IN_A_TRACE = {
    ACKED: _DONE,
    IGNORED: _DONE,
    REJECTED: "rejected",
    **dict.fromkeys(WAITS_AGAIN, "returned"),
}

#: A claim: job id, fencing number, type, enqueue time, whether it is on demand, priority, outcome as the server is
#: told; when it arrived, when the task started, when it ended, when the server's word of that came; the number of the
#: release that told its end. A plain tuple is the cheapest of objects, and Python's collector looks at it once.
_Noted = tuple[str, str, str, int, bool | None, object, str, float, float | None, float | None, float | None, int]


class ClaimLog:
    """Claims by the server's *clock*. Any thread may call what tells of ends; the heartbeats' thread calls the rest.

    *lower_first*: whether the app counts 0 as its highest priority.
    """

    def __init__(self, clock: ServerClock, lower_first: bool) -> None:
        self._clock, self._lower_first = clock, lower_first
        self._is_on = False
        self._lock = threading.RLock()  # reentrant: see `claims`
        self._noted: list[_Noted] = []
        self._number = 0
        self._releases = 0
        #: Number of a release, and the fencing numbers of the claims that its reply brought.
        self._brought: list[tuple[int, list[str]]] = []
        self._brought_by: dict[str, int] = {}  # fencing number -> number of that release

    # -- what the claims tell

    def ended(self, ends: Iterable[HeldClaim], brought: Sequence[Claim] = ()) -> None:
        """Note claims of whose end a release has told. One that is void was noted when it became so.

        *brought*: the claims that the release made, and its reply brought.
        """
        if self._is_on:
            now_s = time.monotonic()
            with self._lock:
                self._releases += 1
                for held in ends:
                    if not held.void:
                        self._note(held, held.ended_how, held.ended_s or now_s, now_s, self._releases)
                if brought and len(self._brought) < MOST:
                    self._brought.append((self._releases, [claim.fence for claim in brought]))

    def gone(self, gone: Iterable[HeldClaim]) -> None:
        """Note claims that the worker gave back now, or that are no longer its own."""
        if self._is_on:
            now_s = time.monotonic()
            with self._lock:
                for held in gone:
                    self._note(held, RETURNED, now_s, now_s)

    def _note(self, held: HeldClaim, how: str, ended_s: float, freed_s: float, release: int = 0) -> None:
        """Note an end, of which the server's word came at *freed_s*, in reply to a *release*; 0: to something else."""
        self._number += 1
        if len(self._noted) < MOST:
            self._noted.append(_noted(held, how, ended_s, freed_s, release))

    # -- what the heartbeats call

    def begin(self) -> None:
        """Note what ends from now on."""
        with self._lock:
            self._noted, self._brought, self._number, self._brought_by = [], [], 0, {}
        self._is_on = True

    def stop(self) -> None:
        """Note nothing more."""
        self._is_on = False
        with self._lock:
            self._noted, self._brought = [], []

    def take(self) -> tuple[list[ClaimRow], int]:
        """Return what was noted, and the number of claims that ended since `begin`."""
        with self._lock:
            noted, self._noted = self._noted, []
            brought, self._brought = self._brought, []
            number = self._number
        # The claims of a reply have the time of the ends that it answers, if these are ends of jobs.
        of_ends = {release for *_, how, _, _, _, _, release in noted if _IN_A_TRACE.get(how) == _DONE}
        for release, fences in brought:
            if release in of_ends:
                self._brought_by.update(dict.fromkeys(fences, release))
        return list(self._rows(noted, self._brought_by.pop)), number

    def running(self, held: Iterable[HeldClaim]) -> list[ClaimRow]:
        """Return claims that have not ended, as they are noted."""
        return list(self._rows([_noted(each, _RUNNING, None, None, 0) for each in held], self._brought_by.get))

    # -- claims as a recording has them

    def _rows(self, noted: Sequence[_Noted], brought_by: Callable[[str, int], int]) -> Iterator[ClaimRow]:
        offset_us = self._clock.now_us() - round(time.monotonic() * SECOND_US)
        kind = cache(self._kind)  # for these claims alone: messages may say ever new priorities
        for job, fence, type_, since_us, on_demand, priority, how, arrived, started, ended, freed, release in noted:
            at_us = since_us - offset_us
            if not isinstance(priority, int):  # a message may say anything
                priority, on_demand = 0, None if priority else on_demand
            yield (
                job,
                fence,
                kind(type_, on_demand, priority, how, job[-1:] in rules_codec.ALL),
                since_us,
                int(arrived * SECOND_US) - at_us,
                None if started is None else int(started * SECOND_US) - at_us,
                None if ended is None else int(ended * SECOND_US) - at_us,
                None if freed is None else int(freed * SECOND_US) - at_us,
                brought_by(fence, 0),
                release,
            )

    def _kind(self, type_: str, on_demand: bool | None, priority: int, how: str, is_marked: bool) -> Kind:
        outcome, lane = _IN_A_TRACE.get(how, how), ""
        if outcome in _PLAIN and on_demand is not None and not is_marked:
            lane = values.lane_name(on_demand, MAX_PRIORITY - priority if self._lower_first else priority)
        return type_, lane, outcome


def _noted(held: HeldClaim, how: str, ended_s: float | None, freed_s: float | None, release: int) -> _Noted:
    return (
        held.job_id,
        held.fence,
        held.type,
        held.enqueued_us,
        held.on_demand,
        held.priority,
        how,
        held.held_since_s,
        held.started_s,
        ended_s,
        freed_s,
        release,
    )
