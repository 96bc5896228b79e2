"""A worker's membership in each of its cohorts: its inbox, its event loop registration and its slots of the pool.

A worker has one `CohortMember` per cohort of its types; without the setting ``affinity_cohorts``, it has one in total.
"""

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from celery.worker.consumer import Consumer
from kombu.asynchronous.hub import Hub
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from ..background import PeriodicThread
from ..dispatcher.ingest import Ingest
from ..dispatcher.recurring import RecurringCalls
from ..leases.member import Member
from ..leases.outbox import EndReporter
from ..leases.slot_sharing import SharedSlots, SlotMover
from ..log_limit import UNLIMITED, limited_logger
from ..publishing.app_config import settings_of
from ..results.reporter import ResultReporter
from ..results.unrun_jobs import UnrunJobReporter
from ..scheduler import server_info
from ..scheduler.messages import Claim
from ..scheduler.scheduler import Scheduler
from ..settings.cohorts import DEFAULT
from ..transport.channel import AffinityChannel
from ..versions import versions
from .event_loop import CeleryWorkerLoop, EventLoop
from .job_feed import InboxReader, JobFeed
from .pool import PoolSlots
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
    more = f", ... ({len(types):,} in all)" if len(types) > _MAX_NAMED_TYPES else ""
    served = ", ".join(types[:_MAX_NAMED_TYPES]) + more if types else "no scheduled queue"
    return (
        f"celery_affinity {versions()['celery_affinity']}: serves {served} with {count_of(slots, 'slot')}; {guarded}; "
        f"{location} on {server} at {uri}"
    )


def count_of(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


class CohortSlots(PoolSlots):
    """The slots of *pool* that *shared* assigns to *cohort*, for a worker of several cohorts.

    *counts_unclaimed*: True if requests without a claim, such as broadcast tasks, take slots of this cohort. Exactly
    one cohort of a worker counts them.
    """

    def __init__(
        self, consumer: Consumer, pool: PoolSlots, shared: SharedSlots, cohort: str, *, counts_unclaimed: bool
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


class CohortMember:
    """The worker's place in *cohort*, with *slots*. All methods run in the event loop's thread.

    The membership begins when the cohort's server first answers, and continues while the server is down. In cohort
    `DEFAULT`, the member uses the broker's connection, also to read its inbox, and connection errors reach Celery. A
    member in any other cohort has its own connection, and a thread that reads its inbox.

    Args:
        members: The members in all cohorts of the worker.
        priority: Replaces the setting ``affinity_worker_priority``; None to use the setting.
    """

    def __init__(
        self,
        consumer: "AffinityConsumer",
        cohort: str,
        slots: PoolSlots,
        members: "CohortMembers",
        priority: int | None,
    ) -> None:
        self.cohort = cohort
        #: None until the cohort's server has answered.
        self.job_feed: JobFeed | None = None
        self._consumer, self._slots, self._members, self._priority = consumer, slots, members, priority
        self._types: list[str] = []
        self._settings = settings_of(consumer.app)
        #: The channel that Celery consumes on; None between two connections to the broker.
        self._channel: AffinityChannel | None = None
        #: The cohort's channel. It outlives reconnects to the broker, unless both use the same channel.
        self._cohort_channel: AffinityChannel | None = None
        self._hub: Hub | None = None
        self._reader: InboxReader | None = None
        self._opener: PeriodicThread | None = None
        self._has_joined = False

    @property
    def member(self) -> Member | None:
        return None if self.job_feed is None else self.job_feed.member

    def start(self, channel: AffinityChannel, types: list[str]) -> None:
        """Join the cohort with *types*, or rejoin it. Called at the start, and after each reconnect to the broker."""
        self._channel, self._types = channel, types
        if self.cohort == DEFAULT:
            self._cohort_channel = channel
            self._begin(channel.scheduler_of_its_own())
        elif self._cohort_channel is not None:
            self._begin_or_retry()
        elif self._opener is None:
            self._opener = PeriodicThread(f"affinity-opens-{self.cohort}", self._open, _RETRY_INTERVAL_S)
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
                "The server of cohort %r does not answer: its jobs do not run until it answers: %s", self.cohort, exc
            )
            return
        self._cohort_channel = cohort_channel
        self._consumer.call_soon(self._begin_or_retry)

    def _begin_or_retry(self) -> None:
        if self._channel is None or self._cohort_channel is None:
            return  # the next start joins
        member = self.member
        try:
            self._begin(self._cohort_channel.scheduler_of_its_own() if member is None else member.scheduler)
        except _DOWN as exc:
            logger.warning("The server of cohort %r does not answer; retrying: %s", self.cohort, exc)
            if member is not None and member.has_started:
                return  # the heartbeats rejoin
            self._consumer.timer.call_after(_RETRY_INTERVAL_S, self._begin_or_retry)

    def _begin(self, scheduler: Scheduler) -> None:
        assert self._channel is not None, "started"
        assert self._cohort_channel is not None, "open"
        if self.job_feed is None:
            self.job_feed = self._create_feed(scheduler)
        job_feed, member = self.job_feed, self.job_feed.member
        job_feed.begin(self._channel)
        if self.cohort == DEFAULT:
            self._members.read_with(self._channel, job_feed)
        self._register_loop()
        is_new = member.join(scheduler, self._types)
        member.drop_unstarted()  # claims whose requests Celery dropped after a lost connection
        if self.cohort != DEFAULT:
            self._read_inbox(job_feed, self._cohort_channel.scheduler_of_its_own())
        self._log_join(member, self._channel, is_new)

    def _create_feed(self, scheduler: Scheduler) -> JobFeed:
        """Create the membership, not yet joined."""
        consumer, host = self._consumer, CeleryWorkerLoop(self._consumer)
        reporter = ResultReporter(consumer.app, consumer.hostname, lambda: getattr(consumer, "event_dispatcher", None))
        member = Member(
            consumer.hostname,
            consumer.app.main or "",
            self._settings,
            scheduler,
            pool=self._slots,
            host=host,
            announcer=UnrunJobReporter(reporter),
            ingest=Ingest(consumer.app),
            recurring=RecurringCalls(consumer.app, reporter),
            kin=consumer.controller.affinity_kin,
        )
        member.capacity.prefetch_multiplier = consumer.prefetch_multiplier
        if self._priority is not None:
            member.capacity.priority = self._priority
        job_feed = host.job_feed = JobFeed(consumer, member, host, self._slots)
        host.leaked_claims = LeakedClaims(consumer, member.reporter)
        if self._slots.blocks_the_loop:
            job_feed.watch_the_loop()
        return job_feed

    def _read_inbox(self, job_feed: JobFeed, scheduler: Scheduler) -> None:
        if self._reader is not None:
            self._reader.use(scheduler)
            return

        def receive(claim: Claim) -> None:
            if getattr(self._consumer.pool, "is_green", False) and self._channel is not None:
                job_feed.receive(claim)  # runs in another greenlet of the only thread; there is no event loop
            else:
                job_feed.receive_elsewhere([claim])

        def obey(control_words: list[str]) -> None:
            self._consumer.call_soon(job_feed.obey, control_words)

        self._reader = InboxReader(self.cohort, scheduler, job_feed.worker, receive=receive, obey=obey)
        self._reader.start()

    def _log_join(self, member: Member, channel: AffinityChannel, is_new: bool) -> None:
        is_first, self._has_joined = not self._has_joined, True
        if self._settings.cohorts:
            if is_first:
                types = ", ".join(self._types)
                logger.info("celery_affinity: joined cohort %s: types %s", self.cohort, types, extra=UNLIMITED)
        elif is_first:
            line = line_on_joining(
                types=member.capacity.types,
                slots=self._slots.size(),
                guard=member.guard_pid,
                timeout_s=member.timeout_s,
                namespace=channel.namespace,
                prefix=channel.keys.global_keyprefix,
                server=server_info.server_product(member.scheduler.client),
                uri=self._consumer.connection.as_uri(),
            )
            logger.info(line, extra=UNLIMITED)
        elif is_new:  # the server had declared it dead, or lost its data
            logger.info("celery_affinity: joined again, as a new member", extra=UNLIMITED)
        else:
            jobs = count_of(len(member.claims.open_claims()), "job")
            logger.info("celery_affinity: joined again; still holds %s", jobs, extra=UNLIMITED)

    def run_with(self, hub: Hub) -> None:
        """Register with the event loop now, or once the membership exists."""
        self._hub = hub
        self._register_loop()

    def _register_loop(self) -> None:
        job_feed = self.job_feed
        if self._hub is None or job_feed is None or self._cohort_channel is None or job_feed.host.loop is not None:
            return
        in_flight = self._cohort_channel.in_flight_of_its_own()
        job_feed.host.loop = EventLoop(self._hub, in_flight, on_tick=job_feed.iterate, on_reply=job_feed.reply)

    def pause(self) -> None:
        """Start no job until the next `start`, because Celery has lost the broker or stops."""
        self._channel = None
        self.close_loop()
        if self.job_feed is not None:
            self.job_feed.pause()

    def close_loop(self) -> None:
        """Leave the event loop. The heartbeat thread reports the ends that are still in the loop's outbox."""
        self._hub = None
        if self.job_feed is None:
            return
        host = self.job_feed.host
        loop, host.loop = host.loop, None  # first keep threads from waking the loop
        self.job_feed.reporter.outbox.abandon()
        if loop is not None:
            loop.close()

    def leave(self) -> bool:
        """Leave the cohort. Return True if its server was notified."""
        if self._opener is not None:
            self._opener.stop()
        if self._reader is not None:
            self._reader.stop()
        has_left = True
        if self.job_feed is not None:
            self.job_feed.stop()
            has_left = self.job_feed.member.leave()
        if self._cohort_channel is not None and self.cohort != DEFAULT:
            self._cohort_channel.connection.client.release()
        return has_left


class CohortMembers:
    """The members of a worker, one per cohort of its types. *slots* are the slots of its pool.

    In a worker with cohorts, this is the inbox of the channel that Celery consumes on. The channel then reads the inbox
    of the member in `DEFAULT`, if there is one. The other members have an `InboxReader`.
    """

    def __init__(self, consumer: "AffinityConsumer", slots: PoolSlots, priority: int | None) -> None:
        self._consumer, self._slots, self._priority = consumer, slots, priority
        self._settings = settings_of(consumer.app)
        self._by_cohort: dict[str, CohortMember] = {}
        self._slot_mover: SlotMover | None = None
        self.schedules = self._settings.schedules
        self.worker = uuid.uuid4().hex
        self.key = ""
        self._broker_feed: JobFeed | None = None

    def create(self, cohorts: Sequence[str]) -> None:
        """Create a member in each of *cohorts*, with an equal share of the slots."""
        shared = SharedSlots(self._slots, cohorts)
        for index, cohort in enumerate(cohorts):
            slots = self._slots
            if len(cohorts) > 1:
                slots = CohortSlots(self._consumer, slots, shared, cohort, counts_unclaimed=index == 0)
            self._by_cohort[cohort] = CohortMember(self._consumer, cohort, slots, self, self._priority)
        if len(cohorts) > 1:
            self._slot_mover = SlotMover(shared, self.by_cohort, self._settings.heartbeat_interval)
            self._slot_mover.start()

    def start(self, channel: AffinityChannel, types: Mapping[str, list[str]]) -> None:
        """Join all cohorts with *types*, by cohort, or rejoin them."""
        if self._broker_feed is None:
            self.key = channel.keys.key("inbox", self.worker)
        channel.inbox = self
        for cohort, cohort_member in self._by_cohort.items():
            cohort_member.start(channel, types.get(cohort, []))

    def read_with(self, channel: AffinityChannel, job_feed: JobFeed) -> None:
        """Make *channel* read the inbox of *job_feed*, the feed of the member in `DEFAULT`."""
        self._broker_feed, self.worker, self.key = job_feed, job_feed.worker, job_feed.key
        if not self._settings.cohorts:
            channel.inbox = job_feed  # the only feed, so that no message has to be assigned to a member

    def run_with(self, hub: Hub) -> None:
        for cohort_member in self._by_cohort.values():
            cohort_member.run_with(hub)

    def pause(self) -> None:
        for cohort_member in self._by_cohort.values():
            cohort_member.pause()

    def leave(self) -> bool:
        """Leave all cohorts. Return True if their servers were notified, and False without a membership."""
        if self._slot_mover is not None:
            self._slot_mover.stop()
        for cohort_member in self._by_cohort.values():
            cohort_member.close_loop()
        is_member = bool(self.feeds)
        have_left = [cohort_member.leave() for cohort_member in self._by_cohort.values()]
        return is_member and all(have_left)

    def by_cohort(self) -> dict[str, Member | None]:
        """Return the membership in each cohort, or None if the cohort's server has not answered yet."""
        return {cohort: cohort_member.member for cohort, cohort_member in self._by_cohort.items()}

    @property
    def feeds(self) -> list[JobFeed]:
        """The job feeds of all cohorts whose server has answered."""
        feeds = (cohort_member.job_feed for cohort_member in self._by_cohort.values())
        return [feed for feed in feeds if feed is not None]

    @property
    def joined(self) -> list[Member]:
        """The memberships in all cohorts whose server has answered."""
        return [feed.member for feed in self.feeds]

    @property
    def returned(self) -> int:
        """Number of jobs that the worker has returned so far."""
        return sum(member.returned for member in self.joined)

    @property
    def returns(self) -> int:
        """Number of times that a server answered again after a silence."""
        return sum(member.reporter.returns for member in self.joined)

    def ask(self) -> None:
        """Check whether the servers answer."""
        for member in self.joined:
            member.ask()

    def wake(self) -> None:
        """Make the event loop iterate soon."""
        for feed in self.feeds:
            feed.host.wake()

    def room(self) -> int:
        """Return the number of jobs that the pool could start in addition to jobs with a slot or a rate limit wait."""
        return sum(feed.room() for feed in self.feeds)

    def lend(self, waiting: Counter[str], avoided: Iterable[str]) -> None:
        """Lend the slots of claims that wait for a rate limit, in the cohort of each type (see `Member.lend`)."""
        for cohort, member in self.by_cohort().items():
            if member is not None:
                types = (type_ for type_ in waiting if self._settings.cohort_of(type_) == cohort)
                member.lend(Counter({type_: waiting[type_] for type_ in types}), frozenset(avoided))

    # -- the interface of the channel's inbox
    @property
    def drained(self) -> bool:
        return any(member.claims.drained for member in self.joined)

    def reporting_of(self, tag: str) -> EndReporter:
        feeds = self.feeds
        return next((feed for feed in feeds if feed.reporter.claims.find(tag) is not None), feeds[0]).reporter

    def serve(self, queue: str, serves: bool) -> None:
        cohort = self._settings.cohort_of(queue)
        cohort_member = self._by_cohort.get(cohort)
        if cohort_member is None:
            logger.error("Queue %r is not served: this worker was started without types of cohort %r", queue, cohort)
        elif cohort_member.job_feed is not None:
            cohort_member.job_feed.serve(queue, serves)

    def receive(self, claim: Claim) -> None:
        assert self._broker_feed is not None, "otherwise no server knows this inbox"
        self._broker_feed.receive(claim)

    def obey(self, control_words: list[str]) -> None:
        assert self._broker_feed is not None, "otherwise no server knows this inbox"
        self._broker_feed.obey(control_words)

    def loop_ran(self) -> None:
        for member in self.joined:
            member.loop_ran()
