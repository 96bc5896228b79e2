"""The mode of a canvas (on demand or not): a user who waits for the end of a canvas waits for each step.

A signature has the mode in its own options, or else the mode of its whole: a step's whole is the chain, a member's the
group, a header's or a body's the chord, a callback's or an error callback's the task. The outermost whole has the mode
that its call says, or else its own.

The mode is written into the options of each task: Celery passes a chain's options on to the first step alone, and lets
the options of a group or a chord win over those of its members. The modes are written into copies: signatures belong to
the caller.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import is_
from typing import Any, TypeVar, cast

from celery import Celery
from celery.app.amqp import task_message
from celery.canvas import Signature
from celery.utils.functional import _regen, regen

from ..rules.affinity import NOTHING, as_affinity, check_on_demand

#: Keyword arguments of a composed signature that hold its parts.
_PARTS = {"chain": ("tasks",), "group": ("tasks",), "chord": ("header", "body")}

_LINKS = ("link", "link_error")

#: Celery's own task that gathers the results of a group that replaces a task: the group's last task publishes it.
_GATHER = "celery.accumulate"

#: Celery's own task that waits for the header of a chord, with a backend that cannot count.
_UNLOCK = "celery.chord_unlock"

#: Options of a call or of a signature.
Options = dict[str, Any]

#: A signature, or whatever stands in the place of one: Celery knows several forms.
Part = TypeVar("Part")

#: A signature as Celery made it, or the dict that was read from a message.
Composed = TypeVar("Composed", bound=dict[str, Any])

#: A message as Celery makes it: headers, properties, body, and the event that tells of the sending.
Message = tuple[Any, Any, Any, Any]


def said(options: Options) -> bool | None:
    """Return the mode that options of a call or a signature say, or None. Raises OptionError for a bad value."""
    if "on_demand" not in options and "affinity" not in options:
        return None
    headers = options.get("stamped_headers") or ()  # a user's stamp may have the name of our option
    on_demand = None if "on_demand" in headers else options.get("on_demand")
    if on_demand is not None:
        return check_on_demand(on_demand)
    return None if "affinity" in headers else as_affinity(options.get("affinity")).on_demand


def with_modes(signature: Part, mode: bool | None) -> Part:
    """Return *signature* with its own mode, or else *mode*, in each of its tasks; the same object if nothing changes.

    Raises OptionError if the options of a part are not accepted.
    """
    if not isinstance(signature, dict):
        return signature
    options = signature.get("options")
    if isinstance(options, dict) and (own := said(options)) is not None:
        mode = own
    if mode is None and not parts_of(signature):
        return signature
    return written(signature, mode)


def written(signature: Composed, mode: bool | None) -> Composed:
    """Return *signature* with *mode*, whatever its own options say."""
    options, kwargs = signature.get("options"), signature.get("kwargs")
    names = parts_of(signature)
    if not isinstance(options, dict) or not isinstance(kwargs, dict):
        return signature
    changes: Options = {}
    for name in names:
        part = kwargs.get(name)
        if (new := _parts_with_modes(part, mode)) is not part:
            changes[name] = new
    new_options = without_mode(options, mode) if names else _with_mode(options, mode)
    if new_options is options and not changes:
        return signature
    return copy_with(signature, options={**new_options}, kwargs={**kwargs, **changes})


def first_said(signature: object) -> bool | None:
    """Return the first mode that *signature*, or one of a list of signatures, says for its first task; None if none."""
    if isinstance(signature, (list, tuple)):
        return next((mode for mode in map(first_said, signature) if mode is not None), None)
    if not isinstance(signature, dict) or not isinstance(signature.get("options"), dict):
        return None
    mode = said(signature["options"])
    names, kwargs = parts_of(signature), signature.get("kwargs")
    return first_said(kwargs.get(names[0])) if mode is None and names and isinstance(kwargs, dict) else mode


def parts_of(signature: Mapping[str, object]) -> tuple[str, ...]:
    """Return the keyword arguments of *signature* that hold its parts; none, if it is the signature of a task."""
    composed = signature.get("subtask_type")
    return _PARTS.get(composed, ()) if isinstance(composed, str) else ()


def without_mode(options: Options, mode: bool | None) -> Options:
    """Return options of a composed signature whose tasks have *mode*, without a mode that would win over theirs."""
    options = _links_with_modes(options, mode)
    if said(options) is None:
        return options
    options = {name: value for name, value in options.items() if name != "on_demand"}
    affinity = as_affinity(options.pop("affinity", None))
    if (rest := replace(affinity, on_demand=None)) != NOTHING:
        options["affinity"] = rest
    return options


def _with_mode(options: Options, mode: bool | None) -> Options:
    """Return options of a task with *mode* in them and in its links."""
    options = _links_with_modes(options, mode)
    stamps = options.get("stamped_headers") or ()
    if mode is None or options.get("on_demand") is mode or "on_demand" in stamps:
        return options
    return {**options, "on_demand": mode}


def _links_with_modes(options: Options, mode: bool | None) -> Options:
    if mode is None:
        return options
    found = {name: options[name] for name in _LINKS if options.get(name)}
    changes = {name: new for name, links in found.items() if (new := _parts_with_modes(links, mode)) is not links}
    return {**options, **changes} if changes else options


def _parts_with_modes(parts: Any, mode: bool | None) -> Any:
    """Return one or several signatures, or a generator, `with_modes`. A generator stays one until Celery reads it."""
    if isinstance(parts, _regen):
        return parts if mode is None else regen(with_modes(each, mode) for each in parts)
    if isinstance(parts, (list, tuple)):
        new = [with_modes(each, mode) for each in parts]
        if all(map(is_, new, parts)):
            return parts
        return tuple(new) if isinstance(parts, tuple) else new
    return with_modes(parts, mode)


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

    Celery's canvas was not yet wrapped where that call began (`workflows`), so its modes are written here alone.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is Celery.send_task.__code__:
            return frame.f_locals.get("task_id")
    return None


_FIRST = _begun_before_this_was_imported()


def pass_on(message: Message, options: Options, mode_of_run: Callable[[], bool | None]) -> Message:
    """Return a message of Celery's with the mode in *options* of its call, written into everything after its task.

    The next steps of a chain or a chord got their modes when the whole was published; a step that got none keeps none.
    *options* are changed only for Celery's own tasks that carry a canvas on.
    """
    mode = said(options)
    headers, properties, body, event = message
    if mode is None:
        name = headers.get("task")
        if name in (_UNLOCK, _GATHER):
            options["on_demand"] = first_said(body[0][1:2]) if name == _UNLOCK else mode_of_run()
        return message
    if not isinstance(body, tuple):  # Celery's first protocol
        return message
    embed = body[2]
    is_first = _FIRST is not None and headers["id"] == _FIRST
    changes = {name: _parts_with_modes(embed[name], mode) for name in ("callbacks", "errbacks") if embed.get(name)}
    if isinstance(steps := embed.get("chain"), (list, tuple)):
        changes["chain"] = [each if _is_frozen(each) and not is_first else with_modes(each, mode) for each in steps]
    if (chord := embed.get("chord")) and (is_first or not _is_frozen(chord)):
        changes["chord"] = with_modes(chord, mode)
    return task_message(headers, properties, (*body[:2], {**embed, **changes}), event) if changes else message


def _is_frozen(signature: Any) -> bool:
    """Return whether *signature* is part of a running canvas: Celery has written ids into its options."""
    options = signature.get("options") if isinstance(signature, dict) else None
    if not isinstance(options, dict):
        return False
    return "reply_to" in options or ("task_id" in options and bool(parts_of(signature)))
