"""Acks and ends on their way to the server: each is told until a reply confirms it, and counts once.

One thread at a time tells. The event loop sends and goes on; any other thread waits for the reply.

The moment and the thread in which the server is told what became of claims.

The end of a task goes one way: `Reporting.end` has it written down (`claims`) and, in the event loop's thread, sent at
once (`outbox`). While no event loop runs, or the server does not answer, the thread of the heartbeats tells.
"""

import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as ReplyTimeoutError

from ..background import PeriodicThread
from ..broker.inflight import InFlightCommands
from ..log_limit import limited_logger
from ..policy.slot_math import NOTHING, PrefetchLimit
from ..scheduler.messages import Claim, EndArguments
from ..scheduler.scheduler import Scheduler
from ..schema.constants import MOST_MOVES
from .claims import ClaimTable
from .held_claim import ACKED, HeldClaim, PoolPort, TaskRequest, WorkerLoop
from .prefetch import Prefetch


@dataclass
class _Batch:
    """The acks and ends that one call tells, by delivery tag. By the *sequence* number a repetition counts once."""

    sequence: int
    acks: dict[str, HeldClaim]
    ends: dict[str, HeldClaim]
    was_told: bool = False
    is_repeated: bool = False

    def tell(self) -> dict[str, Any]:
        """Return the batch as arguments of `Scheduler.release_and_claim`: the next time as those of a repeated call."""
        self.is_repeated, self.was_told = self.was_told, True
        sequence = -self.sequence if self.is_repeated else self.sequence
        return {
            "acks": [held.number for held in self.acks.values()],
            "ends": [EndArguments(held.job_id, held.fence, held.told) for held in self.ends.values()],
            "sequence": sequence,
        }


@dataclass
class _SentAcks:
    """Acks that are on their way in one command, by delivery tag. *repeated*: whether `repeat_acks` repeated them."""

    acks: dict[str, HeldClaim]
    repeated: bool = False


class Outbox:
    """Tells the server the news of *claims*. Wakes *heartbeats* for refused acks and urgent sums."""

    def __init__(self, claims: ClaimTable, heartbeats: PeriodicThread) -> None:
        self._claims = claims
        self._heartbeats = heartbeats
        #: Lock of the batch and the acks on their way. A thread that needs the claims' lock, too, takes this one first.
        self._lock = threading.RLock()  # reentrant: see `claims`
        #: Lock of the thread that tells. The event loop's thread holds it from `send` to `receive`.
        self._flushing = threading.Lock()
        self._is_telling = False
        self._batch: _Batch | None = None
        self._sent_acks: list[_SentAcks] = []
        self._in_flight: InFlightCommands | None = None
        self._sequence = 0
        #: Number of jobs that are pending again because of the ends that were told here.
        self.returned = 0

    @property
    def has_news(self) -> bool:
        """Whether there is something to tell, or to tell again."""
        return self._batch is not None or self._claims.has_news

    # -- one round trip, of which the caller waits for the reply

    def flush(self, scheduler: Scheduler, *, inline: bool) -> list[Claim] | None:
        """Tell the server acks and ends, `MOST_MOVES` of each at most: `has_news` says whether to go on.

        *inline*, for the event loop alone: return the jobs that follow, none beyond the worker's slots. Any
        other thread gets None at once while another one tells.

        Raises a redis error if the server does not answer; the next call tells the batch again, and it counts once.
        """
        if not self._flushing.acquire(blocking=inline):
            return None
        try:
            batch = self._next_batch()
            if batch is None:
                return []
            following = scheduler.release_and_claim(
                self._claims.worker,
                **batch.tell(),
                inline=inline,
                on_acked=lambda acked: self._check_acked(batch.acks, acked),
            )
            self._forget(batch, following)
            return following
        finally:
            self._flushing.release()

    def _next_batch(self) -> _Batch | None:
        if self._batch is None and self._claims.has_news:
            acks, ends = self._claims.pending_reports(MOST_MOVES)
            if acks or ends:
                self._sequence += 1
                self._batch = _Batch(self._sequence, acks, ends)
        return self._batch

    def _forget(self, batch: _Batch, following: Sequence[Claim]) -> None:
        self._batch = None
        self.returned += self._claims.forget(batch.ends, () if batch.is_repeated else following)
        if self._claims.sums.are_urgent:
            self._heartbeats.wake()

    def _check_acked(self, acks: dict[str, HeldClaim], acked: int) -> None:
        """Void *acks* if the server took none. If the server took some and not all, a sync tells which are void."""
        if acked < len(acks):
            if not acked:
                self._claims.void(held.number for held in acks.values())
            self._heartbeats.wake()  # a sync tells what else is void

    # -- acks whose reply nobody waits for

    def send_acks(self, scheduler: Scheduler, in_flight: InFlightCommands) -> bool:
        """Send acks, and leave the reply for `receive`. Return whether all were sent, on a connection that seems sound.

        Acks that were sent arrive even if this process ends. Not to be called while the outbox `is_telling`. Raises a
        redis error if the acks cannot be sent; the next call tells them again.
        """
        assert not self._is_telling, "its reply would come first"
        goes_on = bool(self._sent_acks)
        if not in_flight.is_proven or (in_flight.is_under_way and not goes_on):
            return False
        with self._lock:
            sent = _SentAcks(self._claims.take_acks(MOST_MOVES))
            if not sent.acks:
                return False  # another thread is telling them: without a command there is no reply to be counted
            self._sent_acks.append(sent)
        try:
            numbers = [held.number for held in sent.acks.values()]
            scheduler.send_acks(in_flight, self._claims.worker, numbers, goes_on=goes_on)
        except BaseException:
            self._take_acks_back()
            raise
        self._in_flight = in_flight
        return not self._claims.has_acks

    def repeat_acks(self) -> bool:
        """Have the next `flush` send the acks of `send_acks` again, once. Return whether there were any.

        Nobody reads the reply before the task ends, so nobody would see that the connection broke just then. An ack
        that is told twice counts once.
        """
        with self._lock:
            repeated = [each for each in self._sent_acks if not each.repeated]
            for each in repeated:
                each.repeated = True
                self._claims.requeue_acks(each.acks)
        return bool(repeated)

    def _receive_acks(self, scheduler: Scheduler, in_flight: InFlightCommands) -> bool:
        """Read the replies to `send_acks`, which come before that to `send`. Return whether there were any to read."""
        with self._lock:
            sent = list(self._sent_acks)
        if not sent:
            return False
        try:
            replies = scheduler.receive_acks(in_flight, len(sent))
        except BaseException:
            self._take_acks_back()
            raise
        with self._lock:
            self._sent_acks = []
        for each, acked in zip(sent, replies, strict=False):  # another thread may have taken the rest over
            self._check_acked(each.acks, acked)
        return True

    def _take_acks_back(self) -> bool:
        """Have acks that are on their way told again. Return whether there were any."""
        with self._lock:
            sent, self._sent_acks = self._sent_acks, []
            for each in sent:
                self._claims.requeue_acks(each.acks)
        return bool(sent)

    # -- a batch whose reply the event loop reads later

    def send(self, scheduler: Scheduler, in_flight: InFlightCommands, *, may_hold: PrefetchLimit) -> None:
        """Send what `flush` would tell, inline. Until `receive`, `abandon` or `take_over` the outbox `is_telling`.

        Nothing is sent while another thread tells.
        """
        if not self._flushing.acquire(blocking=False):
            return
        is_sent = False
        try:
            batch = self._next_batch()
            if batch is not None:
                goes_on = bool(self._sent_acks)
                worker = self._claims.worker
                scheduler.send_ends(in_flight, worker, **batch.tell(), may_hold=may_hold, goes_on=goes_on)
                self._in_flight, is_sent = in_flight, True
        except BaseException:
            self._take_acks_back()
            raise
        finally:
            self._is_telling = is_sent
            if not is_sent:
                self._flushing.release()

    def receive(self, scheduler: Scheduler, *, waits: bool = True) -> list[Claim]:
        """Read the replies to `send` and `send_acks`; with *waits*, all of them. Return and raise what `flush` does.

        If another thread took the batch over, its reply is not read: the jobs that follow come in a later one.
        """
        in_flight, batch = self._in_flight, self._batch
        assert in_flight is not None, "sent"
        try:
            had_acks = self._receive_acks(scheduler, in_flight)
        except ResponseError:
            self._stop_telling()
            return self.flush(scheduler, inline=True) or []
        except BaseException:
            self._stop_telling()
            raise
        if had_acks and not (in_flight.is_under_way and (waits or in_flight.is_readable)):
            return []
        if not self._ends_telling():
            in_flight.close()
            return []
        assert batch is not None, "sent"
        try:
            following = scheduler.receive_ends(in_flight, has_ends=bool(batch.ends))
            self._forget(batch, following)
            return following
        except ResponseError:
            pass  # `flush` handles the error
        finally:
            self._flushing.release()
        return self.flush(scheduler, inline=True) or []

    def abandon(self) -> None:
        """Have the next `flush` repeat what is on its way. Only the event loop's thread calls this."""
        if self._in_flight is None:
            return
        was_telling, had_acks = self._ends_telling(), self._take_acks_back()
        try:
            if was_telling or had_acks:
                self._in_flight.close()
        finally:
            if was_telling:
                self._flushing.release()

    def take_over(self) -> bool:
        """Like `abandon`, for a thread other than the event loop's while the loop stands still.

        Return whether this thread has something to tell again. The connection stays open, since only the loop may
        remove a connection from the hub: `receive` closes it, unless only acks are on their way.
        """
        if self._stop_telling():
            self._take_acks_back()
            return True
        return self.repeat_acks()

    @property
    def is_telling(self) -> bool:
        """Whether a batch is on its way to the server, and its reply still to be received."""
        return self._is_telling

    @property
    def is_late(self) -> bool:
        """Whether the reply to the batch or to the acks on their way is overdue."""
        is_due = self._is_telling or bool(self._sent_acks)
        return is_due and self._in_flight is not None and self._in_flight.is_late

    def _ends_telling(self) -> bool:
        """Return whether the caller has to end the exchange that is on its way: only one thread gets True."""
        with self._lock:
            was_telling, self._is_telling = self._is_telling, False
        return was_telling

    def _stop_telling(self) -> bool:
        was_telling = self._ends_telling()
        if was_telling:
            self._flushing.release()
        return was_telling


logger = limited_logger(__name__)


class EndReporter:
    """Tells *scheduler*, which may be replaced, of *claims*: the acks, ends and returns of their jobs."""

    def __init__(
        self,
        scheduler: Scheduler,
        claims: ClaimTable,
        lookahead: Prefetch,
        *,
        pool: PoolPort,
        host: WorkerLoop,
        heartbeats: PeriodicThread,
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

    def set_outcome(self, tag: str, outcome: str, why: str = "") -> None:
        """Have the server know what became of a message (see `Claims.set_outcome`)."""
        if self.claims.set_outcome(tag, outcome, why):
            self._call_for_a_report()
        if self.claims.has_settled_in_buffer:
            self._heartbeats.wake()

    # -- messages buffered by a task's custom strategy

    def buffer(self, tag: str, request: TaskRequest) -> None:
        """Let the server place another job on the claim's slot. The claim itself does not end (`Claims.buffer`)."""
        self.claims.buffer(tag, request)
        self._heartbeats.wake()

    def take_back(self, tag: str, request: TaskRequest) -> None:
        """Make the claim of *request* occupy a slot again."""
        self.claims.take_back(tag, request)
        self._heartbeats.wake()

    def end_settled_in_buffer(self, tags: Collection[str]) -> None:
        """End the claims that `Claims.settled_in_buffer` returned before the last sync."""
        for tag in tags:
            self.end(tag)

    # -- the end of a claim

    def check_may_start(self, tag: str) -> bool:
        """Return whether the task of a claim may start; if not, the job may be given back (see `Claims.check_may_start`)."""
        may = self.claims.check_may_start(tag)
        if not may and self.claims.has_news:
            self._call_for_a_report()
        return may

    def started(self, tag: str) -> None:
        """Record that the task of a claim has started. An early ack is sent before the task blocks the event loop."""
        held = self.claims.start(tag)
        if held is not None and held.outcome == ACKED and self._pool.blocks_the_loop:
            self.ack_now()

    def start_next_in_freed_slot(self, tag: str) -> None:
        """Start the next job that is held ahead in the slot of a claim whose task has ended.

        The process of the task has nothing to do meanwhile, so all else that the end brings comes after this. Nothing
        is done in another thread than the event loop's, or for a pool without processes.
        """
        self.claims.mark_ending(tag)
        if self.lookahead and self._pool.forks and self._host.in_flight is not None and self.claims.mark_slot_free(tag):
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
            self.switch_to_heartbeat_thread(exc)

    def receive(self) -> list[Claim]:
        """Return the jobs that follow the ends that were sent; none if the server does not answer, or not yet."""
        return self._receive(waits=False)

    def _receive(self, *, waits: bool) -> list[Claim]:
        try:
            return self.outbox.receive(self.scheduler, waits=waits)
        except (RedisError, OSError) as exc:
            self.switch_to_heartbeat_thread(exc)
            return []

    @property
    def _may_hold(self) -> PrefetchLimit:
        """What the worker may hold beyond its slots."""
        return NOTHING if self.lookahead.is_off else self.lookahead.room(self._pool.size())

    def abandon_what_is_late(self) -> None:
        """Have the heartbeats' thread tell again if a reply is overdue."""
        if self.outbox.is_late:
            self.outbox.abandon()
            self.switch_to_heartbeat_thread(ReplyTimeoutError("no reply to what was sent"))

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

    def _sends_acks(self, in_flight: InFlightCommands | None) -> bool:
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
            self.switch_to_heartbeat_thread(exc)
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

    def return_jobs_of_stalled_loop(self) -> bool:
        """Give back jobs that wait for an event loop that stands still. Return whether there is something to tell."""
        gives_back = self.claims.give_back_unstarted()
        takes_over = self.outbox.take_over()
        return gives_back or takes_over

    def switch_to_heartbeat_thread(self, exc: BaseException) -> None:
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
