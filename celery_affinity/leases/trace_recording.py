"""What a worker writes down of its claims while a recording for the lab is on (`celery affinity lab record`).

Each heartbeat looks whether one is on, and hands over the claims that ended since the last one, in pages. Claims that
are held for longer are named once before they end: of a worker that dies, they are known all the same. While no
recording is on, an end costs one look at a flag.
"""

import json
import uuid

from redis.exceptions import ResponseError, WatchError

from ..log_limit import limited_logger
from ..scheduler import recordings
from ..scheduler.messages import ClaimRow
from ..scheduler.recordings import Recording
from ..scheduler.runner import argument_pages
from ..scheduler.scheduler import Scheduler
from ..schema.constants import MOST_RECORDED, RECORDING_KEPT_S
from .capacity import Capacity
from .claim_log import MOST
from .claims import ClaimTable
from .held_claim import PoolPort

logger = limited_logger(__name__)

#: Pages that are handed over in one round trip.
_TOGETHER = 10

#: What a worker says of itself: JSON.
JobFacts = dict[str, object]


class TraceRecorder:
    """Hands over *claims* of the worker with the node name *name*. The heartbeats' thread calls all methods.

    *record_s*: how long it records from its start on, 0 for not.
    """

    def __init__(self, name: str, claims: ClaimTable, capacity: Capacity, pool: PoolPort, record_s: float) -> None:
        self._name, self._claims, self._capacity, self._pool = name, claims, capacity, pool
        self._records, self._clock = claims.records, claims.clock
        self._record_s = record_s
        self._recording: Recording | None = None
        self._since_us = self._up_to_us = 0
        self._joined_us: int | None = None
        self._rows: list[ClaimRow] = []

    def joined(self) -> None:
        """Note when the worker entered the fleet: the first time counts."""
        if self._joined_us is None:
            self._joined_us = self._clock.now_us()

    def leave(self, scheduler: Scheduler) -> None:
        """Hand over all that is left: the server takes back what the worker still holds. Raises as `heartbeat` does."""
        held = self._claims.held()
        self._records.gone(held)
        for each in held:
            each.opened_in = "" if self._recording is None else self._recording.id
        self.heartbeat(scheduler, leaves=True)

    def heartbeat(self, scheduler: Scheduler, *, leaves: bool = False) -> None:
        """Begin or stop with the recording that is on, and hand over what has ended.

        What the server refuses is handed over with the next heartbeat. Raises a redis error if the server does not
        answer.
        """
        self._begin_its_own(scheduler)
        self._follow(recordings.current_recording(scheduler), scheduler)
        if self._recording is None:
            return
        up_to_us = self._clock.now_us()
        ended = self._collect(self._recording)
        facts: JobFacts = {
            "worker": self._claims.worker,
            "name": self._name,
            "types": sorted(self._capacity.types),
            "slots": self._pool.size(),
            "joined": self._joined_us,
            "since": self._since_us,
            "ended": ended,
        }
        if leaves:
            facts["left"] = up_to_us
        try:
            goes_on = self._hand_over(self._recording, scheduler, facts, up_to_us)
        except ResponseError as exc:  # it does not keep the worker from its work
            logger.warning("The server refuses what this worker records; the worker keeps it: %s", exc)
            del self._rows[:-MOST]
            return
        if not goes_on:
            self._stop()

    def _collect(self, recording: Recording) -> int:
        """Put claims that ended, and those not named yet, into the rows. Return how many have ended so far."""
        rows, ended = self._records.take()
        opened = [each for each in self._claims.held() if each.opened_in != recording.id]
        self._rows += rows + self._records.running(opened)
        for each in opened:
            each.opened_in = recording.id
        return ended

    def _begin_its_own(self, scheduler: Scheduler) -> None:
        """Begin a recording if the app says so, and there is none."""
        if not self._record_s:
            return
        try:
            recordings.begin_recording(scheduler, uuid.uuid4().hex[:12], for_s=self._record_s, kept_s=RECORDING_KEPT_S)
        except (ResponseError, WatchError) as exc:  # it does not keep the worker from its work
            logger.warning("The server refuses the recording that affinity_record asks for; none begins here: %s", exc)
        self._record_s = 0

    def _follow(self, recording: Recording | None, scheduler: Scheduler) -> None:
        if recording is None or recording.until_us <= self._up_to_us:  # what had ended by its end was handed over
            self._stop()
        elif self._recording is None or self._recording.id != recording.id:
            if recording.until_us > self._clock.now_us():
                self._records.begin()
                # The server's own time, not that of `clock`, which is late: nothing is missing from then on.
                self._since_us = scheduler.reader.now_us()
                self._recording, self._rows = recording, []
        else:
            self._recording = recording

    def _stop(self) -> None:
        if self._recording is not None:
            self._records.stop()
        self._recording, self._rows = None, []

    def _hand_over(self, recording: Recording, scheduler: Scheduler, facts: JobFacts, up_to_us: int) -> bool:
        """Return whether the recording goes on. Rows that were not answered stay."""
        while True:
            some = self._rows[: _TOGETHER * MOST_RECORDED]
            has_all = len(some) == len(self._rows)
            calls = [(json.dumps(facts | {"to": self._up_to_us}), page) for page in argument_pages(some, MOST_RECORDED)]
            if has_all:  # the last page says so
                calls = [*calls[:-1], (json.dumps(facts | {"to": up_to_us}), calls[-1][1] if calls else [])]
            if not scheduler.record(recording.id, calls):
                return False
            del self._rows[: len(some)]
            if has_all:
                self._up_to_us = up_to_us
                return True
