"""kombu's channels, scheduled: publishing is `publish`, reading is reading the worker's inbox, acking is noting an end.

Messages that are no tasks (remote control and its replies, events) take kombu's own ways.
"""

import logging
import secrets
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty
from time import monotonic
from typing import TYPE_CHECKING, Any

import redis
from celery.utils.time import maybe_iso8601
from kombu.transport import redis as stock
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..client import envelope, revokes, stamping, unserved_warning
from ..membership.claims import ACKED, FAILED, REJECTED, RETURNED, UNSETTLED, Claims, is_claim
from ..rules.keys import Keys
from ..server import received
from ..server.connections.in_flight import InFlight
from ..server.connections.kept import Line
from ..server.replies import Claim
from ..server.scheduler import Scheduler
from .failure import why_refused, words

if TYPE_CHECKING:
    from kombu.transport.redis import Channel as _StockChannel
else:
    _StockChannel = object  # mixed into kombu's channels, with and without Sentinel

logger = logging.getLogger(__name__)

#: Longest wait for the inbox in one call, s.
_INBOX_TIMEOUT_S = 2

#: Longest wait for the reply to an arrow, s, unless ``socket_timeout`` says otherwise: a connection whose other end is
#: gone without a word must not hold the event loop, or a publisher, for ever.
_REPLY_TIMEOUT_S = 10


class QoS(stock.QoS):
    """Acks of claimed jobs; those of other messages are kombu's."""

    def can_consume(self) -> bool:
        # A claimed job has its slot, so prefetch must not keep it in the inbox.
        return self.channel.claims is not None or super().can_consume()

    def can_prefetch(self) -> bool:
        """Return whether kombu's own queues may be read."""
        return bool(super().can_consume())

    def append(self, message: Any, delivery_tag: str) -> None:
        if not is_claim(delivery_tag):
            super().append(message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        if is_claim(delivery_tag):
            self._settle(delivery_tag, ACKED)
        else:
            super().ack(delivery_tag)
            self.channel.look_again()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if is_claim(delivery_tag):
            self._settle(delivery_tag, UNSETTLED if requeue else REJECTED)
        else:
            super().reject(delivery_tag, requeue=requeue)
            self.channel.look_again()

    def holds(self, delivery_tag: str) -> bool:
        """Return whether a message that kombu read was neither acked nor rejected."""
        return delivery_tag in self._delivered and delivery_tag not in self._dirty

    def restore_by_tag(self, tag: Any, client: Any = None, leftmost: bool = False) -> None:
        try:
            super().restore_by_tag(tag, client=client, leftmost=leftmost)
        except received.LOST:
            raise
        except Exception as exc:  # whatever lies among what is not acked, the worker is to start, and the rest to move
            logger.error("What lies unacknowledged under %s cannot be restored: %r", received.shown(tag), exc)

    def _settle(self, delivery_tag: str, outcome: str) -> None:
        claims = self.channel.claims
        if claims is not None:
            held = claims.find(delivery_tag)
            is_refused = held is not None and held.request is None
            claims.settle(delivery_tag, outcome, why_refused() if is_refused else "")


class AffinityChannel(_StockChannel):
    """What this transport changes in kombu's Redis channels, with and without Sentinel."""

    QoS = QoS
    Message = received.Message

    #: Transport option of kombu's own: what all keys begin with.
    global_keyprefix: str = ""

    #: Transport option: the first part of the hash tag of all keys.
    namespace = "affinity"

    #: The claims of the worker that consumes from this channel; None on every other channel.
    claims: Claims | None = None

    #: Whether a queue is scheduled; asked of the worker that consumes from this channel.
    schedules: Callable[[str], bool] = staticmethod(lambda _: True)

    #: Called with the words of a sign that came to the worker's inbox instead of a job.
    on_sign: Callable[[list[str]], None] | None = None

    #: Called with a job of the inbox, which `deliver` is called with otherwise.
    on_claim: Callable[[Claim], None] | None = None

    #: Called with a queue's name and whether it is consumed from now on, or no more.
    on_consume: Callable[[str, bool], None] | None = None

    #: kombu asks, since what is published together could be sent twice: a job is published once, whoever repeats it.
    supports_batch_publish = True

    #: Called at each turn of a worker's loop, where that is no event loop but waits for events here: with green pools.
    on_turn: Callable[[], None] | None = None

    #: Queues that were bound to this channel (`declaring`).
    bound_queues: dict[str, Any]

    _kept_client: redis.Redis | None = None
    _scheduler: Scheduler | None = None
    _polls_inbox_alone = False

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        Keys.of_options(connection.client.transport_options)  # refused before anything is opened
        self.bound_queues = {}
        super().__init__(connection, **kwargs)
        self.global_keyprefix = self.global_keyprefix or ""

    # -- connections

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        # A command that redis-py repeats by itself would count twice; ours are repeated where that is known.
        params = {**super()._connparams(asynchronous), "retry": Retry(NoBackoff(), 0)}
        connect_timeout_s = self.connection.client.connect_timeout or _REPLY_TIMEOUT_S
        if not params.get("socket_timeout"):
            # An asynchronous connection is read when there is something to read, but for the PING that opens a channel:
            # a server that takes connections and never answers is not connected to.
            params["socket_timeout"] = connect_timeout_s if asynchronous else _REPLY_TIMEOUT_S
        if "host" in params and not params.get("socket_connect_timeout"):  # without host: a socket in the file system
            params["socket_connect_timeout"] = connect_timeout_s
        if isinstance(self.connection.client.ssl, dict) and self.connection.client.ssl:
            # redis-py before 6 takes another host's certificate by default.
            verifies = params.get("ssl_cert_reqs", ssl.CERT_REQUIRED) not in (None, "none", ssl.CERT_NONE)
            params.setdefault("ssl_check_hostname", verifies)
        return params

    @contextmanager
    def conn_or_acquire(self, client: redis.Redis | None = None) -> Iterator[redis.Redis]:
        """Yield a client that is kept: kombu builds one for each call, which costs more than the call."""
        if client is None:
            if self._scheduler is not None:
                self._scheduler.client.give_back()
            if self._kept_client is None or self._kept_client.connection_pool is not self._pool:
                self._kept_client = self._create_client()
            client = self._kept_client
        yield client

    @property
    def scheduler(self) -> Scheduler:
        """The arrows, on a client that adds no prefix: kombu's own prefixes only some keys."""
        pool = self.pool
        if self._scheduler is None or self._scheduler.client.connection_pool is not pool:
            scheduler = Scheduler(Line(pool), self._keys)
            scheduler.check_schema()
            self._scheduler = scheduler
        return self._scheduler

    def scheduler_of_its_own(self) -> Scheduler:
        """Return arrows on connections that outlive the channel: other threads use them while it is closed."""
        scheduler = Scheduler(Line(self._pool_of_its_own()), self._keys)
        scheduler.check_schema()
        return scheduler

    def in_flight_of_its_own(self) -> InFlight:
        """Return what sends arrows that the event loop does not wait for."""
        return InFlight(self._pool_of_its_own())

    def _pool_of_its_own(self) -> redis.ConnectionPool:
        manager = getattr(self, "_sentinel_manager", None)
        pool: redis.ConnectionPool = self._get_pool()
        self._sentinel_manager = manager  # the channel closes that of its own pool
        return pool

    @property
    def _keys(self) -> Keys:
        return Keys(global_keyprefix=self.global_keyprefix, namespace=self.namespace)

    # -- publish

    def basic_publish(self, message: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if self.connection is None:
            # kombu declares a queue between taking the channel and publishing on it: a connection that broke meanwhile
            # took the channel with it, and only an error of the connection makes kombu take the new one.
            raise redis.ConnectionError("the channel was closed by a reconnect")
        begun = stamping.begin(message, self.connection.client)
        result = super().basic_publish(message, *args, **kwargs)
        if begun is not None:
            stamping.end(begun, message)
        return result

    def _next_delivery_tag(self) -> str:
        return secrets.token_urlsafe(12)  # a UUID is longer, and takes longer

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        sending = stamping.of_message(message, self.connection.client)
        if sending is None:
            super()._put(queue, message, **kwargs)
            return
        type_, taking = sending.type(message) or queue, sending.taking
        if not stamping.settings_of(sending.app).schedules(type_):
            if taking is not None:
                taking.passed = True
            super()._put(type_, stamping.as_stock(type_, queue, message), **kwargs)
            return
        stamp = sending.stamp(message)
        if taking is not None:
            taking.append(stamping.Taken(queue, message, stamp))
            return
        job = envelope.as_job(queue, message, stamp)
        batch = kwargs.get("_publish_batch")
        if batch is not None:
            batch.add_job(job)
            return
        (published,) = self.scheduler.publish(job)
        published.check(job)
        if not published.served:
            unserved_warning.warn(job.type, self.scheduler)

    def create_publish_batch(self, max_size: int) -> Any:
        """Return what collects the messages of a ``Producer.batch``."""
        from ..client.producer_batch import PublishBatch  # not at the top: kombu before 5.7 knows of no batch

        return PublishBatch(self, max_size)

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        revoked = revokes.read(exchange, message)
        if revoked is not None:
            self.scheduler.revoke(*revoked, keep_s=revokes.KEPT_FOR_S)
        if stamping.PROPERTY in message["properties"]:  # a broadcast task
            message = stamping.as_stock(exchange, exchange, message)
        super()._put_fanout(exchange, message, routing_key, **kwargs)

    def _pending(self, queue: str) -> int:
        return self.scheduler.reader.pending(queue)

    def _size(self, queue: str) -> int:
        return int(super()._size(queue)) + self._pending(queue)

    def _purge(self, queue: str) -> int:
        return int(super()._purge(queue)) + self.scheduler.purge(queue)

    def _delete(self, queue: str, exchange: str, *args: Any, **kwargs: Any) -> None:
        super()._delete(queue, exchange, *args, **kwargs)
        if not revokes.is_mailbox(queue) and self.typeof(exchange).type != "fanout":  # the others never hold a job
            self.scheduler.purge(queue)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return bool(super()._has_queue(queue, **kwargs) or self._pending(queue) or self.scheduler.has_scheduled(queue))

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: Any) -> Any:
        """Declare a queue; a passive declaration counts jobs that wait for their time, as stock Celery has them listed.

        Any other has no need of their number, which takes a look at the scheduled jobs of all types.
        """
        declared = super().queue_declare(queue, passive=passive, **kwargs)
        if not passive:
            return declared
        scheduled = self.scheduler.scheduled_count(declared.queue)
        return declared._replace(message_count=declared.message_count + scheduled)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        """Delete a queue with the jobs that wait in it. *if_empty*: not if there are any."""
        if not if_empty or not self.scheduler.has_scheduled(queue):
            super().queue_delete(queue, if_unused=if_unused, if_empty=if_empty, **kwargs)

    # -- read

    def basic_consume(self, queue: str, *args: Any, **kwargs: Any) -> Any:
        result = super().basic_consume(queue, *args, **kwargs)
        self._note_consumer(queue, True)
        return result

    def _basic_cancel(self, consumer_tag: str) -> Any:
        queue = self._tag_to_queue.get(consumer_tag)
        result = super()._basic_cancel(consumer_tag)
        if queue is not None:
            self._note_consumer(queue, False)
        return result

    def _note_consumer(self, queue: str, consumes: bool) -> None:
        if self.on_consume is not None and self.schedules(queue):
            self.on_consume(queue, consumes)

    def _receive_one(self, c: Any) -> Any:
        # redis-py waits for the rest of a message for as long as it takes: the event loop would wait with it, for ever
        # on a connection that went silent amid one.
        try:
            with self._reading("what was broadcast"):
                return super()._receive_one(_Impatient(c))
        except Empty:
            return None  # others may have come with it, of which the event loop would not know

    @contextmanager
    def _reading(self, source: str) -> Iterator[None]:
        """Drop what kombu cannot read, and raise Empty. What a consumer raises of what it was given is its own."""
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

    def _brpop_start(self, timeout: float | None = None) -> None:
        if self.claims is None:
            # kombu 5.5 takes None for "for ever": its own default has to stay its own.
            super()._brpop_start(*(() if timeout is None else (timeout,)))
            return
        connection = self._in_poll = self.client.connection
        self._brpop_sent_at = monotonic()
        self._polls_inbox_alone = True  # an ack in another thread must find one or the other
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

    def look_again(self) -> None:
        """Have the lists read that prefetch has kept out of the wait for the inbox, as soon as it allows them."""
        if self._in_poll and self._polls_inbox_alone and self._consumes_from_lists() and self.qos.can_prefetch():
            self._polls_inbox_alone = False
            self._nudge()

    def _consumes_from_lists(self) -> bool:
        return self.claims is not None and not all(map(self.schedules, self.active_queues))

    def _nudge(self) -> None:
        """End the wait that is under way."""
        with suppress(redis.RedisError, OSError), self.scheduler.client.pipeline(transaction=False) as pipe:
            pipe.lpush(self._nudges, "")
            pipe.expire(self._nudges, _REPLY_TIMEOUT_S)
            pipe.execute()  # if it cannot be, the wait ends by itself

    def _brpop_read(self, **options: Any) -> bool:
        if self.claims is None:
            with self._reading("a list"):
                return bool(super()._brpop_read(**options))
        connection = self.client.connection
        try:
            reply = self.client.parse_response(connection, "BRPOP", **options)
        except self.connection_errors:
            connection.disconnect()
            raise
        except redis.ResponseError as exc:
            if not str(exc).startswith("WRONGTYPE"):
                raise
            self.scheduler.repair([self.claims.worker])  # somebody has overwritten the inbox; others may be quicker
            if any(self.scheduler.client.type(each) not in (b"list", b"none") for each in self._lists_to_read()):
                raise  # it was one of kombu's own lists
            reply = None
        finally:
            self._in_poll = None
        if not reply:
            raise Empty
        name, item = bytes_to_str(reply[0]), reply[1]
        if name == self.claims.inbox.removeprefix(self.global_keyprefix):  # kombu takes its prefix off
            if not self._closing:  # else the next sync notices that it never arrived
                self._read_inbox(item)
        elif name != self._nudges.removeprefix(self.global_keyprefix):
            queue = name.rsplit(self.sep, 1)[0]
            self._queue_cycle.rotate(queue)
            with self._reading(queue):
                self.connection._deliver(_complete(loads(bytes_to_str(item)), queue), queue)
        return True

    def _read_inbox(self, item: bytes) -> None:
        try:
            claim = None if item.startswith(b"\n") else Claim.parse(item)
            words = item.decode().split() if claim is None else []
        except ValueError as exc:
            # One that the server put there is missed by it, and given back (`sync`).
            received.drop("the inbox", item, exc)
            return
        if claim is not None:
            (self.on_claim or self.deliver)(claim)
        elif self.on_sign is not None:
            self.on_sign(words)

    def deliver(self, claim: Claim) -> None:
        """Hand a claimed job to the consumer of its queue, unless it must not run here."""
        assert self.claims is not None
        tag = self.claims.take(claim)
        if tag is not None:
            self.consume(claim, tag)

    def consume(self, claim: Claim, tag: str) -> None:
        """Hand a claimed job, which is held, to the consumer of its queue.

        One that nobody here consumes, or not now, is given back; one that cannot be read goes to the dead letters.
        """
        assert self.claims is not None
        consume = self.connection._callbacks.get(claim.type)
        if consume is None or self.claims.drained:
            self.claims.settle(tag, RETURNED)
            return
        try:
            consume(_as_consumed(claim, tag))
        except received.LOST:
            raise  # not of kombu's own list: a KeyError, say, is no lost connection here
        except Exception as exc:
            logger.exception("Job %s of type %r cannot be read: it goes to the dead letters", claim.job_id, claim.type)
            why = words(exc)
            self.claims.settle(tag, REJECTED, why)
            self.claims.end(tag, FAILED, why)  # whatever Celery made of it so far

    def close(self) -> None:
        self.on_consume = None  # what is cancelled now is not the worker's wish
        if self.claims is not None and self._in_poll:
            if self._polls_inbox_alone:
                # An answer still in the socket is noticed by the next sync; waiting for one would hold up the shutdown.
                self._in_poll = None
            else:  # a message of a list that is in the socket is nowhere else: kombu reads it, and puts it back
                self._nudge()
        super().close()


def _as_consumed(claim: Claim, tag: str) -> dict[str, Any]:
    """Return the message as this worker is to see it.

    Its time has come, so it has no ETA any more: a worker whose clock is behind would wait for it again, with the slot
    held. The ETA that the caller gave stays in our property.
    """
    message = envelope.read(claim.message)
    headers = message["headers"] = message.get("headers") or {}  # producers in other languages leave out what they can
    properties = message["properties"]
    properties["delivery_tag"] = tag
    information = properties["delivery_info"] = properties.get("delivery_info") or {}
    # Stock Celery's own mark stays: what kombu restored came from a list.
    information["redelivered"] = claim.deliveries > 0 or information.get("redelivered") is True
    if not information.get("exchange"):
        information.update(exchange="", routing_key=claim.type)
    if headers.get("eta") and _is_moment(headers["eta"]):  # any other is Celery's to refuse
        ours = properties.get(stamping.PROPERTY)
        properties[stamping.PROPERTY] = {**(ours if isinstance(ours, dict) else {}), "eta": headers["eta"]}
        headers["eta"] = None
    return message


def _complete(message: Any, queue: str) -> Any:
    """Return a message of *queue* with where it goes if it is not acked, which kombu wants of each."""
    properties = message.get("properties") if isinstance(message, dict) else None
    if isinstance(properties, dict) and not properties.get("delivery_info"):
        properties["delivery_info"] = {"exchange": "", "routing_key": queue}
    return message


def _is_moment(eta: object) -> bool:
    try:
        return maybe_iso8601(eta) is not None
    except (ValueError, TypeError, AttributeError):  # what Celery's Request catches
        return False


class _Impatient:
    """A redis-py PubSub that there is something to read from; it waits for the rest no longer than for a reply."""

    def __init__(self, pubsub: Any) -> None:
        self._pubsub = pubsub

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pubsub, name)

    def parse_response(self) -> Any:
        return self._pubsub.parse_response(block=False, timeout=self._pubsub.connection.socket_timeout)


class Channel(AffinityChannel, stock.Channel):
    from_transport_options = (*stock.Channel.from_transport_options, "namespace")


class SentinelChannel(AffinityChannel, stock.SentinelChannel):
    from_transport_options = (*stock.SentinelChannel.from_transport_options, "namespace")
