"""The moment and the thread in which the server is told what became of claims.

The end of a task goes one way: `Reporting.end` has it written down (`claims`) and, in the event loop's thread, sent at
once (`outbox`). While no event loop runs, or the server does not answer, the thread of the heartbeats tells.
"""

import time
from collections.abc import Collection

from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as ReplyTimeoutError

from ..log_limit import limited_logger
from ..rules.ahead import NOTHING, Ahead
from ..server.connections.in_flight import InFlight
from ..server.replies import Claim
from ..server.scheduler import Scheduler
from ..threads.repeating import Repeating
from .claims import Claims
from .held import ACKED, TaskRequest
from .host import Host, Pool
from .lookahead import Lookahead
from .outbox import Outbox

logger = limited_logger(__name__)


class Reporting:
    """Tells *scheduler*, which may be replaced, of *claims*: the acks, ends and returns of their jobs."""

    def __init__(
        self,
        scheduler: Scheduler,
        claims: Claims,
        lookahead: Lookahead,
        *,
        pool: Pool,
        host: Host,
        heartbeats: Repeating,
    ) -> None:
        self.scheduler = scheduler
        self.claims = claims
        self.lookahead = lookahead
        self.outbox = Outbox(claims, heartbeats)
        self._pool, self._host, self._heartbeats = pool, host, heartbeats
        self._in_trouble = False
        self._made_way = ""
        #: Number of times that the server was found to answer again.
        self.returns = 0

    # -- what becomes of a claim; from any thread

    def settle(self, tag: str, outcome: str, why: str = "") -> None:
        """Have the server know what became of a message (see `Claims.settle`)."""
        if self.claims.settle(tag, outcome, why):
            self._call_for_a_report()
        if self.claims.has_settled_in_buffer:
            self._heartbeats.wake()

    # -- messages that the strategy of a task keeps in a buffer

    def buffer(self, tag: str, request: TaskRequest) -> None:
        """Have the server place another job on the slot of a claim, which lasts (see `Claims.buffer`)."""
        self.claims.buffer(tag, request)
        self._heartbeats.wake()

    def take_back(self, tag: str, request: TaskRequest) -> None:
        """Have the claim of *request* take a slot again."""
        self.claims.take_back(tag, request)
        self._heartbeats.wake()

    def end_settled_in_buffer(self, tags: Collection[str]) -> None:
        """End claims that `Claims.settled_in_buffer` returned before the last sync."""
        for tag in tags:
            self.end(tag)

    # -- the end of a claim

    def may_start(self, tag: str) -> bool:
        """Return whether the task of a claim may start; if not, the job may be given back (see `Claims.may_start`)."""
        may = self.claims.may_start(tag)
        if not may and self.claims.has_news:
            self._call_for_a_report()
        return may

    def started(self, tag: str) -> None:
        """Record that the task of a claim has started. An early ack is sent before the task blocks the event loop."""
        held = self.claims.start(tag)
        if held is not None and held.outcome == ACKED and self._pool.blocks_the_loop:
            self.ack_now()

    def make_way(self, tag: str) -> None:
        """Start the next job that is held ahead in the slot of a claim whose task has ended.

        The process of the task has nothing to do meanwhile, so all else that the end brings comes after this. Nothing
        is done in another thread than the event loop's, or for a pool without processes.
        """
        self.claims.has_run(tag)
        if self.lookahead and self._pool.forks and self._host.in_flight is not None and self.claims.frees(tag):
            self._made_way = tag
            self._host.start_next()

    def end(self, tag: str, how: str = "", why: str = "") -> None:
        """Have the server know that the slot of a claim is free. Only the first call for a claim counts.

        *how* and *why*: see `Held`.
        """
        held = self.claims.end(tag, how, why)
        if held is None:
            return
        if held.started_s is not None and held.request is not None:
            self._note_length(held.type, held.request.name, time.monotonic() - held.started_s)
        had_jobs_to_start = bool(self.lookahead) or tag == self._made_way  # they start first, and ends go together
        if not had_jobs_to_start or self._pool.blocks_the_loop:
            self.tell()  # the server works while the event loop goes on
        self._call_for_a_report()

    def _note_length(self, type_: str, task: str, seconds: float) -> None:
        if self._host.limits_rate_of(task):
            self.lookahead.forget(type_)  # the next one may have to wait for the limit
        else:
            self.lookahead.note_length(type_, seconds)

    def _call_for_a_report(self) -> None:
        if self._in_trouble or not self._host.wake():
            self._heartbeats.wake()

    # -- the event loop

    @property
    def has_news(self) -> bool:
        """Whether there is something to tell, and a server that answers, and no batch on its way there."""
        return self.outbox.has_news and not self._in_trouble and not self.outbox.is_telling

    def tell(self) -> None:
        """Send acks and ends, and leave the reply for `receive`, in the event loop's thread alone (`Host.in_flight`).

        Ends wait for each other while there are other jobs to start.
        """
        in_flight = self._host.in_flight
        if in_flight is None or not self.has_news or self.lookahead.ends_can_wait(self._host):
            return
        try:
            self.outbox.send(self.scheduler, in_flight, may_hold=self._may_hold)
        except (RedisError, OSError) as exc:
            self.note_trouble(exc)

    def receive(self) -> list[Claim]:
        """Return the jobs that follow the ends that were sent; none if the server does not answer, or not yet."""
        return self._receive(waits=False)

    def _receive(self, *, waits: bool) -> list[Claim]:
        try:
            return self.outbox.receive(self.scheduler, waits=waits)
        except (RedisError, OSError) as exc:
            self.note_trouble(exc)
            return []

    @property
    def _may_hold(self) -> Ahead:
        """What the worker may hold beyond its slots."""
        return NOTHING if self.lookahead.is_off else self.lookahead.room(self._pool.size())

    def abandon_what_is_late(self) -> None:
        """Have the heartbeats' thread tell again if a reply is overdue."""
        if self.outbox.is_late:
            self.outbox.abandon()
            self.note_trouble(ReplyTimeoutError("no reply to what was sent"))

    def ack_now(self) -> None:
        """Have the server know an ack of a task that blocks the event loop as soon as it starts.

        A command that was sent arrives even if this process is killed now, so nobody waits for the reply while the
        lease is fresh. Without a fresh lease the server may take the worker for dead soon, or did so: the reply is
        waited for, and an ack that is refused keeps the task from its start. The lease is looked at after the sending,
        since the worker may have been suspended before.
        """
        following = self._receive(waits=True) if self.outbox.is_telling else []
        is_sent = self._sends_acks(self._host.in_flight)
        if not (is_sent and self.claims.lease.is_fresh):
            self.outbox.repeat_acks()
            following += self._flush()  # waits as well for another thread that is about to tell the ack
        if following:
            self._host.deliver(following)

    def _sends_acks(self, in_flight: InFlight | None) -> bool:
        if in_flight is None or self._in_trouble or not self.claims.has_acks:
            return False
        try:
            return self.outbox.send_acks(self.scheduler, in_flight)
        except (RedisError, OSError):
            return False  # another connection may do

    def _flush(self) -> list[Claim]:
        if self._in_trouble:
            return []
        try:
            return self.outbox.flush(self.scheduler, inline=not self.claims.is_closed) or []
        except (RedisError, OSError) as exc:
            self.note_trouble(exc)
            return []

    # -- the heartbeats' thread

    def flush_all(self) -> None:
        """Tell all acks and ends, and wait for the replies. Raises a redis error if the server does not answer."""
        while self.outbox.has_news:
            following = self.outbox.flush(self.scheduler, inline=False)
            if following is None:
                return  # the event loop tells
            if following:
                self._host.deliver(following)

    def do_without_the_loop(self) -> bool:
        """Give back jobs that wait for an event loop that stands still. Return whether there is something to tell."""
        gives_back = self.claims.give_back_unstarted()
        takes_over = self.outbox.take_over()
        return gives_back or takes_over

    def note_trouble(self, exc: BaseException) -> None:
        """Have the heartbeats' thread tell from now on, until `note_answer`: the server does not answer."""
        if not self._in_trouble:
            logger.warning("The broker does not answer; jobs that end meanwhile will be reported when it does: %s", exc)
            self._in_trouble = True
            self._heartbeats.wake()

    def note_answer(self) -> None:
        """Have the event loop tell again: the server has answered."""
        if self._in_trouble:
            self._in_trouble = False
            self.returns += 1
            logger.info("The broker answers again")
