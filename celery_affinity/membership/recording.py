"""What a worker writes down of its claims while a recording for the lab is on (`celery affinity lab record`).

Each heartbeat looks whether one is on, and hands over the claims that ended since the last one, in pages. Claims that
are held for longer are named once before they end: of a worker that dies, they are known all the same. While no
recording is on, an end costs one look at a flag.
"""

import json
import logging
import time
import uuid

from redis.exceptions import ResponseError

from ..clock import SECOND_US
from ..rules.protocol import MOST_RECORDED, RECORDING_KEPT_S
from ..rules.redis_keys import encode
from ..server import recordings
from ..server.recordings import Recording
from ..server.scheduler import Scheduler
from .capacity import Capacity
from .claims import Claims
from .held import Held
from .host import Pool
from .records import MOST

logger = logging.getLogger(__name__)

#: Pages that are handed over in one round trip.
_TOGETHER = 10

#: The outcome of a claim that has not ended.
_RUNNING = "running"

#: A claim as it is handed over: job id, fencing number, facts in words.
Row = tuple[str, str, str]


class RecordingWorker:
    """Hands over *claims* of the worker with the node name *name*. The heartbeats' thread calls all methods.

    *record_s*: how long it records from its start on, 0 for not.
    """

    def __init__(self, name: str, claims: Claims, capacity: Capacity, pool: Pool, record_s: float) -> None:
        self._name, self._claims, self._capacity, self._pool = name, claims, capacity, pool
        self._records, self._clock = claims.records, claims.clock
        self._record_s = record_s
        self._recording: Recording | None = None
        self._since_us = self._up_to_us = 0
        self._joined_us: int | None = None
        self._rows: list[Row] = []
        self._handed_over = 0

    def joined(self) -> None:
        """Note when the worker entered the fleet: the first time counts."""
        if self._joined_us is None:
            self._joined_us = self._clock.now_us()

    def leave(self, scheduler: Scheduler) -> None:
        """Hand over all that is left: the server takes back what the worker still holds. Raises as `beat` does."""
        held = self._claims.held()
        self._records.gone(held)
        for each in held:
            each.opened_in = "" if self._recording is None else self._recording.id
        self.beat(scheduler, leaves=True)

    def beat(self, scheduler: Scheduler, *, leaves: bool = False) -> None:
        """Begin or stop with the recording that is on, and hand over what has ended.

        What the server refuses is handed over with the next heartbeat. Raises a redis error if the server does not
        answer.
        """
        self._begin_its_own(scheduler)
        self._follow(recordings.current(scheduler))
        if self._recording is None:
            return
        up_to_us = self._clock.now_us()
        ended = self._collect(self._recording, up_to_us)
        facts = {
            "worker": self._claims.worker,
            "name": self._name,
            "types": sorted(self._capacity.types),
            "slots": self._pool.size(),
            "joined": self._joined_us,
            "since": self._since_us,
            "ended": ended,
        }
        try:
            goes_on = self._hand_over(self._recording, scheduler, facts, up_to_us, leaves)
        except ResponseError as exc:  # it does not keep the worker from its work
            logger.warning("The server refuses what this worker records; the worker keeps it: %s", exc)
            del self._rows[:-MOST]
            return
        if not goes_on:
            self._follow(None)

    def _collect(self, recording: Recording, up_to_us: int) -> int:
        """Put claims that ended, and those not named yet, into the rows. Return how many have ended so far."""
        left, ended = self._records.take()
        offset_us = up_to_us - round(time.monotonic() * SECOND_US)
        self._rows += [_row(each.held, each.ended_s, each.outcome, offset_us) for each in left]
        for each in self._claims.held():
            if each.opened_in != recording.id:
                each.opened_in = recording.id
                self._rows.append(_row(each, None, _RUNNING, offset_us))
        return ended

    def _begin_its_own(self, scheduler: Scheduler) -> None:
        """Begin a recording if the app says so, and there is none."""
        if self._record_s:
            recordings.begin(scheduler, uuid.uuid4().hex[:12], for_s=self._record_s, kept_s=RECORDING_KEPT_S)
            self._record_s = 0

    def _follow(self, recording: Recording | None) -> None:
        if recording is not None and recording.until_us <= self._up_to_us:
            recording = None  # what had ended by its end was handed over
        if recording is None:
            if self._records.is_on:
                self._records.stop()
            self._recording, self._rows = None, []
        elif self._recording is None or self._recording.id != recording.id:
            if recording.until_us > self._clock.now_us():
                self._records.begin()
                self._since_us = self._clock.now_us()
                self._recording, self._rows, self._handed_over = recording, [], 0
        else:
            self._recording = recording

    def _hand_over(
        self, recording: Recording, scheduler: Scheduler, facts: dict[str, object], up_to_us: int, leaves: bool
    ) -> bool:
        """Return whether the recording goes on. Rows that were not answered stay."""
        while True:
            calls = []
            for first in range(0, max(1, min(len(self._rows), _TOGETHER * MOST_RECORDED)), MOST_RECORDED):
                page = self._rows[first : first + MOST_RECORDED]
                is_last = first + MOST_RECORDED >= len(self._rows)
                said = {**facts, "first": self._handed_over + first, "to": up_to_us if is_last else self._up_to_us}
                if is_last and leaves:
                    said["left"] = up_to_us
                calls.append((json.dumps(said), page))
            if not scheduler.record(recording.id, calls):
                return False
            sent = sum(len(page) for _, page in calls)
            del self._rows[:sent]
            self._handed_over += sent
            if not self._rows:
                self._up_to_us = up_to_us
                return True


def _row(held: Held, ended_s: float | None, outcome: str, offset_us: int) -> Row:
    """Return a claim in words; *offset_us*: the server's time less that of the monotonic clock."""

    def at(seconds: float | None) -> str:
        return "-" if seconds is None else str(round(seconds * SECOND_US) + offset_us)

    words = (encode(held.type), str(held.enqueued_us), at(held.held_since_s), at(held.started_s), at(ended_s), outcome)
    return held.job_id, held.fence, " ".join(words)
