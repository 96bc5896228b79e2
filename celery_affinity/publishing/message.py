"""The message of a job: the properties that describe its job, its format in Redis, and the revokes sent as messages.

A message waits in Redis in fewer bytes than in kombu's format, without loss, because messages take most of a job's
memory. A revoke is a broadcast of remote control that passes the sender's transport. It ends waiting jobs before any
worker receives it, and without a worker. For senders with stock Celery's transport, the workers that run ticks end
these jobs when the broadcast arrives.
"""

import base64
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from celery import Celery
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.utils.functional import maybe_list
from kombu.utils.json import dumps, object_hook

from ..clock import SECOND_US
from ..errors import OptionError
from ..log_limit import limited_logger
from ..options.call_options import NOT_WRITTEN
from ..options.due_times import DEADLINE, WITHIN, due_words, seconds_until
from ..schema import job_record
from ..schema.bounds import Bound, as_bound
from ..schema.constants import MAX_PRIORITY, MAX_STAMP_BYTES, MAX_STAMPS
from ..schema.job_record import NewJob
from ..schema.untrusted import MAX_SHORT_LENGTH, bounded_text, describe_shape, loads, shown_text
from ..schema.values import encode_part, is_readable, shown_bytes
from .message_body import MAX_CHARACTERS, read_body

if TYPE_CHECKING:
    from ..settings.table import Settings

#: Name of this package's message property, and of an option of a call. The property holds a `PublishCall` until the
#: message is published, and then the retry state. A header is unsuitable: headers belong to the user and are inherited
#: by child tasks.
PROPERTY = "celery_affinity"
#: Properties removed from published messages: this package's property, and the options stored in the `JobHeader`.
_OURS = (PROPERTY, *NOT_WRITTEN)
#: A message in kombu's format: body, headers, properties, content type and encoding.
Message = dict[str, Any]


@dataclass(slots=True)  # not frozen: creating a frozen instance, one per publish, takes three times as long
class JobHeader:
    """The properties of a job that its message carries."""

    publish_id: str
    #: None: the name of the message's queue. Otherwise the type of a message that was sent elsewhere.
    type: str | None
    #: In the order of the server functions: 10 is the highest.
    priority: int
    #: The plain options (`call_options`) that were set, by name. A deadline is absolute.
    plain: Mapping[str, Any]
    #: Unix time in seconds; None: now.
    eta: float | None
    #: Unix time in seconds; None: never.
    expires: float | None = None
    #: The priority in the order of the app.
    counted: int = 0
    #: How the job merges, and its keys, in the format of `rules_codec`.
    rules: str = ""
    #: True if a retry keeps `rules` even if they are "", because the call requested no rules.
    keeps_rules: bool = False
    #: Setting ``affinity_max_pending``, if it applies to the call.
    bounds: Mapping[str, int | Bound] = field(default_factory=dict)
    #: Size of the call, if its task has sizes.
    size: float | None = None

    def job_id(self, queue: str) -> str:
        """Return the job id for *queue*, which stays the same if this publish is repeated."""
        return job_id(self.publish_id, queue, self.rules)

    def delay_us(self) -> int:
        """Return the time in µs until the ETA, by this host's clock, which also converted a countdown."""
        return 0 if self.eta is None else max(0, round((self.eta - time.time()) * SECOND_US))

    def expires_us(self) -> int | None:
        """Return the time in µs until the job expires, by this host's clock, or None for never."""
        return None if self.expires is None else round((self.expires - time.time()) * SECOND_US)

    def due_words(self, size: float | None) -> str:
        """Return the words of the due time of the job of a call with *size*, by this host's clock."""
        deadline = self.plain.get(DEADLINE)
        until_s = None if deadline is None else seconds_until(deadline, time.time())
        return due_words(self.plain.get(WITHIN), until_s, size)

    def properties(self, of_call: Mapping[str, object]) -> dict[str, object]:
        """Return the properties for the published message: the call's properties and the retry state."""
        properties = _without_ours(of_call)
        properties["priority"] = self.counted
        if self.type is not None:
            properties["delivery_info"] = {"exchange": "", "routing_key": self.type}
        return properties | self.left(self.rules)

    def left(self, rules: str) -> dict[str, Any]:
        """Return the property with the options that a retry inherits and with *rules*, or {} if there are none."""
        retry_state = dict(self.plain)
        if rules or self.keeps_rules:
            retry_state["rules"] = rules
        return {PROPERTY: retry_state} if retry_state else {}


def job_id(publish_id: str, queue: str, rules: str = "") -> str:
    """Return the id of the job that a publish adds to *queue*. *rules* determine the id suffix."""
    digest = hashlib.blake2b(f"{publish_id} {queue}".encode(), digest_size=15).digest()
    return job_record.with_suffix(base64.urlsafe_b64encode(digest).decode(), rules)


def as_stock_message(type_: str, queue: str, message: Message) -> Message:
    """Return *message* as stock Celery would send it to the queue *type_*; it was sent to *queue*."""
    properties = _without_ours(message["properties"])
    if type_ != queue:  # kombu restores an unacked message to this destination
        properties["delivery_info"] = {"exchange": "", "routing_key": type_}
    return {**message, "properties": properties}


def _without_ours(properties: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in properties.items() if name not in _OURS}


def to_server_priority(priority: int, settings: "Settings") -> int:
    """Convert a priority from the app's order to the order of the server functions (10 is the highest)."""
    return MAX_PRIORITY - priority if settings.priority_order == "lower-first" else priority


def parse_time(header: object, app: Celery) -> float | None:
    """Return the time in *header* as Unix time in seconds, or None if it is missing or unreadable.

    The worker rejects an unreadable time, like in stock Celery.
    """
    if not (isinstance(header, datetime) or (isinstance(header, str) and 0 < len(header) <= MAX_SHORT_LENGTH)):
        return None
    try:
        when: datetime = maybe_make_aware(maybe_iso8601(header), app.timezone)
        return when.timestamp()
    except (ValueError, TypeError, AttributeError, OverflowError):
        return None


logger = limited_logger(__name__)


class Revoke(NamedTuple):
    """The targets of a revoke: task ids, and stamps in the format of `encode_stamp`."""

    task_ids: list[str]
    stamps: list[str]


def encode_stamp(name: str, value: object) -> str:
    """Return a message's stamp as one token: name and value, percent-encoded."""
    return f"{encode_part(name)}:{encode_part(bounded_text(value, MAX_CHARACTERS) or '')}"


def stamps_of(headers: Mapping[str, object]) -> list[str]:
    """Return the stamps in the headers of a task's message, without stamps that no revoke can name.

    Raises OptionError for more than `MAX_STAMPS` stamps, or more than `MAX_STAMP_BYTES` bytes.
    """
    names, values = headers.get("stamped_headers"), headers.get("stamps")
    if not names or not isinstance(values, Mapping):
        return []
    named = {name: values.get(name) for name in maybe_list(names) if isinstance(name, str)}
    stamps = [
        encode_stamp(name, value)
        for name, several in named.items()
        if _is_name(name)
        for value in maybe_list(several) or ()
        if _is_name(value)
    ]
    size = len(" ".join(stamps)) if stamps else 0
    if len(stamps) > MAX_STAMPS or size > MAX_STAMP_BYTES:
        raise OptionError(
            f"the stamps of a message must be at most {MAX_STAMPS}, and {MAX_STAMP_BYTES:,} bytes together "
            f"(percent-encoded, with their names), got: {len(stamps):,} of {size:,} bytes"
        )
    return stamps


def is_mailbox(name: str) -> bool:
    """Return True if an exchange or a queue belongs to remote control or to its replies."""
    return name.endswith(".pidbox")


def read_revoke(mailbox: str, message: Message) -> Revoke | None:
    """Return the targets that a broadcast revokes for the whole fleet, or None if it is not such a revoke.

    *mailbox* is the exchange or the queue of the broadcast. Invalid names are logged and ignored; workers reply to
    them, as they do without this transport.
    """
    if not is_mailbox(mailbox):
        return None
    command = read_body(message)
    if not isinstance(command, dict) or any(command.get(name) for name in ("destination", "pattern", "matcher")):
        return None  # a revoke for some workers only
    arguments = command.get("arguments") or {}
    try:
        if command.get("method") == "revoke":
            return Revoke(_named("task id", arguments.get("task_id")), [])
        if command.get("method") == "revoke_by_stamped_headers":
            return Revoke([], _stamps(_as_mapping(arguments.get("headers"))))
    except (AttributeError, TypeError, ValueError) as exc:
        logger.warning("A revoke cannot end waiting jobs: %s. Its arguments are %s", exc, shown_bytes(arguments))
    return None


def _as_mapping(headers: object) -> Mapping[str, Any]:
    """Return the values of stamps by name. Raises ValueError or AttributeError."""
    if isinstance(headers, Mapping):
        return headers
    pairs = headers if isinstance(headers, list) else ()
    named = [pair.partition("=") for pair in pairs]  # the format of the command line
    if not all(separator for _, separator, _ in named):
        raise ValueError("a stamp is revoked by name=value")
    return {name: value for name, _, value in named}


def _stamps(values: Mapping[str, Any]) -> list[str]:
    return [
        encode_stamp(name, value)
        for name, several in values.items()
        if _named("name of a stamp", name)
        for value in _named("stamp", several)
    ]


def _named(kind: str, several: object) -> list[str]:
    """Return the names in *several* as strings. Names that are not a valid *kind* are logged and ignored."""
    names = maybe_list(several) or ()
    for name in names:
        if not _is_name(name):
            logger.warning("A revoke names an invalid %s: %s", kind, shown_bytes(name))
    return [text for name in names if _is_name(name) and (text := bounded_text(name, MAX_CHARACTERS)) is not None]


def _is_name(value: object) -> bool:
    """Return True if *value* is a valid id or stamp: a number, or a string that Redis can store."""
    name = bounded_text(value, MAX_CHARACTERS)
    return name is not None and is_readable(name)


#: Headers that Celery always writes -> default value. A header with this value is omitted in Redis.
_DEFAULT_HEADERS: dict[str, Any] = {
    "shadow": None,
    "eta": None,
    "expires": None,
    "group": None,
    "group_index": None,
    "parent_id": None,
    "stamped_headers": None,
    "stamps": {},
}


def encode_job(queue: str, message: Message, header: JobHeader) -> NewJob:
    """Return the job of *message* in *queue*. Raises OptionError if a field is invalid."""
    headers, type_ = message["headers"], header.type or queue
    return NewJob(
        header.job_id(queue),
        type_,
        encode_message(message, header),
        priority=header.priority,
        delay_us=header.delay_us(),
        task_id=shown_text("task id", headers.get("id") or message["properties"].get("correlation_id")),
        task_name=shown_text("task name", headers.get("task")),
        expires_us=header.expires_us(),
        stamps=stamps_of(headers),
        rules=header.rules,
        due=header.due_words(header.size),
        bound=as_bound(type_, header.bounds) if header.bounds else None,
        on_demand=header.plain.get("on_demand", False),
    ).checked()


def encode_message(message: Message, header: JobHeader) -> str:
    """Return *message* as JSON for Redis. Raises OptionError if it is longer than `MAX_CHARACTERS`."""
    return written_message(shorten_message(message, header))


def shorten_message(message: Message, header: JobHeader) -> Message:
    """Return *message* without default headers, and without base64, which makes text a third longer."""
    headers = dict(message["headers"])
    for name, nothing in _DEFAULT_HEADERS.items():
        if name in headers and headers[name] == nothing:
            del headers[name]
    short = {**message, "headers": headers, "properties": header.properties(message["properties"])}
    is_base64 = message["properties"].get("body_encoding") == "base64"
    if is_base64 and message["content-encoding"] == "utf-8" and "compression" not in message["headers"]:
        short["body"] = base64.b64decode(message["body"]).decode()
        short["properties"]["body_encoding"] = "utf-8"
    return short


def written_message(message: Message) -> str:
    """Return a message as JSON. Raises OptionError if it is longer than `MAX_CHARACTERS`."""
    text = str(dumps(message, separators=(",", ":")))  # kombu's default separators contain spaces
    if len(text) > MAX_CHARACTERS:
        raise OptionError(
            f"a message must be at most {MAX_CHARACTERS:,} characters (its arguments are most of it: pass a reference "
            f"to what is large), got: {len(text):,}"
        )
    return text


def decode_message(text: bytes | str) -> Message:
    """Return the original message for its *text* in Redis, with only a retry's part of the `JobHeader`.

    Raises ValueError if *text* is not a message.
    """
    message = parse_message(text)
    headers = message.get("headers")
    if headers and "id" in headers:  # producers in other languages omit headers, and protocol 1 has none
        message["headers"] = {**_DEFAULT_HEADERS, **headers}
    return message


def parse_message(text: bytes | str) -> Message:
    """Return the message in *text*, as its sender wrote it. Raises ValueError if it is not a message.

    Headers and properties, if present, are mappings. Other parts can have any type.
    """
    # Only values with kombu's type marker need the object hook, which doubles the decoding time.
    is_marked = (b"__type__" if isinstance(text, bytes) else "__type__") in text  # type: ignore[operator]
    message = loads(text, longest=MAX_CHARACTERS, object_hook=object_hook if is_marked else None)
    if not isinstance(message, dict):
        raise ValueError(f"a message must be a mapping, got: {describe_shape(message)}")
    for part in ("headers", "properties"):
        if message.get(part) is not None and not isinstance(message[part], dict):
            raise ValueError(f"{part} of a message must be a mapping, got: {describe_shape(message[part])}")
    return message
