"""A job's message in two forms: as kombu makes it, and as it waits in Redis, in fewer bytes and without loss.

The message is most of the memory that a job takes in Redis.
"""

import base64
import json
from typing import Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads

from ..errors import OptionError
from ..rules.bounds import bound_of
from ..rules.new_job import NewJob
from . import revokes
from .stamp import Message, Stamp

#: Length of the longest message, characters: a server moves a message four times on the way from publisher to worker,
#: and does nothing else meanwhile.
MOST_CHARACTERS = 100_000_000

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
        task_id=str(headers.get("id") or message["properties"].get("correlation_id") or ""),
        task_name=str(headers.get("task") or ""),
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


def _loads(text: str) -> Message:
    """Return decoded JSON. kombu's decoder takes twice as long, and only values that kombu has marked need it."""
    message: Message = loads(text) if "__type__" in text else json.loads(text)
    return message


def read(text: bytes | str) -> Message:
    """Return a message as it was sent, from the text that waited in Redis. Of its stamp only a retry's part is left.

    Raises ValueError, TypeError, AttributeError or KeyError if *text* is no message.
    """
    message = _loads(bytes_to_str(text))
    headers = message.get("headers")
    if headers and "id" in headers:  # other languages' producers leave headers out, and the first protocol has none
        message["headers"] = {**_SAY_NOTHING, **headers}
    return message
