"""The consumer bootstep of a worker: it joins the fleet at each start, drains at the stop, and leaves.

A worker logs one line when it joins the fleet and one when it leaves.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.worker import state
from kombu.asynchronous.hub import Hub

from ..leases.held_claim import job_of_tag
from ..leases.member import Member
from ..log_limit import UNLIMITED, limited_logger
from ..publishing.app_config import settings_of
from ..publishing.message import Revoke
from ..reports import jobs
from ..scheduler import runtime_settings
from ..schema.constants import REVOKED_KEPT_S
from ..schema.job_record import is_batch
from ..schema.values import decode_number
from ..settings.cohorts import DEFAULT
from ..settings.table import PREFIX, Settings
from ..transport.channel import AffinityChannel
from ..versions import versions
from . import pool
from .buffers import warn_of_small_batches
from .cohort_member import CohortMembers, count_of
from .consumer import ReconnectingConsumer
from .pool import OtherRuns, PoolSlots
from .rate_limits import RateLimits

if TYPE_CHECKING:
    from .consumer import AffinityConsumer

logger = limited_logger(__name__)


class AffinityBootstep(bootsteps.StartStopStep):
    """Joins the fleet after the last consumer is set up; stops before the first consumer is cancelled.

    The worker joins each cohort of the types that it consumes at its first start. To join others, it must restart.
    """

    name = "affinity"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: "AffinityConsumer", **kwargs: Any) -> None:
        self._consumer = consumer
        self.slots = PoolSlots(consumer)
        self.members = CohortMembers(consumer, self.slots, kwargs.get("affinity_priority"))
        self._limits = RateLimits(consumer, self.members)
        self._channel: AffinityChannel | None = None
        self._returned_before: int | None = None
        consumer.affinity = self  # remote control commands find the step here
        consumer.affinity_on_revoked = self._on_revoked
        super().__init__(consumer, **kwargs)

    def start(self, consumer: "AffinityConsumer") -> None:
        """Join the fleet; called at the start and after each reconnect."""
        self._channel = channel = consumer.task_consumer.channel
        types: dict[str, list[str]] = {}
        for queue in consumer.task_consumer.queues:
            if self.settings.schedules(queue.name):
                types.setdefault(self.settings.cohort_of(queue.name), []).append(queue.name)
        if consumer.affinity_members is None:
            self.members.create(list(types) or [DEFAULT])
            consumer.affinity_limits, consumer.affinity_members = self._limits, self.members
            consumer.affinity_reconnecting = ReconnectingConsumer(consumer, self.members)
            consumer.pool.affinity_other_runs = OtherRuns(consumer.pool, self.members.ask)
            warn_of_small_batches(consumer, self.slots.size())
            pool.let_pauses_yield(consumer.pool)
        self._limits.begin()  # requests that Celery dropped after a lost connection no longer lend slots
        self.members.start(channel, types)

    def register_with_event_loop(self, consumer: "AffinityConsumer", hub: Hub) -> None:
        """Report ended jobs and start the next ones at each iteration of the event loop."""
        self.members.run_with(hub)

    def stop(self, consumer: "AffinityConsumer") -> None:
        """Before a reconnect, wait for the next start. At a shutdown, stop taking jobs."""
        self.members.pause()
        members = self.members.joined
        if not members or consumer.blueprint.state == bootsteps.RUN:
            return
        semaphore = getattr(consumer.controller, "semaphore", None)
        if semaphore is not None:
            semaphore.clear()  # a request waiting for a pool process is returned, so it must not start
        if self._returned_before is None:
            self._returned_before = self.members.returned
        unsettled = sum(member.claims.unsettled_count() for member in members)
        if unsettled and state.should_terminate:  # cold shutdown: running tasks are not acked and are requeued too
            logger.warning("Restoring %d unacknowledged message(s)", unsettled)  # kombu's wording, for searches
        self._limits.close()  # a request waiting for a rate limit must not start; timers run while the pool drains
        other_runs = consumer.pool.affinity_other_runs
        # Buffered jobs are returned now, unless some may be part of a run: then they stay until the pool has drained.
        other_runs.is_closed = other_runs.is_closed or other_runs.count() == 0
        for member in members:
            member.drain()

    terminate = stop  # as at a warm shutdown

    def shutdown(self, consumer: "AffinityConsumer") -> None:
        """Leave the fleet, after the pool has drained."""
        if self._returned_before is None:  # Celery does not stop the steps of a connecting worker
            self._returned_before = self.members.returned
        if self.members.leave():
            returned = count_of(self.members.returned - self._returned_before, "job")
            logger.info("celery_affinity: left the fleet; %s returned to the queue", returned, extra=UNLIMITED)

    def info(self, consumer: "AffinityConsumer") -> dict[str, object]:
        """Return the facts for `inspect stats`; a worker that has not joined yet has fewer."""
        shown: dict[str, object] = {
            "app": consumer.app.main or "",
            "guard": consumer.controller.affinity_kin is not None,
            "time": time.time(),
            "versions": versions(),
        }
        members = {cohort: member for cohort, member in self.members.by_cohort().items() if member is not None}
        if self.settings.cohorts:
            shown["slots"] = self.slots.size()
            shown["cohorts"] = {
                cohort: {
                    "worker": member.id,
                    "slots": member.capacity.slots,
                    "claims": len(member.claims.held_claims()),
                }
                for cohort, member in members.items()
            }
        elif members:
            (member,) = members.values()
            shown |= {"worker": member.id, "slots": self.slots.size(), "claims": len(member.claims.held_claims())}
            shown["lent"] = member.capacity.lent + member.capacity.buffered
        if self._channel is not None:
            shown["namespace"] = self._channel.namespace
        return {"affinity": shown}

    def describe(self) -> dict[str, object]:
        """Return the types, slots, claims and settings of this worker, for each of its cohorts if there are several."""
        replies = {member.scheduler.keys.cohort: self._describe_member(member) for member in self.members.joined}
        return next(iter(replies.values())) if len(replies) == 1 else {"cohorts": replies}

    def _describe_member(self, member: Member) -> dict[str, object]:
        reader = member.scheduler.reader
        free, stalled = reader.ask_one("hmget", reader.key("worker", member.id), ["free", "stalled"])
        in_force = runtime_settings.read_settings(member.scheduler, self.settings)
        return {
            "worker": member.id,
            "types": sorted(member.capacity.types),
            "withdrawn": sorted(member.withdrawn),
            "slots": member.capacity.slots,
            "free": decode_number(free),
            "priority": member.capacity.priority,
            "hints": jobs.hints_of(reader, member.id),
            "lent": member.capacity.lent + member.capacity.buffered,
            "stops": self.slots.stops,
            "drained": member.claims.drained,
            "stalled": stalled is not None,
            "claims": [claim.described() for claim in member.claims.held_claims()],
            "settings": {PREFIX + setting.name: setting.value for setting in in_force},
        }

    @property
    def settings(self) -> Settings:
        return settings_of(self._consumer.app)

    def drain(self) -> tuple[int, int]:
        """Stop taking jobs until `Member.resume`. Return the numbers of returned jobs and of jobs still running."""
        self._limits.close()
        given_up = []
        for feed in self.members.feeds:
            feed.drop()
            given_up += feed.member.pause()
        for claim in given_up:
            if claim.request is not None:
                state.task_ready(claim.request)
        self._limits.count()
        return len(given_up), sum(len(member.claims.open_claims()) for member in self.members.joined)

    def end_merged_runs(self, task_ids: Sequence[str], signal: object) -> None:
        """End the runs here that represent calls with these ids, except runs whose primary call has one of the ids.

        Celery ends the excepted runs. The other calls of each ended run are requeued. Raises NotImplementedError if the
        pool cannot end a task.
        """
        runs = {request._tag: request for request in state.active_requests if getattr(request, "_reporting", None)}
        runs = {tag: run for tag, run in runs.items() if is_batch(job_of_tag(tag)) and run.id not in task_ids}
        for scheduler in (member.scheduler for member in self.members.joined if runs):
            runs_by_call = scheduler.reader.runs_of(task_ids)
            for run in runs_by_call.values():
                tag = next((tag for tag in runs if run in (tag, job_of_tag(tag))), None)
                if tag is not None:
                    runs.pop(tag).give_run_back(self._consumer.pool, signal)
            if runs_by_call:
                # Other workers may not receive the command.
                scheduler.revoke(list(runs_by_call), [], keep_s=REVOKED_KEPT_S)

    def _on_revoked(self, revoked: Revoke) -> None:
        for member in self.members.joined:
            member.revoke(revoked)
