"""The claims of a worker, compared with those that the server knows: afterwards worker and server agree."""

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
    """Makes the *claims* of a worker agree with the server's, with further *heartbeats* if one is not enough.

    *host* stops the tasks whose claims have become another worker's. Each method raises a redis error if the server
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
        #: What is told second must not arrive first: slots may be another cohort's by then.
        self._one_at_a_time = threading.Lock()
        #: Number of jobs that a sync took back, or that this worker gave back.
        self.returned = 0

    @property
    def timeout_s(self) -> float:
        """The silence, s, after which the worker is taken for dead."""
        return self._settings_log.worker_timeout_s

    def join(self, scheduler: Scheduler, name: str, app: str, *, withdrawn: frozenset[str]) -> JoinReply:
        """Enter the fleet, or come back to it, with all types but those *withdrawn*; with none while drained."""
        with self._one_at_a_time:
            return self._join(scheduler, name, app, withdrawn)

    def _join(self, scheduler: Scheduler, name: str, app: str, withdrawn: frozenset[str]) -> JoinReply:
        asked_at_s = now_s()
        slots, other = self._capacity.tell()
        types = [type_ for type_ in self._capacity.types if type_ not in withdrawn]
        if self._claims.drained:
            types, withdrawn = [], frozenset()
        stops, priority = self._capacity.stops, self._capacity.priority
        joining = JoinArguments(self._claims.worker, name, types, slots, other, app, sorted(withdrawn), stops, priority)
        joined = scheduler.join(joining, shared_settings(self._settings))
        self._capacity.confirmed = slots
        self._claims.clock.set(joined.now_us)
        self._stop_void(scheduler, self._claims.void_up_to(joined.void_up_to))
        self._renew_lease(asked_at_s)
        for setting in joined.replaced:
            logger.warning(
                "%s in this worker's app.conf differs from the value in force, and replaces it for all workers. "
                "Another app, or another version of this app, may still be running with the old value",
                PREFIX + setting.removesuffix("_us"),
            )
        if joined.namesake:
            logger.warning(
                "Another worker with node name %r is alive, or died a moment ago: give each worker its own name (-n)",
                name,
            )
        return joined

    def sync(self, scheduler: Scheduler) -> SyncReply:
        """Name the claims that are held, and obey the reply. A worker that is not known any more has to join again."""
        asked_at_s = now_s()
        draining = self._claims.is_closed
        with self._one_at_a_time:
            slots, other = self._capacity.tell()
            running = self._claims.running()
            synced = scheduler.sync(self._claims.worker, running, slots=slots, other=other, draining=draining)
            if synced.known:
                self._capacity.confirmed = slots
        self._claims.clock.set(synced.now_us)
        self.returned += synced.returned
        if not synced.known:
            self._stop_void(scheduler, self._claims.void(held.number for held in self._claims.held()))
            return synced
        self._settings_log.update(scheduler, synced.revision)
        self._stop_void(scheduler, self._claims.void(_voided(running, synced.void)))
        self._renew_lease(asked_at_s)
        self._give_back_what_never_arrived(scheduler, synced.asked)
        self._pauses_log.update(scheduler.reader, synced.revision, self._capacity.types)
        return synced

    def _renew_lease(self, asked_at_s: float) -> None:
        self._claims.lease.renew(asked_at_s=asked_at_s, timeout_s=self.timeout_s)

    def _stop_void(self, scheduler: Scheduler, void: list[HeldClaim]) -> None:
        known = scheduler.reader.known([held.job_id for held in void]) if void else set()
        # A job that the server has forgotten altogether runs nowhere else.
        self._host.fence([held for held in void if held.job_id in known])

    def _give_back_what_never_arrived(self, scheduler: Scheduler, asked: Sequence[tuple[str, str]]) -> None:
        given_back = self._claims.refuse(asked)
        if given_back:
            logger.info("Giving back %d job(s) that never arrived", len(given_back))
            self._heartbeats.wake()  # one sync asks about some of the lost jobs
        self.requeue(scheduler, given_back)

    def requeue(self, scheduler: Scheduler, numbers: list[tuple[str, str]]) -> None:
        """Give back jobs (job id, fencing number) that this worker does not hold; their age stays intact."""
        if numbers:
            self.returned += scheduler.requeue(self._claims.worker, numbers, counted=False)


def _voided(named: Sequence[ClaimReport], job_ids: Collection[str]) -> list[tuple[str, str]]:
    """Return which of the claims that a sync *named* are void, by the *job_ids* of the reply.

    The worker may have got a job again meanwhile, with another fencing number that the sync did not name. If the sync
    named both claims, the next sync tells which of them is void.
    """
    times = Counter(each.job_id for each in named)
    return [(each.job_id, each.fence) for each in named if each.job_id in job_ids and times[each.job_id] == 1]
