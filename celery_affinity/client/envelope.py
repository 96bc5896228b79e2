"""A job's message in two forms: as kombu makes it, and as it waits in Redis, in fewer bytes and without loss.

The message is most of the memory that a job takes in Redis.
"""

import base64
from typing import Any

from kombu.utils.json import dumps, object_hook

from ..errors import OptionError
from ..rules.bounds import bound_of
from ..rules.new_job import NewJob
from ..rules.untrusted import loads, shape_of, text_of
from . import revokes
from .bodies import MOST_CHARACTERS
from .stamp import Message, Stamp

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


def as_job(queue: str, message: Message, stamp: Stamp) -> NewJob:
    """Return the job of *message* in *queue*. Raises OptionError if a field of it is not accepted."""
    headers, type_ = message["headers"], stamp.type or queue
    return NewJob(
        stamp.job_id(queue),
        type_,
        as_text(message, stamp),
        priority=stamp.priority,
        delay_us=stamp.delay_us(),
        task_id=text_of("task id", headers.get("id") or message["properties"].get("correlation_id")),
        task_name=text_of("task name", headers.get("task")),
        expires_us=stamp.expires_us(),
        stamps=revokes.stamps_of(headers),
        rules=stamp.rules,
        bound=bound_of(type_, stamp.bounds) if stamp.bounds else None,
        **stamp.plain,
    ).checked()


def as_text(message: Message, stamp: Stamp) -> str:
    """Return *message* as text for Redis. Raises OptionError if it is longer than `MOST_CHARACTERS`."""
    return written(shortened(message, stamp))


def shortened(message: Message, stamp: Stamp) -> Message:
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


def written(message: Message) -> str:
    """Return a message as JSON. Raises OptionError if it is longer than `MOST_CHARACTERS`."""
    text = str(dumps(message, separators=(",", ":")))  # kombu's own separators have a blank each
    if len(text) > MOST_CHARACTERS:
        raise OptionError(
            f"a message must be at most {MOST_CHARACTERS:,} characters (its arguments are most of it: pass a reference "
            f"to what is large), got: {len(text):,}"
        )
    return text


def read(text: bytes | str) -> Message:
    """Return a message as it was sent, from the text that waited in Redis. Of its stamp only a retry's part is left.

    Raises ValueError if *text* is no message.
    """
    message = parsed(text)
    headers = message.get("headers")
    if headers and "id" in headers:  # other languages' producers leave headers out, and the first protocol has none
        message["headers"] = {**_SAY_NOTHING, **headers}
    return message


def parsed(text: bytes | str) -> Message:
    """Return the message in *text*, as its sender wrote it. Raises ValueError if it is not a message.

    Its parts may have any type, except that headers and properties are mappings, if they are there.
    """
    # Only values that kombu has marked need its objects, and a decoder that makes them takes twice as long.
    is_marked = (b"__type__" if isinstance(text, bytes) else "__type__") in text  # type: ignore[operator]
    message = loads(text, longest=MOST_CHARACTERS, object_hook=object_hook if is_marked else None)
    if not isinstance(message, dict):
        raise ValueError(f"a message must be a mapping, got: {shape_of(message)}")
    for part in ("headers", "properties"):
        if message.get(part) is not None and not isinstance(message[part], dict):
            raise ValueError(f"{part} of a message must be a mapping, got: {shape_of(message[part])}")
    return message
