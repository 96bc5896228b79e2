"""A revoke on its way to the workers: what it asks of jobs that wait, which no worker has.

A revoke is a broadcast of remote control. It passes the transport of whoever sends it, so the waiting jobs end before
the first worker hears of it, and if there is no worker at all. That of stock Celery does nothing of the kind: there the
workers that tick for the fleet do it when they hear of it.
"""

import base64
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kombu import serialization
from kombu.exceptions import KombuError
from kombu.utils.functional import maybe_list

from .errors import OptionError
from .keys import encode

#: How long a revoked name stays revoked, s: as long as Celery's workers remember one (``REVOKE_EXPIRES``).
KEPT_FOR_S = 10_800


#: Stamps of one message, and bytes that they take as `stamp` writes them: a waiting job can be found by each.
MOST_STAMPS = 100
MOST_STAMP_BYTES = 20_000

#: Remote control is written in it, unless somebody chose otherwise.
_ACCEPTED = serialization.prepare_accept_content(["json"])


class Revoked(NamedTuple):
    """Ids of tasks, and stamps as `stamp` writes them."""

    task_ids: list[str]
    stamps: list[str]


def stamp(name: str, value: object) -> str:
    """Return a stamp of a message in one word."""
    return f"{encode(name)}:{encode(str(value))}"


def stamps_of(headers: Mapping[str, Any]) -> list[str]:
    """Return the stamps that the headers of a task's message bear. Raises OptionError if they are too many."""
    values = headers.get("stamps") or {}
    named = {name: values.get(name) for name in headers.get("stamped_headers") or () if values.get(name) is not None}
    stamps = _stamps(named)
    size = len(" ".join(stamps)) if stamps else 0
    if len(stamps) > MOST_STAMPS or size > MOST_STAMP_BYTES:
        raise OptionError(
            f"the stamps of a message must be at most {MOST_STAMPS}, and {MOST_STAMP_BYTES:,} bytes together "
            f"(percent-encoded, with their names), got: {len(stamps):,} of {size:,} bytes"
        )
    return stamps


def read(mailbox: str, message: Mapping[str, Any]) -> Revoked | None:
    """Return what a broadcast revokes for the whole fleet; None if it is something else.

    *mailbox*: the exchange of remote control that it is sent to, or the queue of one that it is read from.
    """
    if not mailbox.endswith(".pidbox"):
        return None
    command = decoded(message)
    if not isinstance(command, dict) or any(command.get(each) for each in ("destination", "pattern", "matcher")):
        return None  # only some of the workers are to refuse it
    arguments = command.get("arguments") or {}
    if command.get("method") == "revoke":
        return Revoked([str(each) for each in maybe_list(arguments.get("task_id")) or ()], [])
    if command.get("method") == "revoke_by_stamped_headers":
        return Revoked([], _stamps(_as_mapping(arguments.get("headers"))))
    return None


def decoded(message: Mapping[str, Any]) -> object:
    """Return the body of a message, if it is JSON; None if not."""
    body = message.get("body") or ""
    if (message.get("properties") or {}).get("body_encoding") == "base64":
        body = base64.b64decode(body)
    try:
        return serialization.loads(body, message.get("content-type"), message.get("content-encoding"), _ACCEPTED)
    except (KombuError, ValueError):
        return None  # the workers may be able to


def _as_mapping(headers: object) -> Mapping[str, Any]:
    if isinstance(headers, Mapping):
        return headers
    pairs: Iterable[str] = headers if isinstance(headers, list) else ()
    return dict(pair.split("=", 1) for pair in pairs)  # as the command line gives it


def _stamps(values: Mapping[str, Any]) -> list[str]:
    return [stamp(name, value) for name, several in values.items() for value in maybe_list(several) or ()]
