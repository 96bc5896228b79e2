"""A call that publishes: its app, its publish id and its `JobHeader`, from the call's start until its message is sent.

A `PublishCall` is created once per call and travels among the message's properties through kombu's retries. Its id
makes a repeated publish harmless. Only the same call is a repetition: one dict of headers used for five calls makes
five jobs. The caller's objects are not changed. Its options are in `ResolvedOptions`; plain options such as
``on_demand=`` go to `JobHeader.plain` and then to a field of the `NewJob` (`message.encode_job`). `routing` has set the
destination.

The app is recorded where a publish begins, since nothing later names it. Celery's current app is only a guess: each
thread has one, the app created or set last. But a publish begins in one of two places that belong to one app, in any
thread, greenlet or process, and whose creation is wrapped here:

- ``app.amqp.send_task_message``, a separate function per app. ``delay``, ``apply_async``, ``send_task``, signatures,
  canvas, retries and celery beat all call it, with any producer. It sends ``before_task_publish``, which does not name
  the app.
- a connection created by the app (``app.connection()``, its pools), for code that publishes with kombu alone.

Bounds of ``affinity_max_pending`` apply only to new work. Otherwise an accepted workflow could be cut in two. A call is
new work if no task runs in this thread, the message has no parent and is not a retry, and this process is not reporting
the end of a task. Calls from a thread that a task has started are new work.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import wraps
from itertools import count
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from celery import Celery, _state
from celery._state import get_current_worker_task
from celery.app.amqp import AMQP
from celery.signals import before_task_publish
from kombu import Connection
from kombu.transport import TRANSPORT_ALIASES

from ..errors import SettingError
from ..options.due_times import DEADLINE, absolute_deadline, refuse_fixed_deadline
from ..schema.bounds import Bound
from ..schema.untrusted import is_number
from ..settings.cohorts import SETTING, cohort_map
from . import option_checks, option_resolution, option_sources, routing, validation
from .app_config import (
    TRANSPORT,
    URL_PREFIX,
    replaces,
    select_transport_by_url,
    settings_of,
    tasks_of,
    uses_affinity_transport,
    without_prefix,
)
from .canvas import inherit_options, new_publish_id
from .message import PROPERTY, JobHeader, Message, parse_time, to_server_priority
from .message_body import MAX_CHARACTERS, read_body
from .option_resolution import KeyResolver, ResolvedOptions
from .routing import Routed, bind_once

_is_follow_up: ContextVar[bool] = ContextVar("celery_affinity_tells_an_end", default=False)


@contextmanager
def publishing_follow_ups() -> Iterator[None]:
    """Mark everything published in this context as follow-up calls of a task's end: error callbacks, a chord's body.

    Also a decorator of functions that report the end of a task.
    """
    token = _is_follow_up.set(True)
    try:
        yield
    finally:
        _is_follow_up.reset(token)


def starts_new_work(headers: Mapping[str, Any]) -> bool:
    """Return True if the message with *headers*, which is published now, starts new work."""
    follows = headers.get("parent_id") or headers.get("retries") or _is_follow_up.get()
    return not follows and get_current_worker_task() is None


#: Transport option that distinguishes the connections of the second and later live apps. kombu keeps a pool per set of
#: options, so the first app uses the same pools as stock kombu, and each other app has separate pools.
_OPTION = "celery_affinity_app"

#: Apps by number. A new app reuses the number and the pools of a deleted app if both have the same cohorts, because the
#: channels of these pools use the cohorts of the app for which they were opened.
_apps: "WeakValueDictionary[int, Celery]" = WeakValueDictionary()

#: Number -> cohorts of its app at the first connection. Not stored as text, because text masks passwords.
_cohorts: dict[int, object] = {}
_lock = threading.Lock()


def app_of_connection(connection: Connection) -> Celery:
    """Return the app that created *connection*; otherwise the first app, or the current one."""
    return _apps.get(connection.transport_options.get(_OPTION, 0)) or current_app()


def current_app() -> Celery:
    """Return Celery's current app. In a thread without one, return the only app that uses this transport.

    There Celery returns its default app, which has no configuration.
    """
    current: Celery = _state.get_current_app()
    if _state._tls.current_app is None and not uses_affinity_transport(current.conf.broker_transport):
        ours = [app for app in tuple(_state._get_active_apps()) if uses_affinity_transport(app.conf.broker_transport)]
        if len(ours) == 1:
            return ours[0]
    return current


def _number_of(app: Celery) -> int:
    with _lock:
        number = next((number for number, other in _apps.items() if other is app), None)
        if number is None:
            cohorts = _copy_cohorts(app.conf.get(SETTING))
            number = next(other for other in count() if other not in _apps and _cohorts.get(other, cohorts) == cohorts)
            _apps[number], _cohorts[number] = app, cohorts
        return number


def _copy_cohorts(cohorts: object) -> object:
    """Return a copy of a valid cohorts setting, which the app can later change in place, or an invalid one as it is."""
    if isinstance(cohorts, Mapping):
        with suppress(SettingError, AttributeError, TypeError):  # reported by publishers and workers
            return cohort_map(cohorts)
    return cohorts


def _number_first_app() -> None:
    """Number the app whose first connection imports this module, because it is too late to mark that connection."""
    app = next(
        (call.values["self"] for call in option_sources.calls_in_progress() if call.function == "Celery._connection"),
        None,
    )
    if app is not None:
        _number_of(app)


#: The scheme of a cluster URL.
_CLUSTER = re.compile(r"\b(redis|valkey)(s?)\+cluster://")


#: For programs that use kombu without Celery. In apps, `_connect` removes the prefix.
TRANSPORT_ALIASES.setdefault(URL_PREFIX.rstrip("+"), "celery_affinity.transport.transport:Transport")


@replaces(Celery, "_load_config")
def _load_config(original: Callable[..., Any], /, app: Celery) -> Any:
    """Let the broker URL select this transport, also if it is in the environment or in Django's settings."""
    conf = original(app)
    select_transport_by_url(app)
    return conf


@replaces(Celery, "_connection")
def _connect(original: Callable[..., Any], /, app: Celery, url: Any, *args: Any, **kwargs: Any) -> Any:
    """Store the app's number in its connection, because a channel refers only to its connection."""
    if (plain := without_prefix(url)) != url:
        select_transport_by_url(app)  # the URL can be newer than the app's first use
        url, kwargs = plain, {**kwargs, "transport": TRANSPORT}
    if "+cluster://" in str(url) and uses_affinity_transport(kwargs.get("transport") or app.conf.broker_transport):
        url = _without_plus(url)
    connection = original(app, url, *args, **kwargs)
    if uses_affinity_transport(connection.transport_cls) and (number := _number_of(app)):
        connection.transport_options[_OPTION] = number
    return connection


def _without_plus(url: Any) -> Any:
    """Return *url*, or a list of URLs, with a scheme that kombu leaves to this transport.

    In ``redis+cluster://``, kombu would use ``redis`` as the transport, regardless of the app's transport.
    """
    return _CLUSTER.sub(r"redis\2-cluster://", url) if isinstance(url, str) else [_without_plus(item) for item in url]


_number_first_app()


_NO_BOUNDS: dict[str, int | Bound] = {}


class CapturedMessage(NamedTuple):
    """The message of a job that would have been added to *queue*."""

    queue: str
    message: Message
    header: JobHeader
    #: Makes `JobHeader.rules` of similar calls.
    rule: KeyResolver | None


class Capture(list[CapturedMessage]):
    """A list that receives the jobs of one call instead of the server, for callers that need Celery's messages.

    The list is the call's option `PROPERTY`. Other publishes are not affected.
    """

    #: True if a copy was published anyway, because its queue is not scheduled.
    published = False


class PublishCall(str):
    """A call that publishes: the publish id, and facts about the call that its message lacks.

    It is a str, so that the properties that contain it can be logged and serialized.
    """

    #: The app whose settings apply.
    app: Celery
    task_name: str
    #: The list that receives the jobs instead of the server, or None.
    capture: Capture | None

    #: True if Celery sends the message (kombu alone does not route), and the ``affinity=`` that was used for routing.
    is_routed = False
    routed_by: object = None

    #: The priority set by Celery; kombu replaces None by 0.
    priority: object = None
    #: The arguments of the call, in the body made by Celery. None if kombu alone sends the message.
    called_with: object = None
    #: Makes the rules of the job header; None if there are none.
    rule: KeyResolver | None = None
    #: Only for kombu's own `Producer.publish`: the body, which identifies a repetition, and the former `PROPERTY`.
    body: object = None
    former: object = None

    _resolved: ResolvedOptions | None = None
    _header: JobHeader | None = None

    def __new__(cls, app: Celery, task_name: str, capture: Capture | None = None) -> "PublishCall":
        call = super().__new__(cls, new_publish_id(task_name))
        call.app, call.task_name, call.capture = app, task_name, capture
        return call

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # a copy is not a call

    def type(self, message: Message) -> str | None:
        """Return the type that *message* requests; None: the type of its queue. Raises OptionError, SettingError."""
        return self._resolve(message).type

    def header(self, message: Message) -> JobHeader:
        """Return the job header of *message*, computed once. Raises OptionError for an invalid option."""
        if self._header is None:
            resolved, headers, settings = self._resolve(message), message["headers"], settings_of(self.app)
            expires = headers.get("expires")
            counted = resolved.priority(self, message)
            self.rule = resolved.job_rule(self)
            self._header = JobHeader(
                str(self),
                resolved.type,
                to_server_priority(counted, settings),
                self._plain(resolved, eta := parse_time(headers.get("eta"), self.app)),
                eta,
                option_sources.expires_at(expires, resolved.retry_state) or parse_time(expires, self.app),
                counted,
                self._rules(message),
                self.rule is not None and self.rule.is_explicit,
                settings.max_pending if settings.max_pending and starts_new_work(headers) else _NO_BOUNDS,
                self._size(message, resolved),
            )
        return self._header

    def warn_of_key(self, message: Message, queue: str) -> None:
        """Log that the key of *message* has no effect on *queue*, if its job was to have a key."""
        rule = self._resolve(message).job_rule(self)
        if rule is not None and any(rule.parts):
            option_resolution.warn_of_queue(self.task_name, queue)

    def _rules(self, message: Message) -> str:
        """Return the rules of the job, or ""."""
        if self.rule is None:
            return ""
        if self.rule.is_fixed:
            return self.rule.text((), {})
        return self.rule.text(*option_resolution.arguments_in(self.task_name, self._body(message)))

    def _size(self, message: Message, resolved: ResolvedOptions) -> float | None:
        task, named = tasks_of(self.app).get(self.task_name), resolved.sources.named
        return option_resolution.size_of_body(self.task_name, task, named, lambda: self._body(message))

    def _plain(self, resolved: ResolvedOptions, eta: float | None) -> Mapping[str, Any]:
        """Return the plain options, with an absolute deadline."""
        if DEADLINE not in resolved.plain:
            return resolved.plain
        now_s = time.time()
        deadline = absolute_deadline(resolved.plain[DEADLINE], now_s)
        option_checks.warn_of_deadline(self.task_name, deadline, max(now_s, eta or 0))
        return {**resolved.plain, DEADLINE: deadline}

    def _body(self, message: Message) -> object:
        return read_body(message, MAX_CHARACTERS) if self.called_with is None else self.called_with

    def _resolve(self, message: Message) -> ResolvedOptions:
        if self._resolved is None:
            self._resolved = ResolvedOptions.of(self, message)
        return self._resolved


def _begin(app: Celery, send: Callable[..., object]) -> Callable[..., object]:
    """Return ``send_task_message`` of *app* with a `PublishCall` per call, because nothing later names the app.

    Misspelt options are rejected here, where the caller gets the error. Calls that this package's router has not seen
    are routed here.
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
            if options.get(DEADLINE) is not None:
                _fix_deadline(app, name, options)
            call = options[PROPERTY] = PublishCall(app, name, former if isinstance(former, Capture) else None)
            call.is_routed, call.routed_by = True, options.get("affinity")
            if isinstance(options.get("declare"), list):  # copied, because kombu and `bind_once` change it
                options["declare"] = [*options["declare"]]
            message = inherit_options(message, options, option_sources.inherited_from_run)
            call.called_with = message[2]
        return send(producer, name, message, *args, **options)

    return send_task_message


def _fix_deadline(app: Celery, name: str, options: dict[str, Any]) -> None:
    """Make the deadline in *options* of a call absolute, because links and later steps inherit it.

    Raises OptionError for an invalid deadline, and for an absolute deadline in ``beat_schedule``.
    """
    if DEADLINE in (options.get("stamped_headers") or ()):
        return
    if not is_number(options[DEADLINE]):
        for where, entry in option_checks.options_in_beat_schedule(app.conf, name):
            if entry.get(DEADLINE) == options[DEADLINE]:
                refuse_fixed_deadline(entry, f"{DEADLINE} of {where}")
    options[DEADLINE] = absolute_deadline(options[DEADLINE], time.time())


@replaces(AMQP, "_create_task_sender")
def _create_task_sender(original: Callable[[AMQP], Callable[..., object]], /, amqp: AMQP) -> Callable[..., object]:
    return _begin(amqp.app, original(amqp))


for _app in tuple(_state._get_active_apps()):
    if _app.configured:
        select_transport_by_url(_app)
    _amqp = vars(_app).get("amqp")  # ``app.amqp`` would create it and read the app's configuration
    if _amqp is not None and "send_task_message" in vars(_amqp):
        _amqp.send_task_message = _begin(_app, _amqp.send_task_message)


@before_task_publish.connect
def on_before_task_publish(properties: dict[str, object] | None = None, declare: object = None, **_: object) -> None:
    """Store the priority, because kombu replaces None by 0, and bind the queues once (`bind_once`)."""
    call = (properties or {}).get(PROPERTY)
    if properties is not None and isinstance(call, PublishCall):
        call.priority = properties.get("priority")
        if isinstance(declare, list):
            bind_once(call.app, declare)


def begin_publish(message: Message, connection: Connection) -> PublishCall | None:
    """Mark *message*, which kombu publishes, possibly repeatedly. Return the mark, or None if Celery sends it.

    kombu repeats a call with the same properties, created for this call. A caller that publishes on a channel, which
    repeats nothing, can use one dict of properties for many messages.
    """
    call = message["properties"].get(PROPERTY)
    if isinstance(call, PublishCall):
        if call.body is None:
            return None
        if call.body is message["body"]:
            return call
        message["properties"][PROPERTY] = call.former
    call = publish_call_of(message, connection)
    if call is not None:
        call.body = message["body"]
    return call


def end_publish(call: PublishCall, message: Message) -> None:
    """Restore the properties of the published *message* to their state before `begin_publish`."""
    if call.former is None:
        message["properties"].pop(PROPERTY, None)
    else:
        message["properties"][PROPERTY] = call.former


def publish_call_of(message: Message, connection: Connection) -> PublishCall | None:
    """Return the call that publishes *message* on *connection*, or None if it is not a task message."""
    properties: dict[str, Any] = message["properties"]
    former = properties.get(PROPERTY)
    if isinstance(former, PublishCall):
        return former
    name = (message.get("headers") or {}).get("task")
    if name is None:
        return None
    call = properties[PROPERTY] = PublishCall(app_of_connection(connection), str(name))
    call.former = former
    return call
