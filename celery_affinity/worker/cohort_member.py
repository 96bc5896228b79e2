"""A worker's membership in each of its cohorts: its inbox, its event loop registration and its slots of the pool.

A membership begins when the cohort's server first answers, and continues while the server is down.
"""

import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Protocol

from kombu.asynchronous.hub import Hub
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from ..background import PeriodicThread
from ..broker.inflight import InFlightCommands
from ..leases.held_claim import HeldClaim, delivery_tag
from ..leases.member import Member
from ..leases.outbox import EndReporter
from ..leases.slot_sharing import SharedSlots
from ..log_limit import UNLIMITED, limited_logger
from ..scheduler.messages import Claim
from ..scheduler.scheduler import Scheduler
from ..schema.keys import Keys
from ..settings.cohorts import DEFAULT
from ..settings.table import Settings
from ..transport.channel import AffinityChannel
from ..transport.inbox import Inbox
from .event_loop import CeleryWorkerLoop, EventLoop
from .job_feed import InboxReader, JobFeed
from .pool import PoolSlots
from .request_end import LeakedClaims

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer

    from .consumer import AffinityConsumer


class CohortSlots(PoolSlots):
    """The slots of *pool* that *shared* assigns to *cohort*.

    *counts_unclaimed*: True if requests without a claim, such as broadcast tasks, take slots of this cohort. Exactly
    one cohort of a worker counts them.
    """

    def __init__(
        self, consumer: "Consumer", pool: PoolSlots, shared: SharedSlots, cohort: str, *, counts_unclaimed: bool
    ) -> None:
        super().__init__(consumer)
        self._stoppable_tasks = pool._stoppable_tasks  # shared by all cohorts: which tasks stop on request
        self._shared, self._cohort, self._counts_unclaimed = shared, cohort, counts_unclaimed

    def size(self) -> int:
        """Return the cohort's current number of slots."""
        return self._shared.of(self._cohort)

    def unclaimed(self) -> int:
        return super().unclaimed() if self._counts_unclaimed else 0


logger = limited_logger(__name__)
#: Errors of a server that does not answer.
_DOWN = (RedisError, OperationalError, OSError)
#: Seconds between two attempts to reach a server that did not answer.
_RETRY_INTERVAL_S = 1.0


class _Bootstep(Protocol):
    """The bootstep, which creates the memberships."""

    def membership_with(self, scheduler: Scheduler, slots: PoolSlots, host: CeleryWorkerLoop) -> Member: ...


class CohortMember:
    """The worker's place in *cohort*, with *slots*. All methods run in the event loop's thread.

    *inbox* is the inbox of the channel that Celery consumes on. It gives access to all cohorts.
    """

    def __init__(
        self, consumer: "AffinityConsumer", cohort: str, slots: CohortSlots, step: _Bootstep, inbox: Inbox
    ) -> None:
        self.cohort = cohort
        self.types: list[str] = []
        self.host = CeleryWorkerLoop(consumer)
        self.members: Member | None = None
        self.job_feed: JobFeed | None = None
        self._consumer, self._slots, self._step, self._inbox = consumer, slots, step, inbox
        #: The channel that Celery consumes on; None between two connections to the broker.
        self._channel: AffinityChannel | None = None
        #: The cohort's channel. It outlives reconnects to the broker, unless both use the same channel.
        self._cohort_channel: AffinityChannel | None = None
        self._hub: Hub | None = None
        self._reader: InboxReader | None = None
        self._opener = PeriodicThread(f"affinity-opens-{cohort}", self._open, _RETRY_INTERVAL_S)
        self._is_opening = False

    def start(self, channel: AffinityChannel, types: list[str]) -> None:
        """Join the cohort with *types*, or rejoin it. Called at the start, and after each reconnect to the broker."""
        self._channel, self.types = channel, types
        if self.cohort == DEFAULT:
            self._cohort_channel = channel
            self._begin(channel.scheduler_of_its_own())
        elif self._cohort_channel is not None:
            self._begin_or_retry()
        elif not self._is_opening:
            self._is_opening = True
            self._opener.start()
            self._opener.wake()

    def _open(self) -> None:
        """Connect to the cohort's server in a separate thread, so that a dead server does not block the worker."""
        channel = self._channel
        if self._cohort_channel is not None or channel is None or channel.routes is None:
            return
        try:
            cohort_channel = channel.routes.connection_to(self.cohort).channel()
            cohort_channel.scheduler  # noqa: B018  # raises unless the server has data of this release
        except _DOWN as exc:
            logger.warning(
                "The server of cohort %r does not answer: no job of it is run until it does: %s", self.cohort, exc
            )
            return
        self._cohort_channel = cohort_channel
        self._consumer.call_soon(self._begin_or_retry)

    def _begin_or_retry(self) -> None:
        if self._channel is None or self._cohort_channel is None:
            return  # the next start joins
        try:
            self._begin(self._cohort_channel.scheduler_of_its_own() if self.members is None else self.members.scheduler)
        except _DOWN as exc:
            logger.warning("The server of cohort %r does not answer: it is tried again: %s", self.cohort, exc)
            if self.members is not None and self.members.has_started:
                return  # the heartbeats rejoin
            self._consumer.timer.call_after(_RETRY_INTERVAL_S, self._begin_or_retry)

    def _begin(self, scheduler: Scheduler) -> None:
        assert self._channel is not None, "started"
        assert self._cohort_channel is not None, "open"
        if self.members is None:
            self._create_member(scheduler)
        member, job_feed = self.members, self.job_feed
        assert member is not None, "entered"
        assert job_feed is not None, "entered"
        job_feed.begin(self._channel, self._inbox)
        self._register_loop()
        member.join(scheduler, self.types)
        member.drop_unstarted()  ## claims whose requests Celery dropped after a lost connection
        own = self._cohort_channel.scheduler_of_its_own()
        if self._reader is None:
            self._reader = InboxReader(self.cohort, own, member.id, receive=self._receive, obey=self._obey)
            self._reader.start()
            types = ", ".join(self.types)
            logger.info("celery_affinity: joined cohort %s: types %s", self.cohort, types, extra=UNLIMITED)
        else:
            self._reader.use(own)

    def _create_member(self, scheduler: Scheduler) -> None:
        self.members = member = self._step.membership_with(scheduler, self._slots, self.host)
        self.job_feed = self.host.job_feed = JobFeed(self._consumer, member, self.host, self._slots)
        self.host.leaked_claims = LeakedClaims(self._consumer, member.reporter)
        if self._slots.blocks_the_loop:
            self.job_feed.watch_the_loop()

    def run_with(self, hub: Hub) -> None:
        """Register with the event loop now, or once the membership exists."""
        self._hub = hub
        self._register_loop()

    def _register_loop(self) -> None:
        if self._hub is None or self.job_feed is None or self._cohort_channel is None or self.host.loop is not None:
            return
        in_flight: InFlightCommands = self._cohort_channel.in_flight_of_its_own()
        self.host.loop = EventLoop(self._hub, in_flight, on_tick=self.job_feed.iterate, on_reply=self.job_feed.reply)

    def pause(self) -> None:
        """Start no job until the next `start`, because Celery has lost the broker or stops."""
        self._channel = None
        self.close_loop()
        if self.job_feed is not None:
            self.job_feed.pause()

    def close_loop(self) -> None:
        self._hub = None
        loop, self.host.loop = self.host.loop, None  # first keep threads from waking the loop
        if self.members is not None:
            self.members.reporter.outbox.abandon()
        if loop is not None:
            loop.close()

    def leave(self) -> bool:
        """Leave the cohort. Return True if its server was notified."""
        if self._is_opening:
            self._opener.stop()
        if self._reader is not None:
            self._reader.stop()
        if self.job_feed is not None:
            self.job_feed.stop()
        has_left = self.members is None or self.members.leave()
        if self._cohort_channel is not None and self.cohort != DEFAULT:
            self._cohort_channel.connection.client.release()
        return has_left

    # -- callbacks of the inbox reader's thread
    def _receive(self, claim: Claim) -> None:
        assert self.job_feed is not None, "entered"
        if getattr(self._consumer.pool, "is_green", False) and self._channel is not None:
            self.job_feed.receive(claim)  # runs in another greenlet of the only thread; there is no event loop
        else:
            self.job_feed.receive_elsewhere([claim])

    def _obey(self, control_message: list[str]) -> None:
        assert self.job_feed is not None, "entered"
        self._consumer.call_soon(self.job_feed.obey, control_message)


class CohortMembers:
    """Maps a worker's cohorts to their `CohortMember`, and acts as the inbox of the channel that Celery consumes on.

    That inbox receives nothing: each `CohortMember` has its own inbox, which an `InboxReader` reads.
    """

    def __init__(self, settings: Settings, keys: Keys) -> None:
        self.by_cohort: dict[str, CohortMember] = {}
        self.worker = uuid.uuid4().hex
        self.key = keys.key("inbox", self.worker)
        self.schedules = settings.schedules
        self._settings = settings

    def members(self) -> dict[str, Member | None]:
        """Return the membership in each cohort, or None if the cohort's server has not answered yet."""
        return {cohort: cohort_member.members for cohort, cohort_member in tuple(self.by_cohort.items())}

    @property
    def taken(self) -> list[Member]:
        """The memberships in all cohorts whose server has answered."""
        return [member for member in self.members().values() if member is not None]

    def of(self, tag: str) -> Member | None:
        """Return the membership that holds the claim with *tag*, or None."""
        return next((member for member in self.taken if member.claims.find(tag) is not None), None)

    # -- the interface of the channel's inbox
    @property
    def drained(self) -> bool:
        return any(member.claims.drained for member in self.taken)

    def reporting_of(self, tag: str) -> EndReporter:
        member = self.of(tag)
        return (self.taken[0] if member is None else member).reporter

    def serve(self, queue: str, serves: bool) -> None:
        cohort = self._settings.cohort_of(queue)
        cohort_member = self.by_cohort.get(cohort)
        if cohort_member is None:
            logger.error("Queue %r is not served: this worker was started without types of cohort %r", queue, cohort)
        elif cohort_member.job_feed is not None:
            cohort_member.job_feed.serve(queue, serves)

    def receive(self, claim: Claim) -> None:
        raise AssertionError("no server knows this inbox")

    def obey(self, control_message: list[str]) -> None:
        raise AssertionError("no server knows this inbox")

    def loop_ran(self) -> None:
        for member in self.taken:
            member.loop_ran()

    # -- the interface of a single `Member`, for `RateLimits` and `ReconnectingConsumer`
    @property
    def claims(self) -> "CohortMembers":
        return self

    @property
    def withdrawn_types(self) -> "WithdrawnTypesOfAll":
        return WithdrawnTypesOfAll(self.taken)

    def find(self, tag: str) -> HeldClaim | None:
        member = self.of(tag)
        return None if member is None else member.claims.find(tag)

    def lend(self, waiting: Counter[str], avoided: frozenset[str] = frozenset()) -> None:
        for member in self.taken:
            types = member.capacity.types
            member.lend(
                Counter({type_: n for type_, n in waiting.items() if type_ in types}), avoided.intersection(types)
            )

    def give_back(self, tags: Sequence[str]) -> None:
        for member in self.taken:
            held_tags = [tag for tag in tags if member.claims.find(tag) is not None]
            if held_tags:
                member.give_back(held_tags)

    def room(self) -> int:
        """Return the number of jobs that the pool could start in addition to jobs with a slot or a rate limit wait."""
        feeds = (cohort_member.job_feed for cohort_member in self.by_cohort.values())
        return sum(feed.room() for feed in feeds if feed is not None)

    def ask(self) -> None:
        for member in self.taken:
            member.ask()

    @property
    def reporter(self) -> SimpleNamespace:
        """The number of times that a server became available again, for `ReconnectingConsumer`."""
        return SimpleNamespace(returns=sum(member.reporter.returns for member in self.taken))

    def wake(self) -> bool:
        have_loops = [cohort_member.host.wake() for cohort_member in self.by_cohort.values()]
        return any(have_loops)


class WithdrawnTypesOfAll:
    """The withdrawn types of those *members* that have any."""

    def __init__(self, members: Iterable[Member]) -> None:
        self._members = [member for member in members if member.withdrawn_types]

    def __bool__(self) -> bool:
        return bool(self._members)

    def has(self, job_id: str, type_: str, fence: str) -> bool:
        return any(
            member.withdrawn_types.has(job_id, type_, fence)
            for member in self._members
            if member.claims.find(delivery_tag(job_id, fence)) is not None
        )
