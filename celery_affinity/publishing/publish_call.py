"""Which calls are part of work that was accepted before: no bound of ``affinity_max_pending`` holds these back.

A call is fresh, and may be refused or dropped, if nothing says that it follows from a run: no task runs in this thread,
the message names no parent and is no retry, and this process is not telling how a task ended. Else an accepted workflow
would be cut in two. A thread that a task has started publishes fresh calls.

The app that publishes: recorded where a publish begins, since nothing later names the app.

Celery's current app is a guess: each thread has one, the app that was made or set last. But a publish begins in one of
two places that belong to one app, in any thread, greenlet or process:

- ``app.amqp.send_task_message``, a function of each app's own. ``delay``, ``apply_async``, ``send_task``, signatures,
  canvas, retries and celery beat all call it, with whatever producer; ``before_task_publish`` is sent from within, and
  does not name the app.
- a connection that the app made (``app.connection()``, its pools), for code that publishes with kombu alone.

Both are made by methods of Celery's classes, which are wrapped (`celery_methods.apps`).

A call that publishes: its id and its stamp, from where the call begins until its message is sent.

A `Sending` is made once for each call that publishes, where the call begins, and goes with its message among the
properties, through all of kombu's own retries: the Sending's id makes a repeated publish harmless. Only the same call
is a repeat: one dict of headers that is used for five calls makes five jobs. No object of the caller's is changed.

What the call asks for is in `wish`. Celery decided the destination of a message when it routed the call
(`destination`). A plain option of a call (`call_options`), such as ``on_demand=``, is in `Stamp.plain`, then a field of
the `NewJob` (`envelope.as_job`).
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import wraps
from itertools import count
from typing import Any, NamedTuple, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from celery import Celery, _state
from celery._state import get_current_worker_task
from celery.signals import before_task_publish
from kombu import Connection

from ..errors import SettingError
from ..schema.bounds import Bound
from ..settings.cohorts import SETTING, cohort_map
from . import celery_hooks, option_resolution, option_sources, routing, validation
from .app_config import settings_of, uses_affinity_transport
from .canvas import inherit_options, new_publish_id
from .celery_hooks import Sender
from .message import PROPERTY, JobHeader, Message, parse_time, with_retry_count
from .option_resolution import KeyResolver, ResolvedOptions
from .routing import Routed, bind_once

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
_tells_an_end: ContextVar[bool] = ContextVar("celery_affinity_tells_an_end", default=False)


@contextmanager
def publishing_follow_ups() -> Iterator[None]:
    """Let what is published follow from the end of a task: error callbacks, the body of a chord."""
    token = _tells_an_end.set(True)
    try:
        yield
    finally:
        _tells_an_end.reset(token)


def publishes_follow_ups(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return *function*, which tells the end of a task, with `telling_an_end` around it."""

    @wraps(function)
    def telling(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with publishing_follow_ups():
            return function(*args, **kwargs)

    return telling


def starts_new_work(headers: Mapping[str, Any]) -> bool:
    """Return whether the message with *headers*, which is published now, begins work of its own."""
    follows = headers.get("parent_id") or headers.get("retries") or _tells_an_end.get()
    return not follows and get_current_worker_task() is None


#: The transport option by which the connections of a second, third ... live app are told from those of the first. kombu
#: keeps a pool for each set of options, so the first app has the pools of stock kombu, and each other app has pools of
#: its own.
_OPTION = "celery_affinity_app"

#: Apps by number. A new app gets the number of one that is gone, with the pools that were opened for that one, if both
#: have the same cohorts: the channels of these pools go by the cohorts of the app for which they were opened.
_apps: "WeakValueDictionary[int, Celery]" = WeakValueDictionary()

#: Number -> the cohorts of the app that has it, or had it, as they were when it connected first. Not as a text, which
#: masks passwords.
_cohorts: dict[int, object] = {}
_lock = threading.Lock()


def app_of_connection(connection: Connection) -> Celery:
    """Return the app that made *connection*; if none did, the first app, or the current one."""
    return _apps.get(connection.transport_options.get(_OPTION, 0)) or current_app()


def current_app() -> Celery:
    """Return Celery's current app; in a thread where no app was made or set, the only one that uses this transport.

    Celery's own answer there is its default app, which knows nothing.
    """
    current: Celery = _state.get_current_app()
    if _state._tls.current_app is None and not uses_affinity_transport(current.conf.broker_transport):
        ours = [app for app in tuple(_state._get_active_apps()) if uses_affinity_transport(app.conf.broker_transport)]
        if len(ours) == 1:
            return ours[0]
    return current


def _number_of(app: Celery) -> int:
    with _lock:
        number = next((number for number, each in _apps.items() if each is app), None)
        if number is None:
            cohorts = _as_they_are_now(app.conf.get(SETTING))
            number = next(each for each in count() if each not in _apps and _cohorts.get(each, cohorts) == cohorts)
            _apps[number], _cohorts[number] = app, cohorts
        return number


def _as_they_are_now(cohorts: object) -> object:
    """Return the cohorts of a setting, which the app may change in place later, or a wrong setting as it is."""
    if isinstance(cohorts, Mapping):
        with suppress(SettingError, AttributeError, TypeError):  # said by whoever publishes, or works
            return cohort_map(cohorts)
    return cohorts


def _number_the_first() -> None:
    """Number the app for whose connection this module is imported: the connection is half made, too late to mark."""
    app = next(
        (call.values["self"] for call in option_sources.calls_in_progress() if call.function == "Celery._connection"),
        None,
    )
    if app is not None:
        _number_of(app)


def _mark(app: Celery, connection: Connection) -> None:
    """Have a connection bear the number of its app: a channel knows its connection only."""
    if uses_affinity_transport(connection.transport_cls) and (number := _number_of(app)):
        connection.transport_options[_OPTION] = number


_number_the_first()
celery_hooks.on_connection(_mark)


_NO_BOUNDS: dict[str, int | Bound] = {}


class CapturedMessage(NamedTuple):
    """The message of a job as it would have been put into *queue*. *rule*: what makes `Stamp.rules` of like calls."""

    queue: str
    message: Message
    stamp: JobHeader
    rule: KeyResolver | None


class Capture(list[CapturedMessage]):
    """A list that gets the jobs of one call instead of the server, for a caller that has to see Celery's messages.

    The list is an option of the call, named `PROPERTY`: whatever else is published meanwhile goes its own way.
    """

    #: Whether a copy was published all the same: to a queue that is not scheduled.
    published = False


class PublishCall(str):
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
    rule: KeyResolver | None = None

    #: With kombu's own `Producer.publish`: the body, by which a repeat is known, and the former value of `PROPERTY`.
    body: object = None
    former: object = None

    _wish: ResolvedOptions | None = None
    _stamp: JobHeader | None = None

    def __new__(cls, app: Celery, task_name: str, capture: Capture | None = None) -> "PublishCall":
        sending = super().__new__(cls, new_publish_id(task_name))
        sending.app, sending.task_name, sending.capture = app, task_name, capture
        return sending

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # a copy is no call

    def type(self, message: Message) -> str | None:
        """Return the type that *message* asks for; None: the type of its queue. Raises OptionError, SettingError."""
        return self._wished(message).type

    def stamp(self, message: Message) -> JobHeader:
        """Return the stamp of *message*, the same at each call. Raises OptionError for a bad option."""
        if self._stamp is None:
            wish, headers, settings = self._wished(message), message["headers"], settings_of(self.app)
            expires = headers.get("expires")
            counted = wish.priority(self, message)
            self.rule = wish.job_rule(self, message)
            self._stamp = JobHeader(
                str(self),
                wish.type,
                with_retry_count(counted, settings),
                wish.plain,
                parse_time(headers.get("eta"), self.app),
                option_sources.expires_at(expires, wish.first_try) or parse_time(expires, self.app),
                counted,
                self._rules(message),
                self.rule is not None and self.rule.said,
                settings.max_pending if settings.max_pending and starts_new_work(headers) else _NO_BOUNDS,
            )
        return self._stamp

    def warn_of_key(self, message: Message, queue: str) -> None:
        """Log that *message* is about to be sent to a *queue* that knows no keys, if its job was to have one."""
        rule = self._wished(message).job_rule(self, message)
        if rule is not None and any(rule.parts):
            option_resolution.warn_of_queue(self.task_name, queue)

    def _rules(self, message: Message) -> str:
        """Return the rules of the job that `rule` makes, "" for none."""
        if self.rule is None:
            return ""
        if self.rule.is_fixed:
            return self.rule.text((), {})
        if self.called_with is not None:
            return self.rule.text(*option_resolution.arguments_in(self.task_name, self.called_with))
        return self.rule.text(*option_resolution.read_rules(self.task_name, message))

    def _wished(self, message: Message) -> ResolvedOptions:
        if self._wish is None:
            self._wish = ResolvedOptions.of(self, message)
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
        if uses_affinity_transport(getattr(connection, "transport_cls", None)):
            validation.check_call_options(app, name, options)
            if isinstance(former, Routed):
                former = former.former
            else:
                routing.route_late(app, name, options)
            sending = options[PROPERTY] = PublishCall(app, name, former if isinstance(former, Capture) else None)
            sending.is_routed, sending.routed_by = True, options.get("affinity")
            if isinstance(options.get("declare"), list):  # copied: kombu and `bind_once` change it
                options["declare"] = [*options["declare"]]
            message = inherit_options(message, options, option_sources.inherited_from_run)
            sending.called_with = message[2]
        return send(producer, name, message, *args, **options)

    return send_task_message


celery_hooks.on_send(_begin)


@before_task_publish.connect
def on_before_task_publish(properties: dict[str, object] | None = None, declare: object = None, **_: object) -> None:
    """Keep the priority, since kombu writes 0 for None, and bind the queues once (`bind_once`)."""
    sending = (properties or {}).get(PROPERTY)
    if properties is not None and isinstance(sending, PublishCall):
        sending.priority = properties.get("priority")
        if isinstance(declare, list):
            bind_once(sending.app, declare)


def begin_publish(message: Message, connection: Connection) -> PublishCall | None:
    """Mark *message*, which kombu publishes, perhaps again. Return the mark, for `end`; None if Celery sends it.

    kombu repeats a call with the same properties, made for this call. A caller that publishes on a channel, which
    repeats nothing, may use one dict of properties for many messages.
    """
    sending = message["properties"].get(PROPERTY)
    if isinstance(sending, PublishCall):
        if sending.body is None:
            return None
        if sending.body is message["body"]:
            return sending
        message["properties"][PROPERTY] = sending.former
    sending = publish_call_of(message, connection)
    if sending is not None:
        sending.body = message["body"]
    return sending


def end_publish(sending: PublishCall, message: Message) -> None:
    """Leave the properties of *message*, which is published, as they were before `begin`."""
    if sending.former is None:
        message["properties"].pop(PROPERTY, None)
    else:
        message["properties"][PROPERTY] = sending.former


def publish_call_of(message: Message, connection: Connection) -> PublishCall | None:
    """Return the call that publishes *message* on *connection*; None if the message is no task's."""
    properties: dict[str, Any] = message["properties"]
    former = properties.get(PROPERTY)
    if isinstance(former, PublishCall):
        return former
    name = (message.get("headers") or {}).get("task")
    if name is None:
        return None
    sending = properties[PROPERTY] = PublishCall(app_of_connection(connection), str(name))
    sending.former = former
    return sending
