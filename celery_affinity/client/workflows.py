"""Where Celery's canvas would lose the mode of a call: methods of its classes that are wrapped here.

An app with another transport is left alone: what its calls say goes where stock Celery takes it.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from celery import canvas
from celery._state import get_current_task
from celery.app.task import Task

from ..errors import OptionError
from .first_try import mode_of_run
from .modes import Options, first_said, parts_of, said, settled, without_mode, written
from .of_app import is_ours

Method = Callable[..., Any]

#: Celery's own task that chunks are in a message.
_CHUNKS = "celery.chunks"


def _wrap(owner: Any, name: str, wrap: Callable[[Method], Method]) -> None:
    original = getattr(owner, name, None)
    if original is None:  # before 5.7 Celery has no other way to make a chain than `|`
        return
    setattr(owner, name, wraps(original)(wrap(original)))


# -- what is published


def _apply_composed(original: Method) -> Method:
    """Settle the modes of a chain, a group or a chord where it is called."""

    def apply_async(self: Any, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        composed, mode = _composed(self, options)
        if mode is not None:
            options = without_mode(options, mode)
            if kwargs and "body" in kwargs:  # chord(header)(body)
                kwargs = {**kwargs, "body": settled(kwargs["body"], mode)}
        return original(composed, args, kwargs, *rest, **options)

    return apply_async


def _composed(signature: Any, options: Options) -> tuple[Any, bool | None]:
    """Return *signature* as it is to be called with *options*, and its mode. Raises OptionError."""
    try:
        mode = _called_with(signature, options)
        composed = written(signature, mode)
    except OptionError:
        if is_ours(signature.app.conf.broker_transport):
            raise
        return signature, None
    if mode is None and composed is signature:
        return signature, None
    return (composed, mode) if is_ours(signature.app.conf.broker_transport) else (signature, None)


def _called_with(signature: Any, options: Options) -> bool | None:
    """Return the mode of a signature that is called with *options*: what they do not say is its own."""
    own = signature.options
    if not any(name in each for each in (options, own) for name in ("on_demand", "affinity")):
        return None
    return said({**own, **{name: value for name, value in options.items() if value is not None}})


def _own(signature: Any) -> bool | None:
    """Return the mode of a signature; none of one that says what is not accepted, of which a publish is to complain."""
    with suppress(OptionError):
        return said(signature.get("options") or {})
    return None


def _apply_map(original: Method) -> Method:
    """Give what is mapped its own mode: before 5.7 Celery calls it without its own options."""

    def apply_async(self: Any, *args: Any, **options: Any) -> Any:
        mode = _own(self)
        if mode is not None and options.get("on_demand") is None and options.get("affinity") is None:
            options["on_demand"] = mode
        return original(self, *args, **options)

    return apply_async


def _group_of_chunks(original: Method) -> Method:
    """Give chunks their own mode: Celery makes the group that is called without their own options.

    Chunks that were part of a message are a task, which makes the group.
    """

    def group(self: Any) -> Any:
        made, mode, running = original(self), _own(self), get_current_task()
        if mode is None and running is not None and running.name == _CHUNKS:
            mode = mode_of_run()
        return made if mode is None else made.set(on_demand=mode)

    return group


# -- what is composed: Celery takes signatures out of chains, groups and chords, and the options of these are gone then,
# or go on to what is put in


def _part(signature: Any) -> Any:
    """Return what is to be part of another: with its own mode, if it has one, in its tasks."""
    if not isinstance(signature, dict) or not parts_of(signature):
        return signature
    with suppress(OptionError):
        return signature if _own(signature) is None else settled(signature, None)
    return signature


def _or(original: Method) -> Method:
    def pipe(self: Any, other: Any) -> Any:
        return original(_part(self), _part(other))

    return pipe


def _fold(original: Method) -> Method:
    def _fold_chain(tasks: Any) -> Any:
        return original([_part(each) for each in tasks])

    return _fold_chain


def _header(original: Method) -> Method:
    def _maybe_group(tasks: Any, app: Any) -> Any:
        return original(_part(tasks), app)

    return _maybe_group


# -- what a running task puts in its own place, or beside it


def _replace(original: Method) -> Method:
    """Give what replaces a task its mode: who waited for the task waits for that."""

    def replace(self: Any, sig: Any) -> Any:
        mode = mode_of_run()
        return original(self, sig if mode is None else settled(sig, mode))

    return replace


def _add_to_chord(original: Method) -> Method:
    """Give what a task adds to its chord its mode. Celery makes the signature part of that chord, so it is changed."""

    def add_to_chord(self: Any, sig: Any, lazy: bool = False) -> Any:
        mode = mode_of_run()
        if mode is not None and first_said(sig) is None:
            sig.set(on_demand=mode)
        return original(self, sig, lazy)

    return add_to_chord


for _owner, _name, _wrapper in (
    (canvas._chain, "apply_async", _apply_composed),
    (canvas.group, "apply_async", _apply_composed),
    (canvas._chord, "apply_async", _apply_composed),
    (canvas._basemap, "apply_async", _apply_map),
    (canvas.chunks, "group", _group_of_chunks),
    (canvas.Signature, "__or__", _or),
    (canvas._chain, "__or__", _or),
    (canvas.group, "__or__", _or),
    (canvas._chord, "__or__", _or),
    (canvas, "_fold_chain", _fold),
    (canvas, "_maybe_group", _header),
    (Task, "replace", _replace),
    (Task, "add_to_chord", _add_to_chord),
):
    _wrap(_owner, _name, _wrapper)
