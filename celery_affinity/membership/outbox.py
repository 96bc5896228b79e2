"""Acks and ends on their way to the server: each is told until a reply confirms it, and counts once.

One thread at a time tells. The event loop sends and goes on; any other thread waits for the reply.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from ..rules.ahead import Ahead
from ..rules.protocol import MOST_MOVES
from ..server.arguments import End
from ..server.connections.in_flight import InFlight
from ..server.replies import Claim
from ..server.scheduler import Scheduler
from ..threads.repeating import Repeating
from .claims import Claims
from .held import Held


@dataclass
class _Batch:
    """The acks and ends that one call tells, by delivery tag. By the *sequence* number a repetition counts once."""

    sequence: int
    acks: dict[str, Held]
    ends: dict[str, Held]
    was_told: bool = False
    is_repeated: bool = False

    def tell(self) -> dict[str, Any]:
        """Return the batch as arguments of `Scheduler.tell_ends`: the next time as those of a repeated call."""
        self.is_repeated, self.was_told = self.was_told, True
        sequence = -self.sequence if self.is_repeated else self.sequence
        return {
            "acks": [held.number for held in self.acks.values()],
            "ends": [End(held.job_id, held.fence, held.told) for held in self.ends.values()],
            "sequence": sequence,
        }


@dataclass
class _SentAcks:
    """Acks that are on their way in one command, by delivery tag. *repeated*: whether `repeat_acks` repeated them."""

    acks: dict[str, Held]
    repeated: bool = False


class Outbox:
    """Tells the server the news of *claims*. Wakes *heartbeats* for refused acks and urgent sums."""

    def __init__(self, claims: Claims, heartbeats: Repeating) -> None:
        self._claims = claims
        self._heartbeats = heartbeats
        #: Lock of the batch and the acks on their way. A thread that needs the claims' lock, too, takes this one first.
        self._lock = threading.RLock()  # reentrant: see `claims`
        #: Lock of the thread that tells. The event loop's thread holds it from `send` to `receive`.
        self._flushing = threading.Lock()
        self._is_telling = False
        self._batch: _Batch | None = None
        self._sent_acks: list[_SentAcks] = []
        self._in_flight: InFlight | None = None
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
            following = scheduler.tell_ends(
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
            acks, ends = self._claims.news(MOST_MOVES)
            if acks or ends:
                self._sequence += 1
                self._batch = _Batch(self._sequence, acks, ends)
        return self._batch

    def _forget(self, batch: _Batch, following: Sequence[Claim]) -> None:
        self._batch = None
        self.returned += self._claims.forget(batch.ends, () if batch.is_repeated else following)
        if self._claims.sums.are_urgent:
            self._heartbeats.wake()

    def _check_acked(self, acks: dict[str, Held], acked: int) -> None:
        """Void *acks* if the server took none. If the server took some and not all, a sync tells which are void."""
        if acked < len(acks):
            if not acked:
                self._claims.void(held.number for held in acks.values())
            self._heartbeats.wake()  # a sync tells what else is void

    # -- acks whose reply nobody waits for

    def send_acks(self, scheduler: Scheduler, in_flight: InFlight) -> bool:
        """Send acks, and leave the reply for `receive`. Return whether all were sent, on a connection that seems sound.

        Acks that were sent arrive even if this process ends. Not to be called while the outbox `is_telling`. Raises a
        redis error if the acks cannot be sent; the next call tells them again.
        """
        assert not self._is_telling, "its reply would come first"
        goes_on = bool(self._sent_acks)
        if not in_flight.is_proven or (in_flight.is_under_way and not goes_on):
            return False
        with self._lock:
            sent = _SentAcks(self._claims.pop_acks(MOST_MOVES))
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
                self._claims.ack_again(each.acks)
        return bool(repeated)

    def _receive_acks(self, scheduler: Scheduler, in_flight: InFlight) -> bool:
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
                self._claims.ack_again(each.acks)
        return bool(sent)

    # -- a batch whose reply the event loop reads later

    def send(self, scheduler: Scheduler, in_flight: InFlight, *, may_hold: Ahead) -> None:
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
