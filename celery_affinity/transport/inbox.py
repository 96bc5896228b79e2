"""The lists that a worker reads: its inbox, with claimed jobs and signs, and those of queues that are not scheduled.

One BRPOP waits for all of them. On a channel of any other process, kombu alone reads.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from queue import Empty
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

import redis
from kombu.utils.encoding import bytes_to_str

from ..callers.failure import words
from ..client import publishing_app
from ..client.envelope import parsed
from ..client.first_try import mode_of
from ..client.of_app import settings_of
from ..log_limit import limited_logger
from ..membership.held import FAILED, REJECTED, RETURNED
from ..rules.untrusted import clamped
from ..server import received
from ..server.connections.renewed import renew_login
from ..server.replies import Claim
from . import checked_message, consumed
from .connections import REPLY_TIMEOUT_S, ConnectedChannel
from .qos import QoS

if TYPE_CHECKING:
    from ..membership.reporting import Reporting  # a producer reads nothing, and need not load it
    from ..rules.settings import Settings

logger = limited_logger(__name__)

#: Longest wait, s, of one call for the inbox: less than the 5 s for which redis-py waits for a reply by default.
_INBOX_TIMEOUT_S = 4


class Inbox(Protocol):
    """The worker behind a channel: it receives what the server puts into its inbox, and decides what is consumed."""

    @property
    def worker(self) -> str:
        """The worker's id."""

    @property
    def key(self) -> str:
        """The key of the inbox."""

    @property
    def drained(self) -> bool:
        """Whether jobs that still come are to be given back."""

    def reporting_of(self, tag: str) -> "Reporting":
        """Return the way to tell the server of the claim that is held under *tag*."""

    def schedules(self, queue: str) -> bool:
        """Return whether a queue is scheduled; if not, the channel reads its lists."""

    def serve(self, queue: str, serves: bool) -> None:
        """Record that the consumer of a scheduled queue begins (True) or was cancelled (False)."""

    def receive(self, claim: Claim) -> None:
        """Hold a job from the inbox, and start it (`InboxChannel.consume`) when it has a slot."""

    def obey(self, sign: list[str]) -> None:
        """Obey a sign, in words, that came to the inbox instead of a job."""

    def loop_ran(self) -> None:
        """Record that the loop of a worker with a green pool runs: it has no event loop, and calls `drain_events`."""


class InboxChannel(ConnectedChannel):
    """A channel from which a worker may read. `inbox` is that worker's, and None on every other channel."""

    QoS = QoS
    Message = checked_message.Message

    inbox: Inbox | None = None

    is_closing = False

    _polls_inbox_alone = False

    # -- consumers

    def basic_consume(self, queue: str, *args: Any, **kwargs: Any) -> Any:
        result = super().basic_consume(queue, *args, **kwargs)
        self._report_consumer(queue, True)
        return result

    def _basic_cancel(self, consumer_tag: str) -> Any:
        queue = self._tag_to_queue.get(consumer_tag)
        result = super()._basic_cancel(consumer_tag)
        if queue is not None:
            self._report_consumer(queue, False)
        return result

    def _report_consumer(self, queue: str, consumes: bool) -> None:
        # The worker still wants consumers that are cancelled because the channel closes.
        if self.inbox is not None and not self.is_closing and self.inbox.schedules(queue):
            self.inbox.serve(queue, consumes)

    # -- broadcasts

    def _receive_one(self, c: Any) -> Any:
        # redis-py waits without a limit for the rest of a message: on a connection that went silent in the middle of
        # one, the event loop would wait for ever.
        try:
            with self._reading("what was broadcast"):
                return super()._receive_one(_Impatient(c))
        except Empty:
            return None  # the event loop would not know of messages that came with the dropped one

    @contextmanager
    def _reading(self, source: str) -> Iterator[None]:
        """Drop a message that kombu cannot read, and raise Empty. An error of the consumer itself is raised."""
        transport, before = self.connection, self.connection.deliveries
        try:
            yield
        except (Empty, *received.LOST):
            raise
        except Exception as exc:
            if transport.deliveries != before:
                raise
            received.drop(source, getattr(exc, "doc", None) or getattr(exc, "object", None), exc)
            raise Empty from exc

    def _get_message_priority(self, message: Any, reverse: bool = False) -> int:
        """Return the priority of the list to which an unacked message goes back: kombu converts whatever it finds."""
        properties = message["properties"] | {"priority": clamped(message["properties"].get("priority"), -1, 256, 0)}
        return int(super()._get_message_priority({**message, "properties": properties}, reverse=reverse))

    # -- inbox and lists

    def _brpop_start(self, timeout: float | None = None) -> None:
        if self.inbox is None:
            # kombu 5.5 takes None for "for ever": without a timeout, kombu's own default has to count.
            super()._brpop_start(*(() if timeout is None else (timeout,)))
            return
        connection = self._in_poll = self.client.connection
        self._brpop_sent_at = monotonic()
        self._polls_inbox_alone = True  # an ack in another thread must see either this, or the lists in the command
        lists = self._lists_to_read()
        self._polls_inbox_alone = not lists
        connection.send_command("BRPOP", self.inbox.key, self._nudges, *lists, timeout or _INBOX_TIMEOUT_S)

    def _lists_to_read(self) -> list[str]:
        """Return the lists of the queues that are not scheduled, in kombu's order; none while prefetch forbids it."""
        if not self.qos.can_prefetch():
            return []
        assert self.inbox is not None, "a worker reads"
        schedules = self.inbox.schedules
        queues = [each for each in self._queue_cycle.consume(len(self.active_queues)) if not schedules(each)]
        lists = [self._q_for_pri(queue, priority) for priority in self.priority_steps for queue in queues]
        return [f"{self.global_keyprefix}{each}" for each in lists]

    @property
    def _nudges(self) -> str:
        assert self.inbox is not None, "a worker reads"
        return self.scheduler.keys.key("nudges", self.inbox.worker)

    def resume_lists(self) -> None:
        """Read lists again if the wait under way has left them out, and prefetch allows them now."""
        if self._in_poll and self._polls_inbox_alone and self._consumes_from_lists() and self.qos.can_prefetch():
            self._polls_inbox_alone = False
            self._nudge()

    def _consumes_from_lists(self) -> bool:
        return self.inbox is not None and not all(map(self.inbox.schedules, self.active_queues))

    def _nudge(self) -> None:
        """End the wait that is under way. Without a connection nothing is done: the wait ends by itself."""
        with suppress(redis.RedisError, OSError), self.scheduler.client.pipeline(transaction=False) as pipe:
            pipe.lpush(self._nudges, "")
            pipe.expire(self._nudges, REPLY_TIMEOUT_S)
            pipe.execute()

    def _brpop_read(self, **options: Any) -> bool:
        if self.inbox is None:
            with self._reading("a list"):
                return bool(super()._brpop_read(**options))
        reply = self._read_reply(**options)
        if not reply:
            raise Empty
        name, item = bytes_to_str(reply[0]), reply[1]
        if name == self.inbox.key:
            if not self.is_closing:  # else the next sync notices that the job never arrived
                self._read_inbox(item)
        elif name != self._nudges:
            self._read_list(name.removeprefix(self.global_keyprefix).rsplit(self.sep, 1)[0], item)
        return True

    def _read_reply(self, **options: Any) -> Any:
        """Return the reply to BRPOP: a list's name and an item of it; None when the time was over."""
        assert self.inbox is not None, "a worker reads"
        connection = self.client.connection
        try:
            # Not the method of kombu's client, which cuts its prefix off any name.
            return redis.Redis.parse_response(self.client, connection, "BRPOP", **options)  # type: ignore[no-untyped-call]
        except self.connection_errors:
            connection.disconnect()
            raise
        except redis.ResponseError as exc:
            if not str(exc).startswith("WRONGTYPE"):
                raise
            # Somebody overwrote the inbox, or a list of kombu's. Another process may have repaired the inbox first.
            self.scheduler.repair([self.inbox.worker])
            if any(self.scheduler.client.type(each) not in (b"list", b"none") for each in self._lists_to_read()):
                raise  # the key is one of kombu's own lists
            return None
        finally:
            self._in_poll = None
            renew_login(connection)  # the only moment at which the connection waits for nothing

    def _read_list(self, queue: str, item: bytes) -> None:
        self._queue_cycle.rotate(queue)
        with self._reading(queue):
            self.connection._deliver(consumed.message_of_list(parsed(item), queue), queue)

    def _read_inbox(self, item: bytes) -> None:
        try:
            claim = None if item.startswith(b"\n") else Claim.parse(item)
            sign = item.decode().split() if claim is None else []
        except ValueError as exc:
            # If the server put a job there, the next sync notices that the job never arrived, and gives it back.
            received.drop("the inbox", item, exc)
            return
        assert self.inbox is not None, "a worker reads"
        if claim is not None:
            self.inbox.receive(claim)
        else:
            self.inbox.obey(sign)

    def consume(self, claim: Claim, tag: str, *, has_slot: bool = True) -> None:
        """Hand a claimed job, held under *tag*, to the consumer of its queue.

        A job whose queue has no consumer here, or not now, is given back; one that cannot be read goes to the dead
        letters. Without a slot its wait goes on, and is counted later.
        """
        assert self.inbox is not None, "a worker reads"
        reporting = self.inbox.reporting_of(tag)
        consume = self.connection._callbacks.get(claim.type)
        if consume is None or self.inbox.drained:
            reporting.settle(tag, RETURNED)
            return
        self.burying(claim, tag, partial(self._consume, claim, tag, consume, has_slot))

    def _consume(self, claim: Claim, tag: str, consume: Callable[[Any], object], has_slot: bool) -> None:
        assert self.inbox is not None, "a worker reads"
        message = consumed.message_of_claim(claim, tag, self._settings)
        if has_slot:
            properties = message["properties"]
            self.inbox.reporting_of(tag).claims.count_wait(
                tag, on_demand=bool(mode_of(properties)), priority=properties.get("priority")
            )
        consume(message)

    @cached_property
    def _settings(self) -> "Settings":
        return settings_of(publishing_app.that_made(self.connection.client))

    def burying(self, claim: Claim, tag: str, start: Callable[[], object]) -> None:
        """Make the job of *claim* a dead letter if *start*, which may read its message and starts its task, raises."""
        assert self.inbox is not None, "a worker reads"
        try:
            start()
        except received.LOST:
            raise  # not kombu's own list of errors, by which even a KeyError is a lost connection
        except Exception as exc:
            logger.exception("Job %s of type %r cannot be read and becomes a dead letter", claim.job_id, claim.type)
            why = words(exc)
            reporting = self.inbox.reporting_of(tag)
            reporting.settle(tag, REJECTED, why)
            reporting.end(tag, FAILED, why)  # whatever Celery made of the job so far

    def close(self) -> None:
        self.is_closing = True  # first: kombu reads what is under way, and cancels the consumers
        if self.inbox is not None and self._in_poll:
            if self._polls_inbox_alone:
                # The next sync notices a job that is still in the socket; waiting for one would hold up the shutdown.
                self._in_poll = None
            else:  # a list's message that is in the socket is nowhere else: kombu reads it, and puts it back
                self._nudge()
        super().close()


class _Impatient:
    """A redis-py PubSub with something to read. A read waits for the rest of a message no longer than for a reply."""

    def __init__(self, pubsub: Any) -> None:
        self._pubsub = pubsub

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pubsub, name)

    def parse_response(self) -> Any:
        return self._pubsub.parse_response(block=False, timeout=self._pubsub.connection.socket_timeout)
