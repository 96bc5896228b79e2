"""What a canvas passes on to its parts, such as the mode: a user who waits for the end of a canvas waits for each step.

Passed on are the options of `call_options.PASSED_ON`. A signature has each of them in its own options, or else from its
whole: a step's whole is the chain, a member's the group, a header's or a body's the chord, a callback's or an error
callback's the task. The outermost whole has what its call says, or else its own.

They are written into the options of each task: Celery passes a chain's options on to the first step alone, and lets the
options of a group or a chord win over those of its members. They are written into copies: signatures belong to the
caller.

Methods of Celery's canvas that are wrapped: one function for each.

Without this, most would lose what a call passes on to its parts, such as the mode (`passed_on`), and those of a chord
would hand the chord's key on to the body.

Apps with another transport are left alone: their calls' options go where stock Celery takes them.

The publish ids of what follows from an end (links, the next step of a chain, the body of a chord).

An end may be told twice: the process that told it may have died before it could say so. The ids are made from the job
that ended, so that what was published before is a known job, and is not published again.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import wraps
from operator import is_
from typing import Any, TypeVar, cast

from celery import canvas, current_task
from celery.app.amqp import task_message
from celery.app.task import Task
from celery.canvas import Signature
from celery.utils.functional import regen

from ..errors import OptionError
from ..options.affinity import NOTHING, as_affinity
from ..options.call_options import KEYS
from ..options.call_options import inherited_options as said
from ..options.key_templates import derived_id
from . import option_sources
from .app_config import uses_affinity_transport
from .option_sources import inherited_from_run

#: Keyword arguments of a composed signature that hold its parts.
_PARTS = {"chain": ("tasks",), "group": ("tasks",), "chord": ("header", "body")}
_LINKS = ("link", "link_error")
#: Celery's own task that gathers the results of a group that replaces a task: the group's last task publishes it.
_GATHER = "celery.accumulate"
#: Celery's own task that waits for the header of a chord, with a backend that cannot count.
_UNLOCK = "celery.chord_unlock"
#: The list that Celery makes of a generator, and fills when somebody reads it.
_FROM_GENERATOR = type(regen(iter(())))
#: Options of a call or of a signature.
Options = dict[str, Any]
#: Options that a part inherits, by name.
Passed = Mapping[str, Any]
#: A signature, or whatever stands in the place of one: Celery knows several forms.
Part = TypeVar("Part")
#: A signature as Celery made it, or the dict that was read from a message.
Composed = TypeVar("Composed", bound=dict[str, Any])
#: A message as Celery makes it: headers, properties, body, and the event that tells of the sending.
Message = tuple[Any, Any, Any, Any]


def inheriting(signature: Part, passed: Passed) -> Part:
    """Return *signature* with its own options, or else those *passed*, in its tasks; the same object if none changes.

    Raises OptionError if the options of a part are not accepted.
    """
    if not isinstance(signature, dict):
        return signature
    options = signature.get("options")
    if isinstance(options, dict) and (own := said(options)):
        passed = {**passed, **own}
    if not passed and not parts_of(signature):
        return signature
    return force_options(signature, passed)


def force_options(signature: Composed, passed: Passed) -> Composed:
    """Return *signature* with the options *passed*, whatever its own options say."""
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
    """Return what *signature*, or the first of a list of signatures that says it, says for its first task."""
    if isinstance(signature, (list, tuple)):
        return {name: value for each in reversed(signature) for name, value in first_value_of(each).items()}
    if not isinstance(signature, dict) or not isinstance(signature.get("options"), dict):
        return {}
    own, names, kwargs = said(signature["options"]), parts_of(signature), signature.get("kwargs")
    return {**first_value_of(kwargs.get(names[0])), **own} if names and isinstance(kwargs, dict) else own


def parts_of(signature: Mapping[str, object]) -> tuple[str, ...]:
    """Return the keyword arguments of *signature* that hold its parts; none, if it is the signature of a task."""
    composed = signature.get("subtask_type")
    return _PARTS.get(composed, ()) if isinstance(composed, str) else ()


def without_options(options: Options, passed: Passed) -> Options:
    """Return options of a composed signature that passes on what is *passed*, without those that would win over it."""
    options = _links_inheriting(options, passed)
    own = said(options)
    if not own:
        return options
    options = {name: value for name, value in options.items() if name not in own}
    affinity = as_affinity(options.pop("affinity", None))
    left_out: dict[str, Any] = dict.fromkeys(own)
    if (rest := replace(affinity, **left_out)) != NOTHING:
        options["affinity"] = rest
    return options


def _with(options: Options, passed: Passed) -> Options:
    """Return options of a task with those *passed* in them and in its links."""
    options = _links_inheriting(options, passed)
    stamps = options.get("stamped_headers") or ()
    changes = {name: value for name, value in passed.items() if name not in stamps and options.get(name) is not value}
    return {**options, **changes} if changes else options


def _links_inheriting(options: Options, passed: Passed) -> Options:
    if not passed:
        return options
    found = {name: options[name] for name in _LINKS if options.get(name)}
    changes = {name: new for name, links in found.items() if (new := _parts_inheriting(links, passed)) is not links}
    return {**options, **changes} if changes else options


def _parts_inheriting(parts: Any, passed: Passed) -> Any:
    """Return one or several signatures, or a generator, `inheriting`. A generator stays one until Celery reads it."""
    if isinstance(parts, _FROM_GENERATOR):
        return regen(inheriting(each, passed) for each in parts) if passed else parts
    if isinstance(parts, (list, tuple)):
        new = [inheriting(each, passed) for each in parts]
        if all(map(is_, new, parts)):
            return parts
        return tuple(new) if isinstance(parts, tuple) else new
    return inheriting(parts, passed)


def copy_with(signature: Composed, **changes: object) -> Composed:
    """Return a shallow copy with *changes*. `Signature.clone` copies all options deeply, which takes long."""
    if not isinstance(signature, Signature):
        return cast(Composed, {**signature, **changes})
    copy = cast(Signature, dict.__new__(type(signature)))
    copy.update(signature)
    copy.update(changes)
    vars(copy).update(vars(signature))  # the app, the task
    return cast(Composed, copy)


# -- messages


def _begun_before_this_was_imported() -> object:
    """Return the id of the task that is being published, if its call made the first connection; else None.

    Celery's canvas was not yet wrapped where that call began (`celery_methods.canvas`), so its options are written here
    alone.
    """
    return next(
        (
            call.values.get("task_id")
            for call in option_sources.calls_in_progress()
            if call.function == "Celery.send_task"
        ),
        None,
    )


_FIRST = _begun_before_this_was_imported()


def inherit_options(message: Message, options: Options, of_run: Callable[[], dict[str, Any]]) -> Message:
    """Return a message of Celery's with what *options* of its call pass on, written into everything after its task.

    The next steps of a chain or a chord inherited when the whole was published; a step that got nothing keeps nothing.
    *options* are changed only for Celery's own tasks that carry a canvas on. *of_run*: what the running task passes on.
    """
    passed = said(options)
    headers, properties, body, event = message
    if not passed:
        name = headers.get("task")
        if name in (_UNLOCK, _GATHER):
            options.update(first_value_of(body[0][1:2]) if name == _UNLOCK else of_run())
        return message
    if not isinstance(body, tuple):  # Celery's first protocol
        return message
    embed = body[2]
    is_first = _FIRST is not None and headers["id"] == _FIRST
    changes = {name: _parts_inheriting(embed[name], passed) for name in ("callbacks", "errbacks") if embed.get(name)}
    if isinstance(steps := embed.get("chain"), (list, tuple)):
        changes["chain"] = [each if _is_frozen(each) and not is_first else inheriting(each, passed) for each in steps]
    if (chord := embed.get("chord")) and (is_first or not _is_frozen(chord)):
        changes["chord"] = inheriting(chord, passed)
    return task_message(headers, properties, (*body[:2], {**embed, **changes}), event) if changes else message


def _is_frozen(signature: Any) -> bool:
    """Return whether *signature* is part of a running canvas: Celery has written ids into its options."""
    options = signature.get("options") if isinstance(signature, dict) else None
    if not isinstance(options, dict):
        return False
    return "reply_to" in options or ("task_id" in options and bool(parts_of(signature)))


Method = Callable[..., Any]
#: Celery's own task that chunks become in a message.
_CHUNKS = "celery.chunks"


def _wrap(owner: Any, name: str, wrap: Callable[[Method], Method]) -> None:
    original = getattr(owner, name, None)
    if original is None:  # before 5.7 Celery has no other way to make a chain than `|`
        return
    setattr(owner, name, wraps(original)(wrap(original)))


# -- what is published


def _apply_composed(original: Method) -> Method:
    """Write what a chain, a group or a chord passes on where it is called: Celery gives some parts no options."""

    def apply_async(self: Any, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        composed, passed = _composed(self, options)
        if passed:
            options = without_options(options, passed)
            if kwargs and "body" in kwargs:  # chord(header)(body)
                kwargs = {**kwargs, "body": inheriting(kwargs["body"], passed)}
        return original(composed, args, kwargs, *rest, **options)

    return apply_async


def _composed(signature: Any, options: Options) -> tuple[Any, Passed]:
    """Return *signature* as a call with *options* publishes it, and what the whole passes on."""
    try:
        passed = _called_with(signature, options)
        composed = force_options(signature, passed)
    except OptionError:
        if uses_affinity_transport(signature.app.conf.broker_transport):
            raise
        return signature, {}
    if not passed and composed is signature:
        return signature, {}
    return (composed, passed) if uses_affinity_transport(signature.app.conf.broker_transport) else (signature, {})


def _called_with(signature: Any, options: Options) -> Passed:
    """Return what a signature that is called with *options* passes on: what they say, or else the signature's own."""
    return said({**signature.options, **{name: value for name, value in options.items() if value is not None}})


def _own(signature: Any) -> Passed:
    """Return what a signature passes on. Nothing for options that are not accepted: a publish raises the error."""
    with suppress(OptionError):
        return said(signature.get("options") or {})
    return {}


def _apply_map(original: Method) -> Method:
    """Give a ``map`` or ``starmap`` its own options: Celery before 5.7 calls them without."""

    def apply_async(self: Any, *args: Any, **options: Any) -> Any:
        if options.get("affinity") is None:
            options.update({name: value for name, value in _own(self).items() if options.get(name) is None})
        return original(self, *args, **options)

    return apply_async


def _group_of_chunks(original: Method) -> Method:
    """Give chunks what they pass on: Celery makes and calls a group without the options of the chunks.

    Within a message, chunks are a task of Celery's, which makes the group when it runs.
    """

    def group(self: Any) -> Any:
        made, passed = original(self), _own(self)
        if not passed and current_task and current_task.name == _CHUNKS:
            passed = inherited_from_run()
        return made.set(**passed) if passed else made

    return group


# -- keys: an option that a chord is called with, or has of its own, Celery gives to the body as well


def _call_chord(original: Method) -> Method:
    """Give a key that a chord is called with, or has of its own, to the header: Celery gives it to the body as well.

    The body runs when nobody of the header holds the key any more.
    """

    def apply_async(self: Any, *args: Any, **options: Any) -> Any:
        own, others = _without_keys(self.options, self.app)
        keys, options = _without_keys(options, self.app)
        if own or keys:
            header = self.tasks if isinstance(self.tasks, canvas.group) else canvas.group(self.tasks, app=self.app)
            header = copy_with(header, options={**header.options, **own, **keys})
            self = copy_with(self, options=others, kwargs={**self.kwargs, "header": header})
        return original(self, *args, **options)

    return apply_async


def _without_keys(options: Options, app: Any) -> tuple[Options, Options]:
    """Return the options in *options* that say a key, and all others; an affinity that says one is divided."""
    if not any(name in options for name in ("affinity", *KEYS)) or not uses_affinity_transport(
        app.conf.broker_transport
    ):
        return {}, options
    keys = {name: options[name] for name in KEYS if options.get(name) is not None}
    others = {name: value for name, value in options.items() if name not in KEYS}
    asked = as_affinity(options.get("affinity"))
    if asked.keys:
        others["affinity"] = replace(asked, exclusive=None, rate=None)
        keys = {**{rule.option: rule for rule in asked.keys}, **keys}
    return keys, others


# -- composing: Celery takes the signatures out of a chain, group or chord that becomes part of another. The options of
# the former whole are lost then, or go to the wrong part


def _part(signature: Any) -> Any:
    """Return *signature*, which becomes part of another one; what a composed one passes on goes into its tasks."""
    if not isinstance(signature, dict) or not parts_of(signature):
        return signature
    with suppress(OptionError):
        return inheriting(signature, {}) if _own(signature) else signature
    return signature


def _or(original: Method) -> Method:
    """Keep the options that each side of ``|`` passes on: Celery puts the parts of both into one chain or chord."""

    def pipe(self: Any, other: Any) -> Any:
        return original(_part(self), _part(other))

    return pipe


def _fold(original: Method) -> Method:
    """Keep the mode that the parts of a ``chain()`` pass on: Celery 5.7 folds the parts into one chain without it."""

    def _fold_chain(tasks: Any) -> Any:
        return original([_part(each) for each in tasks])

    return _fold_chain


def _header(original: Method) -> Method:
    """Keep the mode of a group or chain that becomes the header of a chord: Celery takes the tasks alone out of it."""

    def _maybe_group(tasks: Any, app: Any) -> Any:
        return original(_part(tasks), app)

    return _maybe_group


# -- signatures that a running task puts in its own place, or beside itself


def _replace(original: Method) -> Method:
    """Give the signature that replaces a task what the task passes on: the same user waits for it."""

    def replace(self: Any, sig: Any) -> Any:
        passed = inherited_from_run()
        return original(self, inheriting(sig, passed) if passed else sig)

    return replace


def _add_to_chord(original: Method) -> Method:
    """Give the signature that a task adds to its chord what the task passes on. Like Celery, change the signature."""

    def add_to_chord(self: Any, sig: Any, lazy: bool = False) -> Any:
        own = first_value_of(sig)
        passed = {name: value for name, value in inherited_from_run().items() if name not in own}
        if passed:
            sig.set(**passed)
        return original(self, sig, lazy)

    return add_to_chord


for _owner, _name, _wrapper in (
    (canvas._chain, "apply_async", _apply_composed),
    (canvas.group, "apply_async", _apply_composed),
    (canvas._chord, "apply_async", _apply_composed),
    (canvas._chord, "apply_async", _call_chord),
    (canvas._basemap, "apply_async", _apply_map),
    (canvas.chunks, "group", _group_of_chunks),
    (canvas.Signature, "__or__", _or),
    (canvas._chain, "__or__", _or),
    (canvas._chord, "__or__", _or),
    (canvas, "_fold_chain", _fold),
    (canvas, "_maybe_group", _header),
    (Task, "replace", _replace),
    (Task, "add_to_chord", _add_to_chord),
):
    _wrap(_owner, _name, _wrapper)


class _FollowUpIds:
    """The calls that are published because of the end of a task, such as its links. *origin*: what names this end.

    *count*: name of a task -> its calls that were published so far. A handler of a signal may publish calls as well:
    as each task is counted by itself, these calls change no id of a link. A function as *origin* is called at the first
    publish.
    """

    def __init__(self, origin: str | Callable[[], str]) -> None:
        self._origin = origin
        self.count: Counter[str] = Counter()

    @property
    def origin(self) -> str:
        if not isinstance(self._origin, str):
            self._origin = self._origin()
        return self._origin

    def id_of_next(self, task_name: str) -> str:
        self.count[task_name] += 1
        return derived_id(f"{self.origin} {self.count[task_name]} {task_name}")


_following: ContextVar[_FollowUpIds | None] = ContextVar("celery_affinity_following", default=None)


def new_publish_id(task_name: str) -> str:
    """Return the id of a call of a task: by chance, or made from the end that it follows from."""
    following = _following.get()
    return os.urandom(16).hex() if following is None else following.id_of_next(task_name)


@contextmanager
def follow_up_ids(origin: str | Callable[[], str], *signatures: Any) -> Iterator[None]:
    """Give what is published the ids of what follows from *origin*: these *signatures*, each as its message has it.

    A chord gets new ids: its header counts under an id that Celery makes anew, and half a header of each would be none.
    """
    token = _following.set(None if any(map(_begins_with_a_chord, signatures)) else _FollowUpIds(origin))
    try:
        yield
    finally:
        _following.reset(token)


def _begins_with_a_chord(signature: Any) -> bool:
    """Return whether a call of *signature* publishes several messages that count together."""
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
