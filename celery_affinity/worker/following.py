"""The jobs that follow: each is held first and started next, whichever way it came.

Without lookahead a job has its slot when it comes, and starts at once. With lookahead all jobs that came are held
before the first of them starts; each starts when a slot is free, in the order of the fencing numbers.
"""

import time
from collections import deque
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING

from ..client.of_app import settings_of
from ..membership.held import RETURNED
from ..membership.lookahead import STARTS_WITHIN_S
from ..membership.membership import Membership
from ..membership.reporting import Reporting
from ..rules import protocol
from ..rules.encoding import decode
from ..server import received
from ..server.replies import LONGEST_FENCE, Claim
from ..threads.repeating import Repeating
from ..transport.channel import AffinityChannel
from ..transport.inbox import Inbox
from . import pools
from .host import WorkerHost
from .made_ahead import MadeAhead
from .preempting import Preempting
from .slots import PoolSlots

if TYPE_CHECKING:
    from .fleet_consumer import FleetConsumer

#: Most digits of a number of jobs in a sign of the server.
_LONGEST_NUMBER = 9


#: Time, s, after which a pool that blocks the event loop starts no further job before the loop has iterated.
_RUNS_FOR_S = 0.002


class Following:
    """The jobs that come to *members*, from the inbox (`Inbox`) and in replies, until they start in *consumer*.

    The event loop's thread calls all methods but `receive_elsewhere`.
    """

    def __init__(self, consumer: "FleetConsumer", members: Membership, host: WorkerHost, slots: PoolSlots) -> None:
        self.reporting = members.reporting
        self.schedules = settings_of(consumer.app).schedules
        self._consumer = consumer
        self._members, self._host, self._slots = members, host, slots
        self._lookahead = members.lookahead
        self._made = MadeAhead(consumer, members.claims)
        self._preempting = Preempting(consumer, members, slots)
        self._arrived: deque[Claim] = deque()
        self._channel: AffinityChannel | None = None
        self._heeds_consumers = False
        self._watch: Repeating | None = None
        self._looks_again_s = 0.0

    # -- its life

    def begin(self, channel: AffinityChannel, inbox: Inbox | None = None) -> None:
        """Read the inbox on *channel*: at the start, and after each reconnect. *inbox*: what reads it instead."""
        self._channel = channel
        self._heeds_consumers = True
        self.drop()  # a lost connection made Celery drop the jobs, as all others
        channel.inbox = inbox or self
        self._preempting.begin()

    def pause(self) -> None:
        """Start nothing more until `begin`. Celery cancels consumers meanwhile; the worker serves their types still."""
        self.drop()
        self._heeds_consumers = False

    def drop(self) -> None:
        """Start none of the jobs that wait for a slot: they were given back, or will be."""
        self._lookahead.clear()
        self._made.clear()

    def watch_the_loop(self) -> None:
        """Give back the jobs beyond the slots if a task blocks the event loop, which then hears no request for them."""
        if not self._lookahead.is_off:
            self._watch = Repeating("affinity-lookahead", self._give_back_if_it_stands_still, STARTS_WITHIN_S / 2)
            self._watch.start()

    def _give_back_if_it_stands_still(self) -> None:
        if self._lookahead or self.reporting.outbox.is_telling:  # a reply that nobody reads brings more
            self._members.look_at_the_loop(STARTS_WITHIN_S)

    def stop(self) -> None:
        """Watch the event loop no more."""
        if self._watch is not None:
            self._watch.stop()
        self._preempting.stop()

    # -- the inbox

    @property
    def worker(self) -> str:
        return self._members.id

    @property
    def key(self) -> str:
        return self.reporting.claims.inbox

    @property
    def drained(self) -> bool:
        return self.reporting.claims.drained

    def reporting_of(self, tag: str) -> Reporting:
        return self.reporting

    def serve(self, queue: str, serves: bool) -> None:
        if self._heeds_consumers:
            self._members.serve(queue, serves)
            if not serves:
                self._give_back({queue})

    def loop_ran(self) -> None:
        self._members.loop_ran()

    def receive(self, claim: Claim) -> None:
        """Start a job that the server sent for a free slot, unless a job that was held before has the slot by now."""
        if self._host.loop is None or self._lookahead.is_off:
            self._start(claim)
        else:
            self._hold(claim)
            self._start_what_has_a_slot()

    def obey(self, sign: list[str]) -> None:
        match sign:
            case [protocol.TICK_SIGN]:
                self._members.tick()
            case [protocol.BACK_SIGN, at_most, *types] if at_most.isdecimal() and len(at_most) <= _LONGEST_NUMBER:
                self._return(self._lookahead.give_back(set(map(decode, types)), int(at_most)))
            case [protocol.PAUSED_SIGN, what, fence] if fence.isdecimal() and len(fence) <= LONGEST_FENCE:
                self._recall(what, int(fence))
            case [protocol.PREEMPT_SIGN, job_id, fence, grace_ms] if (
                fence.isdecimal() and len(fence) <= LONGEST_FENCE
            ) and (grace_ms.isdecimal() and len(grace_ms) <= _LONGEST_NUMBER):
                self._return(self._preempting.order(job_id, fence, int(grace_ms) / 1000))
            case _:
                received.drop("the inbox", sign, "it is neither a job nor a sign of the server")

    def _recall(self, what: str, fence: int) -> None:
        """Give back claims up to *fence* that a pause of *what* concerns: those ahead now, others when they come."""
        self._members.recalled.add(what, fence)
        kind, _, name = what.partition(":")
        types = self._members.capacity.types if kind == "*" else (decode(name),) if kind == "type" else ()
        self._return(self._lookahead.give_back(types, len(self._lookahead)))

    # -- replies

    def iterate(self) -> None:
        """Start the jobs that follow, tell the ends since the loop's last iteration, and make requests ahead."""
        self._members.loop_ran()
        self._members.notice_slots()
        self._hold_what_arrived()
        if self._lookahead:
            self._give_back_what_is_late()
        self._go_on()

    def _go_on(self) -> None:
        """Start jobs, tell ends and make requests ahead: nothing that can wait holds up a start."""
        if self._slots.blocks_the_loop:  # the start is the whole task, and the server can work meanwhile
            self.reporting.tell()
            self._run_what_follows()
            return
        if self._start_what_follows() and not pools.writes_at_once(self._consumer.pool, self._consumer.hub):
            self._host.wake()  # for the rest: first the loop has the pool write
            return
        self.reporting.tell()
        self._make_what_starts_next()

    def _make_what_starts_next(self) -> None:
        """Make the requests of as many jobs that are held as the pool has slots."""
        most = min(self._slots.size(), len(self._lookahead))
        if len(self._made) >= most:
            return
        for claim, tag in self._lookahead.first(most):
            if tag not in self._made and not self._made.make(tag, partial(self._consume_ahead, claim, tag)):
                self._lookahead.discard(tag)

    def _consume_ahead(self, claim: Claim, tag: str) -> None:
        assert self._channel is not None, "begun"
        self._channel.consume(claim, tag, has_slot=False)

    def reply(self) -> None:
        """Start the jobs that a reply brings, and tell the ends that came meanwhile."""
        self._arrived.extend(self.reporting.receive())
        self._hold_what_arrived()
        self._go_on()

    def receive_elsewhere(self, claims: list[Claim]) -> None:
        """Have the event loop start jobs of a reply to another thread, if the loop runs (see `watch_the_loop`)."""
        if self._lookahead.is_off:
            self._arrived.extend(claims)
        else:
            for claim in claims:
                self._hold(claim)
        self._host.wake()

    # -- hold, then start

    def room(self) -> int:
        """Return how many jobs the pool could start beside those that have a slot or wait for a rate limit."""
        return self._members.capacity.room() + len(self._lookahead)

    def _hold_what_arrived(self) -> None:
        """With lookahead, hold all jobs that arrived before the first of them starts."""
        while self._arrived and not self._lookahead.is_off:
            self._hold(self._arrived.popleft())

    def _hold(self, claim: Claim) -> None:
        claims = self.reporting.claims
        tag = claims.hold(claim)
        if tag is None:
            return
        if claims.drained:  # the job was on its way; here it would wait behind a long task, and then not start
            self.reporting.settle(tag, RETURNED)
        else:
            self._lookahead.add(claim, tag)

    def _start(self, claim: Claim) -> None:
        tag = self.reporting.claims.hold(claim)
        if tag is not None:
            self._hand_over(claim, tag)

    def _hand_over(self, claim: Claim, tag: str) -> None:
        assert self._channel is not None, "begun"
        recalled = self._members.recalled
        if recalled and recalled.has(claim.job_id, claim.type, claim.fence):
            self._return([tag])
        elif tag in self._made:
            self._channel.burying(claim, tag, partial(self._made.start, tag))
        else:
            self._channel.consume(claim, tag)

    def _return(self, tags: Collection[str]) -> None:
        self._made.drop(tags)
        for tag in tags:
            self.reporting.settle(tag, RETURNED)

    def _start_what_follows(self) -> int:
        """Start the jobs that arrived, as far as there are slots. Return how many."""
        return self._start_what_arrived() + self._start_what_has_a_slot()

    def _start_what_arrived(self) -> int:
        arrived = len(self._arrived)
        for _ in range(arrived):
            self._start(self._arrived.popleft())
        return arrived

    def _run_what_follows(self) -> None:
        """Run jobs one after the other in a pool that blocks the loop, which is to iterate again soon.

        An iteration of the loop takes about half as long as a short task with all that Celery does for it.
        """
        until_s = time.monotonic() + _RUNS_FOR_S
        has_run = False
        while (self._arrived or self._lookahead) and (self._start_what_arrived() or self._start_as_many_as_fit()):
            has_run = True
            if time.monotonic() >= until_s or not self._host.goes_on:
                break
        if has_run:
            self._host.wake()

    def start_next(self) -> None:
        """Start the job that has the slot of a task that has just ended, and have a prefork pool write it at once.

        An error is raised in the loop, and so is a SystemExit of a signal's handler or of a stop: it has nothing to do
        with the task that has ended, whose end goes on.
        """
        try:
            if self._start_as_many_as_fit():
                pools.writes_at_once(self._consumer.pool, self._consumer.hub)
        except (Exception, SystemExit) as exc:
            self._consumer.call_soon(_fail, exc)

    def _start_what_has_a_slot(self) -> int:
        """Start as many of the jobs that are held as slots are free. Return how many."""
        started = self._start_as_many_as_fit()
        if started and self._lookahead and self._free_slots() > 0:
            self._host.wake()  # a job that has to wait for a rate limit, say, has left its slot to the next
        return started

    def _start_as_many_as_fit(self) -> int:
        if not self._lookahead:
            return 0
        self._give_back(self._members.capacity.unwanted)
        started = max(0, min(len(self._lookahead), self._free_slots()))
        for _ in range(started):
            self._hand_over(*self._lookahead.next())
        return started

    def _give_back_what_is_late(self) -> None:
        """Give back the jobs that longer tasks hold up, and have the loop iterate when others may be late."""
        self._return(self._lookahead.give_back_what_is_late())
        now_s = time.monotonic()
        if self._lookahead and now_s >= self._looks_again_s:
            self._looks_again_s = now_s + STARTS_WITHIN_S
            self._host.wake_in(STARTS_WITHIN_S)

    def _free_slots(self) -> int:
        """Return how many jobs may start: the pool's room, and the slots lent by jobs that wait for a rate limit."""
        return self.room() + self._members.capacity.lent

    def _give_back(self, types: Collection[str]) -> None:
        """Give back the jobs of *types* that wait here for a slot: the worker wants no more jobs of these types."""
        tags = self._lookahead.give_back(types, len(self._lookahead)) if types else []
        if tags:
            self._made.drop(tags)
            self._members.give_back(tags)


def _fail(exc: BaseException) -> None:
    raise exc
