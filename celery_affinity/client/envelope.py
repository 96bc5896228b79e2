"""A job's message: as kombu makes it, and as it waits, in fewer bytes. Nothing is lost.

What waits in Redis is most of what a job takes there.
"""

import base64
import json
from typing import Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads

from ..errors import OptionError
from ..server.replies import Job
from . import revokes
from .stamp import Message, Stamp

#: Characters of a message, at most: a server moves it four times from publisher to worker, and does nothing else then.
MOST_CHARACTERS = 100_000_000

#: Headers that are left out where they say nothing: Celery writes them all, and reads what is not there as this.
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


def as_job(queue: str, message: Message, stamp: Stamp) -> Job:
    """Return the job that *message* is in *queue*. Raises OptionError if the message says what is not accepted."""
    headers = message["headers"]
    return Job(
        stamp.job_id(queue),
        stamp.type or queue,
        as_text(message, stamp),
        on_demand=bool(stamp.on_demand),
        priority=stamp.priority,
        delay_us=stamp.delay_us(),
        task_id=str(headers.get("id") or message["properties"].get("correlation_id") or ""),
        task_name=str(headers.get("task") or ""),
        expires_us=stamp.expires_us(),
        stamps=revokes.stamps_of(headers),
    ).checked()


def as_text(message: Message, stamp: Stamp) -> str:
    """Return a message as it waits."""
    return written(shortened(message, stamp))


def shortened(message: Message, stamp: Stamp) -> Message:
    """Return *message* without what `read` knows, nor kombu's base64, which makes text a third longer."""
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
    """Return a message as a text. Raises OptionError if that is too long."""
    text = str(dumps(message, separators=(",", ":")))  # kombu's own writes a blank after each of them
    if len(text) > MOST_CHARACTERS:
        raise OptionError(
            f"a message must be at most {MOST_CHARACTERS:,} characters (its arguments are most of it: pass a reference "
            f"to what is large), got: {len(text):,}"
        )
    return text


def _loads(text: str) -> Message:
    """Return JSON as kombu reads it, whose way takes twice as long: only values that it has marked need it."""
    message: Message = loads(text) if "__type__" in text else json.loads(text)
    return message


def read(text: bytes | str) -> Message:
    """Return a message that has waited as it was sent; of the stamp there is what a retry finds."""
    message = _loads(bytes_to_str(text))
    headers = message.get("headers")
    if headers and "id" in headers:  # producers in other languages leave out what they can, and the first protocol all
        message["headers"] = {**_SAY_NOTHING, **headers}
    return message
