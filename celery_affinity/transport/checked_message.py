"""Kombu's messages, checked on arrival: anybody who may write to the server may have written them.

kombu and Celery trust the parts of a message to have the types that their own clients send. Here every other type
raises one error, whatever kombu would have stumbled over, and the reader goes on without that message.
"""

from typing import Any

from kombu.transport.virtual import Message as _Message

from ..client.bodies import MOST_CHARACTERS, check_content_encoding, raw_body
from ..rules.protocol import MAX_PRIORITY
from ..rules.untrusted import clamped, is_number, whole

#: Types of those parts of a message that may be missing.
_PARTS = {"headers": dict, "content-type": str, "content-encoding": str}

#: Largest logical clock, and largest time, s, of a broadcast: Celery would go on from a larger number for ever.
_LARGEST = 2**62 - 1


class UnreadableError(ValueError):
    """A message cannot be read: the text says what is wrong."""


class Message(_Message):
    """A kombu message. Raises UnreadableError, and nothing else, if *payload* is not what kombu sends."""

    def __init__(self, payload: Any, channel: Any = None, **kwargs: Any) -> None:
        try:
            _check(payload)
            check_content_encoding(payload.get("content-type"), payload.get("content-encoding"))
            super().__init__(_decompressed(payload), channel=channel, **kwargs)
            self._raw, self.headers, self.properties = payload, payload.get("headers") or {}, payload["properties"]
        except Exception as exc:  # of kombu's own code as well
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
    priority = properties.get("priority")
    if priority is not None and whole(priority) is None:  # kombu and Celery convert it, whatever it is
        properties["priority"] = clamped(priority, 0, MAX_PRIORITY, 0)


def _decompressed(payload: dict[str, Any]) -> dict[str, Any]:
    """Return *payload* with its body as it was before it was compressed: kombu decompresses without a limit."""
    headers = payload.get("headers") or {}
    if not headers.get("compression"):
        return payload
    return {
        **payload,
        "body": raw_body(payload, MOST_CHARACTERS, any_method=True),
        "headers": {name: value for name, value in headers.items() if name != "compression"},
        "properties": {name: value for name, value in payload["properties"].items() if name != "body_encoding"},
    }


def check_control(payload: object) -> None:
    """Check the headers of a broadcast, or of a reply to one, that kombu takes on trust. Raises UnreadableError."""
    headers = payload.get("headers") or {} if isinstance(payload, dict) else None
    if not isinstance(headers, dict):
        raise UnreadableError("it has no headers")
    for name in ("clock", "expires"):
        number = headers.get(name) or 0
        if not is_number(number, _LARGEST):
            raise UnreadableError(f"its {name} is no number that can be")
    if not isinstance(headers.get("ticket") or "", str):
        raise UnreadableError("its ticket is no text")
