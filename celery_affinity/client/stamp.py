"""A stamp: what a message says of its job, and how the message is written with it. Celery's stamps are in `revokes`."""

import base64
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery import Celery
from celery.utils.time import maybe_iso8601, maybe_make_aware

from ..rules.protocol import MAX_PRIORITY
from ..rules.settings import Settings

#: Name of the message property, and option of a call, that is ours alone. It holds a `stamping.Sending` until the
#: message is written, and then what a retry finds (`first_try`). Headers would not do: they are the user's, and go on
#: to children as well.
PROPERTY = "celery_affinity"

#: Properties that no written message has: ours, and the options of a call that its stamp was made of.
_OURS = (PROPERTY, "affinity", "on_demand")

Message = dict[str, Any]


@dataclass(frozen=True)
class Stamp:
    """What a message says of its job.

    *type* None: the name of the queue that the message is sent to; any other is sent elsewhere. *priority*: 10 is the
    highest; *counted*: the priority as the app counts it. *on_demand* None: nobody said so. *due*, *expires*: Unix
    times in s, None for now and for never.
    """

    publish_id: str
    type: str | None
    priority: int
    on_demand: bool | None
    due: float | None
    expires: float | None = None
    counted: int = 0

    def job_id(self, queue: str) -> str:
        """Return the id of the copy for *queue*: the same each time this publish is repeated."""
        return job_id(self.publish_id, queue)

    def delay_us(self) -> int:
        """Return how long the job has still to wait, by this host's clock: it also set the time, from a countdown."""
        return 0 if self.due is None else max(0, round((self.due - time.time()) * 1e6))

    def expires_us(self) -> int | None:
        """Return how long the job may wait before it expires, by this host's clock; None for ever."""
        return None if self.expires is None else round((self.expires - time.time()) * 1e6)

    def properties(self, of_call: Mapping[str, object]) -> dict[str, Any]:
        """Return the properties of the message as they are written: those of its call, with what a retry finds."""
        properties = _without_ours(of_call)
        properties["priority"] = self.counted
        if self.type is not None:
            properties["delivery_info"] = {"exchange": "", "routing_key": self.type}
        if self.on_demand is not None:
            properties[PROPERTY] = {"on_demand": self.on_demand}
        return properties


def job_id(publish_id: str, queue: str) -> str:
    """Return the id of the job that a publish puts into *queue*."""
    digest = hashlib.blake2b(f"{publish_id} {queue}".encode(), digest_size=15).digest()
    return base64.urlsafe_b64encode(digest).decode()


def as_stock(type_: str, queue: str, message: Message) -> Message:
    """Return a message to *queue* as Celery alone would send it, to the queue *type_*."""
    properties = _without_ours(message["properties"])
    if type_ != queue:  # kombu puts an unacked message back where this says
        properties["delivery_info"] = {"exchange": "", "routing_key": type_}
    return {**message, "properties": properties}


def _without_ours(properties: Mapping[str, object]) -> dict[str, Any]:
    return {name: value for name, value in properties.items() if name not in _OURS}


def as_counted(priority: int, settings: Settings) -> int:
    """Return a priority as the scripts count it, 10 highest, from one as the app counts it."""
    return MAX_PRIORITY - priority if settings.priority_order == "lower-first" else priority


def moment(header: object, app: Celery) -> float | None:
    """Return the time in a header, Unix time in s; None if it has none, or none that can be read.

    An unreadable time is the worker's to refuse, as in stock Celery.
    """
    if not header:
        return None
    try:
        when: datetime = maybe_make_aware(maybe_iso8601(header), app.timezone)
    except (ValueError, TypeError, AttributeError):
        return None
    return when.timestamp()
