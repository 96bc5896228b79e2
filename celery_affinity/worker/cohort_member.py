"""The slots of a worker's pool that belong to one cohort, as the membership there sees its pool.

A worker's place in one cohort: a membership with its inbox, its part of the event loop, and its slots.

The seat is taken when the cohort's server answers, and kept while the server is down.

A worker's places in several cohorts: what Celery does once is done by each of them, or by the one concerned.
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
    """The part of *pool*, that of *consumer*, which *shared* has for *cohort*.

    *counts_unclaimed*: whether requests without a claim, as of broadcast tasks, take slots of this cohort: they do of
    one.
    """

    def __init__(
        self, consumer: "Consumer", pool: PoolSlots, shared: SharedSlots, cohort: str, *, counts_unclaimed: bool
    ) -> None:
        super().__init__(consumer)
        self._asking = pool._asking  # which tasks stop when they are asked to is known of the whole pool
        self._shared, self._cohort, self._counts_unclaimed = shared, cohort, counts_unclaimed

    def size(self) -> int:
        """Return how many slots the cohort has now."""
        return self._shared.of(self._cohort)

    def unclaimed(self) -> int:
        return super().unclaimed() if self._counts_unclaimed else 0


logger = limited_logger(__name__)

#: Errors of a server that does not answer.
_DOWN = (RedisError, OperationalError, OSError)

#: Interval, s, at which a server that did not answer is tried again.
_TRIES_EVERY_S = 1.0


class _Step(Protocol):
    """The bootstep, which knows how this worker becomes a member."""

    def membership_with(self, scheduler: Scheduler, slots: PoolSlots, host: CeleryWorkerLoop) -> Member: ...


class CohortMember:
    """The place of *consumer*'s worker in *cohort*, with *slots*. The event loop's thread calls all methods.

    *step* makes the membership, and *inbox* knows all seats.
    """

    def __init__(
        self, consumer: "AffinityConsumer", cohort: str, slots: CohortSlots, step: _Step, inbox: Inbox
    ) -> None:
        self.cohort = cohort
        self.types: list[str] = []
        self.host = CeleryWorkerLoop(consumer)
        self.members: Member | None = None
        self.job_feed: JobFeed | None = None
        self._consumer, self._slots, self._step, self._inbox = consumer, slots, step, inbox
        #: The channel that Celery consumes on; None between two connections to the broker.
        self._channel: AffinityChannel | None = None
        #: That of the cohort. It stays while the broker's is lost and found again, unless they are the same.
        self._own: AffinityChannel | None = None
        self._hub: Hub | None = None
        self._reader: InboxReader | None = None
        self._opening = PeriodicThread(f"affinity-opens-{cohort}", self._open, _TRIES_EVERY_S)
        self._is_opening = False

    # -- its life

    def start(self, channel: AffinityChannel, types: list[str]) -> None:
        """Take the seat, or come back to it, for *types*; at the start, and after each reconnect to the broker."""
        self._channel, self.types = channel, types
        if self.cohort == DEFAULT:
            self._own = channel
            self._begin(channel.scheduler_of_its_own())
        elif self._own is not None:
            self._begin_if_it_answers()
        elif not self._is_opening:
            self._is_opening = True
            self._opening.start()
            self._opening.wake()

    def _open(self) -> None:
        """Connect to the cohort's server, in a thread of its own: a server that is down holds up nobody."""
        channel = self._channel
        if self._own is not None or channel is None or channel.routes is None:
            return
        try:
            own = channel.routes.connection_to(self.cohort).channel()
            own.scheduler  # noqa: B018  # raises unless the server has data of this release
        except _DOWN as exc:
            logger.warning(
                "The server of cohort %r does not answer: no job of it is run until it does: %s", self.cohort, exc
            )
            return
        self._own = own
        self._consumer.call_soon(self._begin_if_it_answers)

    def _begin_if_it_answers(self) -> None:
        if self._channel is None or self._own is None:
            return  # the next start begins
        try:
            self._begin(self._own.scheduler_of_its_own() if self.members is None else self.members.scheduler)
        except _DOWN as exc:
            logger.warning("The server of cohort %r does not answer: it is tried again: %s", self.cohort, exc)
            if self.members is not None and self.members.has_started:
                return  # the heartbeats join again
            self._consumer.timer.call_after(_TRIES_EVERY_S, self._begin_if_it_answers)

    def _begin(self, scheduler: Scheduler) -> None:
        assert self._channel is not None, "started"
        assert self._own is not None, "open"
        if self.members is None:
            self._enter(scheduler)
        members, following = self.members, self.job_feed
        assert members is not None, "entered"
        assert following is not None, "entered"
        following.begin(self._channel, self._inbox)
        self._loop()
        members.join(scheduler, self.types)
        members.drop_unstarted()  # those that a lost connection made Celery drop
        own = self._own.scheduler_of_its_own()
        if self._reader is None:
            self._reader = InboxReader(self.cohort, own, members.id, receive=self._receive, obey=self._obey)
            self._reader.start()
            types = ", ".join(self.types)
            logger.info("celery_affinity: joined cohort %s: types %s", self.cohort, types, extra=UNLIMITED)
        else:
            self._reader.use(own)

    def _enter(self, scheduler: Scheduler) -> None:
        self.members = members = self._step.membership_with(scheduler, self._slots, self.host)
        self.job_feed = self.host.job_feed = JobFeed(self._consumer, members, self.host, self._slots)
        self.host.leaked_claims = LeakedClaims(self._consumer, members.reporter)
        if self._slots.blocks_the_loop:
            self.job_feed.watch_the_loop()

    def run_with(self, hub: Hub) -> None:
        """Have a part in the event loop, now or when the seat is taken."""
        self._hub = hub
        self._loop()

    def _loop(self) -> None:
        if self._hub is None or self.job_feed is None or self._own is None or self.host.loop is not None:
            return
        in_flight: InFlightCommands = self._own.in_flight_of_its_own()
        self.host.loop = EventLoop(self._hub, in_flight, on_tick=self.job_feed.iterate, on_reply=self.job_feed.reply)

    def pause(self) -> None:
        """Start nothing until the next `start`: Celery has lost the broker, or stops."""
        self._channel = None
        self.close_loop()
        if self.job_feed is not None:
            self.job_feed.pause()

    def close_loop(self) -> None:
        self._hub = None
        loop, self.host.loop = self.host.loop, None  # first no thread wakes the loop any more
        if self.members is not None:
            self.members.reporter.outbox.abandon()
        if loop is not None:
            loop.close()

    def leave(self) -> bool:
        """Leave the cohort. Return whether its server knows."""
        if self._is_opening:
            self._opening.stop()
        if self._reader is not None:
            self._reader.stop()
        if self.job_feed is not None:
            self.job_feed.stop()
        has_left = self.members is None or self.members.leave()
        if self._own is not None and self.cohort != DEFAULT:
            self._own.connection.client.release()
        return has_left

    # -- the inbox, in the reader's thread

    def _receive(self, claim: Claim) -> None:
        assert self.job_feed is not None, "entered"
        if getattr(self._consumer.pool, "is_green", False) and self._channel is not None:
            self.job_feed.receive(claim)  # another greenlet of the only thread, and no event loop that would run
        else:
            self.job_feed.receive_elsewhere([claim])

    def _obey(self, sign: list[str]) -> None:
        assert self.job_feed is not None, "entered"
        self._consumer.call_soon(self.job_feed.obey, sign)


class CohortMembers:
    """The *seats* of a worker, by cohort: the inbox of the channel that Celery consumes on.

    Nothing comes to that inbox: each seat reads its own (`inbox_reader`).
    """

    def __init__(self, settings: Settings, keys: Keys) -> None:
        self.by_cohort: dict[str, CohortMember] = {}
        self.worker = uuid.uuid4().hex
        self.key = keys.key("inbox", self.worker)
        self.schedules = settings.schedules
        self._settings = settings

    def members(self) -> dict[str, Member | None]:
        """Return the membership in each cohort; None: its server has not answered yet."""
        return {name: seat.members for name, seat in tuple(self.by_cohort.items())}

    @property
    def taken(self) -> list[Member]:
        """The memberships of all seats that were taken."""
        return [each for each in self.members().values() if each is not None]

    def of(self, tag: str) -> Member | None:
        """Return the membership that holds a claim."""
        return next((each for each in self.taken if each.claims.find(tag) is not None), None)

    # -- the channel's inbox

    @property
    def drained(self) -> bool:
        return any(each.claims.drained for each in self.taken)

    def reporting_of(self, tag: str) -> EndReporter:
        found = self.of(tag)
        return (self.taken[0] if found is None else found).reporter

    def serve(self, queue: str, serves: bool) -> None:
        cohort = self._settings.cohort_of(queue)
        seat = self.by_cohort.get(cohort)
        if seat is None:
            logger.error("Queue %r is not served: this worker was started without types of cohort %r", queue, cohort)
        elif seat.job_feed is not None:
            seat.job_feed.serve(queue, serves)

    def receive(self, claim: Claim) -> None:
        raise AssertionError("no server knows this inbox")

    def obey(self, sign: list[str]) -> None:
        raise AssertionError("no server knows this inbox")

    def loop_ran(self) -> None:
        for each in self.taken:
            each.loop_ran()

    # -- as `rate_limits` and `fleet_consumer` see one membership

    @property
    def claims(self) -> "CohortMembers":
        return self

    @property
    def withdrawn_types(self) -> "WithdrawnTypesOfAll":
        return WithdrawnTypesOfAll(self.taken)

    def find(self, tag: str) -> HeldClaim | None:
        found = self.of(tag)
        return None if found is None else found.claims.find(tag)

    def lend(self, waiting: Counter[str], avoided: frozenset[str] = frozenset()) -> None:
        for each in self.taken:
            types = each.capacity.types
            each.lend(
                Counter({type_: n for type_, n in waiting.items() if type_ in types}), avoided.intersection(types)
            )

    def give_back(self, tags: Sequence[str]) -> None:
        for each in self.taken:
            its = [tag for tag in tags if each.claims.find(tag) is not None]
            if its:
                each.give_back(its)

    def room(self) -> int:
        """Return how many jobs the pool could start beside those that have a slot or wait for a rate limit."""
        return sum(seat.job_feed.room() for seat in self.by_cohort.values() if seat.job_feed is not None)

    def ask(self) -> None:
        for each in self.taken:
            each.ask()

    @property
    def reporter(self) -> SimpleNamespace:
        """What `reconnecting` asks of: the times that a server came back."""
        return SimpleNamespace(returns=sum(each.reporter.returns for each in self.taken))

    def wake(self) -> bool:
        have_loops = [seat.host.wake() for seat in self.by_cohort.values()]
        return any(have_loops)


class WithdrawnTypesOfAll:
    """The pauses that concern claims of *members*."""

    def __init__(self, members: Iterable[Member]) -> None:
        self._members = [each for each in members if each.withdrawn_types]

    def __bool__(self) -> bool:
        return bool(self._members)

    def has(self, job_id: str, type_: str, fence: str) -> bool:
        return any(
            each.withdrawn_types.has(job_id, type_, fence)
            for each in self._members
            if each.claims.find(delivery_tag(job_id, fence)) is not None
        )
