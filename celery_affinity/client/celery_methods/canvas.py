"""Methods of Celery's canvas that are wrapped: one function for each.

Without this, most would lose what a call passes on to its parts, such as the mode (`passed_on`), and those of a chord
would hand the chord's key on to the body.

Apps with another transport are left alone: their calls' options go where stock Celery takes them.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from typing import Any

from celery import canvas, current_task
from celery.app.task import Task

from ...errors import OptionError
from ...rules.affinity import as_affinity
from ...rules.call_options import KEYS
from ...rules.option_values import passed_on as said
from ..first_try import passed_on_by_run
from ..of_app import is_ours
from ..passed_on import Options, Passed, copy_with, first_said, inheriting, parts_of, without, written

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
            options = without(options, passed)
            if kwargs and "body" in kwargs:  # chord(header)(body)
                kwargs = {**kwargs, "body": inheriting(kwargs["body"], passed)}
        return original(composed, args, kwargs, *rest, **options)

    return apply_async


def _composed(signature: Any, options: Options) -> tuple[Any, Passed]:
    """Return *signature* as a call with *options* publishes it, and what the whole passes on."""
    try:
        passed = _called_with(signature, options)
        composed = written(signature, passed)
    except OptionError:
        if is_ours(signature.app.conf.broker_transport):
            raise
        return signature, {}
    if not passed and composed is signature:
        return signature, {}
    return (composed, passed) if is_ours(signature.app.conf.broker_transport) else (signature, {})


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
            passed = passed_on_by_run()
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
    if not any(name in options for name in ("affinity", *KEYS)) or not is_ours(app.conf.broker_transport):
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
        passed = passed_on_by_run()
        return original(self, inheriting(sig, passed) if passed else sig)

    return replace


def _add_to_chord(original: Method) -> Method:
    """Give the signature that a task adds to its chord what the task passes on. Like Celery, change the signature."""

    def add_to_chord(self: Any, sig: Any, lazy: bool = False) -> Any:
        own = first_said(sig)
        passed = {name: value for name, value in passed_on_by_run().items() if name not in own}
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
