"""Consumer bootsteps of a worker: they join the fleet at each start, drain at the stop, and leave.

A worker logs one line when it joins the fleet and one when it leaves.
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

#: Maximum number of types in the line; if there are more, the line also contains their total number.
_MAX_NAMED_TYPES = 8


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
    """Return the line of a worker that joins: its types, slots and guard, and the location of the fleet.

    *guard* is the process id of the guard, if any. The worker is declared dead after *timeout_s* seconds of silence.
    All Redis keys begin with *prefix*. *uri* is the broker's URL without a password.
    """
    guarded = (
        f"guarded by process {guard}"
        if guard is not None
        else f"no guard: declared dead after {timeout_s:g} s of silence"
    )
    location = f"namespace {namespace!r}" + (f" behind prefix {prefix!r}" if prefix else "")
    version = versions()["celery_affinity"]
    return (
        f"celery_affinity {version}: serves {_some(types)} with {_count(slots, 'slot')}; {guarded}; "
        f"{location} on {server} at {uri}"
    )


def line_on_joining_again(*, anew: bool, unfinished: int) -> str:
    """Return the line of a worker that rejoins. *anew*: the server had declared it dead or lost its data."""
    if anew:
        return "celery_affinity: joined again, as a new member"
    return f"celery_affinity: joined again; still holds {_count(unfinished, 'job')}"


def line_on_leaving(given_back: int) -> str:
    """Return the line of a worker that leaves after *given_back* of its jobs were requeued."""
    return f"celery_affinity: left the fleet; {_count(given_back, 'job')} given back"


def _some(types: Sequence[str]) -> str:
    if not types:
        return "no scheduled queue"
    more = f", ... ({len(types):,} in all)" if len(types) > _MAX_NAMED_TYPES else ""
    return ", ".join(types[:_MAX_NAMED_TYPES]) + more


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


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
        self._job_feed: JobFeed | None = None
        self._limits: RateLimits | None = None
        self._channel: AffinityChannel | None = None
        self._is_introduced = False
        self._returned_before: int | None = None
        self._priority: int | None = kwargs.get("affinity_priority")
        consumer.affinity = self  # remote control commands find the step here
        consumer.affinity_on_revoked = self._on_revoked
        super().__init__(consumer, **kwargs)

    def start(self, consumer: "AffinityConsumer") -> None:
        """Join the fleet; called at the start and after each reconnect."""
        self._channel = channel = consumer.task_consumer.channel
        scheduler = channel.scheduler_of_its_own()
        if self.membership is None:
            self._create_member(scheduler)
        self.limits.begin()  # requests that Celery dropped after a lost connection no longer lend slots
        self.job_feed.begin(channel)
        queues = [queue.name for queue in consumer.task_consumer.queues]
        is_new = self.members.join(scheduler, [queue for queue in queues if self.settings.schedules(queue)])
        self.members.drop_unstarted()  # claims whose requests Celery dropped after a lost connection
        self._log_join(channel, is_new)

    def _create_member(self, scheduler: Scheduler) -> None:
        consumer, host = self._consumer, self._host
        self.membership = member = self.membership_with(scheduler, self.slots, host)
        self._job_feed = host.job_feed = JobFeed(consumer, member, host, self.slots)
        host.leaked_claims = LeakedClaims(consumer, member.reporter)
        self._limits = RateLimits(consumer, member, self._job_feed)
        self._wire_consumer(member, host)
        if self.slots.blocks_the_loop:
            self._job_feed.watch_the_loop()

    def _wire_consumer(self, member: Member | CohortMembers, host: WorkerLoop | CohortMembers) -> None:
        """Connect the consumer with the components that it calls."""
        consumer = self._consumer
        consumer.affinity_limits, consumer.affinity_host = self._limits, host
        consumer.affinity_reconnecting = ReconnectingConsumer(consumer, member)
        consumer.pool.affinity_other_runs = OtherRuns(consumer.pool, member.ask)
        warn_of_small_batches(consumer, self.slots.size())
        pool.let_pauses_yield(consumer.pool)

    def membership_with(self, scheduler: Scheduler, slots: PoolSlots, host: CeleryWorkerLoop) -> Member:
        """Return a new membership of this worker, not yet joined, with *slots* of its pool."""
        consumer = self._consumer
        reporter = ResultReporter(consumer.app, consumer.hostname, self._eventer)
        members = Member(
            consumer.hostname,
            consumer.app.main or "",
            self.settings,
            scheduler,
            pool=slots,
            host=host,
            announcer=UnrunJobReporter(reporter),
            ingest=Ingest(consumer.app),
            recurring=RecurringCalls(consumer.app, reporter),
            kin=consumer.controller.affinity_kin,
        )
        members.capacity.prefetch_multiplier = consumer.prefetch_multiplier
        if self._priority is not None:
            members.capacity.priority = self._priority
        return members

    def _eventer(self) -> object:
        return getattr(self._consumer, "event_dispatcher", None)

    def _log_join(self, channel: AffinityChannel, is_new: bool) -> None:
        member = self.members
        if self._is_introduced:
            again = line_on_joining_again(anew=is_new, unfinished=len(member.claims.open_claims()))
            logger.info(again, extra=UNLIMITED)
            return
        self._is_introduced = True
        line = line_on_joining(
            types=member.capacity.types,
            slots=self.slots.size(),
            guard=member.guard_pid,
            timeout_s=member.timeout_s,
            namespace=channel.namespace,
            prefix=channel.keys.global_keyprefix,
            server=server_info.server_product(member.scheduler.client),
            uri=self._consumer.connection.as_uri(),
        )
        logger.info(line, extra=UNLIMITED)

    def register_with_event_loop(self, consumer: "AffinityConsumer", hub: Hub) -> None:
        """Report ended jobs and start the next ones at each iteration of the event loop."""
        in_flight = consumer.task_consumer.channel.in_flight_of_its_own()
        self._host.loop = EventLoop(hub, in_flight, on_tick=self.job_feed.iterate, on_reply=self.job_feed.reply)

    def stop(self, consumer: "AffinityConsumer") -> None:
        """Before a reconnect, wait for the next start. At a shutdown, stop taking jobs."""
        self._pause()
        if not self.memberships or consumer.blueprint.state == bootsteps.RUN:
            return
        semaphore = getattr(consumer.controller, "semaphore", None)
        if semaphore is not None:
            semaphore.clear()  # a request waiting for a pool process is returned, so it must not start
        if self._returned_before is None:
            self._returned_before = self._returned
        unsettled = sum(member.claims.unsettled_count() for member in self.memberships)
        if unsettled and state.should_terminate:  # cold shutdown: running tasks are not acked and are requeued too
            logger.warning("Restoring %d unacknowledged message(s)", unsettled)  # kombu's wording, for searches
        self.limits.close()  # a request waiting for a rate limit must not start; timers run while the pool drains
        other_runs = consumer.pool.affinity_other_runs
        # Buffered jobs are returned now, unless some may be part of a run: then they stay until the pool has drained.
        other_runs.is_closed = other_runs.is_closed or other_runs.count() == 0
        for member in self.memberships:
            member.drain()

    def _pause(self) -> None:
        self._close_loop()
        if self._job_feed is not None:
            self._job_feed.pause()

    @property
    def _returned(self) -> int:
        return sum(member.returned for member in self.memberships)

    def terminate(self, consumer: "AffinityConsumer") -> None:
        """Act as at a warm shutdown."""
        self.stop(consumer)

    def shutdown(self, consumer: "AffinityConsumer") -> None:
        """Leave the fleet, after the pool has drained."""
        self._close_loop()
        if self._job_feed is not None:
            self._job_feed.stop()
        if self.membership is None:
            return
        if self._returned_before is None:  # Celery does not stop the steps of a connecting worker
            self._returned_before = self._returned
        if self.membership.leave():
            logger.info(line_on_leaving(self._returned - self._returned_before), extra=UNLIMITED)

    def _close_loop(self) -> None:
        # First keep threads from waking the loop. The heartbeat thread reports the ends still in the loop's outbox.
        loop, self._host.loop = self._host.loop, None
        if self.membership is not None:
            self.membership.reporter.outbox.abandon()
        if loop is not None:
            loop.close()

    def info(self, consumer: "AffinityConsumer") -> dict[str, object]:
        """Return the facts for `inspect stats`; a worker that has not joined yet has fewer."""
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

    @property
    def members(self) -> Member:
        assert self.membership is not None, "started"
        return self.membership

    @property
    def memberships(self) -> list[Member]:
        """The worker's memberships: one, or one per cohort; empty before the first start."""
        return [] if self.membership is None else [self.membership]

    @property
    def job_feed(self) -> JobFeed:
        assert self._job_feed is not None, "started"
        return self._job_feed

    @property
    def limits(self) -> RateLimits:
        assert self._limits is not None, "started"
        return self._limits

    @property
    def settings(self) -> Settings:
        return settings_of(self._consumer.app)

    def drain(self) -> tuple[int, int]:
        """Stop taking jobs until `Member.resume`. Return the numbers of returned jobs and of jobs still running."""
        self.limits.close()
        given_up = self._give_up()
        for claim in given_up:
            if claim.request is not None:
                state.task_ready(claim.request)
        self.limits.count()
        return len(given_up), sum(len(member.claims.open_claims()) for member in self.memberships)

    def _give_up(self) -> list[HeldClaim]:
        """Return the jobs that have not started to their queues. Return their claims."""
        self.job_feed.drop()
        return self.members.pause()

    def end_merged_runs(self, task_ids: Sequence[str], signal: object) -> None:
        """End the runs here that represent calls with these ids, except runs whose primary call has one of the ids.

        Celery ends the excepted runs. The other calls of each ended run are requeued. Raises NotImplementedError if the
        pool cannot end a task.
        """
        runs = {request._tag: request for request in state.active_requests if getattr(request, "_reporting", None)}
        runs = {tag: run for tag, run in runs.items() if is_batch(job_of_tag(tag)) and run.id not in task_ids}
        for scheduler in (member.scheduler for member in self.memberships if runs):
            runs_by_call = scheduler.reader.runs_of(task_ids)
            for run in runs_by_call.values():
                tag = next((tag for tag in runs if run in (tag, job_of_tag(tag))), None)
                if tag is not None:
                    runs.pop(tag).give_run_back(self._consumer.pool, signal)
            if runs_by_call:
                # Other workers may not receive the command.
                scheduler.revoke(list(runs_by_call), [], keep_s=REVOKED_KEPT_S)

    def _on_revoked(self, revoked: Revoke) -> None:
        if self.membership is not None:
            self.membership.revoke(revoked)


class CohortsBootstep(AffinityBootstep):
    """Joins each cohort of the types that the worker consumes. To join further cohorts, the worker must restart.

    ``members`` is the membership in the first cohort whose server has answered, for commands that use a single one.
    """

    _slot_mover: SlotMover | None = None

    def __init__(self, consumer: "AffinityConsumer", **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._cohorts = CohortMembers(self.settings, Keys.of_options(consumer.app.conf.broker_transport_options or {}))

    def start(self, consumer: "AffinityConsumer") -> None:
        self._channel = channel = consumer.task_consumer.channel
        types: dict[str, list[str]] = {}
        for queue in consumer.task_consumer.queues:
            if self.settings.schedules(queue.name):
                types.setdefault(self.settings.cohort_of(queue.name), []).append(queue.name)
        if self._slot_mover is None:
            self._create_cohort_members(list(types) or [DEFAULT])
        self.limits.begin()
        channel.inbox = self._cohorts
        for cohort, cohort_member in self._cohorts.by_cohort.items():
            cohort_member.start(channel, types.get(cohort, []))

    def _create_cohort_members(self, cohorts: list[str]) -> None:
        consumer, cohort_members = self._consumer, self._cohorts
        slots = SharedSlots(self.slots, cohorts)
        for index, cohort in enumerate(cohorts):
            cohort_slots = CohortSlots(consumer, self.slots, slots, cohort, counts_unclaimed=index == 0)
            cohort_members.by_cohort[cohort] = CohortMember(consumer, cohort, cohort_slots, self, cohort_members)
        self._limits = RateLimits(consumer, cohort_members, cohort_members)
        self._wire_consumer(cohort_members, cohort_members)
        self._slot_mover = SlotMover(slots, cohort_members.members, self.settings.heartbeat_interval)
        if len(cohorts) > 1:
            self._slot_mover.start()

    def register_with_event_loop(self, consumer: "AffinityConsumer", hub: Hub) -> None:
        for cohort_member in self._cohorts.by_cohort.values():
            cohort_member.run_with(hub)

    def _pause(self) -> None:
        for cohort_member in self._cohorts.by_cohort.values():
            cohort_member.pause()

    def shutdown(self, consumer: "AffinityConsumer") -> None:
        """Leave all cohorts, after the pool has drained."""
        if self._slot_mover is not None:
            self._slot_mover.stop()
        for cohort_member in self._cohorts.by_cohort.values():
            cohort_member.close_loop()
        if self._returned_before is None:
            self._returned_before = self._returned
        have_left = [cohort_member.leave() for cohort_member in self._cohorts.by_cohort.values()]
        if all(have_left):
            logger.info(line_on_leaving(self._returned - self._returned_before), extra=UNLIMITED)

    def info(self, consumer: "AffinityConsumer") -> dict[str, object]:
        """Return the facts that `inspect stats` shows."""
        shown = super().info(consumer)["affinity"]
        assert isinstance(shown, dict), "it is"
        shown["slots"] = self.slots.size()
        shown["cohorts"] = {
            cohort: {"worker": member.id, "slots": member.capacity.slots, "claims": len(member.claims.held())}
            for cohort, member in self._cohorts.members().items()
            if member is not None
        }
        return {"affinity": shown}

    @property
    def members(self) -> Member:
        assert self._cohorts.taken, "a server has answered"
        return self._cohorts.taken[0]

    @property
    def memberships(self) -> list[Member]:
        return self._cohorts.taken

    def _give_up(self) -> list[HeldClaim]:
        claims: list[HeldClaim] = []
        for cohort_member in self._cohorts.by_cohort.values():
            if cohort_member.job_feed is not None and cohort_member.members is not None:
                cohort_member.job_feed.drop()
                claims += cohort_member.members.pause()
        return claims

    def _on_revoked(self, revoked: Revoke) -> None:
        for member in self._cohorts.taken if hasattr(self, "_cohorts") else ():
            member.revoke(revoked)
