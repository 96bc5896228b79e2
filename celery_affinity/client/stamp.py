"""A stamp: the facts that a message says of its job, and the message with them. Celery's stamps are in `revokes`."""

import base64
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from celery import Celery
from celery.utils.time import maybe_iso8601, maybe_make_aware

from ..clock import SECOND_US
from ..rules import marks
from ..rules.bounds import Bound
from ..rules.call_options import NOT_WRITTEN
from ..rules.protocol import MAX_PRIORITY
from ..rules.untrusted import LONGEST_SHORT

if TYPE_CHECKING:
    from ..rules.settings import Settings

#: Name of the message property, and option of a call, that is ours alone. The property holds a `stamping.Sending` until
#: the message is written, and then the traces for a retry (`first_try`). A header would not do: headers are the user's,
#: and go on to children as well.
PROPERTY = "celery_affinity"

#: Properties that no written message has: ours, and the options of a call that its stamp was made of.
_OURS = (PROPERTY, *NOT_WRITTEN)

#: A message as kombu makes it: body, headers, properties, content type and encoding.
Message = dict[str, Any]


@dataclass(slots=True)  # not frozen: each publish makes one, and a frozen one takes three times as long to make
class Stamp:
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
    return marks.marked(base64.urlsafe_b64encode(digest).decode(), rules)


def as_stock(type_: str, queue: str, message: Message) -> Message:
    """Return a message to *queue* as Celery alone would send it, to the queue *type_*."""
    properties = _without_ours(message["properties"])
    if type_ != queue:  # kombu puts an unacked message back where this says
        properties["delivery_info"] = {"exchange": "", "routing_key": type_}
    return {**message, "properties": properties}


def _without_ours(properties: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in properties.items() if name not in _OURS}


def as_counted(priority: int, settings: "Settings") -> int:
    """Return a priority as the arrows count it, 10 highest, from one as the app counts it."""
    return MAX_PRIORITY - priority if settings.priority_order == "lower-first" else priority


def moment(header: object, app: Celery) -> float | None:
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
