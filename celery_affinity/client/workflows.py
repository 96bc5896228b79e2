"""Methods of Celery's canvas that are wrapped: one function for each.

Most would lose the mode of a call; those of a chord would hand a key on to the body.

Apps with another transport are left alone: their calls' options go where stock Celery takes them.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from typing import Any

from celery import canvas
from celery._state import get_current_task
from celery.app.task import Task

from ..errors import OptionError
from ..rules.affinity import as_affinity
from . import job_rules
from .first_try import mode_of_run
from .modes import Options, copy_with, first_said, parts_of, said, with_modes, without_mode, written
from .of_app import is_ours

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
    """Write the modes of a chain, a group or a chord where it is called: Celery gives some parts no options."""

    def apply_async(self: Any, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        composed, mode = _composed(self, options)
        if mode is not None:
            options = without_mode(options, mode)
            if kwargs and "body" in kwargs:  # chord(header)(body)
                kwargs = {**kwargs, "body": with_modes(kwargs["body"], mode)}
        return original(composed, args, kwargs, *rest, **options)

    return apply_async


def _composed(signature: Any, options: Options) -> tuple[Any, bool | None]:
    """Return *signature* with its modes, as a call with *options* publishes it, and the mode of the whole."""
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
    """Return the mode of a signature that is called with *options*: the one in them, or else the signature's own."""
    own = signature.options
    if not any(name in each for each in (options, own) for name in ("on_demand", "affinity")):
        return None
    return said({**own, **{name: value for name, value in options.items() if value is not None}})


def _own(signature: Any) -> bool | None:
    """Return a signature's own mode. None for options that are not accepted: a publish raises the error."""
    with suppress(OptionError):
        return said(signature.get("options") or {})
    return None


def _apply_map(original: Method) -> Method:
    """Give a ``map`` or ``starmap`` its own mode: Celery before 5.7 calls them without their own options."""

    def apply_async(self: Any, *args: Any, **options: Any) -> Any:
        mode = _own(self)
        if mode is not None and options.get("on_demand") is None and options.get("affinity") is None:
            options["on_demand"] = mode
        return original(self, *args, **options)

    return apply_async


def _group_of_chunks(original: Method) -> Method:
    """Give chunks their own mode: Celery makes and calls a group without the options of the chunks.

    Within a message, chunks are a task of Celery's, which makes the group when it runs.
    """

    def group(self: Any) -> Any:
        made, mode, running = original(self), _own(self), get_current_task()
        if mode is None and running is not None and running.name == _CHUNKS:
            mode = mode_of_run()
        return made if mode is None else made.set(on_demand=mode)

    return group


# -- keys: an option that a chord is called with, or has of its own, Celery gives to the body as well


def _call_chord(original: Method) -> Method:
    """Make a key that a chord is called with the chord's own: Celery clones the body with the options of the call."""

    def apply_async(self: Any, *args: Any, **options: Any) -> Any:
        keys, others = _without_keys(options, self.app)
        if keys:
            self, options = copy_with(self, options={**self.options, **keys}), others
        return original(self, *args, **options)

    return apply_async


def _run_chord(original: Method) -> Method:
    """Leave the key of a chord to its header: the body runs when nobody of the header holds the key any more."""

    def run(self: Any, header: Any, *args: Any, **options: Any) -> Any:
        own, others = _without_keys(self.options, self.app)
        keys, options = _without_keys(options, self.app)
        if own or keys:
            header.options.update({**own, **keys})
        return original(copy_with(self, options=others) if own else self, header, *args, **options)

    return run


def _without_keys(options: Options, app: Any) -> tuple[Options, Options]:
    """Return the options in *options* that say a key, and all others; an affinity that says one is divided."""
    if not any(name in options for name in ("affinity", *job_rules.OPTIONS)) or not is_ours(app.conf.broker_transport):
        return {}, options
    keys = {name: options[name] for name in job_rules.OPTIONS if options.get(name) is not None}
    others = {name: value for name, value in options.items() if name not in job_rules.OPTIONS}
    asked = as_affinity(options.get("affinity"))
    if asked.rule is not None:
        others["affinity"] = replace(asked, exclusive=None, rate=None)
        if not any(keys.values()):
            keys = {asked.rule.option: asked.rule, **keys}
    return keys, others


# -- composing: Celery takes the signatures out of a chain, group or chord that becomes part of another. The options of
# the former whole are lost then, or go to the wrong part


def _part(signature: Any) -> Any:
    """Return *signature*, which becomes part of another one; the mode of a composed signature goes into its tasks."""
    if not isinstance(signature, dict) or not parts_of(signature):
        return signature
    with suppress(OptionError):
        return signature if _own(signature) is None else with_modes(signature, None)
    return signature


def _or(original: Method) -> Method:
    """Keep the modes of both sides of ``|``, whose parts Celery puts into one chain or chord."""

    def pipe(self: Any, other: Any) -> Any:
        return original(_part(self), _part(other))

    return pipe


def _fold(original: Method) -> Method:
    """Keep the modes of what is given to ``chain()``, which Celery 5.7 folds into one chain."""

    def _fold_chain(tasks: Any) -> Any:
        return original([_part(each) for each in tasks])

    return _fold_chain


def _header(original: Method) -> Method:
    """Keep the mode of a group that becomes the header of a chord: Celery takes the tasks out of it."""

    def _maybe_group(tasks: Any, app: Any) -> Any:
        return original(_part(tasks), app)

    return _maybe_group


# -- signatures that a running task puts in its own place, or beside itself


def _replace(original: Method) -> Method:
    """Give the signature that replaces a task the task's mode: the same user waits for it."""

    def replace(self: Any, sig: Any) -> Any:
        mode = mode_of_run()
        return original(self, sig if mode is None else with_modes(sig, mode))

    return replace


def _add_to_chord(original: Method) -> Method:
    """Give the signature that a task adds to its chord the task's mode. The signature is changed, as by Celery."""

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
    (canvas._chord, "apply_async", _call_chord),
    (canvas._chord, "run", _run_chord),
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
