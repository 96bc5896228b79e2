"""Inheritance in a canvas, such as the mode: a user who waits for the end of a canvas waits for each of its steps.

The options of `call_options.PASSED_ON` are inherited. A signature's own options take precedence over its whole's
options. The whole of a step is the chain, of a member the group, of a header or body the chord, of a callback the task.
For the outermost whole, the options of the call take precedence.

Inherited options are written into the options of each task. Celery passes a chain's options only to the first step, and
lets the options of a group or chord override the members' options. Copies are changed, because signatures belong to the
caller. Celery's methods are wrapped, one function each. Apps with another transport keep Celery's behavior.

Follow-up calls of an end (links, the next step of a chain, the body of a chord) get ids derived from the ended job. An
end can be reported twice, if the process that reported it died before the ack. The server then recognizes the ids, and
publishes nothing twice.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from operator import is_
from typing import Any, TypeVar

from celery import canvas, current_task
from celery.app.amqp import task_message
from celery.app.task import Task
from celery.utils.functional import regen

from ..errors import OptionError
from ..options.affinity import NOTHING, as_affinity
from ..options.call_options import KEYS, inherited_options
from ..options.due_times import DEADLINE, absolute_deadline
from ..options.key_templates import derived_id
from . import option_sources
from .app_config import replaces, uses_affinity_transport
from .canvas_deadlines import Composed, copy_with, leave_time_for_later_steps
from .option_sources import inherited_from_run

#: Keyword arguments of a composed signature that contain its parts.
_PARTS = {"chain": ("tasks",), "group": ("tasks",), "chord": ("header", "body")}
_LINKS = ("link", "link_error")
#: Celery's task that collects the results of a group that replaces a task. The group's last task publishes it.
_GATHER = "celery.accumulate"
#: Celery's task that waits for a chord's header if the result backend cannot count.
_UNLOCK = "celery.chord_unlock"
#: The list that Celery creates from a generator, and fills when it is read.
_FROM_GENERATOR = type(regen(iter(())))
#: Options of a call or of a signature.
Options = dict[str, Any]
#: Options that a part inherits, by name.
Passed = Mapping[str, Any]
#: A signature in one of Celery's formats, or another value in its place.
Part = TypeVar("Part")
#: A message in Celery's format: headers, properties, body, and the task-sent event.
Message = tuple[Any, Any, Any, Any]


def inheriting(signature: Part, passed: Passed) -> Part:
    """Return *signature* with its own or the *passed* options in its tasks; the same object if nothing changes.

    Raises OptionError if the options of a part are invalid.
    """
    if not isinstance(signature, dict):
        return signature
    options = signature.get("options")
    if isinstance(options, dict) and (inheritable := inherited_options(options)):
        passed = {**passed, **inheritable}
    if not passed and not parts_of(signature):
        return signature
    return force_options(signature, passed)


def force_options(signature: Composed, passed: Passed) -> Composed:
    """Return *signature* with the options *passed*, which override its own options."""
    options, kwargs = signature.get("options"), signature.get("kwargs")
    names = parts_of(signature)
    if not isinstance(options, dict) or not isinstance(kwargs, dict):
        return signature
    changes: Options = {}
    for name in names:
        part = kwargs.get(name)
        if (new := _parts_inheriting(part, passed)) is not part:
            changes[name] = new
    new_options = without_options(options, passed) if names else _with(options, passed)
    if new_options is options and not changes:
        return signature
    return copy_with(signature, options={**new_options}, kwargs={**kwargs, **changes})


def first_value_of(signature: object) -> dict[str, Any]:
    """Return the inheritable options of the first task in *signature*, or in a list of signatures."""
    if isinstance(signature, (list, tuple)):
        return {name: value for part in reversed(signature) for name, value in first_value_of(part).items()}
    if not isinstance(signature, dict) or not isinstance(signature.get("options"), dict):
        return {}
    inheritable, names, kwargs = inherited_options(signature["options"]), parts_of(signature), signature.get("kwargs")
    return (
        {**first_value_of(kwargs.get(names[0])), **inheritable} if names and isinstance(kwargs, dict) else inheritable
    )


def parts_of(signature: Mapping[str, object]) -> tuple[str, ...]:
    """Return the keyword arguments of *signature* that contain its parts, or () for the signature of a task."""
    composed = signature.get("subtask_type")
    return _PARTS.get(composed, ()) if isinstance(composed, str) else ()


def without_options(options: Options, passed: Passed) -> Options:
    """Return *options* of a composed signature without options that would override the *passed* ones in its parts."""
    options = _links_inheriting(options, passed)
    inheritable = inherited_options(options)
    if not inheritable:
        return options
    options = {name: value for name, value in options.items() if name not in inheritable}
    affinity = as_affinity(options.pop("affinity", None))
    left_out: dict[str, Any] = dict.fromkeys(name for name in inheritable if hasattr(affinity, name))
    if (rest := replace(affinity, **left_out)) != NOTHING:
        options["affinity"] = rest
    return options


def _with(options: Options, passed: Passed) -> Options:
    """Return *options* of a task with the *passed* ones in them and in its links."""
    options = _links_inheriting(options, passed)
    stamps = options.get("stamped_headers") or ()
    changes = {name: value for name, value in passed.items() if name not in stamps and options.get(name) is not value}
    return {**options, **changes} if changes else options


def _links_inheriting(options: Options, passed: Passed) -> Options:
    if not passed:
        return options
    links_by_name = {name: options[name] for name in _LINKS if options.get(name)}
    changes = {
        name: new for name, links in links_by_name.items() if (new := _parts_inheriting(links, passed)) is not links
    }
    return {**options, **changes} if changes else options


def _parts_inheriting(parts: Any, passed: Passed) -> Any:
    """Apply `inheriting` to one or several signatures, or lazily to a generator."""
    if isinstance(parts, _FROM_GENERATOR):
        return regen(inheriting(part, passed) for part in parts) if passed else parts
    if isinstance(parts, (list, tuple)):
        new = [inheriting(part, passed) for part in parts]
        if all(map(is_, new, parts)):
            return parts
        return tuple(new) if isinstance(parts, tuple) else new
    return inheriting(parts, passed)


# -- messages


#: Id of the task being published if its call made the first connection, or None. Celery's canvas was not yet wrapped
#: when that call began, so its inherited options are written only here.
_FIRST_TASK_ID: object = next(
    (call.values.get("task_id") for call in option_sources.calls_in_progress() if call.function == "Celery.send_task"),
    None,
)


def inherit_options(message: Message, options: Options, of_run: Callable[[], dict[str, Any]]) -> Message:
    """Return Celery's *message* with the inheritable *options* of its call, written into everything after its task.

    The next steps of a chain or chord inherited their options when the whole was published, so they stay unchanged.
    *options* are changed only for Celery's tasks that continue a canvas. *of_run* returns the options inherited from
    the running task.
    """
    passed = inherited_options(options)
    headers, properties, body, event = message
    if not passed:
        name = headers.get("task")
        if name in (_UNLOCK, _GATHER):
            options.update(first_value_of(body[0][1:2]) if name == _UNLOCK else of_run())
        return message
    if not isinstance(body, tuple):  # Celery's first protocol
        return message
    embed = body[2]
    is_first = _FIRST_TASK_ID is not None and headers["id"] == _FIRST_TASK_ID
    changes = {name: _parts_inheriting(embed[name], passed) for name in ("callbacks", "errbacks") if embed.get(name)}
    if isinstance(steps := embed.get("chain"), (list, tuple)):
        changes["chain"] = [step if _is_frozen(step) and not is_first else inheriting(step, passed) for step in steps]
    if (chord := embed.get("chord")) and (is_first or not _is_frozen(chord)):
        changes["chord"] = inheriting(chord, passed)
    return task_message(headers, properties, (*body[:2], {**embed, **changes}), event) if changes else message


def _is_frozen(signature: Any) -> bool:
    """Return True if *signature* is part of a running canvas: Celery has written ids into its options."""
    options = signature.get("options") if isinstance(signature, dict) else None
    if not isinstance(options, dict):
        return False
    return "reply_to" in options or ("task_id" in options and bool(parts_of(signature)))


#: Celery's task that represents chunks in a message.
_CHUNKS = "celery.chunks"


# -- what is published


@replaces(canvas._chain, "apply_async")
@replaces(canvas.group, "apply_async")
@replaces(canvas._chord, "apply_async")
def _apply_composed(
    original: Any, /, self: Any, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any
) -> Any:
    """Write the inherited options of a chain, group or chord when it is called: Celery passes some parts no options."""
    composed, passed = _composed(self, options)
    if passed:
        options = without_options(options, passed)
        if kwargs and "body" in kwargs:  # chord(header)(body)
            kwargs = {**kwargs, "body": inheriting(kwargs["body"], passed)}
    return original(composed, args, kwargs, *rest, **options)


def _composed(signature: Any, options: Options) -> tuple[Any, Passed]:
    """Return *signature* for a call with *options*, and the options that the whole passes on."""
    try:
        given = {name: value for name, value in options.items() if value is not None}
        passed = inherited_options({**signature.options, **given})
        if DEADLINE in passed:
            passed[DEADLINE] = absolute_deadline(passed[DEADLINE], time.time())
        composed = force_options(signature, passed)
    except OptionError:
        if uses_affinity_transport(signature.app.conf.broker_transport):
            raise
        return signature, {}
    if not passed and composed is signature:
        return signature, {}
    if not uses_affinity_transport(signature.app.conf.broker_transport):
        return signature, {}
    if DEADLINE in passed:
        composed = leave_time_for_later_steps(composed, passed[DEADLINE], signature.app)
    return composed, passed


def _inheritable(signature: Any) -> Passed:
    """Return the options that a signature passes on; {} for invalid options, for which a publish raises the error."""
    with suppress(OptionError):
        return inherited_options(signature.get("options") or {})
    return {}


@replaces(canvas._basemap, "apply_async")
def _apply_map(original: Any, /, self: Any, *args: Any, **options: Any) -> Any:
    """Apply the own options of a ``map`` or ``starmap``: Celery before 5.7 calls them without."""
    if options.get("affinity") is None:
        options.update({name: value for name, value in _inheritable(self).items() if options.get(name) is None})
    return original(self, *args, **options)


@replaces(canvas.chunks, "group")
def _group_of_chunks(original: Any, /, self: Any) -> Any:
    """Apply the inheritable options of chunks: Celery creates and calls a group without the options of the chunks.

    In a message, chunks are a task of Celery's, which creates the group when it runs.
    """
    made, passed = original(self), _inheritable(self)
    if not passed and current_task and current_task.name == _CHUNKS:
        passed = inherited_from_run()
    return made.set(**passed) if passed else made


# -- keys: Celery also passes the options of a chord, or of its call, to the body


@replaces(canvas._chord, "apply_async")
def _call_chord(original: Any, /, self: Any, *args: Any, **options: Any) -> Any:
    """Apply a key of a chord, or of its call, only to the header, although Celery also passes it to the body.

    The body runs when no job of the header holds the key any longer.
    """
    own_keys, others = _without_keys(self.options, self.app)
    keys, options = _without_keys(options, self.app)
    if own_keys or keys:
        header = self.tasks if isinstance(self.tasks, canvas.group) else canvas.group(self.tasks, app=self.app)
        header = copy_with(header, options={**header.options, **own_keys, **keys})
        self = copy_with(self, options=others, kwargs={**self.kwargs, "header": header})
    return original(self, *args, **options)


def _without_keys(options: Options, app: Any) -> tuple[Options, Options]:
    """Return the options in *options* that set a key, and all others. An affinity with a key is split."""
    if not any(name in options for name in ("affinity", *KEYS)) or not uses_affinity_transport(
        app.conf.broker_transport
    ):
        return {}, options
    keys = {name: options[name] for name in KEYS if options.get(name) is not None}
    others = {name: value for name, value in options.items() if name not in KEYS}
    affinity = as_affinity(options.get("affinity"))
    if affinity.keys:
        others["affinity"] = replace(affinity, exclusive=None, rate=None)
        keys = {**{rule.option: rule for rule in affinity.keys}, **keys}
    return keys, others


# -- composing: Celery takes the signatures out of a chain, group or chord that becomes part of another. The options of
# the former whole would be lost, or applied to the wrong part


def _part(signature: Any) -> Any:
    """Return *signature*, which becomes a part of another one, with its inheritable options in its own parts."""
    if not isinstance(signature, dict) or not parts_of(signature):
        return signature
    with suppress(OptionError):
        return inheriting(signature, {}) if _inheritable(signature) else signature
    return signature


@replaces(canvas.Signature, "__or__")
@replaces(canvas._chain, "__or__")
@replaces(canvas._chord, "__or__")
def _or(original: Any, /, self: Any, other: Any) -> Any:
    """Keep the inheritable options of both sides of ``|``: Celery puts the parts of both into one chain or chord."""
    return original(_part(self), _part(other))


@replaces(canvas, "_fold_chain")
def _fold(original: Any, /, tasks: Any) -> Any:
    """Keep the inheritable options of the parts of a ``chain()``: Celery 5.7 drops them."""
    return original([_part(task) for task in tasks])


@replaces(canvas, "_maybe_group")
def _header(original: Any, /, tasks: Any, app: Any) -> Any:
    """Keep the inheritable options of a group or chain that becomes a chord's header: Celery keeps only its tasks."""
    return original(_part(tasks), app)


# -- signatures with which a running task replaces itself, or that it adds


@replaces(Task, "replace")
def _replace(original: Any, /, self: Any, sig: Any) -> Any:
    """Let a signature that replaces a task inherit the task's options, because the same user waits for it."""
    passed = inherited_from_run()
    return original(self, inheriting(sig, passed) if passed else sig)


@replaces(Task, "add_to_chord")
def _add_to_chord(original: Any, /, self: Any, sig: Any, lazy: bool = False) -> Any:
    """Let a signature that a task adds to its chord inherit the task's options. Like Celery, change the signature."""
    explicit = first_value_of(sig)
    passed = {name: value for name, value in inherited_from_run().items() if name not in explicit}
    if passed:
        sig.set(**passed)
    return original(self, sig, lazy)


class _FollowUpIds:
    """Generates ids for the follow-up calls of a task's end, such as its links.

    Calls are counted per task name. A handler of a signal can publish calls too, and these change no id of a link.
    """

    def __init__(self, origin: str | Callable[[], str]) -> None:
        """*origin* identifies the end. A function is called at the first publish."""
        self._origin = origin
        #: Name of a task -> number of its calls published so far.
        self.count: Counter[str] = Counter()

    @property
    def origin(self) -> str:
        if not isinstance(self._origin, str):
            self._origin = self._origin()
        return self._origin

    def id_of_next(self, task_name: str) -> str:
        self.count[task_name] += 1
        return derived_id(f"{self.origin} {self.count[task_name]} {task_name}")


_follow_ups: ContextVar[_FollowUpIds | None] = ContextVar("celery_affinity_following", default=None)


def new_publish_id(task_name: str) -> str:
    """Return the id of a task call: random, or derived from the end that it follows."""
    follow_ups = _follow_ups.get()
    return os.urandom(16).hex() if follow_ups is None else follow_ups.id_of_next(task_name)


@contextmanager
def follow_up_ids(origin: str | Callable[[], str], *signatures: Any) -> Iterator[None]:
    """Derive the ids of published calls from *origin*; they are calls of *signatures*, in the format of the message.

    A chord gets random ids: Celery generates a new id for the counter of its header, so a repeated chord must not share
    header jobs with the first one.
    """
    token = _follow_ups.set(None if any(map(_begins_with_a_chord, signatures)) else _FollowUpIds(origin))
    try:
        yield
    finally:
        _follow_ups.reset(token)


def _begins_with_a_chord(signature: Any) -> bool:
    """Return True if a call of *signature* publishes several messages that are counted together."""
    if not isinstance(signature, dict):
        return False
    kind, names = signature.get("subtask_type"), parts_of(signature)
    if not names or kind == "chord":
        return kind == "chord"
    parts: Sequence[Any] = signature["kwargs"].get(names[0]) or ()
    if kind == "chain":
        is_header = len(parts) > 1 and isinstance(parts[0], dict) and parts[0].get("subtask_type") == "group"
        return is_header or any(map(_begins_with_a_chord, parts[:1]))
    return any(map(_begins_with_a_chord, parts))
