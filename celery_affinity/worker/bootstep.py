"""The lines that a worker logs about its place in the fleet: one when it joins, and one when it leaves.

The consumer bootstep of a worker, which joins the fleet at each start, drains at the stop, and leaves.

The bootstep of a worker whose app has cohorts: a seat in the cohort of each type that the worker consumes.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.worker import state
from kombu.asynchronous.hub import Hub

from ..dispatcher.ingest import Ingest
from ..dispatcher.recurring import RecurringCalls
from ..leases.held_claim import HeldClaim, WorkerLoop, job_of_tag
from ..leases.member import Member
from ..leases.slot_sharing import SharedSlots, SlotMover
from ..log_limit import UNLIMITED, limited_logger
from ..publishing.app_config import settings_of
from ..publishing.message import Revoke
from ..results.reporter import ResultReporter
from ..results.unrun_jobs import UnrunJobReporter
from ..scheduler import server_info
from ..scheduler.scheduler import Scheduler
from ..schema.constants import REVOKED_KEPT_S
from ..schema.job_record import is_batch
from ..schema.keys import Keys
from ..settings.cohorts import DEFAULT
from ..settings.table import Settings
from ..transport.channel import AffinityChannel
from ..versions import versions
from . import pool
from .buffers import warn_of_small_batches
from .cohort_member import CohortMember, CohortMembers, CohortSlots
from .consumer import ReconnectingConsumer
from .event_loop import CeleryWorkerLoop, EventLoop
from .job_feed import JobFeed
from .pool import OtherRuns, PoolSlots
from .rate_limits import RateLimits
from .request_end import LeakedClaims

if TYPE_CHECKING:
    from .consumer import AffinityConsumer

#: Most types that the line names. Of a longer list the line has the number, too.
_NAMED = 8


def line_on_joining(
    *,
    types: Sequence[str],
    slots: int,
    guard: int | None,
    timeout_s: float,
    namespace: str,
    prefix: str,
    server: str,
    uri: str,
) -> str:
    """Return the line of a worker that joins: the types, the slots, the guard, and the place of the fleet.

    *guard*: a process id. *timeout_s*: the silence that looks like death. *prefix*: of all keys. *uri*: the broker's
    URL as users write it, without a password.
    """
    guarded = (
        f"guarded by process {guard}"
        if guard is not None
        else f"no guard: declared dead after {timeout_s:g} s of silence"
    )
    where = f"namespace {namespace!r}" + (f" behind prefix {prefix!r}" if prefix else "")
    own = versions()["celery_affinity"]
    return (
        f"celery_affinity {own}: serves {_some(types)} with {_count(slots, 'slot')}; {guarded}; "
        f"{where} on {server} at {uri}"
    )


def line_on_joining_again(*, anew: bool, unfinished: int) -> str:
    """Return the line of a worker that joins after a reconnect.

    *anew*: the server had taken the worker for dead, or forgotten it.
    """
    if anew:
        return "celery_affinity: joined again, as a new member"
    return f"celery_affinity: joined again; still holds {_count(unfinished, 'job')}"


def line_on_leaving(given_back: int) -> str:
    """Return the line of a worker that goes, *given_back* being the number of its jobs that are pending again."""
    return f"celery_affinity: left the fleet; {_count(given_back, 'job')} given back"


def _some(types: Sequence[str]) -> str:
    if not types:
        return "no scheduled queue"
    more = f", ... ({len(types):,} in all)" if len(types) > _NAMED else ""
    return ", ".join(types[:_NAMED]) + more


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


logger = limited_logger(__name__)


class AffinityBootstep(bootsteps.StartStopStep):
    """Joins the fleet after the last consumer is set up; stops before the first consumer is cancelled."""

    name = "affinity"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: "AffinityConsumer", **kwargs: Any) -> None:
        self._consumer = consumer
        self.slots = PoolSlots(consumer)
        self.membership: Member | None = None
        self._host = CeleryWorkerLoop(consumer)
        self._following: JobFeed | None = None
        self._limits: RateLimits | None = None
        self._channel: AffinityChannel | None = None
        self._is_introduced = False
        self._returned_before: int | None = None
        self._priority: int | None = kwargs.get("affinity_priority")
        consumer.affinity = self  # commands of remote control look for the step there
        consumer.affinity_on_revoked = self._on_revoked
        super().__init__(consumer, **kwargs)

    # -- bootstep

    def start(self, consumer: "AffinityConsumer") -> None:
        """Join, at the start and again after each reconnect."""
        self._channel = channel = consumer.task_consumer.channel
        scheduler = channel.scheduler_of_its_own()
        if self.membership is None:
            self._enter(scheduler)
        self.limits.begin()  # the requests that a lost connection made Celery drop lend no slots any more
        self.job_feed.begin(channel)
        queues = [queue.name for queue in consumer.task_consumer.queues]
        is_new = self.members.join(scheduler, [queue for queue in queues if self.settings.schedules(queue)])
        self.members.drop_unstarted()  # those that a lost connection made Celery drop
        self._log_join(channel, is_new)

    def _enter(self, scheduler: Scheduler) -> None:
        consumer, host = self._consumer, self._host
        self.membership = members = self.membership_with(scheduler, self.slots, host)
        self._following = host.job_feed = JobFeed(consumer, members, host, self.slots)
        host.leaked_claims = LeakedClaims(consumer, members.reporter)
        self._limits = RateLimits(consumer, members, self._following)
        self._wire_consumer(members, host)
        if self.slots.blocks_the_loop:
            self._following.watch_the_loop()

    def _wire_consumer(self, members: Member | CohortMembers, host: WorkerLoop | CohortMembers) -> None:
        """Have the consumer pass on what its parts have to know, from now on."""
        consumer = self._consumer
        consumer.affinity_limits, consumer.affinity_host = self._limits, host
        consumer.affinity_reconnecting = ReconnectingConsumer(consumer, members)
        consumer.pool.affinity_other_runs = OtherRuns(consumer.pool, members.ask)
        warn_of_small_batches(consumer, self.slots.size())
        pool.let_pauses_yield(consumer.pool)

    def membership_with(self, scheduler: Scheduler, slots: PoolSlots, host: CeleryWorkerLoop) -> Member:
        """Return a new membership, which has not joined, of this worker with *slots* of its pool."""
        consumer = self._consumer
        teller = ResultReporter(consumer.app, consumer.hostname, self._eventer)
        members = Member(
            consumer.hostname,
            consumer.app.main or "",
            self.settings,
            scheduler,
            pool=slots,
            host=host,
            announcer=UnrunJobReporter(teller),
            ingest=Ingest(consumer.app),
            recurring=RecurringCalls(consumer.app, teller),
            kin=consumer.controller.affinity_kin,
        )
        members.capacity.prefetch_multiplier = consumer.prefetch_multiplier
        if self._priority is not None:
            members.capacity.priority = self._priority
        return members

    def _eventer(self) -> object:
        return getattr(self._consumer, "event_dispatcher", None)

    def _log_join(self, channel: AffinityChannel, is_new: bool) -> None:
        members = self.members
        if self._is_introduced:
            again = line_on_joining_again(anew=is_new, unfinished=len(members.claims.open_claims()))
            logger.info(again, extra=UNLIMITED)
            return
        self._is_introduced = True
        line = line_on_joining(
            types=members.capacity.types,
            slots=self.slots.size(),
            guard=members.guard_pid,
            timeout_s=members.timeout_s,
            namespace=channel.namespace,
            prefix=channel.keys.global_keyprefix,
            server=server_info.server_product(members.scheduler.client),
            uri=self._consumer.connection.as_uri(),
        )
        logger.info(line, extra=UNLIMITED)

    def register_with_event_loop(self, consumer: "AffinityConsumer", hub: Hub) -> None:
        """Tell ends, and start the jobs that follow, at each iteration of the loop."""
        in_flight = consumer.task_consumer.channel.in_flight_of_its_own()
        self._host.loop = EventLoop(hub, in_flight, on_tick=self.job_feed.iterate, on_reply=self.job_feed.reply)

    def stop(self, consumer: "AffinityConsumer") -> None:
        """Before a reconnect: wait for the next start. At a shutdown: take no new job."""
        self._pause()
        if not self.memberships or consumer.blueprint.state == bootsteps.RUN:
            return
        semaphore = getattr(consumer.controller, "semaphore", None)
        if semaphore is not None:
            semaphore.clear()  # a request that waits for a pool process is given back, so it must not start
        if self._returned_before is None:
            self._returned_before = self._returned
        unsettled = sum(each.claims.unsettled_count() for each in self.memberships)
        if unsettled and state.should_terminate:  # cold: running tasks are not acked, and go back as well
            logger.warning("Restoring %d unacknowledged message(s)", unsettled)  # people look for kombu's words
        self.limits.close()  # a request that waits for a rate limit must not start: timers go on while the pool drains
        other_runs = consumer.pool.affinity_other_runs
        # Buffered jobs go back now, unless some of them may be part of a run: these stay until the pool has drained.
        other_runs.is_closed = other_runs.is_closed or other_runs.count() == 0
        for each in self.memberships:
            each.drain()

    def _pause(self) -> None:
        self._close_loop()
        if self._following is not None:
            self._following.pause()

    @property
    def _returned(self) -> int:
        return sum(each.returned for each in self.memberships)

    def terminate(self, consumer: "AffinityConsumer") -> None:
        """Do at a cold shutdown what is done at a warm one."""
        self.stop(consumer)

    def shutdown(self, consumer: "AffinityConsumer") -> None:
        """Leave, after the pool has drained."""
        self._close_loop()
        if self._following is not None:
            self._following.stop()
        if self.membership is None:
            return
        if self._returned_before is None:  # Celery stops no step of a worker that is about to connect
            self._returned_before = self._returned
        if self.membership.leave():
            logger.info(line_on_leaving(self._returned - self._returned_before), extra=UNLIMITED)

    def _close_loop(self) -> None:
        # First no thread wakes the loop any more: the heartbeats' thread tells the ends that the loop was to tell.
        loop, self._host.loop = self._host.loop, None
        if self.membership is not None:
            self.membership.reporter.outbox.abandon()
        if loop is not None:
            loop.close()

    def info(self, consumer: "AffinityConsumer") -> dict[str, object]:
        """Return the facts that `inspect stats` shows; a worker that has not joined yet has fewer."""
        shown: dict[str, object] = {
            "app": consumer.app.main or "",
            "guard": consumer.controller.affinity_kin is not None,
            "time": time.time(),
            "versions": versions(),
        }
        if self.membership is not None:
            claims = len(self.membership.claims.held())
            shown |= {"worker": self.membership.id, "slots": self.slots.size(), "claims": claims}
            shown["lent"] = self.membership.capacity.lent + self.membership.capacity.buffered
        if self._channel is not None:
            shown["namespace"] = self._channel.namespace
        return {"affinity": shown}

    # -- remote control

    @property
    def members(self) -> Member:
        assert self.membership is not None, "started"
        return self.membership

    @property
    def memberships(self) -> list[Member]:
        """The memberships of this worker: one, or one in each of its cohorts; none before the first start."""
        return [] if self.membership is None else [self.membership]

    @property
    def job_feed(self) -> JobFeed:
        assert self._following is not None, "started"
        return self._following

    @property
    def limits(self) -> RateLimits:
        assert self._limits is not None, "started"
        return self._limits

    @property
    def settings(self) -> Settings:
        return settings_of(self._consumer.app)

    def drain(self) -> tuple[int, int]:
        """Take no new job until `Membership.resume`. Return the numbers of jobs given back, and of jobs that go on."""
        self.limits.close()
        given_up = self._give_up()
        for held in given_up:
            if held.request is not None:
                state.task_ready(held.request)
        self.limits.count()
        return len(given_up), sum(len(each.claims.open_claims()) for each in self.memberships)

    def _give_up(self) -> list[HeldClaim]:
        """Give back the jobs that have not started, and return them."""
        self.job_feed.drop()
        return self.members.pause()

    def end_merged_runs(self, task_ids: Sequence[str], signal: object) -> None:
        """End the runs here that stand for calls with these ids, unless a run's own call has one: Celery ends that.

        The other calls of each run are run again. Raises NotImplementedError if the pool cannot end a task.
        """
        runs = {each._tag: each for each in state.active_requests if getattr(each, "_reporting", None)}
        runs = {tag: each for tag, each in runs.items() if is_batch(job_of_tag(tag)) and each.id not in task_ids}
        for scheduler in (each.scheduler for each in self.memberships if runs):
            found = scheduler.reader.runs_of(task_ids)
            for run in found.values():
                tag = next((tag for tag in runs if run in (tag, job_of_tag(tag))), None)
                if tag is not None:
                    runs.pop(tag).give_run_back(self._consumer.pool, signal)
            if found:
                scheduler.revoke(list(found), [], keep_s=REVOKED_KEPT_S)  # others may be told nothing

    def _on_revoked(self, revoked: Revoke) -> None:
        if self.membership is not None:
            self.membership.revoke(revoked)


class CohortsBootstep(AffinityBootstep):
    """Takes a seat in each cohort, as `AffinityStep` joins the fleet. Further cohorts need another start of the worker.

    ``members`` is the membership in the first cohort whose server has answered, for commands that want one.
    """

    _mover: SlotMover | None = None

    def __init__(self, consumer: "AffinityConsumer", **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._seats = CohortMembers(self.settings, Keys.of_options(consumer.app.conf.broker_transport_options or {}))

    # -- bootstep

    def start(self, consumer: "AffinityConsumer") -> None:
        self._channel = channel = consumer.task_consumer.channel
        types: dict[str, list[str]] = {}
        for queue in consumer.task_consumer.queues:
            if self.settings.schedules(queue.name):
                types.setdefault(self.settings.cohort_of(queue.name), []).append(queue.name)
        if self._mover is None:
            self._take_seats(list(types) or [DEFAULT])
        self.limits.begin()
        channel.inbox = self._seats
        for cohort, seat in self._seats.by_cohort.items():
            seat.start(channel, types.get(cohort, []))

    def _take_seats(self, cohorts: list[str]) -> None:
        consumer, seats = self._consumer, self._seats
        slots = SharedSlots(self.slots, cohorts)
        for at, cohort in enumerate(cohorts):
            its = CohortSlots(consumer, self.slots, slots, cohort, counts_unclaimed=at == 0)
            seats.by_cohort[cohort] = CohortMember(consumer, cohort, its, self, seats)
        self._limits = RateLimits(consumer, seats, seats)
        self._wire_consumer(seats, seats)
        self._mover = SlotMover(slots, seats.members, self.settings.heartbeat_interval)
        if len(cohorts) > 1:
            self._mover.start()

    def register_with_event_loop(self, consumer: "AffinityConsumer", hub: Hub) -> None:
        for seat in self._seats.by_cohort.values():
            seat.run_with(hub)

    def _pause(self) -> None:
        for seat in self._seats.by_cohort.values():
            seat.pause()

    def shutdown(self, consumer: "AffinityConsumer") -> None:
        """Leave all cohorts, after the pool has drained."""
        if self._mover is not None:
            self._mover.stop()
        for seat in self._seats.by_cohort.values():
            seat.close_loop()
        if self._returned_before is None:
            self._returned_before = self._returned
        have_left = [seat.leave() for seat in self._seats.by_cohort.values()]
        if all(have_left):
            logger.info(line_on_leaving(self._returned - self._returned_before), extra=UNLIMITED)

    def info(self, consumer: "AffinityConsumer") -> dict[str, object]:
        """Return the facts that `inspect stats` shows."""
        shown = super().info(consumer)["affinity"]
        assert isinstance(shown, dict), "it is"
        shown["slots"] = self.slots.size()
        shown["cohorts"] = {
            name: {"worker": each.id, "slots": each.capacity.slots, "claims": len(each.claims.held())}
            for name, each in self._seats.members().items()
            if each is not None
        }
        return {"affinity": shown}

    # -- remote control

    @property
    def members(self) -> Member:
        assert self._seats.taken, "a server has answered"
        return self._seats.taken[0]

    @property
    def memberships(self) -> list[Member]:
        return self._seats.taken

    def _give_up(self) -> list[HeldClaim]:
        found: list[HeldClaim] = []
        for seat in self._seats.by_cohort.values():
            if seat.job_feed is not None and seat.members is not None:
                seat.job_feed.drop()
                found += seat.members.pause()
        return found

    def _on_revoked(self, revoked: Revoke) -> None:
        for each in self._seats.taken if hasattr(self, "_seats") else ():
            each.revoke(revoked)
