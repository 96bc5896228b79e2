"""What kombu reads for us, checked where it enters: anybody who may write to the server may have written it.

kombu and Celery take the parts of a message to have the types that their own clients give them. Here a message that has
others is one error, whatever kombu would have stumbled over, and whoever reads messages goes on without it.
"""

import logging
from typing import Any

import redis
from kombu.transport.virtual import Message as _Message

logger = logging.getLogger(__name__)

#: What is to be raised, however well it is guarded: the connection is lost, and Celery makes another.
LOST = (redis.ConnectionError, redis.TimeoutError, OSError)

#: Of what cannot be read so many characters are logged.
_SHOWN = 4096

#: A logical clock, or a time in s, that is larger is none: Celery would go on with it for ever.
_LARGEST = 2**62

#: Parts of a message that need not be there, and what they are if they are.
_PARTS = {"headers": dict, "content-type": str, "content-encoding": str}


class UnreadableError(ValueError):
    """A message is none: what is wrong with it."""


class Message(_Message):
    """A kombu message. Raises UnreadableError, and nothing else, if *payload* is not what kombu sends."""

    def __init__(self, payload: Any, channel: Any = None, **kwargs: Any) -> None:
        try:
            _check(payload)
            super().__init__(payload, channel=channel, **kwargs)
        except Exception as exc:  # whatever kombu does with it
            raise UnreadableError(f"{type(exc).__name__}: {exc}") from exc


def _check(payload: Any) -> None:
    for name, type_ in _PARTS.items():
        part = payload.get(name)
        if part is not None and not isinstance(part, type_):
            raise TypeError(f"{name} is no {type_.__name__}")
    properties = payload["properties"]
    if not isinstance(properties.get("delivery_info") or {}, dict):
        raise TypeError("delivery_info is no dict")
    tag = properties["delivery_tag"]
    if isinstance(tag, int):
        tag = properties["delivery_tag"] = str(tag)
    if not tag.encode():
        raise ValueError("delivery_tag is empty")


def check_control(payload: Any) -> None:
    """Raise UnreadableError for headers of a broadcast, or of a reply to one, that kombu takes on trust."""
    headers = payload.get("headers") or {} if isinstance(payload, dict) else None
    if not isinstance(headers, dict):
        raise UnreadableError("it has no headers")
    for name in ("clock", "expires"):
        number = headers.get(name) or 0
        if not (isinstance(number, int | float) and abs(number) < _LARGEST):
            raise UnreadableError(f"its {name} is no number that can be")
    if not isinstance(headers.get("ticket") or "", str):
        raise UnreadableError("its ticket is no text")


def is_text(text: str) -> bool:
    """Return whether Redis can have *text*: JSON has some that is none, halves of pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(what: object) -> str:
    """Return as much of *what* as is logged of something that cannot be read; plain ASCII."""
    text = ascii(what[:_SHOWN] if isinstance(what, (bytes, str)) else what)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def drop(source: str, what: object, why: object) -> None:
    """Log that what came from *source* cannot be read: it is dropped, as Celery drops what it cannot decode.

    *what*: None if it is not known.
    """
    logger.error("What came from %r cannot be read, it is dropped: %s. It was: %s", source, why, shown(what))
