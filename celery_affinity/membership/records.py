"""The claims that ended while a recording was on, in words, until the heartbeats hand them over (`recording`)."""

import threading
import time
from collections.abc import Iterable, Sequence

from ..clock import SECOND_US
from ..rules import known_marks, lanes
from ..rules.encoding import encode
from ..rules.protocol import MAX_PRIORITY
from ..server.arguments import ClaimRow
from ..server.replies import Claim
from .held import ACKED, IGNORED, REJECTED, RETURNED, WAITS_AGAIN, Held
from .server_clock import ServerClock

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


class Records:
    """Claims in words, by the server's *clock*. Any thread may call any method.

    *lower_first*: whether the app counts 0 as its highest priority.
    """

    def __init__(self, clock: ServerClock, lower_first: bool) -> None:
        self._clock, self._lower_first = clock, lower_first
        self._is_on = False
        self._lock = threading.RLock()  # reentrant: see `claims`
        self._rows: list[ClaimRow] = []
        self._number = 0
        self._releases = 0
        self._brought_by: dict[str, int] = {}  # fencing number -> number of the release whose reply brought the claim

    # -- what the claims tell

    def ended(self, ends: Iterable[Held], brought: Sequence[Claim] = ()) -> None:
        """Note claims of whose end a release has told. One that is void was noted when it became so.

        *brought*: the claims that the release made, and its reply brought.
        """
        if self._is_on:
            now_s = time.monotonic()
            its = [(held, _IN_A_TRACE.get(held.ended_how, held.ended_how)) for held in ends if not held.void]
            with self._lock:
                self._releases += 1
                self._note(((held, held.ended_s or now_s, outcome) for held, outcome in its), now_s, self._releases)
                if any(outcome == _DONE for _, outcome in its):  # its end has the time of the release
                    self._brought_by.update((claim.fence, self._releases) for claim in brought)

    def gone(self, gone: Iterable[Held]) -> None:
        """Note claims that the worker gave back now, or that are no longer its own."""
        if self._is_on:
            now_s = time.monotonic()
            self._note(((held, now_s, _IN_A_TRACE[RETURNED]) for held in gone), now_s)

    def _note(self, ends: Iterable[tuple[Held, float, str]], freed_s: float, release: int = 0) -> None:
        """Note *ends*, of which the server's word came at *freed_s*, in reply to a *release*; 0: to something else."""
        offset_us = self._offset_us()
        with self._lock:
            rows = [self._row(held, outcome, offset_us, ended_s, freed_s, release) for held, ended_s, outcome in ends]
            for row in rows:
                self._brought_by.pop(row.fence, None)
            self._number += len(rows)
            self._rows += rows[: MOST - len(self._rows)]

    # -- what the heartbeats take

    def begin(self) -> None:
        """Note what ends from now on."""
        with self._lock:
            self._rows, self._number, self._brought_by = [], 0, {}
        self._is_on = True

    def stop(self) -> None:
        """Note nothing more."""
        self._is_on = False
        with self._lock:
            self._rows = []

    def take(self) -> tuple[list[ClaimRow], int]:
        """Return what was noted, and the number of claims that ended since `begin`."""
        with self._lock:
            rows, self._rows = self._rows, []
            return rows, self._number

    def running(self, held: Iterable[Held]) -> list[ClaimRow]:
        """Return claims that have not ended, as they are noted."""
        offset_us = self._offset_us()
        with self._lock:
            return [self._row(each, _RUNNING, offset_us) for each in held]

    # -- a claim in words

    def _offset_us(self) -> int:
        """Return the server's time less that of the monotonic clock."""
        return self._clock.now_us() - round(time.monotonic() * SECOND_US)

    def _row(
        self,
        held: Held,
        outcome: str,
        offset_us: int,
        ended_s: float | None = None,
        freed_s: float | None = None,
        release: int = 0,
    ) -> ClaimRow:
        """Return job id, fencing number, lane, type, enqueue time, outcome, what passed since then, µs, and releases.

        What passed: until the claim arrived here, until the task started, until the claim ended, and until the server's
        word came that its slot is free, or has another job; "" if that did not happen. Releases: the number of the one
        that brought the claim, and of the one that told its end; "" for none. The lane is "" where the job's row is to
        say it, and its rules, and whose claim it is.
        """
        since_us = held.enqueued_us - offset_us
        lane, brought_by = self._lane(held, outcome), self._brought_by.get(held.fence, 0)

        def passed(at_s: float | None) -> str:
            return "" if at_s is None else str(int(at_s * SECOND_US) - since_us)

        words = (
            f"{held.job_id} {held.fence} {lane} {encode(held.type)} {held.enqueued_us} {outcome} "
            f"{passed(held.held_since_s)} {passed(held.started_s)} {passed(ended_s)} {passed(freed_s)} "
            f"{brought_by or ''} {release or ''}"
        )
        return ClaimRow(held.job_id, held.fence, brought_by, release, lane != "", words)

    def _lane(self, held: Held, outcome: str) -> str:
        priority = held.priority or 0
        is_plain = outcome in _PLAIN and not held.job_id.endswith(known_marks.ALL)
        if not is_plain or not isinstance(priority, int) or held.on_demand is None:
            return ""
        return lanes.name(held.on_demand, MAX_PRIORITY - priority if self._lower_first else priority)
