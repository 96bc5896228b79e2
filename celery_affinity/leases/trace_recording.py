"""Send the claims of a worker to a recording for the lab (`celery affinity lab record`).

Each heartbeat checks whether a recording is on, and hands over the claims that ended since the last one, in pages.
Claims that last longer are listed once before they end, so that a dying worker's claims are recorded too. Without a
recording, the end of a task only costs one check of a flag.
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

#: Number of pages per round trip.
_PAGES_PER_TRIP = 10


class TraceRecorder:
    """Hands over *claims* of the worker with the node name *name*. Only the heartbeat thread calls its methods.

    *record_s* is the number of seconds to record from the start of the worker; 0 for none.
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
        """Note when the worker first entered the fleet."""
        if self._joined_us is None:
            self._joined_us = self._clock.now_us()

    def leave(self, scheduler: Scheduler) -> None:
        """Hand over all rows, as the server reclaims the held claims. Raises the errors of `heartbeat`."""
        claims = self._claims.held()
        self._records.gone(claims)
        for claim in claims:
            claim.opened_in = "" if self._recording is None else self._recording.id
        self.heartbeat(scheduler, leaves=True)

    def heartbeat(self, scheduler: Scheduler, *, leaves: bool = False) -> None:
        """Start or stop with the current recording, and hand over the claims that have ended.

        Rows that the server refuses are handed over with the next heartbeat. Raises a redis error if the server does
        not answer.
        """
        self._begin_configured(scheduler)
        self._follow(recordings.current_recording(scheduler), scheduler)
        if self._recording is None:
            return
        up_to_us = self._clock.now_us()
        ended = self._collect(self._recording)
        facts: dict[str, object] = {
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
            is_continuing = self._hand_over(self._recording, scheduler, facts, up_to_us)
        except ResponseError as exc:
            logger.warning("The server refuses what this worker records; the worker keeps it: %s", exc)
            del self._rows[:-MOST]
            return
        if not is_continuing:
            self._stop()

    def _collect(self, recording: Recording) -> int:
        """Add rows of ended claims, and of claims not listed yet. Return the number of claims ended so far."""
        rows, ended = self._records.take()
        newly_listed = [claim for claim in self._claims.held() if claim.opened_in != recording.id]
        self._rows += rows + self._records.running(newly_listed)
        for claim in newly_listed:
            claim.opened_in = recording.id
        return ended

    def _begin_configured(self, scheduler: Scheduler) -> None:
        """Begin a recording if the app's settings require one, and none is on."""
        if not self._record_s:
            return
        try:
            recordings.begin_recording(scheduler, uuid.uuid4().hex[:12], for_s=self._record_s, kept_s=RECORDING_KEPT_S)
        except (ResponseError, WatchError) as exc:
            logger.warning("The server refuses the recording that affinity_record asks for; none begins here: %s", exc)
        self._record_s = 0

    def _follow(self, recording: Recording | None, scheduler: Scheduler) -> None:
        if recording is None or recording.until_us <= self._up_to_us:  # all rows are handed over
            self._stop()
        elif self._recording is None or self._recording.id != recording.id:
            if recording.until_us > self._clock.now_us():
                self._records.begin()
                # The server's time rather than `clock`, which lags: nothing is missing from this time on.
                self._since_us = scheduler.reader.now_us()
                self._recording, self._rows = recording, []
        else:
            self._recording = recording

    def _stop(self) -> None:
        if self._recording is not None:
            self._records.stop()
        self._recording, self._rows = None, []

    def _hand_over(self, recording: Recording, scheduler: Scheduler, facts: dict[str, object], up_to_us: int) -> bool:
        """Return True if the recording continues. Rows without a reply are kept."""
        while True:
            batch = self._rows[: _PAGES_PER_TRIP * MOST_RECORDED]
            has_all = len(batch) == len(self._rows)
            calls = [
                (json.dumps(facts | {"to": self._up_to_us}), page) for page in argument_pages(batch, MOST_RECORDED)
            ]
            if has_all:  # only the last page has the new end time
                calls = [*calls[:-1], (json.dumps(facts | {"to": up_to_us}), calls[-1][1] if calls else [])]
            if not scheduler.record(recording.id, calls):
                return False
            del self._rows[: len(batch)]
            if has_all:
                self._up_to_us = up_to_us
                return True
