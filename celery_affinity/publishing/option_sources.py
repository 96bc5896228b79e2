"""Sources of a call's options: which options the caller set, which a retry inherits, and which calls are in progress.

Before a call is routed, Celery merges its options with attributes of the task, and a retry's options with the
destination of the first attempt. `celery_hooks` marks the values that the caller did not set, where Celery adds them.

A retry inherits plain options, keys and the expiry time from its first attempt. The message of a retry has none of the
former properties, but a retry is published while the task runs, and the task's request still has them.

Calls in progress are read from the stack. An app can name the transport by a string, which kombu imports for the first
connection. By then, stock Celery functions have begun to make that connection and to publish a message. They do not
pass on their values, and wrapping them is too late.
"""

import inspect
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import dropwhile
from traceback import walk_stack
from types import FrameType
from typing import Any, NamedTuple

from celery import Celery, current_task
from celery.app.task import Context, Task

from ..clock import now_s
from ..errors import OptionError
from ..options import call_options
from ..options.affinity import Affinity, as_affinity
from ..options.keys import TenantKey, tenant_in
from ..schema.rules_codec import is_valid
from .message import PROPERTY, Message

#: Options that set a message's destination.
ROUTING = ("queue", "routing_key", "exchange")

#: Options of a call, in the format of Celery's router.
Options = dict[str, Any]


class _Marked(str):
    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


class FromTask(_Marked):
    """A routing option set by an attribute of the task, not by the caller."""


class FromFirstAttempt(_Marked):
    """The destination of a retry's first attempt."""


class TaskOptions(Options):
    """Options that a task has for all calls, with marked routing options."""

    @classmethod
    def marked(cls, options: Mapping[str, object]) -> "TaskOptions":
        """Return *options* with marked routing options. A value that is not a str is recognized by identity."""
        return cls({name: mark_place(FromTask, value) if name in ROUTING else value for name, value in options.items()})


def mark_first_attempt(options: Options, given: Mapping[str, object]) -> None:
    """Mark the routing options that Celery added to *options* of a retry, whose caller set only *given*.

    Raises OptionError if *given* has a type and another queue.
    """
    check_place(given)
    for name in ROUTING:
        if name in options and not given.get(name):
            options[name] = mark_place(FromFirstAttempt, options[name])


def has_type_and_queue(options: Mapping[str, object]) -> bool:
    """Return True if *options* set a type and also Celery's routing options."""
    return _type_in(options.get("affinity")) is not None and _has_place(options)


def mix_type_and_queue(earlier: Mapping[str, object], later: Mapping[str, object]) -> bool:
    """Return True if one of two calls' options sets only a type, and the other sets Celery's routing options."""
    if not (earlier and later):
        return False
    has_type, has_place = _type_in(later.get("affinity")) is not None, _has_place(later)
    if has_type == has_place:
        return False
    return _has_place(earlier) if has_type else _type_in(earlier.get("affinity")) is not None


def without_overridden_route(earlier: Options, later: Mapping[str, object]) -> Options:
    """Return *earlier* options without the type or routing options overridden by *later* (see `mix_type_and_queue`).

    Raises OptionError if the earlier ``affinity`` is invalid.
    """
    if not _has_place(later):
        return without_place(earlier)
    affinity = as_affinity(earlier["affinity"])
    return {**earlier, "affinity": replace(affinity, type=None)}


def check_place(options: Mapping[str, object]) -> None:
    """Raise OptionError if *options* of one call have a type and another queue."""
    type_ = as_affinity(options.get("affinity")).type
    if type_ is not None:
        check_that_they_agree(type_, {name: options[name] for name in ROUTING if options.get(name)})


def explicit_places(options: Mapping[str, Any], task: Any) -> tuple[Options, bool]:
    """Return the caller's routing options, and True if other routing options belong to a first attempt."""
    places, is_retry = {}, False
    for name in ROUTING:
        value = options.get(name)
        if not value or type(value) is FromTask:
            continue
        if type(value) is FromFirstAttempt:
            is_retry = True
        elif isinstance(value, str) or value is not getattr(task, name, None):
            places[name] = value
    return places, is_retry


def _has_place(options: Mapping[str, object]) -> bool:
    return any(options.get(name) for name in ROUTING)


def mark_place(mark: type[_Marked], value: Any) -> Any:
    return mark(value) if isinstance(value, str) else value


def without_place(options: Options) -> Options:
    return {name: value for name, value in options.items() if name not in ROUTING}


def check_that_they_agree(type_: str, places: Mapping[str, object]) -> None:
    """Raise OptionError if *places* contain a destination other than the queue *type_*."""
    wrong = {"queue": places["queue"]} if "queue" in places else dict(places)
    if all(name != "exchange" and place_name(value) == type_ for name, value in wrong.items()):
        return
    others = ", ".join(f"{name}={place_name(value)!r}" for name, value in wrong.items())
    names = " and ".join(f"{name}=" for name in ("affinity", *wrong))
    raise OptionError(f"{names} of one call must name the same queue, got: affinity={type_!r}, {others}")


def _type_in(affinity: object) -> object:
    """Return the type in an ``affinity=`` of any format, valid or not."""
    if isinstance(affinity, Mapping):
        return affinity.get("type")
    return affinity.type if isinstance(affinity, Affinity) else affinity


def place_name(place: Any) -> Any:
    return place if isinstance(place, str) else getattr(place, "name", place)


#: Mark in the retry state: the job's type, mode or priority was changed after its call.
_MOVED = "moved"


class Expiry(NamedTuple):
    """The time when a job expires, for a retry."""

    #: As in the message.
    expires: object
    #: In seconds of this host's `now_s`.
    until_s: float


def retry_state_of(task: Task | None, message: Message) -> object:
    """Return the retry state of the first attempt if *task* publishes *message* as a retry, or None.

    A retry has the task id of the run that publishes it. A task that replaces another also has that id, but is not a
    retry.
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
    return _retry_state_in(request.properties)


def inherited_from_run() -> dict[str, Any]:
    """Return the options by name that the job in this thread passes on; {} without a job."""
    if not current_task:
        return {}
    retry_state = _retry_state_in(current_task.request.properties)
    inherited = call_options.options_in(retry_state) | {TenantKey.option: tenant_in(rules_in(retry_state))}
    return {name: value for name, value in inherited.items() if name in call_options.PASSED_ON and value is not None}


def tenant_of_run() -> str:
    """Return the tenant of the job in this thread, or ""."""
    return tenant_in(rules_in(_retry_state_in(current_task.request.properties))) or "" if current_task else ""


def mode_of(properties: object) -> bool | None:
    """Return the mode (True: on-demand) in the properties of a message, or None."""
    return call_options.options_in(_retry_state_in(properties)).get("on_demand")


def _retry_state_in(properties: object) -> object:
    """Return the retry state in a message's properties: only the plain options, if stock Celery sent the message."""
    if not isinstance(properties, Mapping):
        return None
    if PROPERTY in properties:
        return properties[PROPERTY]
    return {name: properties[name] for name in call_options.PLAIN if name in properties} or None


def with_move_mark(retry_state: object, on_demand: bool) -> dict[str, object]:
    """Return *retry_state* for a job that was moved, with its current mode."""
    before = retry_state if isinstance(retry_state, dict) else {}
    mode = {"on_demand": on_demand} if bool(before.get("on_demand")) != on_demand else {}
    return {**before, **mode, _MOVED: True}


def copy_move_to_retry(run: Context, other: Context) -> None:
    """Copy the move of *run* to the retry of *other*, a call that runs together with it, if *run* was moved."""
    retry_state = (run.properties or {}).get(PROPERTY)
    if not isinstance(retry_state, Mapping) or not retry_state.get(_MOVED):
        return
    place = {name: run.delivery_info[name] for name in ("exchange", "routing_key", "priority")}
    other.delivery_info = {**(other.delivery_info or {}), **place}
    properties = other.properties or {}
    on_demand = bool(call_options.options_in(retry_state).get("on_demand"))
    other.properties = {**properties, PROPERTY: with_move_mark(properties.get(PROPERTY), on_demand)}


def rules_in(retry_state: object) -> str | None:
    """Return the rules that a retry inherits ("" for none), or None if *retry_state* has no valid rules."""
    rules = retry_state.get("rules") if isinstance(retry_state, Mapping) else None
    return rules if is_valid(rules) else None


def expires_at(expires: object, retry_state: object) -> float | None:
    """Return the Unix time in seconds, by this host's clock, at which a retry with the same *expires* expires.

    None if *retry_state* has no time, or a time for another *expires*.
    """
    until = retry_state.get("until") if isinstance(retry_state, Mapping) else None
    if not isinstance(until, Expiry) or until.expires != expires:
        return None
    return time.time() + until.until_s - now_s()


#: Function -> names of its parameters and variables that are read.
READ = {
    Celery._connection: ("self",),
    Celery.send_task: ("args", "kwargs", "route_name", "router", "task_id", "task_type"),
    Task.apply_async: ("options", "preopts"),
}

_BY_CODE = {inspect.unwrap(function).__code__: (function.__qualname__, names) for function, names in READ.items()}

_PACKAGE = __name__.partition(".")[0]


class CallFrame(NamedTuple):
    #: Its name, if it is one of `READ`.
    function: str
    #: The values read from it.
    values: dict[str, Any]


NONE = CallFrame("", {})


def calls_in_progress() -> list[CallFrame]:
    """Return the calls on the stack, the innermost first, without this package's innermost calls."""
    frames = (frame for frame, _ in walk_stack(inspect.currentframe()))
    return [_read(frame) for frame in dropwhile(_is_ours, frames)]


def _read(frame: FrameType) -> CallFrame:
    function, names = _BY_CODE.get(frame.f_code, ("", ()))
    local_values = frame.f_locals if names else {}
    return CallFrame(function, {name: local_values[name] for name in names if name in local_values})


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE
