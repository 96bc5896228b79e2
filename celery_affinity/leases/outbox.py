"""Report acks and ends of claims to the server, each repeated until a reply confirms it, and counted once.

`EndReporter.end` records the end of a task (`claims`) and, in the event loop's thread, sends it immediately (`Outbox`).
If no event loop runs, or the server does not answer, the heartbeat thread reports instead. One thread at a time
reports: the event loop sends and continues, while any other thread waits for the reply.
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
from ..schema.constants import MAX_MOVES
from .claims import ClaimTable
from .held_claim import ACKED, HeldClaim, PoolPort, TaskRequest, WorkerLoop
from .prefetch import Prefetch


@dataclass
class _Batch:
    """The acks and ends of one invocation, by delivery tag."""

    #: Identifies the batch, so that a repetition counts once.
    sequence: int
    acks: dict[str, HeldClaim]
    ends: dict[str, HeldClaim]
    was_sent: bool = False
    is_repeated: bool = False

    def next_arguments(self) -> dict[str, Any]:
        """Return the arguments of `Scheduler.release_and_claim`, marked as a repetition from the second time on."""
        self.is_repeated, self.was_sent = self.was_sent, True
        sequence = -self.sequence if self.is_repeated else self.sequence
        return {
            "acks": [held.number for held in self.acks.values()],
            "ends": [EndArguments(held.job_id, held.fence, held.outcome_text) for held in self.ends.values()],
            "sequence": sequence,
        }


@dataclass
class _SentAcks:
    """Acks of one command that awaits its reply, by delivery tag."""

    acks: dict[str, HeldClaim]
    #: True if `repeat_acks` repeated them.
    repeated: bool = False


class Outbox:
    """Reports the acks and ends of *claims*. Wakes *heartbeats* for refused acks and urgent metrics."""

    def __init__(self, claims: ClaimTable, heartbeats: PeriodicThread) -> None:
        self._claims = claims
        self._heartbeats = heartbeats
        #: Guards the batch and the sent acks. A thread that also needs the claims' lock must take this one first.
        self._lock = threading.RLock()  # reentrant: see `claims`
        #: Held by the thread that reports. The event loop's thread holds it from `send` to `receive`.
        self._flush_lock = threading.Lock()
        #: True if a batch was sent, and its reply has not been received yet.
        self.is_telling = False
        self._batch: _Batch | None = None
        self._sent_acks: list[_SentAcks] = []
        self._in_flight: InFlightCommands | None = None
        self._sequence = 0
        #: Number of jobs that are pending again because of ends reported here.
        self.returned = 0

    @property
    def has_news(self) -> bool:
        """True if there is something to report, or to repeat."""
        return self._batch is not None or self._claims.has_news

    def flush(self, scheduler: Scheduler, *, inline: bool) -> list[Claim] | None:
        """Report at most `MAX_MOVES` acks and as many ends; `has_news` is True if more remain.

        With *inline*, only for the event loop: return the next jobs to start, at most as many as the worker has slots.
        Any other thread gets None immediately if another thread reports.

        Raises a redis error if the server does not answer. The next call repeats the batch, which counts once.
        """
        if not self._flush_lock.acquire(blocking=inline):
            return None
        try:
            batch = self._next_batch()
            if batch is None:
                return []
            next_claims = scheduler.release_and_claim(
                self._claims.worker,
                **batch.next_arguments(),
                inline=inline,
                on_acked=lambda acked: self._check_acked(batch.acks, acked),
            )
            self._forget(batch, next_claims)
            return next_claims
        finally:
            self._flush_lock.release()

    def _next_batch(self) -> _Batch | None:
        if self._batch is None and self._claims.has_news:
            acks, ends = self._claims.pending_reports(MAX_MOVES)
            if acks or ends:
                self._sequence += 1
                self._batch = _Batch(self._sequence, acks, ends)
        return self._batch

    def _forget(self, batch: _Batch, next_claims: Sequence[Claim]) -> None:
        self._batch = None
        self.returned += self._claims.forget(batch.ends, () if batch.is_repeated else next_claims)
        if self._claims.sums.are_urgent:
            self._heartbeats.wake()

    def _check_acked(self, acks: dict[str, HeldClaim], acked: int) -> None:
        """Void *acks* if the server accepted none. If it accepted only some, a sync finds the void ones."""
        if acked < len(acks):
            if not acked:
                self._claims.void(held.number for held in acks.values())
            self._heartbeats.wake()  # a sync finds other void claims

    def send_acks(self, scheduler: Scheduler, in_flight: InFlightCommands) -> bool:
        """Send acks, and leave the reply for `receive`. Return True if all were sent on a connection that seems sound.

        Sent acks arrive even if this process ends. Do not call this while the outbox `is_telling`. Raises a redis error
        if the acks cannot be sent; the next call repeats them.
        """
        assert not self.is_telling, "its reply would come first"
        has_sent_acks = bool(self._sent_acks)
        if not in_flight.is_proven or (in_flight.is_under_way and not has_sent_acks):
            return False
        with self._lock:
            sent = _SentAcks(self._claims.take_acks(MAX_MOVES))
            if not sent.acks:
                return False  # another thread reports them, and without a command there is no reply to wait for
            self._sent_acks.append(sent)
        try:
            numbers = [held.number for held in sent.acks.values()]
            scheduler.send_acks(in_flight, self._claims.worker, numbers, goes_on=has_sent_acks)
        except BaseException:
            self._requeue_sent_acks()
            raise
        self._in_flight = in_flight
        return not self._claims.has_acks

    def repeat_acks(self) -> bool:
        """Make the next `flush` send the acks of `send_acks` once more. Return True if there were any.

        The reply is only read after the task ends, so a connection that broke just then would go unnoticed. An ack that
        is reported twice counts once.
        """
        with self._lock:
            unrepeated = [sent for sent in self._sent_acks if not sent.repeated]
            for sent in unrepeated:
                sent.repeated = True
                self._claims.requeue_acks(sent.acks)
        return bool(unrepeated)

    def _receive_acks(self, scheduler: Scheduler, in_flight: InFlightCommands) -> bool:
        """Read the replies to `send_acks`, which precede the reply to `send`. Return True if there were any to read."""
        with self._lock:
            sent = list(self._sent_acks)
        if not sent:
            return False
        try:
            replies = scheduler.receive_acks(in_flight, len(sent))
        except BaseException:
            self._requeue_sent_acks()
            raise
        with self._lock:
            self._sent_acks = []
        for command, acked in zip(sent, replies, strict=False):  # another thread may have taken over the rest
            self._check_acked(command.acks, acked)
        return True

    def _requeue_sent_acks(self) -> bool:
        """Make sent but unconfirmed acks pending again. Return True if there were any."""
        with self._lock:
            commands, self._sent_acks = self._sent_acks, []
            for command in commands:
                self._claims.requeue_acks(command.acks)
        return bool(commands)

    def send(self, scheduler: Scheduler, in_flight: InFlightCommands, *, may_hold: PrefetchLimit) -> None:
        """Send the batch of an inline `flush`. The outbox `is_telling` until `receive`, `abandon` or `take_over`.

        Nothing is sent while another thread reports.
        """
        if not self._flush_lock.acquire(blocking=False):
            return
        is_sent = False
        try:
            batch = self._next_batch()
            if batch is not None:
                has_sent_acks = bool(self._sent_acks)
                worker = self._claims.worker
                scheduler.send_ends(
                    in_flight, worker, **batch.next_arguments(), may_hold=may_hold, goes_on=has_sent_acks
                )
                self._in_flight, is_sent = in_flight, True
        except BaseException:
            self._requeue_sent_acks()
            raise
        finally:
            self.is_telling = is_sent
            if not is_sent:
                self._flush_lock.release()

    def receive(self, scheduler: Scheduler, *, waits: bool = True) -> list[Claim]:
        """Read the replies to `send` and `send_acks`; with *waits*, all of them. Return and raise what `flush` does.

        If another thread took over the batch, its reply is not read: the next jobs come in a later reply.
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
        if not self._clear_telling():
            in_flight.close()
            return []
        assert batch is not None, "sent"
        try:
            next_claims = scheduler.receive_ends(in_flight, has_ends=bool(batch.ends))
            self._forget(batch, next_claims)
            return next_claims
        except ResponseError:
            pass  # `flush` handles the error
        finally:
            self._flush_lock.release()
        return self.flush(scheduler, inline=True) or []

    def abandon(self) -> None:
        """Make the next `flush` repeat everything unconfirmed. Only the event loop's thread calls this."""
        if self._in_flight is None:
            return
        was_telling, had_acks = self._clear_telling(), self._requeue_sent_acks()
        try:
            if was_telling or had_acks:
                self._in_flight.close()
        finally:
            if was_telling:
                self._flush_lock.release()

    def take_over(self) -> bool:
        """Like `abandon`, for other threads while the event loop is stalled. Return True if something must be repeated.

        The connection stays open, since only the loop may remove a connection from the hub. `receive` closes it, unless
        only acks are unconfirmed.
        """
        if self._stop_telling():
            self._requeue_sent_acks()
            return True
        return self.repeat_acks()

    @property
    def is_late(self) -> bool:
        """True if the reply to the batch, or to the sent acks, is overdue."""
        is_due = self.is_telling or bool(self._sent_acks)
        return is_due and self._in_flight is not None and self._in_flight.is_late

    def _clear_telling(self) -> bool:
        """Return True if the caller must end the exchange in progress: only one thread gets True."""
        with self._lock:
            was_telling, self.is_telling = self.is_telling, False
        return was_telling

    def _stop_telling(self) -> bool:
        was_telling = self._clear_telling()
        if was_telling:
            self._flush_lock.release()
        return was_telling


logger = limited_logger(__name__)


class EndReporter:
    """Reports acks, ends and returns of *claims* to *scheduler*, which can be replaced."""

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
        self._is_server_silent = False
        self._freed_tag = ""
        #: Number of times that the server answered again after a silence.
        self.returns = 0

    def set_outcome(self, tag: str, outcome: str, why: str = "") -> None:
        """Record and report the outcome of a message (see `ClaimTable.set_outcome`). Any thread can call this."""
        if self.claims.set_outcome(tag, outcome, why):
            self._request_report()
        if self.claims.has_settled_in_buffer:
            self._heartbeats.wake()

    def buffer(self, tag: str, request: TaskRequest) -> None:
        """Let the server place another job on the claim's slot. The claim itself does not end (`ClaimTable.buffer`)."""
        self.claims.buffer(tag, request)
        self._heartbeats.wake()

    def take_back(self, tag: str, request: TaskRequest) -> None:
        """Make the claim of *request* occupy a slot again."""
        self.claims.take_back(tag, request)
        self._heartbeats.wake()

    def give_back(self, tags: Collection[str]) -> None:
        """Return claims that will not start, with the next heartbeat."""
        self.claims.abandon(tags)
        self._heartbeats.wake()

    def check_may_start(self, tag: str) -> bool:
        """Return True if the task of a claim may start. Otherwise see `ClaimTable.check_may_start`."""
        may = self.claims.check_may_start(tag)
        if not may and self.claims.has_news:
            self._request_report()
        return may

    def started(self, tag: str) -> None:
        """Record that the task of a claim has started. An early ack is sent before the task blocks the event loop."""
        held = self.claims.start(tag)
        if held is not None and held.outcome == ACKED and self._pool.blocks_the_loop:
            self.ack_now()

    def start_next_in_freed_slot(self, tag: str) -> None:
        """Start the next prefetched job in the slot of a claim whose task has ended.

        The task's process is idle until then, so this precedes all other consequences of the end. Outside the event
        loop's thread, and for a pool without processes, nothing is started.
        """
        self.claims.mark_ending(tag)
        if self.lookahead and self._pool.forks and self._host.in_flight is not None and self.claims.mark_slot_free(tag):
            self._freed_tag = tag
            self._host.start_next()

    def end(self, tag: str, how: str = "", why: str = "") -> None:
        """Record and report that the slot of a claim is free. Only the first call for a claim has an effect.

        *how* and *why*: see `HeldClaim`.
        """
        held = self.claims.end(tag, how, why)
        if held is None:
            return
        if held.started_s is not None and held.request is not None:
            if self._host.limits_rate_of(held.request.name):
                self.lookahead.forget(held.type)  # the next job may have to wait for the limit
            else:
                self.lookahead.note_length(held.type, time.monotonic() - held.started_s)
        had_jobs_to_start = bool(self.lookahead) or tag == self._freed_tag  # they start first, and ends are batched
        if not had_jobs_to_start or self._pool.blocks_the_loop:
            self.tell()  # the server works in parallel with the event loop
        self._request_report()

    def _request_report(self) -> None:
        if self._is_server_silent or not self._host.wake():
            self._heartbeats.wake()

    @property
    def has_news(self) -> bool:
        """True if there is something to report, the server answers, and no batch awaits its reply."""
        return self.outbox.has_news and not self._is_server_silent and not self.outbox.is_telling

    def tell(self) -> None:
        """Send acks and ends, and leave the reply for `receive`. Works only in the event loop's thread (`in_flight`).

        Ends are batched while there are other jobs to start.
        """
        in_flight = self._host.in_flight
        if in_flight is None or not self.has_news or self.lookahead.ends_can_wait(self._host):
            return
        limit = NOTHING if self.lookahead.is_off else self.lookahead.room(self._pool.size())
        try:
            self.outbox.send(self.scheduler, in_flight, may_hold=limit)
        except (RedisError, OSError) as exc:
            self.switch_to_heartbeat_thread(exc)

    def receive(self, *, waits: bool = False) -> list[Claim]:
        """Return the next jobs after the ends that were sent; without *waits*, none before the server has answered."""
        try:
            return self.outbox.receive(self.scheduler, waits=waits)
        except (RedisError, OSError) as exc:
            self.switch_to_heartbeat_thread(exc)
            return []

    def abandon_what_is_late(self) -> None:
        """Make the heartbeat thread report again if a reply is overdue."""
        if self.outbox.is_late:
            self.outbox.abandon()
            self.switch_to_heartbeat_thread(ReplyTimeoutError("no reply to what was sent"))

    def ack_now(self) -> None:
        """Report an ack for a task that blocks the event loop as soon as it starts.

        A sent command arrives even if this process is killed immediately, so the reply can wait while the lease is
        fresh. Without a fresh lease, the server may consider the worker dead. Then this method waits for the reply, and
        a refused ack prevents the task's start. The lease is checked after sending, since the worker may have been
        suspended before.
        """
        next_claims = self.receive(waits=True) if self.outbox.is_telling else []
        is_sent = self._send_acks(self._host.in_flight)
        if not (is_sent and self.claims.lease.is_fresh):
            self.outbox.repeat_acks()
            next_claims += self._flush()  # also waits for another thread that is about to report the ack
        if next_claims:
            self._host.deliver(next_claims)

    def _send_acks(self, in_flight: InFlightCommands | None) -> bool:
        if in_flight is None or self._is_server_silent or not self.claims.has_acks:
            return False
        try:
            return self.outbox.send_acks(self.scheduler, in_flight)
        except (RedisError, OSError):
            return False  # another connection may work

    def _flush(self) -> list[Claim]:
        if self._is_server_silent:
            return []
        try:
            return self.outbox.flush(self.scheduler, inline=not self.claims.is_closed) or []
        except (RedisError, OSError) as exc:
            self.switch_to_heartbeat_thread(exc)
            return []

    def flush_all(self) -> None:
        """Report all acks and ends, and wait for the replies. Raises a redis error if the server does not answer."""
        while self.outbox.has_news:
            next_claims = self.outbox.flush(self.scheduler, inline=False)
            if next_claims is None:
                return  # the event loop reports
            if next_claims:
                self._host.deliver(next_claims)

    def return_jobs_of_stalled_loop(self) -> bool:
        """Return the jobs that wait for a stalled event loop. Return True if there is something to report."""
        has_returned = self.claims.give_back_unstarted()
        has_taken_over = self.outbox.take_over()
        return has_returned or has_taken_over

    def switch_to_heartbeat_thread(self, exc: BaseException) -> None:
        """Make the heartbeat thread report until `note_answer`, because the server does not answer."""
        if not self._is_server_silent:
            logger.warning("The broker does not answer; jobs that end meanwhile will be reported when it does: %s", exc)
            self._is_server_silent = True
            self._heartbeats.wake()

    def note_answer(self) -> None:
        """Make the event loop report again, because the server has answered."""
        if self._is_server_silent:
            self._is_server_silent = False
            self.returns += 1
            logger.info("The broker answers again")
