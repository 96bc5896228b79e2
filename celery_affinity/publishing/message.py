"""A stamp: the facts that a message says of its job, and the message with them. Celery's stamps are in `revokes`.

A revoke on its way to the workers ends the jobs that wait, of which no worker knows.

A revoke is a broadcast of remote control and passes the sender's transport, so the waiting jobs end before the first
worker hears of it, and without any worker. A sender with stock Celery's transport ends no job: for its revokes, the
workers that tick for the fleet end them when the broadcast arrives.

A job's message in two forms: as kombu makes it, and as it waits in Redis, in fewer bytes and without loss.

The message is most of the memory that a job takes in Redis.
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
from ..schema import job_record
from ..schema.bounds import Bound, as_bound
from ..schema.constants import MAX_PRIORITY, MOST_STAMP_BYTES, MOST_STAMPS
from ..schema.job_record import NewJob
from ..schema.untrusted import LONGEST_SHORT, bounded_text, describe_shape, loads, shown_text
from ..schema.values import encode_part, is_readable, shown_bytes
from .message_body import MOST_CHARACTERS, decode_body

if TYPE_CHECKING:
    from ..settings.table import Settings

#: Name of the message property, and option of a call, that is ours alone. The property holds a `stamping.Sending` until
#: the message is written, and then the traces for a retry (`first_try`). A header would not do: headers are the user's,
#: and go on to children as well.
PROPERTY = "celery_affinity"
#: Properties that no written message has: ours, and the options of a call that its stamp was made of.
_OURS = (PROPERTY, *NOT_WRITTEN)
#: A message as kombu makes it: body, headers, properties, content type and encoding.
Message = dict[str, Any]


@dataclass(slots=True)  # not frozen: each publish makes one, and a frozen one takes three times as long to make
class JobHeader:
    """The facts that a message says of its job.

    *type* None: the name of the queue that the message is sent to; any other is sent elsewhere. *priority*: 10 is the
    highest; *counted*: the priority as the app counts it. *plain*: the plain options (`call_options`) that somebody
    said, by name. *due*, *expires*: Unix times in s, None for now and for never. *rules*: how it merges, and its key,
    as `rules.rule_texts` reads them. *keeps_rules*: whether a retry is to find *rules* even if they are "": the call
    wants none. *bounds*: the setting ``affinity_max_pending``, if it concerns the call.
    """

    publish_id: str
    type: str | None
    priority: int
    plain: Mapping[str, Any]
    due: float | None
    expires: float | None = None
    counted: int = 0
    rules: str = ""
    keeps_rules: bool = False
    bounds: Mapping[str, int | Bound] = field(default_factory=dict)

    def job_id(self, queue: str) -> str:
        """Return the id of the copy for *queue*: the same each time this publish is repeated."""
        return job_id(self.publish_id, queue, self.rules)

    def delay_us(self) -> int:
        """Return the time, µs, until the job is due, by this host's clock, which also made a time of a countdown."""
        return 0 if self.due is None else max(0, round((self.due - time.time()) * SECOND_US))

    def expires_us(self) -> int | None:
        """Return the time, µs, until the job expires, by this host's clock; None: never."""
        return None if self.expires is None else round((self.expires - time.time()) * SECOND_US)

    def properties(self, of_call: Mapping[str, object]) -> dict[str, object]:
        """Return the properties as they are written: those of the call, and the traces for a retry."""
        properties = _without_ours(of_call)
        properties["priority"] = self.counted
        if self.type is not None:
            properties["delivery_info"] = {"exchange": "", "routing_key": self.type}
        return properties | self.left(self.rules)

    def left(self, rules: str) -> dict[str, Any]:
        """Return the property, if any, in which a retry finds what the first try asked for, with *rules*."""
        left = dict(self.plain)
        if rules or self.keeps_rules:
            left["rules"] = rules
        return {PROPERTY: left} if left else {}


def job_id(publish_id: str, queue: str, rules: str = "") -> str:
    """Return the id of the job that a publish puts into *queue*. The id of a job with *rules* bears their mark."""
    digest = hashlib.blake2b(f"{publish_id} {queue}".encode(), digest_size=15).digest()
    return job_record.with_suffix(base64.urlsafe_b64encode(digest).decode(), rules)


def as_stock_message(type_: str, queue: str, message: Message) -> Message:
    """Return a message to *queue* as Celery alone would send it, to the queue *type_*."""
    properties = _without_ours(message["properties"])
    if type_ != queue:  # kombu puts an unacked message back where this says
        properties["delivery_info"] = {"exchange": "", "routing_key": type_}
    return {**message, "properties": properties}


def _without_ours(properties: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in properties.items() if name not in _OURS}


def with_retry_count(priority: int, settings: "Settings") -> int:
    """Return a priority as the arrows count it, 10 highest, from one as the app counts it."""
    return MAX_PRIORITY - priority if settings.priority_order == "lower-first" else priority


def parse_time(header: object, app: Celery) -> float | None:
    """Return the time in *header*, in Unix time, s; None without a time, or with one that cannot be read.

    An unreadable time is the worker's to refuse, as in stock Celery.
    """
    if not (isinstance(header, datetime) or (isinstance(header, str) and 0 < len(header) <= LONGEST_SHORT)):
        return None
    try:
        when: datetime = maybe_make_aware(maybe_iso8601(header), app.timezone)
        return when.timestamp()
    except (ValueError, TypeError, AttributeError, OverflowError):
        return None


logger = limited_logger(__name__)


class Revoke(NamedTuple):
    """What a revoke names: ids of tasks, and stamps as `stamp` writes them."""

    task_ids: list[str]
    stamps: list[str]


def stamp_revokes(name: str, value: object) -> str:
    """Return a message's stamp in one word: name and value, percent-encoded."""
    return f"{encode_part(name)}:{encode_part(bounded_text(value, MOST_CHARACTERS) or '')}"


def stamps_of(headers: Mapping[str, object]) -> list[str]:
    """Return the stamps in the headers of a task's message, without those that no revoke could name.

    Raises OptionError for more stamps than `MOST_STAMPS`, or more bytes of them than `MOST_STAMP_BYTES`.
    """
    names, values = headers.get("stamped_headers"), headers.get("stamps")
    if not names or not isinstance(values, Mapping):
        return []
    named = {name: values.get(name) for name in maybe_list(names) if isinstance(name, str)}
    stamps = [
        stamp_revokes(name, value)
        for name, several in named.items()
        if _is_name(name)
        for value in maybe_list(several) or ()
        if _is_name(value)
    ]
    size = len(" ".join(stamps)) if stamps else 0
    if len(stamps) > MOST_STAMPS or size > MOST_STAMP_BYTES:
        raise OptionError(
            f"the stamps of a message must be at most {MOST_STAMPS}, and {MOST_STAMP_BYTES:,} bytes together "
            f"(percent-encoded, with their names), got: {len(stamps):,} of {size:,} bytes"
        )
    return stamps


def is_mailbox(name: str) -> bool:
    """Return whether an exchange or a queue belongs to remote control, or to the replies to it."""
    return name.endswith(".pidbox")


def read_revoke(mailbox: str, message: Message) -> Revoke | None:
    """Return the names that a broadcast revokes for the whole fleet; None if it is not such a revoke.

    *mailbox*: the exchange of remote control that the broadcast is sent to, or the queue that it is read from. Names
    that cannot be revoked are logged and left out; workers answer them, as they do without this transport.
    """
    if not is_mailbox(mailbox):
        return None
    command = decode_body(message)
    if not isinstance(command, dict) or any(command.get(each) for each in ("destination", "pattern", "matcher")):
        return None  # a revoke for some of the workers only
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
    named = [pair.partition("=") for pair in pairs]  # as the command line gives stamps
    if not all(separator for _, separator, _ in named):
        raise ValueError("a stamp is revoked by name=value")
    return {name: value for name, _, value in named}


def _stamps(values: Mapping[str, Any]) -> list[str]:
    return [
        stamp_revokes(name, value)
        for name, several in values.items()
        if _named("name of a stamp", name)
        for value in _named("stamp", several)
    ]


def _named(what: str, several: object) -> list[str]:
    """Return the names in *several* as texts. A name that can be no *what* is logged and left out."""
    found = maybe_list(several) or ()
    for each in found:
        if not _is_name(each):
            logger.warning("A revoke names an invalid %s: %s", what, shown_bytes(each))
    return [name for each in found if _is_name(each) and (name := bounded_text(each, MOST_CHARACTERS)) is not None]


def _is_name(value: object) -> bool:
    """Return whether *value* can be an id or a stamp: a number, or a text that Redis can have."""
    name = bounded_text(value, MOST_CHARACTERS)
    return name is not None and is_readable(name)


#: Headers, and the value at which each is left out: Celery always writes these headers, and reads an absent one as the
#: value here.
_SAY_NOTHING: dict[str, Any] = {
    "shadow": None,
    "eta": None,
    "expires": None,
    "group": None,
    "group_index": None,
    "parent_id": None,
    "stamped_headers": None,
    "stamps": {},
}


def encode_job(queue: str, message: Message, stamp: JobHeader) -> NewJob:
    """Return the job of *message* in *queue*. Raises OptionError if a field of it is not accepted."""
    headers, type_ = message["headers"], stamp.type or queue
    return NewJob(
        stamp.job_id(queue),
        type_,
        encode_message(message, stamp),
        priority=stamp.priority,
        delay_us=stamp.delay_us(),
        task_id=shown_text("task id", headers.get("id") or message["properties"].get("correlation_id")),
        task_name=shown_text("task name", headers.get("task")),
        expires_us=stamp.expires_us(),
        stamps=stamps_of(headers),
        rules=stamp.rules,
        bound=as_bound(type_, stamp.bounds) if stamp.bounds else None,
        **stamp.plain,
    ).checked()


def encode_message(message: Message, stamp: JobHeader) -> str:
    """Return *message* as text for Redis. Raises OptionError if it is longer than `MOST_CHARACTERS`."""
    return written_message(shorten_message(message, stamp))


def shorten_message(message: Message, stamp: JobHeader) -> Message:
    """Return *message* without headers that `read` adds again, and without base64, which makes text a third longer."""
    headers = dict(message["headers"])
    for name, nothing in _SAY_NOTHING.items():
        if name in headers and headers[name] == nothing:
            del headers[name]
    short = {**message, "headers": headers, "properties": stamp.properties(message["properties"])}
    if message["properties"].get("body_encoding") == "base64" and _is_text(message):
        short["body"] = base64.b64decode(message["body"]).decode()
        short["properties"]["body_encoding"] = "utf-8"
    return short


def _is_text(message: Message) -> bool:
    return message["content-encoding"] == "utf-8" and "compression" not in message["headers"]


def written_message(message: Message) -> str:
    """Return a message as JSON. Raises OptionError if it is longer than `MOST_CHARACTERS`."""
    text = str(dumps(message, separators=(",", ":")))  # kombu's own separators have a blank each
    if len(text) > MOST_CHARACTERS:
        raise OptionError(
            f"a message must be at most {MOST_CHARACTERS:,} characters (its arguments are most of it: pass a reference "
            f"to what is large), got: {len(text):,}"
        )
    return text


def decode_message(text: bytes | str) -> Message:
    """Return a message as it was sent, from the text that waited in Redis. Of its stamp only a retry's part is left.

    Raises ValueError if *text* is no message.
    """
    message = parse_message(text)
    headers = message.get("headers")
    if headers and "id" in headers:  # other languages' producers leave headers out, and the first protocol has none
        message["headers"] = {**_SAY_NOTHING, **headers}
    return message


def parse_message(text: bytes | str) -> Message:
    """Return the message in *text*, as its sender wrote it. Raises ValueError if it is not a message.

    Its parts may have any type, except that headers and properties are mappings, if they are there.
    """
    # Only values with kombu's type marker need the object hook, which doubles the decoding time.
    is_marked = (b"__type__" if isinstance(text, bytes) else "__type__") in text  # type: ignore[operator]
    message = loads(text, longest=MOST_CHARACTERS, object_hook=object_hook if is_marked else None)
    if not isinstance(message, dict):
        raise ValueError(f"a message must be a mapping, got: {describe_shape(message)}")
    for part in ("headers", "properties"):
        if message.get(part) is not None and not isinstance(message[part], dict):
            raise ValueError(f"{part} of a message must be a mapping, got: {describe_shape(message[part])}")
    return message
