"""The life of one worker in the fleet: joining, serving, heartbeats, draining, leaving. Independent of Celery."""

import uuid
from collections import Counter
from collections.abc import Sequence

from redis.exceptions import RedisError

from ..background import PeriodicThread
from ..dispatcher.dispatcher import Dispatcher
from ..dispatcher.ingest import Ingest
from ..dispatcher.recurring import RecurringCalls
from ..errors import SettingError
from ..liveness.guard import ForkMarker
from ..log_limit import limited_logger
from ..publishing import message
from ..results.unrun_jobs import UnrunJobReporter
from ..scheduler import server_info
from ..scheduler.scheduler import Scheduler
from ..schema.constants import MAX_TYPES, REVOKED_KEPT_S
from ..settings.table import HIGHER_FIRST, PREFIX, Settings
from .capacity import Capacity
from .claims import ClaimTable
from .heartbeat import Heartbeat
from .held_claim import HeldClaim, PoolPort, WorkerLoop
from .lease import Lease, LoopMonitor
from .outbox import EndReporter
from .prefetch import Prefetch
from .trace_recording import TraceRecorder

logger = limited_logger(__name__)

#: Seconds before an unanswered heartbeat is repeated.
_RETRY_S = 0.2


class Member:
    """One live worker of the app *app*, with the node name *name*, from its first join to the end of the process.

    A membership survives reconnects to the broker. *announcer*, *ingest* and *recurring*: see `Dispatcher`. *kin* marks
    the forks of this process; None if the worker has no guard.
    """

    def __init__(
        self,
        name: str,
        app: str,
        settings: Settings,
        scheduler: Scheduler,
        *,
        pool: PoolPort,
        host: WorkerLoop,
        announcer: UnrunJobReporter,
        ingest: Ingest,
        recurring: RecurringCalls,
        kin: ForkMarker | None = None,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.name = name
        self._app = app
        self._settings = settings
        self._pool, self._host = pool, host
        self._heartbeats = PeriodicThread("affinity-heartbeats", self._heartbeat, settings.heartbeat_interval)
        self.claims = ClaimTable(
            self.id,
            scheduler.keys.key("inbox", self.id),
            Lease(settings.worker_timeout),
            lower_first=settings.priority_order != HIGHER_FIRST,
        )
        self.capacity = Capacity(pool, self.claims)
        self.capacity.priority = settings.worker_priority
        self.lookahead = Prefetch(settings.lookahead, settings.lookahead_ms / 1_000)
        self.reporter = EndReporter(
            scheduler, self.claims, self.lookahead, pool=pool, host=host, heartbeats=self._heartbeats
        )
        self._reconciler = Heartbeat(settings, self.claims, self.capacity, host=host, heartbeats=self._heartbeats)
        self._recorder = TraceRecorder(name, self.claims, self.capacity, pool, settings.record)
        #: Types from which the worker has temporarily withdrawn, as reported to the server.
        self.withdrawn: frozenset[str] = frozenset()
        self._rejoin = False
        #: True once the worker has joined, so that its heartbeats do everything else.
        self.has_started = False
        self._loop = LoopMonitor(self.id, name, settings.heartbeat_interval, kin=kin, ends_children=pool.forks)
        self._dispatcher = Dispatcher(scheduler, announcer, ingest, recurring)

    @property
    def scheduler(self) -> Scheduler:
        return self.reporter.scheduler

    @property
    def guard_pid(self) -> int | None:
        return self._loop.guard_pid

    @property
    def timeout_s(self) -> float:
        return self._reconciler.timeout_s

    @property
    def returned(self) -> int:
        """Number of jobs that the worker has returned so far."""
        return self._reconciler.returned + self.reporter.outbox.returned

    def join(self, scheduler: Scheduler, types: Sequence[str]) -> bool:
        """Join or rejoin the fleet with *types*. Return True if the server did not know the worker.

        Raises SettingError if there are too many types, and a redis error if the server does not answer.
        """
        if len(types) > MAX_TYPES and not self.has_started:
            raise SettingError(
                f"a worker must consume at most {MAX_TYPES:,} scheduled queues, got: {len(types):,}; "
                f"{PREFIX}queues leaves queues to kombu"
            )
        self.capacity.types = tuple(types[:MAX_TYPES])
        if scheduler is not self.scheduler:
            self.scheduler.close()
        self.reporter.scheduler = scheduler
        self._loop.note_run()
        self._loop.tend_guard(scheduler)
        try:
            is_new = self._join()
        except BaseException:
            self._rejoin = True
            raise
        self._dispatcher.use(scheduler, quiet=False)
        self._dispatcher.declare_again()
        if not self.has_started:
            self.has_started = True
            if policy := server_info.may_evict(scheduler.client):
                logger.warning(
                    "The broker's maxmemory-policy is %s: when its memory is full it drops jobs. Set it to noeviction: "
                    "publishing then fails with a clear error, and running jobs continue",
                    policy,
                )
            self._heartbeats.start()
            self._dispatcher.start()
        self._heartbeats.wake()
        return is_new

    def _join(self) -> bool:
        self._rejoin = False
        self.withdrawn = self.capacity.unwanted
        reply = self._reconciler.join(self.scheduler, self.name, self._app, withdrawn=self.withdrawn)
        self._recorder.joined()
        is_new = reply.void_up_to > 0
        if is_new:
            self.claims.withdrawn_types.clear()
            self.claims.sums.drop_doubtful()
        return is_new

    def serve(self, type_: str, serves: bool) -> None:
        """Start or stop serving *type_*, because a consumer was added or cancelled."""
        if serves and len(self.capacity.types) >= MAX_TYPES:
            logger.error("Queue %r is not served: a worker consumes at most %d scheduled queues", type_, MAX_TYPES)
            return
        if serves != (type_ in self.capacity.types) and not self.claims.is_closed:
            other_types = tuple(served for served in self.capacity.types if served != type_)
            self.capacity.types = (*other_types, type_) if serves else other_types
            self.rejoin()

    def rejoin(self) -> None:
        """Join again, because the server needs new data about this worker. Any thread can call this method."""
        self._rejoin = True
        self._heartbeats.wake()

    def set_priority(self, priority: int) -> None:
        """Use *priority* to rank the worker among equally specialised workers that compete for a job."""
        self.capacity.priority = priority
        self.rejoin()

    def loop_ran(self) -> None:
        """Record that the event loop runs; the loop calls this method in each iteration."""
        if self._loop.note_run():
            self._heartbeats.wake()
        self.reporter.abandon_what_is_late()

    def notice_slots(self) -> None:
        """Wake the heartbeats if the pool size or the number of slots occupied without a claim has changed."""
        if self.capacity.has_changed():
            self._heartbeats.wake()

    def lend(self, waiting: Counter[str], avoided: frozenset[str] = frozenset()) -> None:
        """Lend the slots of claims that wait for a rate limit: *waiting* counts them by type.

        The worker withdraws from the types *avoided*, even if it serves no others.
        """
        if self.capacity.lend(waiting, avoided):
            self._heartbeats.wake()

    def ask(self) -> None:
        """Make the heartbeat thread check whether the server answers."""
        self._heartbeats.wake()

    def tick(self) -> None:
        """Run a tick now: a job that came after the last tick is due before the next one."""
        self._dispatcher.wake()

    def revoke(self, revoked: message.Revoke) -> None:
        """End the pending jobs that a broadcast revokes, if this worker runs the fleet's ticks."""
        if not self._dispatcher.is_quiet:
            try:
                self.scheduler.revoke(*revoked, keep_s=REVOKED_KEPT_S)
            except (RedisError, OSError) as exc:
                # Celery in each worker remembers the revocation, and rejects the task when its job arrives.
                self.reporter.switch_to_heartbeat_thread(exc)

    def look_at_the_loop(self, patience_s: float) -> None:
        """Return unstarted jobs, from another thread, if the event loop has not run for *patience_s* seconds."""
        if self._loop.stands_still_for(patience_s) and self.reporter.return_jobs_of_stalled_loop():
            self._heartbeats.wake()

    def pause(self) -> list[HeldClaim]:
        """Take no new job until `resume`, and return unstarted jobs. Return the claims of these jobs."""
        self._rejoin = True  # before any job is returned, or it would be delivered here again
        given_up = self.claims.drain(self._pool)
        self._heartbeats.wake()
        return given_up

    def resume(self) -> None:
        self.claims.drained = False
        self.rejoin()

    def drop_unstarted(self) -> None:
        """Return the claims that a reconnect dropped (see `ClaimTable.drop_unstarted`), with their age intact."""
        numbers = self.claims.drop_unstarted(self._pool)
        if numbers:
            logger.info("Giving back %d job(s) that a reconnect dropped", len(numbers))
        self._reconciler.requeue(self.scheduler, numbers)

    def drain(self) -> None:
        """Take no new job, and return unstarted jobs, because the worker stops."""
        self.claims.close()
        try:
            self._sync()  # first, or the server would place the returned jobs here again
            self.drop_unstarted()
        except (RedisError, OSError) as exc:
            # Claims missing from a draining worker's next sync are returned as well.
            self.reporter.switch_to_heartbeat_thread(exc)
        self._heartbeats.wake()

    def leave(self) -> bool:
        """Report the ends, return the other claims, and leave the fleet. Return True if the server has confirmed."""
        has_left = False
        self._dispatcher.stop()
        self._heartbeats.stop()
        for tag in self.claims.settled_in_buffer():
            self.claims.end(tag)
        try:
            self.reporter.flush_all()
            self.claims.sums.hand_over(self.scheduler, self.id)
            self._recorder.leave(self.scheduler)
            self._reconciler.returned += self.scheduler.leave(self.id)
        except (RedisError, OSError) as exc:
            logger.warning(
                "The broker does not answer: the fleet will notice only after affinity_worker_timeout that this "
                "worker left: %s",
                exc,
            )
        else:
            has_left = True
        self._loop.dismiss_guard()
        return has_left

    def _heartbeat(self) -> float | None:
        self._loop.tend_guard(self.scheduler)
        host_pause_s = self._host.heartbeat(loop_runs=not self._loop.stands_still)
        # Read before the join, which reports why claims were abandoned, such as a type to avoid. A claim abandoned
        # later waits for the next heartbeat; otherwise its job would be delivered here again immediately.
        given_up = self.claims.given_up()
        settled = self.claims.settled_in_buffer()
        try:
            self.reporter.flush_all()
            if not self.claims.is_closed and (self._rejoin or self.capacity.unwanted != self.withdrawn):
                self._join()
            if self._loop.report(self.scheduler) and self.reporter.return_jobs_of_stalled_loop():
                self.reporter.flush_all()
            self._sync()
            # After the sync: before it, the server may consider the slots of the abandoned claims free.
            self._reconciler.requeue(self.scheduler, self.claims.release_given_up(given_up))
            for tag in settled:  # the sync has reported that they lend no slot
                self.reporter.end(tag)
            self.claims.sums.hand_over(self.scheduler, self.id)
            self._recorder.heartbeat(self.scheduler)
        except (RedisError, OSError) as exc:
            self.reporter.switch_to_heartbeat_thread(exc)
            return _RETRY_S
        self.reporter.note_answer()
        return None if host_pause_s is None else min(host_pause_s, self._settings.heartbeat_interval)

    def _sync(self) -> None:
        reply = self._reconciler.sync(self.scheduler)
        if reply.is_registered:
            self._dispatcher.use(self.scheduler, quiet=not reply.ticker)
        elif not self.claims.is_closed:
            logger.warning("The broker had declared this worker dead: the worker joins again")
            self._join()
            self._dispatcher.declare_again()
