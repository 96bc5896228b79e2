"""The places that options of a call may say: a type (``affinity=``), or Celery's ``queue=`` and its kind.

By the time a call is routed, Celery has merged the call's options with attributes of the task, and a retry's options
with the place of the first try. So `celery_methods.calls` marks the values that the caller did not say, where Celery
adds them.

What a retry finds of its first try: the plain options, the key, and until when it may wait.

A retry drops the properties of the message. But a retry is published while the task runs, and the task's request still
has them.

Calls of Celery's functions that are under way, read from the stack with some of their values.

A process may import this package midway: its app names the transport by a text, which kombu imports for the first
connection. By then functions of stock Celery have begun to make that connection, and to publish what it is for. They
tell nobody what they know, and to replace them is too late.
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
from ..options.keys import TenantKey, is_rules_dict, tenant_in
from .message import PROPERTY, Message

#: Options that say where a message goes.
ROUTING = ("queue", "routing_key", "exchange")

#: Options of a call, as Celery's router takes and returns them.
Options = dict[str, Any]


class _Marked(str):
    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


class FromTask(_Marked):
    """A place that an attribute of the task says, not the caller."""


class FromFirstTry(_Marked):
    """The place where the first try of a retry went."""


class TaskOptions(Options):
    """Options that a task has for all its calls, with the places marked."""

    @classmethod
    def marked(cls, options: Mapping[str, object]) -> "TaskOptions":
        """Return *options* with a mark on each place. A place that is no str is known as the task's own object."""
        return cls({name: mark_place(FromTask, value) if name in ROUTING else value for name, value in options.items()})


def mark_first_attempt(options: Options, said: Mapping[str, object]) -> None:
    """Mark the places that Celery filled into *options* of a retry, whose caller gave *said* alone.

    Raises OptionError if *said* names a type and another queue.
    """
    check_place(said)
    for name in ROUTING:
        if name in options and not said.get(name):
            options[name] = mark_place(FromFirstTry, options[name])


def has_type_and_queue(options: Mapping[str, object]) -> bool:
    """Return whether *options* say a type, and also a place in Celery's way."""
    return _type_in(options.get("affinity")) is not None and _says_place(options)


def mix_type_and_queue(earlier: Mapping[str, object], later: Mapping[str, object]) -> bool:
    """Return whether of two calls' options one says a type alone, and the other a place in Celery's way."""
    if not (earlier and later):
        return False
    says_type, says_place = _type_in(later.get("affinity")) is not None, _says_place(later)
    if says_type == says_place:
        return False
    return _says_place(earlier) if says_type else _type_in(earlier.get("affinity")) is not None


def without_overridden_route(earlier: Options, later: Mapping[str, object]) -> Options:
    """Return *earlier* options without the type or place that *later* ones, which `differ`, replace.

    Raises OptionError if the earlier ``affinity`` is not accepted.
    """
    if not _says_place(later):
        return without_place(earlier)
    asked = as_affinity(earlier["affinity"])
    return {**earlier, "affinity": replace(asked, type=None)}


def check_place(options: Mapping[str, object]) -> None:
    """Raise OptionError if *options* of one call name a type and another queue."""
    asked = as_affinity(options.get("affinity")).type
    if asked is not None:
        check_that_they_agree(asked, {name: options[name] for name in ROUTING if options.get(name)})


def explicit_places(options: Mapping[str, Any], task: Any) -> tuple[Options, bool]:
    """Return the places that the caller says, and whether other places are those of a first try."""
    said, is_retry = {}, False
    for name in ROUTING:
        value = options.get(name)
        if not value or type(value) is FromTask:
            continue
        if type(value) is FromFirstTry:
            is_retry = True
        elif isinstance(value, str) or value is not getattr(task, name, None):
            said[name] = value
    return said, is_retry


def _says_place(options: Mapping[str, object]) -> bool:
    return any(options.get(name) for name in ROUTING)


def mark_place(mark: type[_Marked], value: Any) -> Any:
    return mark(value) if isinstance(value, str) else value


def without_place(options: Options) -> Options:
    return {name: value for name, value in options.items() if name not in ROUTING}


def check_that_they_agree(asked: str, said: Mapping[str, object]) -> None:
    """Raise OptionError if a call says any place but the queue *asked*."""
    wrong = {"queue": said["queue"]} if "queue" in said else dict(said)
    if all(name != "exchange" and place_name(value) == asked for name, value in wrong.items()):
        return
    others = ", ".join(f"{name}={place_name(value)!r}" for name, value in wrong.items())
    names = " and ".join(f"{name}=" for name in ("affinity", *wrong))
    raise OptionError(f"{names} of one call must name the same queue, got: affinity={asked!r}, {others}")


def _type_in(affinity: object) -> object:
    """Return the type in an ``affinity=`` of any kind, accepted or not."""
    if isinstance(affinity, Mapping):
        return affinity.get("type")
    return affinity.type if isinstance(affinity, Affinity) else affinity


def place_name(place: Any) -> Any:
    return place if isinstance(place, str) else getattr(place, "name", place)


#: Name of the trace that says that somebody gave the job another type, mode or priority than the call had.
_MOVED = "moved"


class Expiry(NamedTuple):
    """The time when a job expires, for a retry. *expires*: as in the message. *until_s*: by this machine's `now_s`."""

    expires: object
    until_s: float


def retry_state_of(task: Task | None, message: Message) -> object:
    """Return the traces of a first try for *message*, which *task* publishes; None if the message is no retry.

    A retry has the task id of the run that publishes it. A task that replaces another has that id, too, but is no
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
    return _left_in(request.properties)


def inherited_from_run() -> dict[str, Any]:
    """Return what the job that this thread runs passes on, by option; {} without a job."""
    if not current_task:
        return {}
    traces = _left_in(current_task.request.properties)
    found = call_options.options_in(traces) | {TenantKey.option: tenant_in(rules_in(traces))}
    return {name: value for name, value in found.items() if name in call_options.PASSED_ON and value is not None}


def tenant_of_run() -> str:
    """Return the tenant of the job that this thread runs, "" for none."""
    return tenant_in(rules_in(_left_in(current_task.request.properties))) or "" if current_task else ""


def mode_of(properties: object) -> bool | None:
    """Return the mode (True: on demand) in the properties of a message; None without one."""
    return call_options.options_in(_left_in(properties)).get("on_demand")


def _left_in(properties: object) -> object:
    """Return the traces in a message's properties: only the plain options, if stock Celery sent the message."""
    if not isinstance(properties, Mapping):
        return None
    if PROPERTY in properties:
        return properties[PROPERTY]
    return {name: properties[name] for name in call_options.PLAIN if name in properties} or None


def with_move_mark(left: object, on_demand: bool) -> dict[str, object]:
    """Return *left* as the traces of a job that somebody moved, and that is on demand or not."""
    before = left if isinstance(left, dict) else {}
    mode = {"on_demand": on_demand} if bool(before.get("on_demand")) != on_demand else {}
    return {**before, **mode, _MOVED: True}


def copy_move_to_retry(run: Context, other: Context) -> None:
    """Have the retry of *other*, a call that is run with *run*, be moved as that was, if somebody moved it."""
    left = (run.properties or {}).get(PROPERTY)
    if not isinstance(left, Mapping) or not left.get(_MOVED):
        return
    place = {name: run.delivery_info[name] for name in ("exchange", "routing_key", "priority")}
    other.delivery_info = {**(other.delivery_info or {}), **place}
    properties = other.properties or {}
    on_demand = bool(call_options.options_in(left).get("on_demand"))
    other.properties = {**properties, PROPERTY: with_move_mark(properties.get(PROPERTY), on_demand)}


def rules_in(left: object) -> str | None:
    """Return the rules that a first try has left, "" for none; None if it has left nothing, or nothing of ours."""
    rules = left.get("rules") if isinstance(left, Mapping) else None
    return rules if is_rules_dict(rules) else None


def expires_at(expires: object, left: object) -> float | None:
    """Return the Unix time, s by this host's clock, at which a retry with the *expires* of its first try expires.

    None if the first try left no time, or a time for another *expires*.
    """
    until = left.get("until") if isinstance(left, Mapping) else None
    if not isinstance(until, Expiry) or until.expires != expires:
        return None
    return time.time() + until.until_s - now_s()


#: Names of the parameters and variables that are read, by the function that has them.
READ = {
    Celery._connection: ("self",),
    Celery.send_task: ("args", "kwargs", "route_name", "router", "task_id", "task_type"),
    Task.apply_async: ("options", "preopts"),
}

_BY_CODE = {inspect.unwrap(function).__code__: (function.__qualname__, names) for function, names in READ.items()}

_PACKAGE = __name__.partition(".")[0]


class CallFrame(NamedTuple):
    """A call. *function*: its name, if it is one of `READ`. *values*: what was read of it."""

    function: str
    values: dict[str, Any]


NONE = CallFrame("", {})


def calls_in_progress() -> list[CallFrame]:
    """Return the calls on the stack, the innermost first, without those of this package that come before all others."""
    frames = (frame for frame, _ in walk_stack(inspect.currentframe()))
    return [_read(frame) for frame in dropwhile(_is_ours, frames)]


def _read(frame: FrameType) -> CallFrame:
    function, names = _BY_CODE.get(frame.f_code, ("", ()))
    known = frame.f_locals if names else {}
    return CallFrame(function, {name: known[name] for name in names if name in known})


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE
