"""A revoke on its way to the workers ends the jobs that wait, of which no worker knows.

A revoke is a broadcast of remote control and passes the sender's transport, so the waiting jobs end before the first
worker hears of it, and without any worker. A sender with stock Celery's transport ends no job: for its revokes, the
workers that tick for the fleet end them when the broadcast arrives.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from kombu.utils.functional import maybe_list

from ..errors import OptionError
from ..log_limit import limited_logger
from ..rules.encoding import encode
from ..rules.protocol import MOST_STAMP_BYTES, MOST_STAMPS
from ..rules.unreadable import is_text, shown
from ..rules.untrusted import text
from .bodies import MOST_CHARACTERS, decoded
from .stamp import Message

logger = limited_logger(__name__)


class Revoked(NamedTuple):
    """What a revoke names: ids of tasks, and stamps as `stamp` writes them."""

    task_ids: list[str]
    stamps: list[str]


def stamp(name: str, value: object) -> str:
    """Return a message's stamp in one word: name and value, percent-encoded."""
    return f"{encode(name)}:{encode(text(value, MOST_CHARACTERS) or '')}"


def stamps_of(headers: Mapping[str, object]) -> list[str]:
    """Return the stamps in the headers of a task's message, without those that no revoke could name.

    Raises OptionError for more stamps than `MOST_STAMPS`, or more bytes of them than `MOST_STAMP_BYTES`.
    """
    names, values = headers.get("stamped_headers"), headers.get("stamps")
    if not names or not isinstance(values, Mapping):
        return []
    named = {name: values.get(name) for name in maybe_list(names) if isinstance(name, str)}
    stamps = [
        stamp(name, value)
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


def read(mailbox: str, message: Message) -> Revoked | None:
    """Return the names that a broadcast revokes for the whole fleet; None if it is not such a revoke.

    *mailbox*: the exchange of remote control that the broadcast is sent to, or the queue that it is read from. Names
    that cannot be revoked are logged and left out; workers answer them, as they do without this transport.
    """
    if not is_mailbox(mailbox):
        return None
    command = decoded(message)
    if not isinstance(command, dict) or any(command.get(each) for each in ("destination", "pattern", "matcher")):
        return None  # a revoke for some of the workers only
    arguments = command.get("arguments") or {}
    try:
        if command.get("method") == "revoke":
            return Revoked(_named("task id", arguments.get("task_id")), [])
        if command.get("method") == "revoke_by_stamped_headers":
            return Revoked([], _stamps(_as_mapping(arguments.get("headers"))))
    except (AttributeError, TypeError, ValueError) as exc:
        logger.warning("A revoke cannot end waiting jobs: %s. Its arguments are %s", exc, shown(arguments))
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
        stamp(name, value)
        for name, several in values.items()
        if _named("name of a stamp", name)
        for value in _named("stamp", several)
    ]


def _named(what: str, several: object) -> list[str]:
    """Return the names in *several* as texts. A name that can be no *what* is logged and left out."""
    found = maybe_list(several) or ()
    for each in found:
        if not _is_name(each):
            logger.warning("A revoke names an invalid %s: %s", what, shown(each))
    return [name for each in found if _is_name(each) and (name := text(each, MOST_CHARACTERS)) is not None]


def _is_name(value: object) -> bool:
    """Return whether *value* can be an id or a stamp: a number, or a text that Redis can have."""
    name = text(value, MOST_CHARACTERS)
    return name is not None and is_text(name)
