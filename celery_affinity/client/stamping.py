"""Task options -> a stamp: what a job needs, and the id under which it is published.

A `Sending` is made once for each call that publishes, where the call begins, and goes with its message among the
properties, through all of kombu's own retries: the Sending's id makes a repeated publish harmless. Only the same call
is a repeat: one dict of headers that is used for five calls makes five jobs. No object of the caller's is changed.

Celery decided the destination of a message when it routed the call (`destination`); the urgency is decided here. kombu
routes nothing: the destination of a message that is published with kombu alone is decided here, too. A plain option of
a call (`call_options`), such as ``on_demand=``, is in `Stamp.plain`, then a field of the `Job` (`envelope.as_job`).
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, NamedTuple

from celery import Celery
from celery.signals import before_task_publish
from kombu import Connection

from ..rules import call_options
from ..rules.affinity import Affinity, affinity_of, as_affinity, check_priority
from ..rules.bounds import Bound
from ..rules.settings import Settings
from . import (
    destination,
    first_try,
    misspelt,
    publishing_app,
    stated_rules,
)
from .accepted_work import is_fresh
from .celery_methods import apps, retries  # noqa: F401  # watches retries
from .celery_methods.apps import Sender
from .destination import Routed
from .following_ids import new_publish_id
from .of_app import is_ours, settings_of, tasks_of
from .passed_on import pass_on
from .queue_binding import bind_once
from .stamp import PROPERTY, Message, Stamp, as_counted, moment
from .stated_rules import JobRule

#: Options that make the rules of a job.
OF_RULES = frozenset(name for name, option in call_options.OPTIONS.items() if option.field == "rules")

_NO_BOUNDS: dict[str, int | Bound] = {}


class Captured(NamedTuple):
    """The message of a job as it would have been put into *queue*. *rule*: what makes `Stamp.rules` of like calls."""

    queue: str
    message: Message
    stamp: Stamp
    rule: JobRule | None


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

    #: The priority that Celery found; kombu turns None into 0.
    priority: object = None

    #: The body of the message as Celery made it: the arguments. kombu alone does not say them.
    called_with: object = None

    #: What made the rules of the stamp; None if there is nothing that could.
    rule: JobRule | None = None

    #: With kombu's own `Producer.publish`: the body, by which a repeat is known, and the former value of `PROPERTY`.
    body: object = None
    former: object = None

    _wish: "_Wish | None" = None
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
            counted = self._priority(wish, message["properties"].get("priority"))
            rules = self._rules(wish, message, settings)
            self._stamp = Stamp(
                str(self),
                wish.type,
                as_counted(counted, settings),
                wish.plain,
                moment(headers.get("eta"), self.app),
                first_try.expires_at(expires, wish.first_try) or moment(expires, self.app),
                counted,
                rules,
                self.rule is not None and self.rule.said,
                settings.max_pending if settings.max_pending and is_fresh(headers) else _NO_BOUNDS,
            )
        return self._stamp

    def warn_of_key(self, message: Message, queue: str) -> None:
        """Log that *message* is about to be sent to a *queue* that knows no keys, if its job was to have one."""
        rule = self._decide(self._wished(message), message, settings_of(self.app))
        if rule is not None and (rule.rule or rule.merge):
            stated_rules.warn_of_queue(self.task_name, queue)

    def _rules(self, wish: "_Wish", message: Message, settings: Settings) -> str:
        """Return the rules of the job, "" for none, and have `rule` make those of like calls."""
        self.rule = rule = self._decide(wish, message, settings)
        if rule is None:
            return ""
        if rule.is_fixed:
            return rule.text((), {})
        if self.called_with is not None:
            return rule.text(*stated_rules.arguments_in(self.task_name, self.called_with))
        return rule.text(*stated_rules.read(self.task_name, message))

    def _decide(self, wish: "_Wish", message: Message, settings: Settings) -> JobRule | None:
        options = message["properties"]
        said = wish.asked.has_rules or wish.own.has_rules or wish.first_try or settings.task_rules
        if not said and options.keys().isdisjoint(OF_RULES):
            return None  # most calls
        return stated_rules.decide(
            self.task_name,
            tasks_of(self.app).get(self.task_name),
            options,
            asked=wish.asked,
            left=wish.first_try,
            own=wish.own,
            settings=settings,
        )

    def _wished(self, message: Message) -> "_Wish":
        if self._wish is None:
            task = tasks_of(self.app).get(self.task_name)
            properties = message["properties"]
            affinity = properties.get("affinity")
            left = self.former if self.body is not None else first_try.left_by(task, message)
            option, own = as_affinity(affinity), affinity_of(task)
            if self.task_name in destination.MAPS:
                own = self._of_mapped_task()
            if self.is_routed:
                type_ = None if affinity == self.routed_by else option.type  # a before_task_publish handler has set it
            else:
                type_ = option.type or self._type_of_task(task, properties)
            plain = call_options.plain(properties, option, call_options.left_in(left), own)
            self._wish = _Wish(type_, plain, option, own, getattr(task, "priority", None), left)
        return self._wish

    def _of_mapped_task(self) -> Affinity:
        """Return what the task asks for that a ``map``, ``starmap`` or ``chunks`` runs: a key is of one call alone."""
        body = self.called_with
        name = destination.mapped_by(body[1] if isinstance(body, tuple) and len(body) > 1 else None)
        task = tasks_of(self.app).get(name) if name else None
        return replace(affinity_of(task), exclusive=None, rate=None, merge=None)

    def _type_of_task(self, task: Any, properties: Mapping[str, Any]) -> str | None:
        """Return the type of a task that is published with kombu alone. Any place but the default counts more."""
        type_ = destination.type_of_task(self.app, task, self.task_name)
        place = properties.get("delivery_info")
        if type_ is None or not isinstance(place, Mapping):
            return type_
        is_default = destination.is_default(self.app, place.get("exchange"), place.get("routing_key"))
        return type_ if is_default else None

    def _priority(self, wish: "_Wish", in_message: object) -> int:
        """Return the priority as the app counts it.

        The first that is given counts: the call's ``affinity=``, the call's ``priority=``, the task's ``affinity=``,
        the task's ``priority``. Celery hands on one value for both priorities: one that equals the task's counts as the
        task's.
        """
        # Another priority than at the beginning: a handler of before_task_publish has set it.
        celerys = self.priority if in_message == (self.priority or 0) else in_message
        ours = wish.own.priority
        own = (ours, celerys) if celerys == wish.of_task else (celerys, ours)
        return check_priority(_first([wish.asked.priority, *own]) or 0)


class _Wish(NamedTuple):
    """The needs that a message names.

    *asked*: the call's ``affinity=``; *own*: the task's; *of_task*: the task's ``priority``. *first_try*: what the
    first try has left for this retry.
    """

    type: str | None
    plain: Mapping[str, Any]
    asked: Affinity
    own: Affinity
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
