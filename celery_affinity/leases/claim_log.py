"""Keep the claims that ended during a recording until a heartbeat hands them over (`trace_recording`).

The end of a task only notes values, so that the next task starts soon. The heartbeat builds the rows in bulk.
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

#: Maximum number of claims kept for the next heartbeat. Further claims are only counted.
MAX_NOTES = 50_000

#: Outcome of an unfinished claim, and the usual outcome of a finished one. After any other outcome, the job may have
#: belonged to another worker, or may have no end time.
_RUNNING, _DONE = "running", "done"
_PLAIN = {_RUNNING, _DONE}

#: Maps an outcome reported to the server to the outcome in a trace. Other outcomes are the same in both.
_TRACE_OUTCOMES = {ACKED: _DONE, IGNORED: _DONE, REJECTED: "rejected", **dict.fromkeys(WAITS_AGAIN, "returned")}

#: Values of a claim: job id, fencing token, type, enqueue time, True if on demand (None: the job hash must tell the
#: lane), priority, reported outcome; times of arrival, start, end, and the server's confirmation of the end; number of
#: the release that reported the end; task and size. A plain tuple is cheap to create, and Python's garbage collector
#: visits it only once.
_Note = tuple[
    str,
    str,
    str,
    int,
    bool | None,
    object,
    str,
    float,
    float | None,
    float | None,
    float | None,
    int,
    str,
    float | None,
]


class ClaimLog:
    """Records claims by the server's *clock*; *lower_first* is True if 0 is the app's highest priority.

    Any thread can call `ended` and `gone`. Only the heartbeat thread calls the other methods.
    """

    def __init__(self, clock: ServerClock, lower_first: bool) -> None:
        self._clock, self._lower_first = clock, lower_first
        self._is_on = False
        self._lock = threading.RLock()  # reentrant: see `claims`
        self._notes: list[_Note] = []
        self._ended_count = 0
        self._releases = 0
        #: Number of a release, and the fencing tokens of the claims in its reply.
        self._granted: list[tuple[int, list[str]]] = []
        self._release_of_fence: dict[str, int] = {}  # fencing token -> number of that release

    def ended(self, ends: Iterable[HeldClaim], brought: Sequence[Claim] = ()) -> None:
        """Note claims whose ends a release has reported. A void claim was noted when it became void.

        *brought* are the claims in the reply to that release.
        """
        if self._is_on:
            now_s = time.monotonic()
            with self._lock:
                self._releases += 1
                for held in ends:
                    if not held.void:
                        self._note(held, held.ended_how, held.ended_s or now_s, now_s, self._releases)
                if brought and len(self._granted) < MAX_NOTES:
                    self._granted.append((self._releases, [claim.fence for claim in brought]))

    def gone(self, gone: Iterable[HeldClaim]) -> None:
        """Note claims that the worker has just returned, or has lost."""
        if self._is_on:
            now_s = time.monotonic()
            with self._lock:
                for held in gone:
                    self._note(held, RETURNED, now_s, now_s)

    def _note(self, held: HeldClaim, how: str, ended_s: float, freed_s: float, release: int = 0) -> None:
        """Note an end that the server confirmed at *freed_s*, in its reply to *release*; 0 for any other reply."""
        self._ended_count += 1
        if len(self._notes) < MAX_NOTES:
            self._notes.append(_note_of(held, how, ended_s, freed_s, release))

    def begin(self) -> None:
        """Start recording, and forget earlier notes."""
        with self._lock:
            self._notes, self._granted, self._ended_count, self._release_of_fence = [], [], 0, {}
        self._is_on = True

    def stop(self) -> None:
        self._is_on = False
        with self._lock:
            self._notes, self._granted = [], []

    def take(self) -> tuple[list[ClaimRow], int]:
        """Return the new rows, and the number of claims that ended since `begin`."""
        with self._lock:
            notes, self._notes = self._notes, []
            granted, self._granted = self._granted, []
            ended_count = self._ended_count
        # If a release reported ends of jobs, its reply's claims have the time of these ends.
        done_releases = {
            release for _, _, _, _, _, _, how, _, _, _, _, release, _, _ in notes if _TRACE_OUTCOMES.get(how) == _DONE
        }
        for release, fences in granted:
            if release in done_releases:
                self._release_of_fence.update(dict.fromkeys(fences, release))
        return list(self._rows(notes, self._release_of_fence.pop)), ended_count

    def running(self, claims: Iterable[HeldClaim]) -> list[ClaimRow]:
        """Return the rows of unfinished claims."""
        return list(
            self._rows([_note_of(claim, _RUNNING, None, None, 0) for claim in claims], self._release_of_fence.get)
        )

    def _rows(self, notes: Sequence[_Note], release_of: Callable[[str, int], int]) -> Iterator[ClaimRow]:
        offset_us = self._clock.now_us() - round(time.monotonic() * SECOND_US)
        kind = cache(self._kind)  # only for these claims: new messages can bring new priorities without end
        for (
            job,
            fence,
            type_,
            since_us,
            on_demand,
            priority,
            how,
            arrived,
            started,
            ended,
            freed,
            release,
            task,
            size,
        ) in notes:
            at_us = since_us - offset_us
            if not isinstance(priority, int):  # a message is untrusted data
                priority, on_demand = 0, None if priority else on_demand
            yield (
                job,
                fence,
                kind(type_, on_demand, priority, how, task, job[-1:] in rules_codec.ALL),
                since_us,
                int(arrived * SECOND_US) - at_us,
                None if started is None else int(started * SECOND_US) - at_us,
                None if ended is None else int(ended * SECOND_US) - at_us,
                None if freed is None else int(freed * SECOND_US) - at_us,
                release_of(fence, 0),
                release,
                size,
            )

    def _kind(self, type_: str, on_demand: bool | None, priority: int, how: str, task: str, has_suffix: bool) -> Kind:
        outcome, lane = _TRACE_OUTCOMES.get(how, how), ""
        if outcome in _PLAIN and on_demand is not None and not has_suffix:
            lane = values.lane_name(on_demand, MAX_PRIORITY - priority if self._lower_first else priority)
        return type_, lane, outcome, task


def _note_of(held: HeldClaim, how: str, ended_s: float | None, freed_s: float | None, release: int) -> _Note:
    return (
        held.job_id,
        held.fence,
        held.type,
        held.enqueued_us,
        None if held.due_us is not None else held.on_demand,  # the job hash has the due time
        held.priority,
        how,
        held.held_since_s,
        held.started_s,
        ended_s,
        freed_s,
        release,
        "" if held.request is None else held.request.name,
        None if held.request is None else held.request.size,
    )
