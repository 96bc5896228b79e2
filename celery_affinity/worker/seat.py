"""A worker's place in one cohort: a membership with its inbox, its part of the event loop, and its slots.

The seat is taken when the cohort's server answers, and kept while the server is down.
"""

from typing import TYPE_CHECKING, Protocol

from kombu.asynchronous.hub import Hub
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from ..log_limit import UNLIMITED, limited_logger
from ..membership.membership import Membership
from ..rules.cohorts import DEFAULT
from ..server.connections.in_flight import InFlight
from ..server.replies import Claim
from ..server.scheduler import Scheduler
from ..threads.repeating import Repeating
from ..transport.channel import AffinityChannel
from ..transport.inbox import Inbox
from .cohort_slots import CohortSlots
from .event_loop import Loop
from .following import Following
from .host import WorkerHost
from .inbox_reader import InboxReader
from .slots import PoolSlots
from .strays import Strays

if TYPE_CHECKING:
    from .fleet_consumer import FleetConsumer

logger = limited_logger(__name__)

#: Errors of a server that does not answer.
_DOWN = (RedisError, OperationalError, OSError)

#: Interval, s, at which a server that did not answer is tried again.
_TRIES_EVERY_S = 1.0


class _Step(Protocol):
    """The bootstep, which knows how this worker becomes a member."""

    def membership_with(self, scheduler: Scheduler, slots: PoolSlots, host: WorkerHost) -> Membership: ...


class Seat:
    """The place of *consumer*'s worker in *cohort*, with *slots*. The event loop's thread calls all methods.

    *step* makes the membership, and *inbox* knows all seats.
    """

    def __init__(self, consumer: "FleetConsumer", cohort: str, slots: CohortSlots, step: _Step, inbox: Inbox) -> None:
        self.cohort = cohort
        self.types: list[str] = []
        self.host = WorkerHost(consumer)
        self.members: Membership | None = None
        self.following: Following | None = None
        self._consumer, self._slots, self._step, self._inbox = consumer, slots, step, inbox
        #: The channel that Celery consumes on; None between two connections to the broker.
        self._channel: AffinityChannel | None = None
        #: That of the cohort. It stays while the broker's is lost and found again, unless they are the same.
        self._own: AffinityChannel | None = None
        self._hub: Hub | None = None
        self._reader: InboxReader | None = None
        self._opening = Repeating(f"affinity-opens-{cohort}", self._open, _TRIES_EVERY_S)
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
        members, following = self.members, self.following
        assert members is not None, "entered"
        assert following is not None, "entered"
        following.begin(self._channel, self._inbox)
        self._loop()
        members.join(scheduler, self.types)
        members.renounce()  # those that a lost connection made Celery drop
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
        self.following = self.host.following = Following(self._consumer, members, self.host, self._slots)
        self.host.strays = Strays(self._consumer, members.reporting)
        if self._slots.blocks_the_loop:
            self.following.watch_the_loop()

    def run_with(self, hub: Hub) -> None:
        """Have a part in the event loop, now or when the seat is taken."""
        self._hub = hub
        self._loop()

    def _loop(self) -> None:
        if self._hub is None or self.following is None or self._own is None or self.host.loop is not None:
            return
        in_flight: InFlight = self._own.in_flight_of_its_own()
        self.host.loop = Loop(self._hub, in_flight, on_tick=self.following.iterate, on_reply=self.following.reply)

    def pause(self) -> None:
        """Start nothing until the next `start`: Celery has lost the broker, or stops."""
        self._channel = None
        self.close_loop()
        if self.following is not None:
            self.following.pause()

    def close_loop(self) -> None:
        self._hub = None
        loop, self.host.loop = self.host.loop, None  # first no thread wakes the loop any more
        if self.members is not None:
            self.members.reporting.outbox.abandon()
        if loop is not None:
            loop.close()

    def leave(self) -> bool:
        """Leave the cohort. Return whether its server knows."""
        if self._is_opening:
            self._opening.stop()
        if self._reader is not None:
            self._reader.stop()
        if self.following is not None:
            self.following.stop()
        has_left = self.members is None or self.members.leave()
        if self._own is not None and self.cohort != DEFAULT:
            self._own.connection.client.release()
        return has_left

    # -- the inbox, in the reader's thread

    def _receive(self, claim: Claim) -> None:
        assert self.following is not None, "entered"
        if getattr(self._consumer.pool, "is_green", False) and self._channel is not None:
            self.following.receive(claim)  # another greenlet of the only thread, and no event loop that would run
        else:
            self.following.receive_elsewhere([claim])

    def _obey(self, sign: list[str]) -> None:
        assert self.following is not None, "entered"
        self._consumer.call_soon(self.following.obey, sign)
