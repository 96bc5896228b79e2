"""A call that publishes: its id and its stamp, from where the call begins until its message is sent.

A `Sending` is made once for each call that publishes, where the call begins, and goes with its message among the
properties, through all of kombu's own retries: the Sending's id makes a repeated publish harmless. Only the same call
is a repeat: one dict of headers that is used for five calls makes five jobs. No object of the caller's is changed.

What the call asks for is in `wish`. Celery decided the destination of a message when it routed the call
(`destination`). A plain option of a call (`call_options`), such as ``on_demand=``, is in `Stamp.plain`, then a field of
the `NewJob` (`envelope.as_job`).
"""

from functools import wraps
from typing import Any, NamedTuple

from celery import Celery
from celery.signals import before_task_publish
from kombu import Connection

from ..rules.bounds import Bound
from . import (
    destination,
    first_try,
    misspelt,
    publishing_app,
    stated_rules,
)
from .accepted_work import is_fresh
from .celery_methods import apps, connections, retries  # noqa: F401  # watch retries and lost connections
from .celery_methods.apps import Sender
from .destination import Routed
from .following_ids import new_publish_id
from .of_app import is_ours, settings_of
from .passed_on import pass_on
from .queue_binding import bind_once
from .stamp import PROPERTY, Message, Stamp, as_counted, moment
from .stated_rules import RuleMaker
from .wish import Wish

_NO_BOUNDS: dict[str, int | Bound] = {}


class Captured(NamedTuple):
    """The message of a job as it would have been put into *queue*. *rule*: what makes `Stamp.rules` of like calls."""

    queue: str
    message: Message
    stamp: Stamp
    rule: RuleMaker | None


class Capture(list[Captured]):
    """A list that gets the jobs of one call instead of the server, for a caller that has to see Celery's messages.

    The list is an option of the call, named `PROPERTY`: whatever else is published meanwhile goes its own way.
    """

    #: Whether a copy was published all the same: to a queue that is not scheduled.
    published = False


class Sending(str):
    """A call that publishes: the publish id, and the facts of the call that its message does not say.

    A Sending is a str, so that the properties that hold it can be logged and serialized. *app*: the app whose settings
    count. *capture*: the list that gets the jobs; None: the server does.
    """

    app: Celery
    task_name: str
    capture: Capture | None

    #: Whether Celery sends the message (kombu alone does not route), and the ``affinity=`` by which the call was
    #: routed.
    is_routed = False
    routed_by: object = None

    #: The priority that Celery found; kombu makes 0 of None.
    priority: object = None

    #: The arguments of the call, in the body as Celery made it; of a message that kombu alone sends they are not known.
    called_with: object = None

    #: What made the rules of the stamp; None if there is nothing that could.
    rule: RuleMaker | None = None

    #: With kombu's own `Producer.publish`: the body, by which a repeat is known, and the former value of `PROPERTY`.
    body: object = None
    former: object = None

    _wish: Wish | None = None
    _stamp: Stamp | None = None

    def __new__(cls, app: Celery, task_name: str, capture: Capture | None = None) -> "Sending":
        sending = super().__new__(cls, new_publish_id(task_name))
        sending.app, sending.task_name, sending.capture = app, task_name, capture
        return sending

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # a copy is no call

    def type(self, message: Message) -> str | None:
        """Return the type that *message* asks for; None: the type of its queue. Raises OptionError, SettingError."""
        return self._wished(message).type

    def stamp(self, message: Message) -> Stamp:
        """Return the stamp of *message*, the same at each call. Raises OptionError for a bad option."""
        if self._stamp is None:
            wish, headers, settings = self._wished(message), message["headers"], settings_of(self.app)
            expires = headers.get("expires")
            counted = wish.priority(self, message)
            self.rule = wish.job_rule(self, message)
            self._stamp = Stamp(
                str(self),
                wish.type,
                as_counted(counted, settings),
                wish.plain,
                moment(headers.get("eta"), self.app),
                first_try.expires_at(expires, wish.first_try) or moment(expires, self.app),
                counted,
                self._rules(message),
                self.rule is not None and self.rule.said,
                settings.max_pending if settings.max_pending and is_fresh(headers) else _NO_BOUNDS,
            )
        return self._stamp

    def warn_of_key(self, message: Message, queue: str) -> None:
        """Log that *message* is about to be sent to a *queue* that knows no keys, if its job was to have one."""
        rule = self._wished(message).job_rule(self, message)
        if rule is not None and any(rule.parts):
            stated_rules.warn_of_queue(self.task_name, queue)

    def _rules(self, message: Message) -> str:
        """Return the rules of the job that `rule` makes, "" for none."""
        if self.rule is None:
            return ""
        if self.rule.is_fixed:
            return self.rule.text((), {})
        if self.called_with is not None:
            return self.rule.text(*stated_rules.arguments_in(self.task_name, self.called_with))
        return self.rule.text(*stated_rules.read(self.task_name, message))

    def _wished(self, message: Message) -> Wish:
        if self._wish is None:
            self._wish = Wish.of(self, message)
        return self._wish


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
            if isinstance(options.get("declare"), list):  # copied: kombu and `bind_once` change it
                options["declare"] = [*options["declare"]]
            message = pass_on(message, options, first_try.passed_on_by_run)
            sending.called_with = message[2]
        return send(producer, name, message, *args, **options)

    return send_task_message


apps.on_send(_begin)


@before_task_publish.connect
def on_before_task_publish(properties: dict[str, object] | None = None, declare: object = None, **_: object) -> None:
    """Keep the priority, since kombu writes 0 for None, and bind the queues once (`bind_once`)."""
    sending = (properties or {}).get(PROPERTY)
    if properties is not None and isinstance(sending, Sending):
        sending.priority = properties.get("priority")
        if isinstance(declare, list):
            bind_once(sending.app, declare)


def begin(message: Message, connection: Connection) -> Sending | None:
    """Mark *message*, which kombu publishes, perhaps again. Return the mark, for `end`; None if Celery sends it.

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
    sending = sending_of(message, connection)
    if sending is not None:
        sending.body = message["body"]
    return sending


def end(sending: Sending, message: Message) -> None:
    """Leave the properties of *message*, which is published, as they were before `begin`."""
    if sending.former is None:
        message["properties"].pop(PROPERTY, None)
    else:
        message["properties"][PROPERTY] = sending.former


def sending_of(message: Message, connection: Connection) -> Sending | None:
    """Return the call that publishes *message* on *connection*; None if the message is no task's."""
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
