"""Task options -> a stamp: what a job needs, and the id under which it is published.

A `Sending` is made once for each call that publishes, where the call begins, and goes with its message among the
properties, through all of kombu's own retries: the id that it holds makes a repeated publish harmless. A repeat is the
same call: one dict of headers that is used for five calls is five jobs. Nothing of the caller's is changed.

Where a message goes was decided when Celery routed its call (`destination`): what is left is how urgent it is. kombu
routes nothing; a message that is published with it alone has its destination here.
"""

import base64
import hashlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import Any, NamedTuple

from celery import Celery
from celery._state import get_current_task
from celery.signals import before_task_publish
from celery.utils.time import maybe_iso8601, maybe_make_aware

from ..clock import now_s
from ..errors import OptionError
from ..rules.affinity import NOTHING, Affinity, as_affinity, check_on_demand, check_priority, of_task
from ..rules.protocol import MAX_PRIORITY
from ..rules.settings import Settings
from . import destination, misspelt, publishing_app
from .destination import Routed
from .modes import pass_on
from .of_app import is_ours, settings_of, tasks_of
from .publishing_app import Sender
from .queue_binding import bind_once

#: The message property, by a name that is ours alone, that holds a `Sending` until the message is written, and from
#: then on what a retry is to find. It is no header: those are the user's, and go on to children as well.
PROPERTY = destination.PROPERTY

#: Properties that end here: the stamp, and options of the call that it was made of.
_OURS = (PROPERTY, "affinity", "on_demand")

Message = dict[str, Any]


@dataclass(frozen=True)
class Stamp:
    """What a message says of its job. *type* None: the queue it is sent to; else it goes elsewhere.

    *priority*: 10 is the highest. *on_demand* None: nobody said so. *due*, *expires*: Unix times in s, None for now and
    for never. *counted*: the priority as the app counts it.
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
        """Return how long the job may wait before it expires, by the same clock; None for ever."""
        return None if self.expires is None else round((self.expires - time.time()) * 1e6)

    def properties(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the properties of the message as they are written: with what a retry is to find of this."""
        properties = _without_ours(given)
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


class Taken(NamedTuple):
    """A job's message as it would have been put into *queue*."""

    queue: str
    message: Message
    stamp: Stamp


class Taking(list[Taken]):
    """Takes the jobs of one call instead of the server, where somebody wants to see what Celery makes of it.

    It is an option of the call, under the name `PROPERTY`: whatever else is published meanwhile goes its own way.
    """

    #: Whether a queue that is not scheduled got a copy of the message.
    passed = False


class Sending(str):
    """A call that publishes: its id, a str for whoever logs or writes the properties of messages, and what is not said
    in the message.

    *app*: whose settings count. *taking*: who gets the jobs, if not the server.
    """

    app: Celery
    task_name: str
    taking: Taking | None

    #: Whether Celery sends it, where its call was routed to; and the ``affinity`` of it at that time.
    is_routed = False
    asked: object = None

    #: The priority that Celery found. kombu turns None into 0.
    priority: object = None

    #: With kombu's own `Producer.publish`: the body, by which a repeat is known, and what was there under our name.
    body: object = None
    found: object = None

    _wish: "_Wish | None" = None
    _stamp: Stamp | None = None

    def __new__(cls, app: Celery, task_name: str, taking: Taking | None = None) -> "Sending":
        sending = super().__new__(cls, secrets.token_hex(16))
        sending.app, sending.task_name, sending.taking = app, task_name, taking
        return sending

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # a copy is no call

    def type(self, message: Message) -> str | None:
        """Return the type that *message* asks for; None: that of its queue. Raises OptionError, SettingError."""
        return self._wished(message).type

    def stamp(self, message: Message) -> Stamp:
        """Return the stamp of *message*, the same at each call. Raises OptionError if it asks for what cannot be."""
        if self._stamp is None:
            wish, headers = self._wished(message), message["headers"]
            counted = self._priority(wish, message["properties"].get("priority"))
            self._stamp = Stamp(
                str(self),
                wish.type,
                as_counted(counted, settings_of(self.app)),
                wish.on_demand,
                moment(headers.get("eta"), self.app),
                _kept_until(headers.get("expires"), wish.kept) or moment(headers.get("expires"), self.app),
                counted,
            )
        return self._stamp

    def _wished(self, message: Message) -> "_Wish":
        if self._wish is None:
            task = tasks_of(self.app).get(self.task_name)
            properties = message["properties"]
            given, on_demand = properties.get("affinity"), properties.get("on_demand")
            kept = self.found if self.body is not None else _kept_of_first_try(task, message)
            option, own = as_affinity(given), of_task(task)
            if self.is_routed:
                type_ = None if given == self.asked else option.type  # a handler of before_task_publish has set it
            else:
                type_ = option.type or self._type_of_task(task, properties)
            if on_demand is None:
                on_demand = _first([option.on_demand, _as_kept(kept).on_demand, own.on_demand])
            else:
                check_on_demand(on_demand)
            self._wish = _Wish(type_, on_demand, option.priority, own.priority, getattr(task, "priority", None), kept)
        return self._wish

    def _type_of_task(self, task: Any, properties: Mapping[str, Any]) -> str | None:
        """Return the type of a task that is published with kombu alone. A place other than the default counts more."""
        type_ = destination.of_task(self.app, task, self.task_name)
        place = properties.get("delivery_info")
        if type_ is None or not isinstance(place, Mapping):
            return type_
        is_default = destination.is_default(self.app, place.get("exchange"), place.get("routing_key"))
        return type_ if is_default else None

    def _priority(self, wish: "_Wish", in_message: object) -> int:
        """Return the priority as the app counts it.

        ``priority=`` of the call comes after ``affinity=`` of the call and before that of the task; Celery does not
        tell it from the task's own ``priority``, so one that equals that comes last.
        """
        # Other than what it began with: a handler of before_task_publish has set it.
        given = self.priority if in_message == (self.priority or 0) else in_message
        own = (wish.own_priority, given) if given == wish.of_task else (given, wish.own_priority)
        return check_priority(_first([wish.priority, *own]) or 0)


class _Wish(NamedTuple):
    """What a message asks for. *priority*: of an ``affinity`` option; *own_priority*: of the task's affinity;
    *of_task*: that of the task's own ``priority``.

    *kept*: what a message's first try left under `PROPERTY`.
    """

    type: str | None
    on_demand: bool | None
    priority: int | None
    own_priority: int | None
    of_task: int | None
    kept: object


def _begin(app: Celery, send: Sender) -> Sender:
    """Return what sends the messages of *app*, noting that they are its own."""

    @wraps(send)
    def send_task_message(producer: Any, name: str, message: Any, *args: Any, **options: Any) -> Any:
        given = options.pop(PROPERTY, None)
        connection = getattr(producer, "connection", None)
        if is_ours(getattr(connection, "transport_cls", None)):
            misspelt.check_call(app, name, options)
            if isinstance(given, Routed):
                given = given.given
            else:
                destination.route_late(app, name, options)
            sending = options[PROPERTY] = Sending(app, name, given if isinstance(given, Taking) else None)
            sending.is_routed, sending.asked = True, options.get("affinity")
            if isinstance(options.get("declare"), list):  # changed below, and by kombu
                options["declare"] = [*options["declare"]]
            message = pass_on(message, options, mode_of_run)
        return send(producer, name, message, *args, **options)

    return send_task_message


publishing_app.on_send(_begin)


@before_task_publish.connect
def on_before_task_publish(properties: dict[str, Any] | None = None, declare: Any = None, **_: Any) -> None:
    """See what is in no message any more when kombu has made it, and have its queues declared for less."""
    sending = (properties or {}).get(PROPERTY)
    if properties is not None and isinstance(sending, Sending):
        sending.priority = properties.get("priority")
        if isinstance(declare, list):
            bind_once(sending.app, declare)


def begin(message: Message, connection: Any) -> Sending | None:
    """Note that kombu publishes *message*, perhaps again. Return what `end` is to be given, if it was not Celery's.

    kombu repeats a call with the same properties, which it makes for each call; who publishes on a channel, and repeats
    nothing, may use one dict for many messages.
    """
    sending = message["properties"].get(PROPERTY)
    if isinstance(sending, Sending):
        if sending.body is None:
            return None
        if sending.body is message["body"]:
            return sending
        message["properties"][PROPERTY] = sending.found
    sending = of_message(message, connection)
    if sending is not None:
        sending.body = message["body"]
    return sending


def end(sending: Sending, message: Message) -> None:
    """Leave the properties as they were: the message is published."""
    if sending.found is None:
        message["properties"].pop(PROPERTY, None)
    else:
        message["properties"][PROPERTY] = sending.found


def of_message(message: Message, connection: Any) -> Sending | None:
    """Return the call that publishes *message* on *connection*; None if it is no task."""
    properties: dict[str, Any] = message["properties"]
    found = properties.get(PROPERTY)
    if isinstance(found, Sending):
        return found
    name = (message.get("headers") or {}).get("task")
    if name is None:
        return None
    sending = properties[PROPERTY] = Sending(publishing_app.that_made(connection), str(name))
    sending.found = found
    return sending


def as_stock(type_: str, queue: str, message: Message) -> Message:
    """Return a message to *queue* as Celery alone would send it, to the queue *type_*."""
    properties = _without_ours(message["properties"])
    if type_ != queue:  # kombu puts what is not acked back where this says
        properties["delivery_info"] = {"exchange": "", "routing_key": type_}
    return {**message, "properties": properties}


def _without_ours(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in properties.items() if name not in _OURS}


def _kept_of_first_try(task: Any, message: Message) -> object:
    """Return what the message asked for that *task* is running of, if *message* is a retry of it.

    A retry has the task id of the run that publishes it. So has what replaces a task, which is another one.
    """
    stack = getattr(task, "request_stack", None)
    request = stack.top if stack is not None else None
    if request is None or request.id is None:
        return None
    headers, properties = message["headers"], message["properties"]
    nesting = request.replaced_task_nesting
    if (
        request.id != (headers.get("id") or properties.get("correlation_id"))
        or headers.get("replaced_task_nesting", nesting) != nesting
    ):
        return None
    return _kept(request.properties)


def mode_of_run() -> bool | None:
    """Return the mode of what is being run; None if nothing is, or nobody said it."""
    task = get_current_task()
    return None if task is None else _as_kept(_kept(task.request.properties)).on_demand


def _kept(properties: object) -> object:
    """Return what the properties of a message keep for its retry; of one that stock Celery sent, the mode."""
    if not isinstance(properties, Mapping):
        return None
    on_demand = properties.get("on_demand")
    return properties.get(PROPERTY, None if on_demand is None else {"on_demand": on_demand})


def _as_kept(found: object) -> Affinity:
    """Return what `Stamp.properties` kept; the rest is in the message's own. Nothing, if it is not ours."""
    if not isinstance(found, Mapping):
        return NOTHING
    try:
        return Affinity(on_demand=found.get("on_demand"))
    except OptionError:
        return NOTHING


class Until(NamedTuple):
    """When a job expires, for its retry. *expires*: what its message says. *until_s*: by this machine's `now_s`."""

    expires: object
    until_s: float


def _kept_until(expires: object, kept: object) -> float | None:
    """Return when a message expires that keeps what its first try had, by this host's clock; None if it does not."""
    until = kept.get("until") if isinstance(kept, Mapping) else None
    if not isinstance(until, Until) or until.expires != expires:
        return None
    return time.time() + until.until_s - now_s()


def as_counted(priority: int, settings: Settings) -> int:
    """Return a priority as the scripts count it, 10 highest, of one as the app does."""
    return MAX_PRIORITY - priority if settings.priority_order == "lower-first" else priority


def _first(values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def moment(given: object, app: Celery) -> float | None:
    """Return the time of a header. One that cannot be read is the worker's to refuse, as in stock Celery."""
    if not given:
        return None
    try:
        when: datetime = maybe_make_aware(maybe_iso8601(given), app.timezone)
    except (ValueError, TypeError, AttributeError):
        return None
    return when.timestamp()
