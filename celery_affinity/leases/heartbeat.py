"""Reconcile the claims of a worker with the server's: join and sync."""

import threading
from collections import Counter
from collections.abc import Collection, Sequence

from ..background import PeriodicThread
from ..clock import now_s
from ..log_limit import limited_logger
from ..scheduler.messages import ClaimReport, JoinArguments, JoinReply, SyncReply
from ..scheduler.runtime_settings import SettingsLog
from ..scheduler.scheduler import Scheduler
from ..settings.table import PREFIX, Settings
from ..settings.wire import shared_settings
from .capacity import Capacity, PauseLog
from .claims import ClaimTable
from .held_claim import HeldClaim, WorkerLoop

logger = limited_logger(__name__)


class Heartbeat:
    """Makes the *claims* of a worker agree with the server's, with extra *heartbeats* if one sync is not enough.

    *host* stops the tasks of claims that now belong to another worker. Each method raises a redis error if the server
    does not answer.
    """

    def __init__(
        self,
        settings: Settings,
        claims: ClaimTable,
        capacity: Capacity,
        *,
        host: WorkerLoop,
        heartbeats: PeriodicThread,
    ) -> None:
        self._settings = settings
        self._settings_log = SettingsLog(settings)
        self._pauses_log = PauseLog()
        self._claims, self._capacity = claims, capacity
        self._host, self._heartbeats = host, heartbeats
        #: Serialises the reports, since slots may belong to another cohort by the later one.
        self._report_lock = threading.Lock()
        #: Number of jobs that a sync reclaimed, or that this worker returned.
        self.returned = 0

    @property
    def timeout_s(self) -> float:
        """Seconds of silence after which the server considers the worker dead."""
        return self._settings_log.worker_timeout_s

    def join(self, scheduler: Scheduler, name: str, app: str, *, withdrawn: frozenset[str]) -> JoinReply:
        """Join or rejoin the fleet with all types except *withdrawn*, or with no types while drained."""
        types = [type_ for type_ in self._capacity.types if type_ not in withdrawn]
        if self._claims.drained:
            types, withdrawn = [], frozenset()
        with self._report_lock:
            asked_at_s = now_s()
            slots, other = self._capacity.tell()
            stops, priority = self._capacity.stops, self._capacity.priority
            arguments = JoinArguments(
                self._claims.worker, name, types, slots, other, app, sorted(withdrawn), stops, priority
            )
            reply = scheduler.join(arguments, shared_settings(self._settings))
            self._capacity.confirmed = slots
        self._claims.clock.set(reply.now_us)
        self._stop_void(scheduler, self._claims.void_up_to(reply.void_up_to))
        self._claims.lease.renew(asked_at_s=asked_at_s, timeout_s=self.timeout_s)
        for setting in reply.replaced:
            logger.warning(
                "%s in this worker's app.conf differs from the value in force, and replaces it for all workers. "
                "Another app, or another version of this app, may still be running with the old value",
                PREFIX + setting.removesuffix("_us"),
            )
        if reply.namesake:
            logger.warning(
                "Another worker with node name %r is alive, or died a moment ago: give each worker its own name (-n)",
                name,
            )
        return reply

    def sync(self, scheduler: Scheduler) -> SyncReply:
        """Report the held claims and apply the reply. An unknown worker has to join again."""
        asked_at_s = now_s()
        draining = self._claims.is_closed
        with self._report_lock:
            slots, other = self._capacity.tell()
            running = self._claims.running()
            reply = scheduler.sync(self._claims.worker, running, slots=slots, other=other, draining=draining)
            if reply.is_registered:
                self._capacity.confirmed = slots
        self._claims.clock.set(reply.now_us)
        self.returned += reply.returned
        if not reply.is_registered:
            self._stop_void(scheduler, self._claims.void(held.number for held in self._claims.held_claims()))
            return reply
        self._settings_log.update(scheduler, reply.revision)
        self._stop_void(scheduler, self._claims.void(_void_numbers(running, reply.void)))
        self._claims.lease.renew(asked_at_s=asked_at_s, timeout_s=self.timeout_s)
        lost = self._claims.refuse(reply.unnamed)
        if lost:
            logger.info("Giving back %d job(s) that never arrived", len(lost))
            self._heartbeats.wake()  # one sync names only some of the lost jobs
        self.requeue(scheduler, lost)
        self._pauses_log.update(scheduler.reader, reply.revision, self._capacity.types)
        return reply

    def _stop_void(self, scheduler: Scheduler, void: list[HeldClaim]) -> None:
        existing_ids = scheduler.reader.existing_jobs([held.job_id for held in void]) if void else set()
        # If the job hash no longer exists, the job runs nowhere else.
        self._host.fence([held for held in void if held.job_id in existing_ids])

    def requeue(self, scheduler: Scheduler, numbers: list[tuple[str, str]]) -> None:
        """Return jobs (job id, fencing token) that this worker does not hold; they keep their age."""
        if numbers:
            self.returned += scheduler.requeue(self._claims.worker, numbers, counted=False)


def _void_numbers(reports: Sequence[ClaimReport], job_ids: Collection[str]) -> list[tuple[str, str]]:
    """Return the *named* claims that are void, given the *job_ids* in the reply to their sync.

    While the sync was on its way, the worker may have claimed a job again with a new fencing token. If a sync named
    both claims of a job, the next sync resolves which one is void.
    """
    counts = Counter(report.job_id for report in reports)
    return [
        (report.job_id, report.fence) for report in reports if report.job_id in job_ids and counts[report.job_id] == 1
    ]
