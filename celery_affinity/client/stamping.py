"""Task options -> a stamp: what a job needs, and the id under which it is published.

A `Sending` is made once for each call that publishes, where the call begins, and goes with its message among the
properties, through all of kombu's own retries: its id makes a repeated publish harmless. A repeat is the same call: one
dict of headers that is used for five calls is five jobs. Nothing of the caller's is changed.

Celery has decided where a message goes when it routed the call (`destination`); its urgency is decided here. kombu
routes nothing: the destination of a message that is published with kombu alone is decided here, too. A call's
``on_demand=`` becomes `Stamp.on_demand`, then `Job.on_demand` (`envelope.as_job`), then "demand" in a lane's name.
"""

import secrets
from collections.abc import Mapping
from functools import wraps
from typing import Any, NamedTuple

from celery import Celery
from celery.signals import before_task_publish
from kombu import Connection

from ..rules.affinity import as_affinity, check_on_demand, check_priority, of_task
from . import destination, first_try, misspelt, publishing_app
from .destination import Routed
from .modes import pass_on
from .of_app import is_ours, settings_of, tasks_of
from .publishing_app import Sender
from .queue_binding import bind_once
from .stamp import PROPERTY, Message, Stamp, as_counted, moment


class Captured(NamedTuple):
    """The message of a job as it would have been put into *queue*."""

    queue: str
    message: Message
    stamp: Stamp


class Capture(list[Captured]):
    """Gets the jobs of one call instead of the server, for a caller that needs to see what Celery makes of the call.

    It is an option of the call, under the name `PROPERTY`: whatever else is published meanwhile goes its own way.
    """

    #: Whether a copy was published all the same: to a queue that is not scheduled.
    published = False


class Sending(str):
    """A call that publishes: its publish id, and whatever the message does not say of the call.

    It is a str, so that messages' properties can be logged and serialized meanwhile. *app*: the app whose settings
    count. *capture*: where the jobs go, if not to the server.
    """

    app: Celery
    task_name: str
    capture: Capture | None

    #: Whether Celery sends the message (kombu alone does not route), and the ``affinity=`` by which it was routed.
    is_routed = False
    routed_by: object = None

    #: The priority that Celery found; kombu turns None into 0.
    priority: object = None

    #: With kombu's own `Producer.publish`: the body, by which a repeat is known, and the former value of `PROPERTY`.
    body: object = None
    former: object = None

    _wish: "_Wish | None" = None
    _stamp: Stamp | None = None

    def __new__(cls, app: Celery, task_name: str, capture: Capture | None = None) -> "Sending":
        sending = super().__new__(cls, secrets.token_hex(16))
        sending.app, sending.task_name, sending.capture = app, task_name, capture
        return sending

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # a copy is no call

    def type(self, message: Message) -> str | None:
        """Return the type that *message* asks for; None: that of its queue. Raises OptionError, SettingError."""
        return self._wished(message).type

    def stamp(self, message: Message) -> Stamp:
        """Return the stamp of *message*, the same at each call. Raises OptionError for a bad option."""
        if self._stamp is None:
            wish, headers = self._wished(message), message["headers"]
            expires = headers.get("expires")
            counted = self._priority(wish, message["properties"].get("priority"))
            self._stamp = Stamp(
                str(self),
                wish.type,
                as_counted(counted, settings_of(self.app)),
                wish.on_demand,
                moment(headers.get("eta"), self.app),
                first_try.expires_at(expires, wish.first_try) or moment(expires, self.app),
                counted,
            )
        return self._stamp

    def _wished(self, message: Message) -> "_Wish":
        if self._wish is None:
            task = tasks_of(self.app).get(self.task_name)
            properties = message["properties"]
            affinity, on_demand = properties.get("affinity"), properties.get("on_demand")
            left = self.former if self.body is not None else first_try.left_by(task, message)
            option, own = as_affinity(affinity), of_task(task)
            if self.is_routed:
                type_ = None if affinity == self.routed_by else option.type  # a before_task_publish handler has set it
            else:
                type_ = option.type or self._type_of_task(task, properties)
            if on_demand is None:
                on_demand = _first([option.on_demand, first_try.mode_in(left), own.on_demand])
            else:
                check_on_demand(on_demand)
            self._wish = _Wish(type_, on_demand, option.priority, own.priority, getattr(task, "priority", None), left)
        return self._wish

    def _type_of_task(self, task: Any, properties: Mapping[str, Any]) -> str | None:
        """Return the type of a task that is published with kombu alone. Any place but the default counts more."""
        type_ = destination.of_task(self.app, task, self.task_name)
        place = properties.get("delivery_info")
        if type_ is None or not isinstance(place, Mapping):
            return type_
        is_default = destination.is_default(self.app, place.get("exchange"), place.get("routing_key"))
        return type_ if is_default else None

    def _priority(self, wish: "_Wish", in_message: object) -> int:
        """Return the priority as the app counts it.

        What counts first: the call's ``affinity=``, the call's ``priority=``, the task's ``affinity=``, the task's
        ``priority``. Celery hands on one value for both of these: a value that equals the task's is the task's.
        """
        # Another priority than at the beginning: a handler of before_task_publish has set it.
        celerys = self.priority if in_message == (self.priority or 0) else in_message
        own = (wish.own_priority, celerys) if celerys == wish.of_task else (celerys, wish.own_priority)
        return check_priority(_first([wish.priority, *own]) or 0)


class _Wish(NamedTuple):
    """What a message asks for.

    *priority*: that in the call's ``affinity=``; *own_priority*: that in the task's ``affinity=``; *of_task*: the
    task's ``priority``. *first_try*: what the first try has left for this retry.
    """

    type: str | None
    on_demand: bool | None
    priority: int | None
    own_priority: int | None
    of_task: int | None
    first_try: object


def _first(values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _begin(app: Celery, send: Sender) -> Sender:
    """Return ``send_task_message`` of *app* with a `Sending` for each call: nothing that comes later names the app.

    Misspelt options of ours are refused here, where the caller sees the error. A call that our router has not seen is
    routed here.
    """

    @wraps(send)
    def send_task_message(producer: Any, name: str, message: Any, *args: Any, **options: Any) -> Any:
        former = options.pop(PROPERTY, None)
        connection = getattr(producer, "connection", None)
        if is_ours(getattr(connection, "transport_cls", None)):
            misspelt.check_call(app, name, options)
            if isinstance(former, Routed):
                former = former.former
            else:
                destination.route_late(app, name, options)
            sending = options[PROPERTY] = Sending(app, name, former if isinstance(former, Capture) else None)
            sending.is_routed, sending.routed_by = True, options.get("affinity")
            if isinstance(options.get("declare"), list):  # changed below, and by kombu
                options["declare"] = [*options["declare"]]
            message = pass_on(message, options, first_try.mode_of_run)
        return send(producer, name, message, *args, **options)

    return send_task_message


publishing_app.on_send(_begin)


@before_task_publish.connect
def on_before_task_publish(properties: dict[str, Any] | None = None, declare: Any = None, **_: object) -> None:
    """Keep the priority, since a message from kombu does not say None, and bind the queues once (`bind_once`)."""
    sending = (properties or {}).get(PROPERTY)
    if properties is not None and isinstance(sending, Sending):
        sending.priority = properties.get("priority")
        if isinstance(declare, list):
            bind_once(sending.app, declare)


def begin(message: Message, connection: Connection) -> Sending | None:
    """Mark *message*, which kombu publishes, perhaps again. Return what `end` needs; None if Celery sends it.

    kombu repeats a call with the same properties, made for this call. A caller that publishes on a channel, which
    repeats nothing, may use one dict of properties for many messages.
    """
    sending = message["properties"].get(PROPERTY)
    if isinstance(sending, Sending):
        if sending.body is None:
            return None
        if sending.body is message["body"]:
            return sending
        message["properties"][PROPERTY] = sending.former
    sending = of_message(message, connection)
    if sending is not None:
        sending.body = message["body"]
    return sending


def end(sending: Sending, message: Message) -> None:
    """Leave the properties of *message*, which is published, as they were before `begin`."""
    if sending.former is None:
        message["properties"].pop(PROPERTY, None)
    else:
        message["properties"][PROPERTY] = sending.former


def of_message(message: Message, connection: Connection) -> Sending | None:
    """Return the call that publishes *message* on *connection*; None if the message is none of a task."""
    properties: dict[str, Any] = message["properties"]
    former = properties.get(PROPERTY)
    if isinstance(former, Sending):
        return former
    name = (message.get("headers") or {}).get("task")
    if name is None:
        return None
    sending = properties[PROPERTY] = Sending(publishing_app.that_made(connection), str(name))
    sending.former = former
    return sending
