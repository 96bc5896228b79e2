"""The lists that a worker reads: its inbox (claimed jobs and control messages), and lists of unscheduled queues.

One BRPOP waits for all of them. On the channel of any other process, only kombu reads. Acks and rejections of claimed
jobs go to their claims; kombu's messages keep kombu's path.

Any client that can write to the server may have written kombu's messages, but kombu and Celery rely on the types that
their own clients send. `CheckedMessage` raises a single error for any other type, and the reader skips the message.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cached_property, partial
from queue import Empty
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

import redis
from celery.utils.time import maybe_iso8601
from kombu.transport import redis as stock
from kombu.transport.virtual import Message as _Message
from kombu.utils.encoding import bytes_to_str

from ..broker.client import reauthenticate
from ..broker.failover import LOST, refuses_writes
from ..leases.held_claim import ACKED, FAILED, REJECTED, REQUEUED, RETURNED, UNSETTLED, is_claim_tag
from ..log_limit import limited_logger
from ..publishing import option_sources, publish_call
from ..publishing.app_config import settings_of
from ..publishing.message import PROPERTY, Message, decode_message, parse_message, to_server_priority
from ..publishing.message_body import MAX_CHARACTERS, check_content_encoding, raw_body
from ..publishing.option_sources import mode_of
from ..results.reporter import describe_error, why_refused
from ..scheduler.messages import Claim
from ..scheduler.scheduler import Scheduler
from ..schema import values
from ..schema.constants import MAX_PRIORITY
from ..schema.keys import COHORT
from ..schema.untrusted import MAX_SHORT_LENGTH, as_whole_number, clamp, is_number
from ..schema.values import shown_bytes
from ..settings.table import Settings
from .connections import REPLY_TIMEOUT_S, ConnectedChannel

if TYPE_CHECKING:
    from ..leases.outbox import EndReporter

#: Message property with the data of a job's wait; only present within a worker.
WAIT = "celery_affinity_wait"

#: Message property with the number of times that the job was preempted, if any.
PREEMPTIONS = "celery_affinity_preemptions"


def message_of_claim(claim: Claim, tag: str, settings: Settings) -> Message:
    """Return the message of a claimed job with *tag* as its delivery tag, given the *settings* of the reading app.

    The ETA is removed because it has been reached; a worker whose clock lags would wait again while holding the slot.
    The caller's ETA is kept in our property. Raises any error of the decoding if the text is not a valid message.
    """
    message = decode_message(claim.message)
    headers = message["headers"] = message.get("headers") or {}  # producers in other languages omit optional fields
    properties = message["properties"]
    properties["delivery_tag"] = tag
    priority = properties.get("priority")
    if priority is not None and as_whole_number(priority, 0, MAX_PRIORITY) is None:
        properties["priority"] = clamp(priority, 0, MAX_PRIORITY, 0)  # the same priority as at publishing
    delivery_info = properties["delivery_info"] = properties.get("delivery_info") or {}
    # Keep stock Celery's own flag: a message that kombu restored came from a list.
    delivery_info["redelivered"] = claim.mark_ending or delivery_info.get("redelivered") is True
    if claim.preemptions:
        properties[PREEMPTIONS] = claim.preemptions
    if not delivery_info.get("exchange"):
        delivery_info.update(exchange="", routing_key=claim.type)
    if headers.get("eta") and _is_valid_eta(headers["eta"]):  # Celery rejects any other value
        job_options = properties.get(PROPERTY)
        properties[PROPERTY] = {**(job_options if isinstance(job_options, dict) else {}), "eta": headers["eta"]}
        headers["eta"] = None
    if settings.cohorts:
        properties[COHORT] = settings.cohort_of(claim.type)
    if settings.traces:
        properties[WAIT] = {"type": claim.type, "enqueued_us": claim.enqueued_us, "deliveries": claim.deliveries}
    if claim.urgency is not None:  # the job was moved: a retry inherits its type, mode and priority from the message
        on_demand, priority = claim.urgency
        delivery_info.update(exchange="", routing_key=claim.type)
        properties["priority"] = to_server_priority(priority, settings)  # this is its own inverse
        properties[PROPERTY] = option_sources.with_move_mark(properties.get(PROPERTY), on_demand)
    return message


def _is_valid_eta(eta: object) -> bool:
    if isinstance(eta, datetime):
        return True
    try:
        return isinstance(eta, str) and len(eta) <= MAX_SHORT_LENGTH and maybe_iso8601(eta) is not None
    except (ValueError, TypeError, AttributeError):  # the errors that Celery's Request catches
        return False


logger = limited_logger(__name__)


class QoS(stock.QoS):
    """Acks of claimed jobs. kombu handles the acks of other messages."""

    def can_consume(self) -> bool:
        # A claimed job has its slot already, so prefetch must not keep it in the inbox.
        return self.channel.inbox is not None or super().can_consume()

    def can_prefetch(self) -> bool:
        """Return True if prefetch allows another message from the lists of unscheduled queues."""
        return bool(super().can_consume())

    def append(self, message: Any, delivery_tag: str) -> None:
        if not is_claim_tag(delivery_tag):
            super().append(message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        if is_claim_tag(delivery_tag):
            self._settle(delivery_tag, ACKED)
        else:
            super().ack(delivery_tag)
            self.channel.resume_lists()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if is_claim_tag(delivery_tag):
            self._settle(delivery_tag, REQUEUED if requeue else REJECTED)
        else:
            super().reject(delivery_tag, requeue=requeue)
            self.channel.resume_lists()

    def holds(self, delivery_tag: str) -> bool:
        """Return True if a message from one of kombu's lists is neither acked nor rejected yet."""
        return delivery_tag in self._delivered and delivery_tag not in self._dirty

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Requeue messages of dead stock workers. If the server refuses writes, the next interval tries again."""
        try:
            super().restore_visible(*args, **kwargs)
        except (redis.ConnectionError, redis.ResponseError) as exc:
            if not refuses_writes(exc.__cause__ or exc):
                raise
            logger.debug("The server takes no writes: unacknowledged messages are restored later")

    def restore_by_tag(self, tag: Any, client: Any = None, leftmost: bool = False) -> None:
        try:
            super().restore_by_tag(tag, client=client, leftmost=leftmost)
        except LOST:
            raise
        except Exception as exc:  # a bad entry must neither prevent the worker's start nor block other entries
            logger.error("The unacknowledged messages under %s cannot be restored: %r", shown_bytes(tag), exc)

    def _settle(self, delivery_tag: str, outcome: str) -> None:
        inbox = self.channel.inbox
        if inbox is not None:
            reporting = inbox.reporting_of(delivery_tag)
            held = reporting.claims.find(delivery_tag)
            is_refused = held is not None and held.request is None
            if outcome == REQUEUED and not is_refused:
                outcome = UNSETTLED  # `EndOfTask` settles it as REQUEUED if the task requested that
            reporting.set_outcome(delivery_tag, outcome, why_refused() if is_refused else "")


#: Types of the optional parts of a message.
_PARTS = {"headers": dict, "content-type": str, "content-encoding": str}

#: Maximum logical clock, and maximum time in seconds, of a broadcast. Celery would keep a larger number forever.
_LARGEST = 2**62 - 1


class UnreadableError(ValueError):
    """A message cannot be read, for the reason in the text."""


class CheckedMessage(_Message):
    """A kombu message. Raises only UnreadableError if *payload* is not a message of kombu."""

    def __init__(self, payload: Any, channel: Any = None, **kwargs: Any) -> None:
        try:
            _check(payload)
            check_content_encoding(payload.get("content-type"), payload.get("content-encoding"))
            super().__init__(_decompressed(payload), channel=channel, **kwargs)
            self._raw, self.headers, self.properties = payload, payload.get("headers") or {}, payload["properties"]
        except Exception as exc:  # including errors of kombu's own code
            raise UnreadableError(f"{type(exc).__name__}: {exc}") from exc


def _check(payload: Any) -> None:
    for name, type_ in _PARTS.items():
        part = payload.get(name)
        if part is not None and not isinstance(part, type_):
            raise TypeError(f"{name} is not a {type_.__name__}")
    properties = payload["properties"]
    if not isinstance(properties.get("delivery_info") or {}, dict):
        raise TypeError("delivery_info is not a dict")
    tag = properties["delivery_tag"]
    if isinstance(tag, int):
        tag = properties["delivery_tag"] = str(tag)
    if not tag.encode():
        raise ValueError("delivery_tag is empty")
    priority = properties.get("priority")
    if priority is not None and as_whole_number(priority) is None:  # kombu and Celery convert any value
        properties["priority"] = clamp(priority, 0, MAX_PRIORITY, 0)


def _decompressed(payload: dict[str, Any]) -> dict[str, Any]:
    """Return *payload* with a decompressed body, because kombu would decompress it without a size limit."""
    headers = payload.get("headers") or {}
    if not headers.get("compression"):
        return payload
    return {
        **payload,
        "body": raw_body(payload, MAX_CHARACTERS, any_method=True),
        "headers": {name: value for name, value in headers.items() if name != "compression"},
        "properties": {name: value for name, value in payload["properties"].items() if name != "body_encoding"},
    }


def check_control_message(payload: object) -> None:
    """Check the headers of a broadcast or its reply that kombu does not check. Raises UnreadableError."""
    headers = payload.get("headers") or {} if isinstance(payload, dict) else None
    if not isinstance(headers, dict):
        raise UnreadableError("it has no headers")
    for name in ("clock", "expires"):
        number = headers.get(name) or 0
        if not is_number(number, _LARGEST):
            raise UnreadableError(f"its {name} is not a number in range")
    if not isinstance(headers.get("ticket") or "", str):
        raise UnreadableError("its ticket is not a string")


#: Seconds for which one BRPOP waits: less than the 5 s for which redis-py waits for a reply by default.
_INBOX_TIMEOUT_S = 4


class Inbox(Protocol):
    """The worker behind a channel: it receives the contents of its inbox, and decides which jobs are consumed."""

    @property
    def worker(self) -> str:
        """The worker's id."""

    @property
    def key(self) -> str:
        """The inbox's Redis key."""

    @property
    def drained(self) -> bool:
        """True if jobs that still arrive must be returned."""

    def reporting_of(self, tag: str) -> "EndReporter":
        """Return the reporter of the claim that is held under *tag*."""

    def schedules(self, queue: str) -> bool:
        """Return True if a queue is scheduled; otherwise the channel reads its lists."""

    def serve(self, queue: str, serves: bool) -> None:
        """Record that the consumer of a scheduled queue was added (True) or cancelled (False)."""

    def receive(self, claim: Claim) -> None:
        """Hold a job from the inbox, and start it with `InboxChannel.consume` when it has a slot."""

    def obey(self, control_words: list[str]) -> None:
        """Execute a control message, split into words, that came to the inbox instead of a job."""

    def loop_ran(self) -> None:
        """Record that the loop of a worker with a green pool runs. It has no event loop, and calls `drain_events`."""


class InboxChannel(ConnectedChannel):
    """A channel from which a worker can read. `inbox` is that worker's inbox, and None on all other channels."""

    QoS = QoS
    Message = CheckedMessage

    inbox: Inbox | None = None

    is_closing = False

    _polls_only_inbox = False

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
        # A closing channel cancels consumers that the worker still needs.
        if self.inbox is not None and not self.is_closing and self.inbox.schedules(queue):
            self.inbox.serve(queue, consumes)

    def _receive_one(self, c: Any) -> Any:
        # redis-py waits without a limit for the rest of a message. If a connection stalled within a message, the event
        # loop would wait forever.
        try:
            with self._reading("what was broadcast"):
                return super()._receive_one(_BoundedPubSub(c))
        except Empty:
            return None  # otherwise the event loop would miss messages that arrived with the dropped one

    @contextmanager
    def _reading(self, source: str) -> Iterator[None]:
        """Drop a message that kombu cannot read, and raise Empty. Errors of the consumer itself are raised."""
        transport, previous_deliveries = self.connection, self.connection.deliveries
        try:
            yield
        except (Empty, *LOST):
            raise
        except Exception as exc:
            if transport.deliveries != previous_deliveries:
                raise
            values.log_and_drop_untrusted(source, getattr(exc, "doc", None) or getattr(exc, "object", None), exc)
            raise Empty from exc

    def _get_message_priority(self, message: Any, reverse: bool = False) -> int:
        """Return the priority of the list to which an unacked message is restored. kombu would convert any value."""
        properties = message["properties"] | {"priority": clamp(message["properties"].get("priority"), -1, 256, 0)}
        return int(super()._get_message_priority({**message, "properties": properties}, reverse=reverse))

    def _brpop_start(self, timeout: float | None = None) -> None:
        if self.inbox is None:
            # kombu 5.5 interprets None as "forever": without a timeout, kombu's own default must apply.
            super()._brpop_start(*(() if timeout is None else (timeout,)))
            return
        connection = self._in_poll = self.client.connection
        self._brpop_sent_at = monotonic()
        self._polls_only_inbox = True  # an ack in another thread must see this flag or the lists
        lists = self._lists_to_read()
        self._polls_only_inbox = not lists
        connection.send_command("BRPOP", self.inbox.key, self._nudges, *lists, timeout or _INBOX_TIMEOUT_S)

    def _lists_to_read(self) -> list[str]:
        """Return the lists of unscheduled queues in kombu's order, or none while prefetch forbids reading."""
        if not self.qos.can_prefetch():
            return []
        assert self.inbox is not None, "a worker reads"
        schedules = self.inbox.schedules
        queues = [queue for queue in self._queue_cycle.consume(len(self.active_queues)) if not schedules(queue)]
        lists = [self._q_for_pri(queue, priority) for priority in self.priority_steps for queue in queues]
        return [f"{self.global_keyprefix}{name}" for name in lists]

    @property
    def _nudges(self) -> str:
        assert self.inbox is not None, "a worker reads"
        return self.scheduler.keys.key("nudges", self.inbox.worker)

    def resume_lists(self) -> None:
        """Read lists again if the current wait excludes them and prefetch now allows them."""
        if self._in_poll and self._polls_only_inbox and self._consumes_from_lists() and self.qos.can_prefetch():
            self._polls_only_inbox = False
            end_wait(self.scheduler, self._nudges)

    def _consumes_from_lists(self) -> bool:
        return self.inbox is not None and not all(map(self.inbox.schedules, self.active_queues))

    def _brpop_read(self, **options: Any) -> bool:
        if self.inbox is None:
            with self._reading("a list"):
                return bool(super()._brpop_read(**options))
        reply = self._read_reply(**options)
        if not reply:
            raise Empty
        name, item = bytes_to_str(reply[0]), reply[1]
        if name == self.inbox.key:
            if not self.is_closing:  # otherwise the next sync detects the job that never arrived
                read_item(item, self.inbox.receive, self.inbox.obey)
        elif name != self._nudges:
            self._read_list(name.removeprefix(self.global_keyprefix).rsplit(self.sep, 1)[0], item)
        return True

    def _read_reply(self, **options: Any) -> Any:
        """Return the reply to BRPOP: the name and an item of a list, or None after the timeout."""
        assert self.inbox is not None, "a worker reads"
        connection = self.client.connection
        try:
            # Not the method of kombu's client, which removes its prefix from any name.
            return redis.Redis.parse_response(self.client, connection, "BRPOP", **options)  # type: ignore[no-untyped-call]
        except self.connection_errors:
            connection.disconnect()
            raise
        except redis.ResponseError as exc:
            if not str(exc).startswith("WRONGTYPE"):
                raise
            # Another client overwrote the inbox, or a list of kombu's. Another process may have repaired the inbox
            # already.
            self.scheduler.repair([self.inbox.worker])
            if any(self.scheduler.client.type(name) not in (b"list", b"none") for name in self._lists_to_read()):
                raise  # one of kombu's own lists has the wrong type
            return None
        finally:
            self._in_poll = None
            reauthenticate(connection)  # only now does the connection wait for nothing

    def _read_list(self, queue: str, item: bytes) -> None:
        self._queue_cycle.rotate(queue)
        with self._reading(queue):
            message = parse_message(item)
            properties = message.get("properties")
            if properties is not None and not properties.get("delivery_info"):
                properties["delivery_info"] = {"exchange": "", "routing_key": queue}  # to restore an unacked message
            self.connection._deliver(message, queue)

    def consume(self, claim: Claim, tag: str, *, has_slot: bool = True) -> None:
        """Pass a claimed job, held under *tag*, to the consumer of its queue.

        A job whose queue currently has no consumer is returned, and an unreadable job is dead-lettered. Without a slot,
        the job's wait continues and is counted later.
        """
        assert self.inbox is not None, "a worker reads"
        reporting = self.inbox.reporting_of(tag)
        consume = self.connection._callbacks.get(claim.type)
        if consume is None or self.inbox.drained:
            reporting.set_outcome(tag, RETURNED)
            return
        self.burying(claim, tag, partial(self._consume, claim, tag, consume, has_slot))

    def _consume(self, claim: Claim, tag: str, consume: Callable[[Any], object], has_slot: bool) -> None:
        assert self.inbox is not None, "a worker reads"
        message = message_of_claim(claim, tag, self._settings)
        if has_slot:
            properties = message["properties"]
            self.inbox.reporting_of(tag).claims.count_wait(
                tag, on_demand=bool(mode_of(properties)), priority=properties.get("priority")
            )
        consume(message)

    @cached_property
    def _settings(self) -> "Settings":
        return settings_of(publish_call.app_of_connection(self.connection.client))

    def burying(self, claim: Claim, tag: str, start: Callable[[], object]) -> None:
        """Dead-letter the job of *claim* if *start* raises, which can read its message and starts its task."""
        assert self.inbox is not None, "a worker reads"
        try:
            start()
        except LOST:
            raise  # not kombu's own list of errors, which treats even a KeyError as a lost connection
        except Exception as exc:
            logger.exception("Job %s of type %r cannot be read and becomes a dead letter", claim.job_id, claim.type)
            why = describe_error(exc)
            reporting = self.inbox.reporting_of(tag)
            reporting.set_outcome(tag, REJECTED, why)
            reporting.end(tag, FAILED, why)  # regardless of Celery's progress with the job

    def close(self) -> None:
        self.is_closing = True  # first, because kombu reads the remaining data and cancels the consumers
        if self.inbox is not None and self._in_poll:
            if self._polls_only_inbox:
                # The next sync detects a job that is still in the socket; waiting for one would delay the shutdown.
                self._in_poll = None
            else:  # a list's message in the socket exists nowhere else: kombu reads it, and restores it
                end_wait(self.scheduler, self._nudges)
        super().close()


def read_item(item: bytes, receive: Callable[[Claim], None], obey: Callable[[list[str]], None]) -> None:
    """Pass an *item* of an inbox to *receive* if it is a claim, or its words to *obey* if it is a control message."""
    try:
        claim = None if item.startswith(b"\n") else Claim.parse(item)
        control_words = item.decode().split() if claim is None else []
    except ValueError as exc:
        # If this was a job from the server, the next sync detects that it never arrived, and returns it.
        values.log_and_drop_untrusted("the inbox", item, exc)
        return
    if claim is not None:
        receive(claim)
    else:
        obey(control_words)


def end_wait(scheduler: Scheduler, nudges: str) -> None:
    """End the BRPOP that also waits for the list *nudges*. Without a connection, the wait ends by itself."""
    with suppress(redis.RedisError, OSError), scheduler.client.pipeline(transaction=False) as pipe:
        pipe.lpush(nudges, "")
        pipe.expire(nudges, REPLY_TIMEOUT_S)
        pipe.execute()


class _BoundedPubSub:
    """A redis-py PubSub with data to read. A read waits for the rest of a message only as long as for a reply."""

    def __init__(self, pubsub: Any) -> None:
        self._pubsub = pubsub

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pubsub, name)

    def parse_response(self) -> Any:
        return self._pubsub.parse_response(block=False, timeout=self._pubsub.connection.socket_timeout)
