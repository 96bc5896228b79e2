"""What a worker holds, and what it has yet to tell the server of it.

Tasks end in the event loop, in pool threads or in the middle of a shutdown; here their ends are only written down.
`Claims.flush` sends them, in one round trip, from whatever thread has the time.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from redis.exceptions import ResponseError

from ..rules.protocol import MOST_MOVES
from ..server.connections.in_flight import InFlight
from ..server.replies import Claim, End, Running
from ..server.scheduler import Scheduler
from .lease import Lease
from .server_clock import ServerClock

#: What became of a message. Unsettled ones are pending again, counted as a delivery; returned ones too, not counted.
ACKED, REJECTED, UNSETTLED, RETURNED = "acked", "rejected", "unsettled", "returned"

#: How it ended if its message was acked, and it did not end well.
FAILED, REVOKED, EXPIRED = "failed", "revoked", "expired"

#: Separates job id and fencing number in a delivery tag; stock tags are uuids, without it.
_SEPARATOR = ":"


def is_claim(delivery_tag: str) -> bool:
    """Return whether a delivery tag is that of a claim (and not of a message that kombu read from a list)."""
    return _SEPARATOR in delivery_tag


@dataclass
class Held:
    """A claim, from its arrival until the server knows of its end. *request* is Celery's, once there is one.

    *outcome*: what became of its message. *how*, of one that was acked and did not end well: `FAILED`, `REVOKED` or
    `EXPIRED`. *why*: the error, in words.
    """

    job_id: str
    fence: str
    type: str
    expires_us: int | None = None
    request: Any = None
    outcome: str = UNSETTLED
    how: str = ""
    why: str = ""
    void: bool = False
    taken_s: float = field(default_factory=time.monotonic)
    started_s: float | None = None

    @property
    def number(self) -> tuple[str, str]:
        return self.job_id, self.fence

    @property
    def told(self) -> str:
        """How it ended, as `End` has it."""
        if not (self.how or self.why):
            return self.outcome
        how = self.how if self.how and self.outcome == ACKED else self.outcome
        return f"{how} {self.why}" if self.why else how

    def described(self) -> dict[str, Any]:
        """Return what `inspect affinity` shows; *age_s*: since it arrived, *running_s*: since its task started."""
        now_s = time.monotonic()
        return {
            "job": self.job_id,
            "task": getattr(self.request, "id", None),
            "name": getattr(self.request, "name", None),
            "type": self.type,
            "age_s": round(now_s - self.taken_s, 3),
            "running_s": None if self.started_s is None else round(now_s - self.started_s, 3),
        }


@dataclass
class _Batch:
    sequence: int
    acks: list[tuple[str, Held]] = field(default_factory=list)
    ends: list[tuple[str, Held]] = field(default_factory=list)

    @property
    def told(self) -> dict[str, Any]:
        """What `Scheduler.tell_ends` is told of it."""
        return {
            "acks": [held.number for _, held in self.acks],
            "ends": [End(held.job_id, held.fence, held.told) for _, held in self.ends],
            "sequence": self.sequence,
        }


@dataclass
class _SentAcks:
    """Acks that are on their way in one command, by delivery tag."""

    acks: dict[str, Held]
    repeated: bool = False


class Claims:
    """The claims of one worker, by delivery tag. *on_news* is called when there is something to flush."""

    def __init__(self, worker: str, inbox: str, lease: Lease, on_news: Callable[[], None]) -> None:
        self.worker = worker
        self.inbox = inbox
        self.lease = lease
        self.clock = ServerClock()
        self._on_news = on_news
        #: Called when a task starts that is acked by then: a pool that blocks the loop sends the ack before.
        self.on_accepted: Callable[[], object] = lambda: None
        #: Called with claims whose acks the server refused: they are the worker's no more.
        self.on_refused: Callable[[list[Held]], object] = lambda _: None
        #: Called when a task has ended, in the thread that noticed it.
        self.on_ended: Callable[[], object] = lambda: None
        #: Called with the seconds for which a task has run.
        self.on_length: Callable[[float], object] = lambda _: None
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._held: dict[str, Held] = {}
        self._refused: set[str] = set()
        self._refused_up_to = 0
        self._acks: dict[str, Held] = {}
        self._ends: dict[str, Held] = {}
        self._given_up: set[str] = set()
        self._batch: _Batch | None = None
        self._sent_acks: list[_SentAcks] = []
        self._in_flight: InFlight | None = None
        self._is_telling = False
        self._sequence = 0
        #: How many jobs have gone back because of what was told of their ends.
        self.returned = 0
        self._closed = False
        #: Whether those that still arrive are to be given back.
        self.drained = False

    def take(self, claim: Claim) -> str | None:
        """Hold a claim that arrived. Return its delivery tag, or None if it must not run here (any more)."""
        tag = f"{claim.job_id}{_SEPARATOR}{claim.fence}"
        with self._lock:
            if self._closed or tag in self._refused or tag in self._held or int(claim.fence) <= self._refused_up_to:
                return None
            self._held[tag] = Held(claim.job_id, claim.fence, claim.type, claim.expires_us)
        return tag

    def bind(self, tag: str, request: Any) -> None:
        """Say that *request* runs the claim: from here on it ends when the request does."""
        with self._lock:
            if tag in self._held:
                self._held[tag].request = request

    def settle(self, tag: str, outcome: str, why: str = "") -> None:
        """Note what became of the message. Without a request (an unknown task, say) this is the claim's end.

        *why*: the error, in words, for which no request was made.
        """
        with self._lock:
            held = self._held.get(tag)
            if held is None or held.outcome != UNSETTLED:
                return
            held.outcome = outcome
            if held.request is None:
                held.how, held.why = FAILED if why else "", why
                self._ends[tag] = held
            elif outcome == ACKED:
                self._acks[tag] = held
            else:
                return  # told with the end, which is near
        self._on_news()

    def end(self, tag: str, how: str = "", why: str = "") -> None:
        """Note that the slot of a claim is free, once however often it is said; *how* and *why*: see `Held`."""
        with self._lock:
            held = self._held.get(tag)
            if held is None or tag in self._ends:
                return
            held.how, held.why = how, why
            self._ends[tag] = held
            self._acks.pop(tag, None)  # told with the end
        if held.started_s is not None:
            self.on_length(time.monotonic() - held.started_s)
        self.on_ended()  # if that tells, there is no more news
        self._on_news()

    def may_start(self, tag: str) -> bool:
        """Return whether the task of a claim may start. If not, it is the worker's no more, or is given back, its
        age intact: after a long silence nobody can say here whose it is.
        """
        with self._lock:
            held = self._held.get(tag)
            if held is None or tag in self._given_up or tag in self._ends:
                return False
            if held.void:
                del self._held[tag]
                return False
            if self.lease.holds or (held.outcome == ACKED and tag not in self._acks):
                return True  # after an ack that was told nobody else runs it
            held.outcome = RETURNED
            self._ends[tag] = held
            self._acks.pop(tag, None)
        self._on_news()
        return False

    def left_us(self, tag: str) -> int | None:
        """Return how long it is until a claim expires, by the server's clock; None for ever.

        None as well if another worker may have it by now: that it has expired is not this one's to say.
        """
        held = self._held.get(tag)
        if held is None or held.expires_us is None or held.void or not self.lease.holds:
            return None
        return held.expires_us - self.clock.now_us()

    def is_void(self, tag: str) -> bool:
        """Return whether a claim is known to be the worker's no more."""
        held = self._held.get(tag)
        return held is not None and held.void

    def started(self, tag: str) -> None:
        """Note that the task of a claim has started."""
        held = self._held.get(tag)
        if held is None:
            return
        held.started_s = time.monotonic()
        if held.outcome == ACKED:
            self.on_accepted()

    @property
    def has_news(self) -> bool:
        return bool(self._batch or self._acks or self._ends)

    @property
    def has_acks(self) -> bool:
        return bool(self._acks)

    def flush(self, scheduler: Scheduler, *, inline: bool, most_ahead: int = 0) -> list[Claim] | None:
        """Tell the server what ended and was acked, some of it if it is much: `has_news` says whether to go on.

        Return the jobs that follow, if they come *inline*: *most_ahead* beyond the worker's slots. That is for the
        event loop; other threads do not wait while it tells, and get None.

        Raises a redis error if the server does not answer; the next call says the same again, and it counts once.
        """
        if not self._flushing.acquire(blocking=inline):
            return None
        try:
            batch = self._next_batch()
            if batch is None:
                return []
            following = scheduler.tell_ends(
                self.worker,
                **batch.told,
                inline=inline,
                most_ahead=most_ahead,
                on_acked=lambda acked: self._note_acked(dict(batch.acks), acked),
            )
            self._forget(batch)
            return following
        finally:
            self._flushing.release()

    def send_acks(self, scheduler: Scheduler, in_flight: InFlight) -> bool:
        """Send what was acked, and leave the reply for `receive`. Return whether it was sent: all of it, and on a
        connection of which nothing says that it is broken. It arrives then though this process may end.

        Not while it `is_telling`. Raises a redis error if it cannot be sent; the next call says the same again.
        """
        assert not self._is_telling, "its reply would come first"
        goes_on = bool(self._sent_acks)
        if not in_flight.is_proven or (in_flight.is_under_way and not goes_on):
            return False
        with self._lock:
            sent = _SentAcks(dict(islice(self._acks.items(), MOST_MOVES)))
            if not sent.acks:
                return False  # another thread is telling them: without a command there is no reply to be counted
            for tag in sent.acks:
                del self._acks[tag]
            self._sent_acks.append(sent)
        try:
            numbers = [held.number for held in sent.acks.values()]
            scheduler.send_acks(in_flight, self.worker, numbers, goes_on=goes_on)
        except BaseException:
            self._take_acks_back()
            raise
        self._in_flight = in_flight
        return not self._acks

    def repeat_acks(self) -> bool:
        """Have the next `flush` say again, once, what `send_acks` has sent. Return whether there was any.

        Nobody reads the reply before the task ends, so nobody would see that the connection broke just then. An ack
        that is told twice counts once.
        """
        with self._lock:
            repeated = [each for each in self._sent_acks if not each.repeated]
            for each in repeated:
                each.repeated = True
                self._acks.update(self._not_ended(each))
        return bool(repeated)

    def send(self, scheduler: Scheduler, in_flight: InFlight, *, most_ahead: int) -> None:
        """Begin what `flush` does, inline; `receive`, `abandon` or `take_over` ends it. Until then `is_telling`.

        Does nothing while another thread tells.
        """
        if not self._flushing.acquire(blocking=False):
            return
        is_sent = False
        try:
            batch = self._next_batch()
            if batch is not None:
                goes_on = bool(self._sent_acks)
                scheduler.send_ends(in_flight, self.worker, **batch.told, most_ahead=most_ahead, goes_on=goes_on)
                self._in_flight, is_sent = in_flight, True
        except BaseException:
            self._take_acks_back()
            raise
        finally:
            self._is_telling = is_sent
            if not is_sent:
                self._flushing.release()

    def receive(self, scheduler: Scheduler, *, most_ahead: int, waits: bool = True) -> list[Claim]:
        """End what `send` and `send_acks` began; if it *waits*, all of it. Return and raise what `flush` does.

        If another thread took it over, nobody reads the reply: what follows comes in another.
        """
        in_flight, batch = self._in_flight, self._batch
        assert in_flight is not None, "sent"
        try:
            had_acks = self._receive_acks(scheduler, in_flight)
        except ResponseError:
            self._stop_telling()
            return self.flush(scheduler, inline=True, most_ahead=most_ahead) or []
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
            self._forget(batch)
            return following
        except ResponseError:
            pass  # `flush` knows what to do
        finally:
            self._flushing.release()
        return self.flush(scheduler, inline=True, most_ahead=most_ahead) or []

    def abandon(self) -> None:
        """Let the next `flush` say again what is on its way."""
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
        """Do the same from another thread: the loop stands still, and does not read the reply. Return whether there is
        something to be said again.

        The connection stays open, for only the loop may take it out of its hub: `receive` closes it, unless acks alone
        are on their way.
        """
        if self._stop_telling():
            self._take_acks_back()
            return True
        return self.repeat_acks()

    @property
    def is_telling(self) -> bool:
        """Whether something is on its way to the server, and its reply to be received."""
        return self._is_telling

    @property
    def is_late(self) -> bool:
        """Whether what is on its way should have been answered by now."""
        is_due = self._is_telling or bool(self._sent_acks)
        return is_due and self._in_flight is not None and self._in_flight.is_late

    def _ends_telling(self) -> bool:
        """Return whether the caller is to end what is on its way: one of all threads is."""
        with self._lock:
            was_telling, self._is_telling = self._is_telling, False
        return was_telling

    def _stop_telling(self) -> bool:
        was_telling = self._ends_telling()
        if was_telling:
            self._flushing.release()
        return was_telling

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
            self._note_acked(each.acks, acked)
        return True

    def _take_acks_back(self) -> bool:
        """Have acks that are on their way said again. Return whether there were any."""
        with self._lock:
            sent, self._sent_acks = self._sent_acks, []
            for each in sent:
                self._acks.update(self._not_ended(each))
        return bool(sent)

    def _not_ended(self, sent: _SentAcks) -> dict[str, Held]:
        return {tag: held for tag, held in sent.acks.items() if tag in self._held and tag not in self._ends}

    def _note_acked(self, acks: dict[str, Held], acked: int) -> None:
        """Note how many of *acks* the server took. If it took only some, a sync tells which."""
        if acked < len(acks):
            refused = [] if acked else self.void(held.number for held in acks.values())
            self.on_refused(refused)

    def _next_batch(self) -> _Batch | None:
        self._batch = self._batch or self._collect()
        return self._batch

    def _forget(self, batch: _Batch) -> None:
        self._batch = None
        with self._lock:
            for tag, _ in batch.ends:
                self._held.pop(tag, None)
                self._ends.pop(tag, None)
                self._given_up.discard(tag)
            self.returned += sum(held.outcome in (RETURNED, UNSETTLED) and not held.void for _, held in batch.ends)

    def _collect(self) -> _Batch | None:
        with self._lock:
            if not self._acks and not self._ends:
                return None
            self._sequence += 1
            ends = list(islice(self._ends.items(), MOST_MOVES))
            acks = list(islice(self._acks.items(), MOST_MOVES))
            for tag, _ in acks:
                del self._acks[tag]
            return _Batch(self._sequence, acks, ends)

    def numbers(self) -> list[tuple[str, str]]:
        """Return job id and fencing number of every claim that is held."""
        with self._lock:
            return [held.number for held in self._held.values()]

    def running(self) -> list[Running]:
        """Return every claim that is held, with the time since its task started."""
        now_s = time.monotonic()
        with self._lock:
            return [
                Running(*held.number, -1 if held.started_s is None else round((now_s - held.started_s) * 1e6))
                for held in self._held.values()
            ]

    def unsettled_count(self) -> int:
        """Return how many claims have been neither acked nor rejected."""
        with self._lock:
            return sum(held.outcome == UNSETTLED and not held.void for held in self._held.values())

    def refuse(self, numbers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Never run these claims, should they still arrive. Return those that are not held: they can be given back."""
        with self._lock:
            unknown = [number for number in numbers if _SEPARATOR.join(number) not in self._held]
            self._refused.update(_SEPARATOR.join(number) for number in unknown)
        return unknown

    def void(self, numbers: Iterable[tuple[str, str]]) -> list[Held]:
        """Note that these claims are no longer the worker's. Return those that were not known to be so."""
        gone = set(numbers)
        return self._void(lambda held: held.number in gone)

    def void_up_to(self, fence: int) -> list[Held]:
        """Note that no claim with a fencing number up to *fence* is the worker's, be it held or still to arrive."""
        self._refused_up_to = fence
        return self._void(lambda held: int(held.fence) <= fence)

    def _void(self, is_gone: Callable[[Held], bool]) -> list[Held]:
        with self._lock:
            # What has ended is being told, perhaps at this very moment, in another thread.
            fresh = [
                held for tag, held in self._held.items() if tag not in self._ends and is_gone(held) and not held.void
            ]
            for held in fresh:
                held.void = True
        return fresh

    def void_count(self) -> int:
        """Return how many requests run here without a claim: each takes a slot all the same."""
        with self._lock:
            return sum(held.void for held in self._held.values())

    def held(self) -> list[Held]:
        """Return every claim that is held."""
        with self._lock:
            return list(self._held.values())

    def unended(self) -> list[tuple[str, Held]]:
        """Return every claim, with its tag, that has a slot here: it has neither ended, nor was it given up."""
        with self._lock:
            return [
                (tag, held) for tag, held in self._held.items() if tag not in self._ends and tag not in self._given_up
            ]

    def find(self, tag: str) -> Held | None:
        """Return a claim that is held."""
        return self._held.get(tag)

    def unfinished(self) -> int:
        """Return how many claims have a slot here, or wait for one: neither ended nor given up."""
        with self._lock:
            return len(self._held) - len(self._ends) - len(self._given_up - self._ends.keys())

    def give_back_unstarted(self) -> bool:
        """Give back what no request has been made of: the event loop stands still. Return whether there was any."""
        with self._lock:
            unstarted = {
                tag: held
                for tag, held in self._held.items()
                if held.request is None and held.outcome == UNSETTLED and not held.void
            }
            for held in unstarted.values():
                held.outcome = RETURNED
            self._ends.update(unstarted)
        return bool(unstarted)

    def give_up(self, tags: Iterable[str]) -> None:
        """Note that these claims will not start, though they are still held: `let_go` is next."""
        with self._lock:
            self._given_up.update(tag for tag in tags if tag in self._held)

    def let_go(self) -> list[tuple[str, str]]:
        """Hold no more what was given up. Return its numbers."""
        with self._lock:
            tags = self._given_up - self._ends.keys()
            self._given_up -= tags
            return [self._held.pop(tag).number for tag in tags]

    def renounce(self, keeps: Callable[[Any], bool]) -> list[tuple[str, str]]:
        """Let go of the claims whose request *keeps* does not keep (None: there is no request). Return them."""
        with self._lock:
            tags = self._dropped(keeps)
            self._given_up.difference_update(tags)
            return [self._held.pop(tag).number for tag in tags]

    def drain(self, keeps: Callable[[Any], bool]) -> list[Held]:
        """Give up the same, and what still arrives, until `drained` is False again. Return what was given up."""
        self.drained = True
        with self._lock:
            tags = [tag for tag in self._dropped(keeps) if tag not in self._given_up]
            self._given_up.update(tags)
            return [self._held[tag] for tag in tags]

    def _dropped(self, keeps: Callable[[Any], bool]) -> list[str]:
        return [tag for tag, held in self._held.items() if tag not in self._ends and not keeps(held.request)]

    def close(self) -> None:
        """Take no more claims: the worker drains."""
        with self._lock:
            self._closed = True
