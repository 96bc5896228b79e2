"""Celery's requests of the jobs that start next, made while other tasks run.

A request takes longer to make (the message is read, the task's strategy runs) than a free pool process should wait. So
requests are made ahead for as many jobs held beyond the slots as the pool has slots. A job whose request is made waits
like the others: its claim has no request until the job starts, and the job can be given back.

The jobs that follow: each is held first and started next, whichever way it came.

Without lookahead a job has its slot when it comes, and starts at once. With lookahead all jobs that came are held
before the first of them starts; each starts when a slot is free, in the order of the fencing numbers.

Reads the inbox of one cohort in a thread, since one BRPOP cannot wait on two servers, or on two shards.

A server that is down holds up nobody else's jobs.
"""

import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from celery.worker import state
from celery.worker.request import Request
from redis.exceptions import RedisError, ResponseError

from ..background import PeriodicThread
from ..leases.claims import ClaimTable
from ..leases.held_claim import RETURNED
from ..leases.member import Member
from ..leases.outbox import EndReporter
from ..leases.prefetch import STARTS_WITHIN_S
from ..log_limit import limited_logger
from ..publishing.app_config import settings_of
from ..publishing.option_sources import mode_of
from ..scheduler.messages import LONGEST_FENCE, Claim
from ..scheduler.scheduler import Scheduler
from ..schema import constants, values
from ..schema.values import decode_part
from ..transport.channel import AffinityChannel
from ..transport.inbox import Inbox
from . import pool
from .event_loop import CeleryWorkerLoop
from .pool import PoolSlots
from .preemption import Preemption

if TYPE_CHECKING:
    from .consumer import AffinityConsumer


class PrebuiltRequests:
    """The requests of claims whose jobs wait for a slot of *consumer*, by delivery tag. For the event loop's thread."""

    def __init__(self, consumer: "AffinityConsumer", claims: ClaimTable) -> None:
        self._consumer, self._claims = consumer, claims
        self._requests: dict[str, Request] = {}
        self._keeps: str | None = None
        consumer.affinity_made_ahead.append(self)

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, tag: str) -> bool:
        return tag in self._requests

    def make(self, tag: str, consume: Callable[[], None]) -> bool:
        """Keep the request that *consume* makes for the claim of *tag*. Return False if the job has ended, or has gone.

        A message may be refused, for example, and a task may have expired or be revoked.
        """
        self._keeps = tag
        try:
            consume()
        finally:
            self._keeps = None
        return tag in self._requests

    def start(self, tag: str) -> None:
        """Start the task of *tag*, whose request was made, and which has a slot now."""
        request = self._requests.pop(tag)
        self._claims.bind(tag, request)
        properties = request.request_dict["properties"]
        self._claims.count_wait(tag, on_demand=bool(mode_of(properties)), priority=properties.get("priority"))
        bucket = self._consumer.task_buckets.get(request.name)  # of today's limit: that of the making may be gone
        if bucket:
            self._consumer._limit_task(request, bucket, 1)
        else:
            self._consumer.on_task_request(request)

    def drop(self, tags: Collection[str]) -> None:
        """Drop the requests of *tags*: their jobs start elsewhere."""
        for tag in tags:
            request = self._requests.pop(tag, None)
            if request is not None:
                state.task_ready(request)

    def clear(self) -> None:
        """Drop all requests."""
        self.drop(tuple(self._requests))

    def keeps(self, request: Request) -> bool:
        """Keep *request* if it is the one that is being made, and return whether it is."""
        tag = self._keeps
        if tag is None or getattr(request, "_tag", None) != tag:
            return False
        self._claims.unbind(tag)
        self._requests[tag] = request
        return True


#: Most digits of a number of jobs in a sign of the server.
_LONGEST_NUMBER = 9


#: Time, s, after which a pool that blocks the event loop starts no further job before the loop has iterated.
_RUNS_FOR_S = 0.002


class JobFeed:
    """The jobs that come to *members*, from the inbox (`Inbox`) and in replies, until they start in *consumer*.

    The event loop's thread calls all methods but `receive_elsewhere`.
    """

    def __init__(self, consumer: "AffinityConsumer", members: Member, host: CeleryWorkerLoop, slots: PoolSlots) -> None:
        self.reporter = members.reporter
        self.schedules = settings_of(consumer.app).schedules
        self._consumer = consumer
        self._members, self._host, self._slots = members, host, slots
        self._lookahead = members.lookahead
        self._made = PrebuiltRequests(consumer, members.claims)
        self._preempting = Preemption(consumer, members, slots)
        self._arrived: deque[Claim] = deque()
        self._channel: AffinityChannel | None = None
        self._heeds_consumers = False
        self._watch: PeriodicThread | None = None
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
            self._watch = PeriodicThread("affinity-lookahead", self._give_back_if_it_stands_still, STARTS_WITHIN_S / 2)
            self._watch.start()

    def _give_back_if_it_stands_still(self) -> None:
        if self._lookahead or self.reporter.outbox.is_telling:  # a reply that nobody reads brings more
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
        return self.reporter.claims.inbox

    @property
    def drained(self) -> bool:
        return self.reporter.claims.drained

    def reporting_of(self, tag: str) -> EndReporter:
        return self.reporter

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
            self._start_ready_jobs()

    def obey(self, sign: list[str]) -> None:
        match sign:
            case [constants.TICK_SIGN]:
                self._members.tick()
            case [constants.BACK_SIGN, at_most, *types] if at_most.isdecimal() and len(at_most) <= _LONGEST_NUMBER:
                self._return(self._lookahead.give_back(set(map(decode_part, types)), int(at_most)))
            case [constants.PAUSED_SIGN, what, fence] if fence.isdecimal() and len(fence) <= LONGEST_FENCE:
                self._recall(what, int(fence))
            case [constants.PREEMPT_SIGN, job_id, fence, grace_ms] if (
                fence.isdecimal() and len(fence) <= LONGEST_FENCE
            ) and (grace_ms.isdecimal() and len(grace_ms) <= _LONGEST_NUMBER):
                self._return(self._preempting.order(job_id, fence, int(grace_ms) / 1000))
            case _:
                values.log_and_drop_untrusted("the inbox", sign, "it is neither a job nor a sign of the server")

    def _recall(self, what: str, fence: int) -> None:
        """Give back claims up to *fence* that a pause of *what* concerns: those ahead now, others when they come."""
        self._members.withdrawn_types.add(what, fence)
        kind, _, name = what.partition(":")
        types = self._members.capacity.types if kind == "*" else (decode_part(name),) if kind == "type" else ()
        self._return(self._lookahead.give_back(types, len(self._lookahead)))

    # -- replies

    def iterate(self) -> None:
        """Start the jobs that follow, tell the ends since the loop's last iteration, and make requests ahead."""
        self._members.loop_ran()
        self._members.notice_slots()
        self._prefetch_arrived()
        if self._lookahead:
            self._give_back_what_is_late()
        self._go_on()

    def _go_on(self) -> None:
        """Start jobs, tell ends and make requests ahead: nothing that can wait holds up a start."""
        if self._slots.blocks_the_loop:  # the start is the whole task, and the server can work meanwhile
            self.reporter.tell()
            self._run_what_follows()
            return
        if self._start_what_follows() and not pool.writes_immediately(self._consumer.pool, self._consumer.hub):
            self._host.wake()  # for the rest: first the loop has the pool write
            return
        self.reporter.tell()
        self._prebuild_requests()

    def _prebuild_requests(self) -> None:
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
        self._arrived.extend(self.reporter.receive())
        self._prefetch_arrived()
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

    def _prefetch_arrived(self) -> None:
        """With lookahead, hold all jobs that arrived before the first of them starts."""
        while self._arrived and not self._lookahead.is_off:
            self._hold(self._arrived.popleft())

    def _hold(self, claim: Claim) -> None:
        claims = self.reporter.claims
        tag = claims.hold(claim)
        if tag is None:
            return
        if claims.drained:  # the job was on its way; here it would wait behind a long task, and then not start
            self.reporter.set_outcome(tag, RETURNED)
        else:
            self._lookahead.add(claim, tag)

    def _start(self, claim: Claim) -> None:
        tag = self.reporter.claims.hold(claim)
        if tag is not None:
            self._hand_over(claim, tag)

    def _hand_over(self, claim: Claim, tag: str) -> None:
        assert self._channel is not None, "begun"
        recalled = self._members.withdrawn_types
        if recalled and recalled.has(claim.job_id, claim.type, claim.fence):
            self._return([tag])
        elif tag in self._made:
            self._channel.burying(claim, tag, partial(self._made.start, tag))
        else:
            self._channel.consume(claim, tag)

    def _return(self, tags: Collection[str]) -> None:
        self._made.drop(tags)
        for tag in tags:
            self.reporter.set_outcome(tag, RETURNED)

    def _start_what_follows(self) -> int:
        """Start the jobs that arrived, as far as there are slots. Return how many."""
        return self._start_what_arrived() + self._start_ready_jobs()

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
                pool.writes_immediately(self._consumer.pool, self._consumer.hub)
        except (Exception, SystemExit) as exc:
            self._consumer.call_soon(_fail, exc)

    def _start_ready_jobs(self) -> int:
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


logger = limited_logger(__name__)

#: Longest wait, s, of one call for the inbox, and pause after an error.
_WAITS_S = 2.0
_RETRY_S = 0.5

#: Time, s, after which the word that ends a wait is gone.
_NUDGE_KEPT_S = 10


class InboxReader:
    """Calls *receive* with each claim in the inbox of *worker*, and *obey* with each sign, until stopped.

    *scheduler*: on connections of its own.
    """

    def __init__(
        self,
        cohort: str,
        scheduler: Scheduler,
        worker: str,
        *,
        receive: Callable[[Claim], None],
        obey: Callable[[list[str]], None],
    ) -> None:
        self._scheduler, self._worker = scheduler, worker
        self._inbox, self._nudges = (scheduler.keys.key(name, worker) for name in ("inbox", "nudges"))
        self._receive, self._obey = receive, obey
        timeout_s = scheduler.client.connection_pool.connection_kwargs.get("socket_timeout") or 2 * _WAITS_S
        self._waits_s = min(_WAITS_S, timeout_s / 2)
        self._is_stopped = False
        self._reading = PeriodicThread(f"affinity-inbox-{cohort}", self._read, 0.0)

    def start(self) -> None:
        self._reading.start()

    def use(self, scheduler: Scheduler) -> None:
        """Go on with another *scheduler* of the same cohort."""
        before, self._scheduler = self._scheduler, scheduler
        before.close()

    def stop(self) -> None:
        """Read no more. What is still in the inbox goes back with the worker's leave."""
        self._is_stopped = True
        with suppress(RedisError, OSError), self._scheduler.client.pipeline(transaction=False) as pipe:
            pipe.lpush(self._nudges, "")  # ends the wait
            pipe.expire(self._nudges, _NUDGE_KEPT_S)
            pipe.execute()
        self._reading.stop()
        self._scheduler.close()

    def _read(self) -> float | None:
        if self._is_stopped:
            return _WAITS_S
        try:
            reply = self._scheduler.client.execute_command("BRPOP", self._inbox, self._nudges, self._waits_s)
        except ResponseError as exc:
            if str(exc).startswith("WRONGTYPE"):
                with suppress(RedisError, OSError):
                    self._scheduler.repair([self._worker])
            return _RETRY_S
        except (RedisError, OSError):
            return _RETRY_S  # the heartbeats say so in the log
        if reply and reply[0].decode() == self._inbox:
            self._read_item(reply[1])
        return None

    def _read_item(self, item: bytes) -> None:
        try:
            claim = None if item.startswith(b"\n") else Claim.parse(item)
            sign = item.decode().split() if claim is None else []
        except ValueError as exc:
            values.log_and_drop_untrusted("the inbox", item, exc)  # a job that was there is given back by the next sync
            return
        if claim is not None:
            self._receive(claim)
        else:
            self._obey(sign)
