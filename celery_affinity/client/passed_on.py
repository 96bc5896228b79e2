"""What a canvas passes on to its parts, such as the mode: a user who waits for the end of a canvas waits for each step.

Passed on are the options of `call_options.PASSED_ON`. A signature has each of them in its own options, or else from its
whole: a step's whole is the chain, a member's the group, a header's or a body's the chord, a callback's or an error
callback's the task. The outermost whole has what its call says, or else its own.

They are written into the options of each task: Celery passes a chain's options on to the first step alone, and lets the
options of a group or a chord win over those of its members. They are written into copies: signatures belong to the
caller.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import is_
from typing import Any, TypeVar, cast

from celery.app.amqp import task_message
from celery.canvas import Signature
from celery.utils.functional import regen

from ..rules.affinity import NOTHING, as_affinity
from ..rules.option_values import passed_on as said
from . import under_way

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
    return written(signature, passed)


def written(signature: Composed, passed: Passed) -> Composed:
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
    new_options = without(options, passed) if names else _with(options, passed)
    if new_options is options and not changes:
        return signature
    return copy_with(signature, options={**new_options}, kwargs={**kwargs, **changes})


def first_said(signature: object) -> dict[str, Any]:
    """Return what *signature*, or the first of a list of signatures that says it, says for its first task."""
    if isinstance(signature, (list, tuple)):
        return {name: value for each in reversed(signature) for name, value in first_said(each).items()}
    if not isinstance(signature, dict) or not isinstance(signature.get("options"), dict):
        return {}
    own, names, kwargs = said(signature["options"]), parts_of(signature), signature.get("kwargs")
    return {**first_said(kwargs.get(names[0])), **own} if names and isinstance(kwargs, dict) else own


def parts_of(signature: Mapping[str, object]) -> tuple[str, ...]:
    """Return the keyword arguments of *signature* that hold its parts; none, if it is the signature of a task."""
    composed = signature.get("subtask_type")
    return _PARTS.get(composed, ()) if isinstance(composed, str) else ()


def without(options: Options, passed: Passed) -> Options:
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
    return next((call.values.get("task_id") for call in under_way.calls() if call.function == "Celery.send_task"), None)


_FIRST = _begun_before_this_was_imported()


def pass_on(message: Message, options: Options, of_run: Callable[[], dict[str, Any]]) -> Message:
    """Return a message of Celery's with what *options* of its call pass on, written into everything after its task.

    The next steps of a chain or a chord inherited when the whole was published; a step that got nothing keeps nothing.
    *options* are changed only for Celery's own tasks that carry a canvas on. *of_run*: what the running task passes on.
    """
    passed = said(options)
    headers, properties, body, event = message
    if not passed:
        name = headers.get("task")
        if name in (_UNLOCK, _GATHER):
            options.update(first_said(body[0][1:2]) if name == _UNLOCK else of_run())
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
