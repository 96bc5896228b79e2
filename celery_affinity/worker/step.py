"""The consumer bootstep of a worker, which joins the fleet at each start, drains at the stop, and leaves."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.worker import state
from kombu.asynchronous.hub import Hub

from ..callers.announcer import Announcer
from ..callers.teller import Teller
from ..client.of_app import settings_of
from ..client.revokes import Revoked
from ..dispatcher.ingest import Ingest
from ..dispatcher.recurring_calls import RecurringCalls
from ..log_limit import UNLIMITED, limited_logger
from ..membership.held import Held, job_in
from ..membership.host import Host
from ..membership.membership import Membership
from ..rules.marks import is_batch
from ..rules.protocol import REVOKED_KEPT_S
from ..rules.settings import Settings
from ..server import instance
from ..server.scheduler import Scheduler
from ..transport.channel import AffinityChannel
from ..versions import versions
from . import introduction, pools
from .buffers import warn_of_small_batches
from .event_loop import Loop
from .following import Following
from .host import WorkerHost
from .other_runs import OtherRuns
from .rate_limits import RateLimits
from .reconnecting import Reconnecting
from .seats import Seats
from .slots import PoolSlots
from .strays import Strays

if TYPE_CHECKING:
    from .fleet_consumer import FleetConsumer

logger = limited_logger(__name__)


class AffinityStep(bootsteps.StartStopStep):
    """Joins the fleet after the last consumer is set up; stops before the first consumer is cancelled."""

    name = "affinity"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: "FleetConsumer", **kwargs: Any) -> None:
        self._consumer = consumer
        self.slots = PoolSlots(consumer)
        self.membership: Membership | None = None
        self._host = WorkerHost(consumer)
        self._following: Following | None = None
        self._limits: RateLimits | None = None
        self._channel: AffinityChannel | None = None
        self._is_introduced = False
        self._returned_before: int | None = None
        self._priority: int | None = kwargs.get("affinity_priority")
        consumer.affinity = self  # commands of remote control look for the step there
        consumer.affinity_on_revoked = self._on_revoked
        super().__init__(consumer, **kwargs)

    # -- bootstep

    def start(self, consumer: "FleetConsumer") -> None:
        """Join, at the start and again after each reconnect."""
        self._channel = channel = consumer.task_consumer.channel
        scheduler = channel.scheduler_of_its_own()
        if self.membership is None:
            self._enter(scheduler)
        self.limits.begin()  # the requests that a lost connection made Celery drop lend no slots any more
        self.following.begin(channel)
        queues = [queue.name for queue in consumer.task_consumer.queues]
        is_new = self.members.join(scheduler, [queue for queue in queues if self.settings.schedules(queue)])
        self.members.renounce()  # those that a lost connection made Celery drop
        self._log_join(channel, is_new)

    def _enter(self, scheduler: Scheduler) -> None:
        consumer, host = self._consumer, self._host
        self.membership = members = self.membership_with(scheduler, self.slots, host)
        self._following = host.following = Following(consumer, members, host, self.slots)
        host.strays = Strays(consumer, members.reporting)
        self._limits = RateLimits(consumer, members, self._following)
        self._have_parts(members, host)
        if self.slots.blocks_the_loop:
            self._following.watch_the_loop()

    def _have_parts(self, members: Membership | Seats, host: Host | Seats) -> None:
        """Have the consumer pass on what its parts have to know, from now on."""
        consumer = self._consumer
        consumer.affinity_limits, consumer.affinity_host = self._limits, host
        consumer.affinity_reconnecting = Reconnecting(consumer, members)
        consumer.pool.affinity_other_runs = OtherRuns(consumer.pool, members.ask)
        warn_of_small_batches(consumer, self.slots.size())
        pools.let_pauses_yield(consumer.pool)

    def membership_with(self, scheduler: Scheduler, slots: PoolSlots, host: WorkerHost) -> Membership:
        """Return a new membership, which has not joined, of this worker with *slots* of its pool."""
        consumer = self._consumer
        teller = Teller(consumer.app, consumer.hostname, self._eventer)
        members = Membership(
            consumer.hostname,
            consumer.app.main or "",
            self.settings,
            scheduler,
            pool=slots,
            host=host,
            announcer=Announcer(teller),
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
            again = introduction.line_on_joining_again(anew=is_new, unfinished=len(members.claims.unended()))
            logger.info(again, extra=UNLIMITED)
            return
        self._is_introduced = True
        line = introduction.line_on_joining(
            types=members.capacity.types,
            slots=self.slots.size(),
            guard=members.guard_pid,
            timeout_s=members.timeout_s,
            namespace=channel.namespace,
            prefix=channel.keys.global_keyprefix,
            server=instance.product(members.scheduler.client),
            uri=self._consumer.connection.as_uri(),
        )
        logger.info(line, extra=UNLIMITED)

    def register_with_event_loop(self, consumer: "FleetConsumer", hub: Hub) -> None:
        """Tell ends, and start the jobs that follow, at each iteration of the loop."""
        in_flight = consumer.task_consumer.channel.in_flight_of_its_own()
        self._host.loop = Loop(hub, in_flight, on_tick=self.following.iterate, on_reply=self.following.reply)

    def stop(self, consumer: "FleetConsumer") -> None:
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

    def terminate(self, consumer: "FleetConsumer") -> None:
        """Do at a cold shutdown what is done at a warm one."""
        self.stop(consumer)

    def shutdown(self, consumer: "FleetConsumer") -> None:
        """Leave, after the pool has drained."""
        self._close_loop()
        if self._following is not None:
            self._following.stop()
        if self.membership is None:
            return
        if self._returned_before is None:  # Celery stops no step of a worker that is about to connect
            self._returned_before = self._returned
        if self.membership.leave():
            logger.info(introduction.line_on_leaving(self._returned - self._returned_before), extra=UNLIMITED)

    def _close_loop(self) -> None:
        # First no thread wakes the loop any more: the heartbeats' thread tells the ends that the loop was to tell.
        loop, self._host.loop = self._host.loop, None
        if self.membership is not None:
            self.membership.reporting.outbox.abandon()
        if loop is not None:
            loop.close()

    def info(self, consumer: "FleetConsumer") -> dict[str, object]:
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
    def members(self) -> Membership:
        assert self.membership is not None, "started"
        return self.membership

    @property
    def memberships(self) -> list[Membership]:
        """The memberships of this worker: one, or one in each of its cohorts; none before the first start."""
        return [] if self.membership is None else [self.membership]

    @property
    def following(self) -> Following:
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
        return len(given_up), sum(len(each.claims.unended()) for each in self.memberships)

    def _give_up(self) -> list[Held]:
        """Give back the jobs that have not started, and return them."""
        self.following.drop()
        return self.members.pause()

    def end_merged_runs(self, task_ids: Sequence[str], signal: object) -> None:
        """End the runs here that stand for calls with these ids, unless a run's own call has one: Celery ends that.

        The other calls of each run are run again. Raises NotImplementedError if the pool cannot end a task.
        """
        runs = {each._tag: each for each in state.active_requests if getattr(each, "_reporting", None)}
        runs = {tag: each for tag, each in runs.items() if is_batch(job_in(tag)) and each.id not in task_ids}
        for scheduler in (each.scheduler for each in self.memberships if runs):
            found = scheduler.reader.runs_of(task_ids)
            for run in found.values():
                tag = next((tag for tag in runs if run in (tag, job_in(tag))), None)
                if tag is not None:
                    runs.pop(tag).give_run_back(self._consumer.pool, signal)
            if found:
                scheduler.revoke(list(found), [], keep_s=REVOKED_KEPT_S)  # others may be told nothing

    def _on_revoked(self, revoked: Revoked) -> None:
        if self.membership is not None:
            self.membership.revoke(revoked)
