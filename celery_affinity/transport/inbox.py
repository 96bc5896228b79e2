"""What a worker reads: claimed jobs and signs from its inbox, and the lists of queues that are not scheduled.

One BRPOP waits for all of them. On a channel of any other process, reading is kombu's own.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty
from time import monotonic
from typing import Any

import redis
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads

from ..membership.claims import FAILED, REJECTED, RETURNED, Claims
from ..server import received
from ..server.replies import Claim
from . import checked_message, consumed
from .connections import REPLY_TIMEOUT_S, ConnectedChannel
from .failure import words
from .qos import QoS

logger = logging.getLogger(__name__)

#: Longest wait for the inbox in one call, s.
_INBOX_TIMEOUT_S = 2


class InboxChannel(ConnectedChannel):
    """A channel from which a worker may read its inbox: when the worker sets `claims`, and what follows it here."""

    QoS = QoS
    Message = checked_message.Message

    #: The claims of the worker that consumes from this channel; None on every other channel.
    claims: Claims | None = None

    #: Whether a queue is scheduled; asked of the worker that consumes from this channel.
    schedules: Callable[[str], bool] = staticmethod(lambda _: True)

    #: Called with the words of a sign that came to the worker's inbox instead of a job.
    on_sign: Callable[[list[str]], None] | None = None

    #: Called with a job from the inbox; None: `deliver` is.
    on_claim: Callable[[Claim], None] | None = None

    #: Called with a queue's name, and whether its consumer begins (True) or was cancelled (False).
    on_consume: Callable[[str, bool], None] | None = None

    #: Called at each turn of a worker's loop with green pools, which have no event loop and wait for events here.
    on_turn: Callable[[], None] | None = None

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
        if self.on_consume is not None and self.schedules(queue):
            self.on_consume(queue, consumes)

    # -- broadcasts

    def _receive_one(self, c: Any) -> Any:
        # redis-py waits for the rest of a message for as long as it takes: on a connection that went silent amid one,
        # the event loop would wait for ever.
        try:
            with self._reading("what was broadcast"):
                return super()._receive_one(_Impatient(c))
        except Empty:
            return None  # others may have come with it, of which the event loop would not know

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

    # -- inbox and lists

    def _brpop_start(self, timeout: float | None = None) -> None:
        if self.claims is None:
            # kombu 5.5 takes None for "for ever": its own default has to stay its own.
            super()._brpop_start(*(() if timeout is None else (timeout,)))
            return
        connection = self._in_poll = self.client.connection
        self._brpop_sent_at = monotonic()
        self._polls_inbox_alone = True  # an ack in another thread must find either this, or the lists in the command
        lists = self._lists_to_read()
        self._polls_inbox_alone = not lists
        connection.send_command("BRPOP", self.claims.inbox, self._nudges, *lists, timeout or _INBOX_TIMEOUT_S)

    def _lists_to_read(self) -> list[str]:
        """Return the lists of the queues that are not scheduled, in kombu's order; none while prefetch forbids it."""
        if not self.qos.can_prefetch():
            return []
        queues = [each for each in self._queue_cycle.consume(len(self.active_queues)) if not self.schedules(each)]
        lists = [self._q_for_pri(queue, priority) for priority in self.priority_steps for queue in queues]
        return [f"{self.global_keyprefix}{each}" for each in lists]

    @property
    def _nudges(self) -> str:
        assert self.claims is not None
        return self.scheduler.keys.key("nudges", self.claims.worker)

    def resume_lists(self) -> None:
        """Read lists again, if the wait under way has left them out for prefetch's sake, which allows them now."""
        if self._in_poll and self._polls_inbox_alone and self._consumes_from_lists() and self.qos.can_prefetch():
            self._polls_inbox_alone = False
            self._nudge()

    def _consumes_from_lists(self) -> bool:
        return self.claims is not None and not all(map(self.schedules, self.active_queues))

    def _nudge(self) -> None:
        """End the wait that is under way. Without a connection nothing is done: the wait ends by itself."""
        with suppress(redis.RedisError, OSError), self.scheduler.client.pipeline(transaction=False) as pipe:
            pipe.lpush(self._nudges, "")
            pipe.expire(self._nudges, REPLY_TIMEOUT_S)
            pipe.execute()

    def _brpop_read(self, **options: Any) -> bool:
        if self.claims is None:
            with self._reading("a list"):
                return bool(super()._brpop_read(**options))
        reply = self._read_reply(**options)
        if not reply:
            raise Empty
        name, item = bytes_to_str(reply[0]), reply[1]
        if name == self.claims.inbox.removeprefix(self.global_keyprefix):  # kombu takes its prefix off
            if not self._closing:  # else the next sync notices that it never arrived
                self._read_inbox(item)
        elif name != self._nudges.removeprefix(self.global_keyprefix):
            self._read_list(name.rsplit(self.sep, 1)[0], item)
        return True

    def _read_reply(self, **options: Any) -> Any:
        """Return the reply to BRPOP: a list's name and an item of it; None when the time was over."""
        assert self.claims is not None
        connection = self.client.connection
        try:
            return self.client.parse_response(connection, "BRPOP", **options)
        except self.connection_errors:
            connection.disconnect()
            raise
        except redis.ResponseError as exc:
            if not str(exc).startswith("WRONGTYPE"):
                raise
            self.scheduler.repair([self.claims.worker])  # somebody has overwritten the inbox; others may be quicker
            if any(self.scheduler.client.type(each) not in (b"list", b"none") for each in self._lists_to_read()):
                raise  # it was one of kombu's own lists
            return None
        finally:
            self._in_poll = None

    def _read_list(self, queue: str, item: bytes) -> None:
        self._queue_cycle.rotate(queue)
        with self._reading(queue):
            self.connection._deliver(consumed.of_list(loads(bytes_to_str(item)), queue), queue)

    def _read_inbox(self, item: bytes) -> None:
        try:
            claim = None if item.startswith(b"\n") else Claim.parse(item)
            sign = item.decode().split() if claim is None else []
        except ValueError as exc:
            # A job that the server put there is missed in the inbox by `sync`, and given back.
            received.drop("the inbox", item, exc)
            return
        if claim is not None:
            (self.on_claim or self.deliver)(claim)
        elif self.on_sign is not None:
            self.on_sign(sign)

    def deliver(self, claim: Claim) -> None:
        """Hold a claimed job, unless it must not run here, and hand it to the consumer of its queue."""
        assert self.claims is not None
        tag = self.claims.take(claim)
        if tag is not None:
            self.consume(claim, tag)

    def consume(self, claim: Claim, tag: str) -> None:
        """Hand a claimed job, held under *tag*, to the consumer of its queue.

        A job whose queue has no consumer here, or not now, is given back; one that cannot be read goes to the dead
        letters.
        """
        assert self.claims is not None
        consume = self.connection._callbacks.get(claim.type)
        if consume is None or self.claims.drained:
            self.claims.settle(tag, RETURNED)
            return
        try:
            consume(consumed.of_claim(claim, tag))
        except received.LOST:
            raise  # not of kombu's own list: a KeyError, say, is no lost connection here
        except Exception as exc:
            logger.exception("Job %s of type %r cannot be read: it goes to the dead letters", claim.job_id, claim.type)
            why = words(exc)
            self.claims.settle(tag, REJECTED, why)
            self.claims.end(tag, FAILED, why)  # whatever Celery made of it so far

    def close(self) -> None:
        self.on_consume = None  # consumers that are cancelled now are not the worker's wish
        if self.claims is not None and self._in_poll:
            if self._polls_inbox_alone:
                # An answer still in the socket is noticed by the next sync; waiting for one would hold up the shutdown.
                self._in_poll = None
            else:  # a message of a list that is in the socket is nowhere else: kombu reads it, and puts it back
                self._nudge()
        super().close()


class _Impatient:
    """A redis-py PubSub with something to read; a read waits for the rest of it no longer than for a reply."""

    def __init__(self, pubsub: Any) -> None:
        self._pubsub = pubsub

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pubsub, name)

    def parse_response(self) -> Any:
        return self._pubsub.parse_response(block=False, timeout=self._pubsub.connection.socket_timeout)
