"""The life of one worker in the fleet: joining, serving, beating, draining, leaving. Of Celery it knows nothing.

A membership lasts from the first join to the end of the process, across reconnects to the broker.
"""

# Longer than 300 lines: one life, in the order in which it is lived.

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
from ..schema.constants import MOST_TYPES, REVOKED_KEPT_S
from ..settings.table import HIGHER_FIRST, PREFIX, Settings
from .capacity import Capacity, WithdrawnTypes
from .claims import ClaimTable
from .heartbeat import Heartbeat
from .held_claim import HeldClaim, PoolPort, WorkerLoop
from .lease import Lease, LoopMonitor
from .outbox import EndReporter
from .prefetch import Prefetch
from .trace_recording import TraceRecorder

logger = limited_logger(__name__)

#: Pause, s, before a heartbeat that the server did not answer is repeated.
_RETRY_S = 0.2


class Member:
    """One live worker of the app *app*, with the node name *name*.

    *announcer*, *ingest* and *recurring*: see `Dispatcher`. *kin* marks the forks of this process; None: the worker has
    no guard.
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
        self.withdrawn_types = WithdrawnTypes()
        self.reporter = EndReporter(
            scheduler, self.claims, self.lookahead, pool=pool, host=host, heartbeats=self._heartbeats
        )
        self._reconciling = Heartbeat(settings, self.claims, self.capacity, host=host, heartbeats=self._heartbeats)
        self._recording = TraceRecorder(name, self.claims, self.capacity, pool, settings.record)
        #: Types of which the worker takes no job for a moment, as the server was told.
        self.withdrawn: frozenset[str] = frozenset()
        self._rejoin = False
        self._started = False
        self._loop = LoopMonitor(self.id, name, settings.heartbeat_interval, kin=kin, ends_children=pool.forks)
        self._dispatcher = Dispatcher(scheduler, announcer, ingest, recurring)

    # -- what it is

    @property
    def scheduler(self) -> Scheduler:
        return self.reporter.scheduler

    @property
    def has_started(self) -> bool:
        """Whether the worker has joined once, so that its heartbeats see to everything further."""
        return self._started

    @property
    def guard_pid(self) -> int | None:
        """The process id of the guard; None if there is none."""
        return self._loop.guard_pid

    @property
    def timeout_s(self) -> float:
        """The silence, s, after which the worker is taken for dead."""
        return self._reconciling.timeout_s

    @property
    def returned(self) -> int:
        """Number of jobs that the worker has given back so far."""
        return self._reconciling.returned + self.reporter.outbox.returned

    # -- joining and serving

    def join(self, scheduler: Scheduler, types: Sequence[str]) -> bool:
        """Enter the fleet, or come back to it, with *types*. Return whether the server did not know the worker.

        Raises SettingError if the types are too many, a redis error if the server does not answer.
        """
        if len(types) > MOST_TYPES and not self._started:
            raise SettingError(
                f"a worker must consume at most {MOST_TYPES:,} scheduled queues, got: {len(types):,}; "
                f"{PREFIX}queues leaves queues to kombu"
            )
        self.capacity.types = tuple(types[:MOST_TYPES])
        self._use(scheduler)
        self._loop.note_run()
        self._loop.tend_guard(scheduler)
        try:
            is_new = self._join()
        except BaseException:
            self._rejoin = True
            raise
        self._dispatcher.use(scheduler, quiet=False)
        self._dispatcher.declare_again()
        if not self._started:
            self._started = True
            self._warn_of_eviction()
            self._heartbeats.start()
            self._dispatcher.start()
        self._heartbeats.wake()
        return is_new

    def _use(self, scheduler: Scheduler) -> None:
        if scheduler is not self.reporter.scheduler:
            self.reporter.scheduler.close()
        self.reporter.scheduler = scheduler

    def _join(self) -> bool:
        self._rejoin = False
        self.withdrawn = self.capacity.unwanted
        joined = self._reconciling.join(self.scheduler, self.name, self._app, withdrawn=self.withdrawn)
        self._recording.joined()
        is_new = joined.void_up_to > 0
        if is_new:
            self.withdrawn_types.clear()
            self.claims.sums.drop_doubtful()
        return is_new

    def _warn_of_eviction(self) -> None:
        policy = server_info.may_evict(self.scheduler.client)
        if policy:
            logger.warning(
                "The broker's maxmemory-policy is %s: when its memory is full it drops jobs. Set it to noeviction: "
                "publishing then fails with a clear error, and all that is running goes on",
                policy,
            )

    def serve(self, type_: str, serves: bool) -> None:
        """Serve *type_* from now on, or no more: a consumer was added or cancelled."""
        if serves and len(self.capacity.types) >= MOST_TYPES:
            logger.error("Queue %r is not served: a worker consumes at most %d scheduled queues", type_, MOST_TYPES)
            return
        if serves != (type_ in self.capacity.types) and not self.claims.is_closed:
            others = tuple(each for each in self.capacity.types if each != type_)
            self.capacity.types = (*others, type_) if serves else others
            self._rejoin = True
            self._heartbeats.wake()

    def rejoin(self) -> None:
        """Join again, since the server is to know more of this worker. Any thread may call this method."""
        self._rejoin = True
        self._heartbeats.wake()

    def set_priority(self, priority: int) -> None:
        """Have the worker get jobs by this *priority* from now on, before or after equally specialised ones."""
        self.capacity.priority = priority
        self.rejoin()

    def loop_ran(self) -> None:
        """Record that the event loop runs: it calls this method at each iteration."""
        if self._loop.note_run():
            self._heartbeats.wake()
        self.reporter.abandon_what_is_late()

    def notice_slots(self) -> None:
        """Wake the heartbeats if the pool has grown or shrunk, or if slots are taken without a claim."""
        if self.capacity.has_changed():
            self._heartbeats.wake()

    def lend(self, waiting: Counter[str], avoided: frozenset[str] = frozenset()) -> None:
        """Lend the slots of claims that wait for a rate limit: *waiting* counts them by type.

        The worker withdraws from the types *avoided*, even if it serves no others.
        """
        if self.capacity.lend(waiting, avoided):
            self._heartbeats.wake()

    def ask(self) -> None:
        """Have the heartbeats' thread find out whether the server answers."""
        self._heartbeats.wake()

    def tick(self) -> None:
        """Tick now: a job that came after the last tick is due before the next."""
        self._dispatcher.wake()

    def revoke(self, revoked: message.Revoke) -> None:
        """End the pending jobs that a broadcast revokes, if this worker ticks for the fleet."""
        if not self._dispatcher.is_quiet:
            try:
                self.scheduler.revoke(*revoked, keep_s=REVOKED_KEPT_S)
            except (RedisError, OSError) as exc:
                # Each worker's Celery remembers the revoke, and refuses the task when it comes.
                self.reporter.switch_to_heartbeat_thread(exc)

    def look_at_the_loop(self, patience_s: float) -> None:
        """Give back what has not started, from another thread, if the event loop has not run for *patience_s*."""
        if self._loop.stands_still_for(patience_s) and self.reporter.return_jobs_of_stalled_loop():
            self._heartbeats.wake()

    # -- giving back, draining and leaving

    def give_back(self, tags: Sequence[str]) -> None:
        """Give back claims that will not start here."""
        self.claims.abandon(tags)
        self._heartbeats.wake()

    def pause(self) -> list[HeldClaim]:
        """Take no new job until `resume`, and give back what has not started. Return what was given back."""
        self._rejoin = True  # before anything is given back, or the jobs would come again
        given_up = self.claims.drain(self._pool)
        self._heartbeats.wake()
        return given_up

    def resume(self) -> None:
        """Take jobs again."""
        self.claims.drained = False
        self._rejoin = True
        self._heartbeats.wake()

    def drop_unstarted(self) -> None:
        """Give back the claims that a reconnect dropped (see `Claims.drop_unstarted`), their age intact."""
        numbers = self.claims.drop_unstarted(self._pool)
        if numbers:
            logger.info("Giving back %d job(s) that a reconnect dropped", len(numbers))
        self._reconciling.requeue(self.scheduler, numbers)

    def drain(self) -> None:
        """Take no new job, and give back what has not started: the worker stops."""
        self.claims.close()
        try:
            self._sync()  # first: else the server places here again what is given back
            self.drop_unstarted()
        except (RedisError, OSError) as exc:
            # Claims that the next sync of a draining worker does not name go back as well.
            self.reporter.switch_to_heartbeat_thread(exc)
        self._heartbeats.wake()

    def leave(self) -> bool:
        """Tell the ends, give back the rest, and go. Return whether the server knows."""
        has_left = False
        self._dispatcher.stop()
        self._heartbeats.stop()
        for tag in self.claims.settled_in_buffer():
            self.claims.end(tag)
        try:
            self.reporter.flush_all()
            self.claims.sums.hand_over(self.scheduler, self.id)
            self._recording.leave(self.scheduler)
            self._reconciling.returned += self.scheduler.leave(self.id)
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

    # -- the heartbeats' thread

    def _heartbeat(self) -> float | None:
        self._loop.tend_guard(self.scheduler)
        again_s = self._host.heartbeat(loop_runs=not self._loop.stands_still)
        # Before the join: it tells why claims were given up, such as a type that is avoided. A claim that is given up
        # later waits for the next heartbeat, or its job would come here again at once.
        given_up = self.claims.given_up()
        settled = self.claims.settled_in_buffer()
        try:
            self.reporter.flush_all()
            if not self.claims.is_closed and (self._rejoin or self.capacity.unwanted != self.withdrawn):
                self._join()
            if self._loop.report(self.scheduler) and self.reporter.return_jobs_of_stalled_loop():
                self.reporter.flush_all()
            self._sync()
            # After the sync: before that the server may take the slots of the claims that were given up for free.
            self._reconciling.requeue(self.scheduler, self.claims.release_given_up(given_up))
            self.reporter.end_settled_in_buffer(settled)
            self.claims.sums.hand_over(self.scheduler, self.id)
            self._recording.heartbeat(self.scheduler)
        except (RedisError, OSError) as exc:
            self.reporter.switch_to_heartbeat_thread(exc)
            return _RETRY_S
        self.reporter.note_answer()
        return None if again_s is None else min(again_s, self._settings.heartbeat_interval)

    def _sync(self) -> None:
        synced = self._reconciling.sync(self.scheduler)
        if synced.known:
            self._dispatcher.use(self.scheduler, quiet=not synced.ticker)
        elif not self.claims.is_closed:
            logger.warning("The broker had declared this worker dead: the worker joins again")
            self._join()
            self._dispatcher.declare_again()
