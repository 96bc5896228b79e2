"""Templates of keys: ``"city:{city}"``, filled with the arguments of each call.

A field is ``{name}``, an argument of the task; ``{args[0]}``, the first positional one; or ``{task}``, the task's name.
``{{`` and ``}}`` are braces. The arguments that a task takes are read from its function once (`taken_by`).
"""

import inspect
import re
import string
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from ...errors import OptionError
from ..untrusted import is_too_deep

_ACCEPTED = "{name} of an argument, {args[0]} or {task}"

_POSITION = re.compile(r"args\[([0-9]{1,6})\]")

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

_ANYTHING = [
    inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL),
    inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
]

#: Stands for an argument that a call has not got, and that has no default.
_MISSING = object()


class TemplateField(NamedTuple):
    """A field of a template. *text*: the text between braces. *position*: the number in ``{args[number]}``."""

    text: str
    position: int | None

    @property
    def is_task(self) -> bool:
        return self.text == "task"


class Arguments(Protocol):
    """The source of a call's arguments: the task's own function, or nothing but the call."""

    def complaint(self, field: TemplateField) -> str | None:
        """Return a complaint, to follow the task's name, if no call can fill *field*; None if some can."""

    def value(self, field: TemplateField, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Return the value of *field* in a call. Raises LookupError, whose text says what the call has instead."""


@lru_cache(maxsize=4096)
def parsed(option: str, template: str) -> tuple[str | TemplateField, ...]:
    """Return the parts of *template*: texts and fields. Raises OptionError for what is no template."""
    found: list[str | TemplateField] = []
    try:
        for text, name, spec, conversion in string.Formatter().parse(template):
            if text:
                found.append(text)
            if name is None:
                continue
            position = _POSITION.fullmatch(name)
            if spec or conversion or not (position or name.isidentifier()):
                written = name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
                raise ValueError(f"got: {{{written}}}")
            found.append(TemplateField(name, int(position[1]) if position else None))
    except ValueError as exc:
        raise OptionError(f'{option} "{template}": the text in braces must be {_ACCEPTED}; {exc}') from None
    return tuple(found)


def number_of_arguments(option: str, template: str) -> int:
    """Return how many different arguments *template* names. Raises OptionError for what is no template."""
    return len({part for part in parsed(option, template) if isinstance(part, TemplateField) and not part.is_task})


def complaint(option: str, template: str, task_name: str, arguments: Arguments) -> str | None:
    """Return a complaint if no call of a task can fill *template*; None if some can."""
    for part in parsed(option, template):
        if isinstance(part, TemplateField) and not part.is_task and (found := arguments.complaint(part)):
            return f'{option} "{template}": task {task_name} {found}'
    return None


def may_be_none(option: str, template: str, arguments: "Taken") -> tuple[str, ...]:
    """Return the fields of *template* that are None in calls that leave the argument out: such calls have no key."""
    fields = (part for part in parsed(option, template) if isinstance(part, TemplateField) and not part.is_task)
    return tuple(dict.fromkeys(field.text for field in fields if arguments.may_be_none(field)))


def filled(
    option: str,
    template: str,
    task_name: str,
    arguments: Arguments,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> str | None:
    """Return *template* filled for one call; None if the value of a field is None. Raises OptionError if it cannot be.

    Other values are taken as ``str`` writes them.
    """
    texts: list[str] = []
    for part in parsed(option, template):
        if isinstance(part, str):
            texts.append(part)
        elif part.is_task:
            texts.append(task_name)
        else:
            try:
                value = arguments.value(part, args, kwargs)
            except LookupError as exc:
                raise OptionError(f'{option} "{template}": task {task_name} {exc.args[0]}') from None
            if value is None:
                return None
            if is_too_deep(value):
                raise OptionError(f'{option} "{template}": the value of {{{part.text}}} is nested too deep for a key')
            texts.append(str(value))
    return "".join(texts)


def pattern_of(option: str, template: str, task_name: str) -> str:
    """Return the pattern of the keys that *template* makes, with ``*`` for each argument. Raises OptionError."""
    parts = parsed(option, template)
    return "".join(part if isinstance(part, str) else task_name if part.is_task else "*" for part in parts)


class Taken:
    """The arguments that a function takes, but the first of a method."""

    def __init__(self, function: Callable[..., object], *, but_first: bool = False) -> None:
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):  # made in C, without a signature: it may take anything
            parameters = _ANYTHING
        if but_first and parameters and parameters[0].kind in _POSITIONAL:
            del parameters[0]
        kinds = {each.kind for each in parameters}
        self._takes_any_name = inspect.Parameter.VAR_KEYWORD in kinds
        self._takes_any_number = inspect.Parameter.VAR_POSITIONAL in kinds
        self._positional = [each.name for each in parameters if each.kind in _POSITIONAL]
        self._positions = {name: position for position, name in enumerate(self._positional)}
        self._defaults = {
            each.name: _MISSING if each.default is each.empty else each.default
            for each in parameters
            if each.kind in (*_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)
        }

    def complaint(self, field: TemplateField) -> str | None:
        """See `Arguments.complaint`."""
        if field.position is not None:
            if field.position < len(self._positional) or self._takes_any_number:
                return None
            return f"has no positional argument {field.position}; {self._in_words}"
        if field.text in self._defaults or self._takes_any_name:
            return None
        return f"has no argument {field.text!r}; {self._in_words}"

    def may_be_none(self, field: TemplateField) -> bool:
        """Return whether *field* is None in calls that leave its argument out."""
        return self._defaults.get(self._place(field)[1], _MISSING) is None

    def value(self, field: TemplateField, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """See `Arguments.value`. ``{args[0]}`` is the first positional argument, also if a call gives it by name."""
        position, name = self._place(field)
        if position is not None and position < len(args):
            return args[position]
        value = kwargs.get(name, self._defaults.get(name, _MISSING))
        if value is _MISSING:
            raise LookupError(self.complaint(field) or f"was called without argument {name!r}; {self._in_words}")
        return value

    def _place(self, field: TemplateField) -> tuple[int | None, str]:
        """Return the position of the argument of *field*, None for one by name alone, and its name."""
        position, name = field.position, field.text
        if position is None:
            return self._positions.get(name), name
        return position, self._positional[position] if position < len(self._positional) else name

    @property
    def _in_words(self) -> str:
        named = [*self._defaults, *(["any other by name"] if self._takes_any_name else [])]
        return f"it takes: {', '.join(named)}" if named else "it takes none"


class OfCall:
    """The arguments of calls whose task is not at hand: each is known by name or by position, as the call gives it."""

    def complaint(self, field: TemplateField) -> str | None:
        """See `Arguments.complaint`."""
        return None

    def value(self, field: TemplateField, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """See `Arguments.value`."""
        if field.position is not None:
            if field.position < len(args):
                return args[field.position]
            raise LookupError(f"was called without positional argument {field.position}; it got {len(args)}")
        if field.text in kwargs:
            return kwargs[field.text]
        got = f"it got: {', '.join(map(str, kwargs))}" if kwargs else "it got none"
        raise LookupError(f"was called without keyword argument {field.text!r}; {got}")


_TAKEN: "WeakKeyDictionary[Any, Taken]" = WeakKeyDictionary()


def taken_by(run: Callable[..., object]) -> Taken:
    """Return the arguments of *run*, a task's function or bound method. They are kept as long as the function lives."""
    function = getattr(run, "__func__", run)
    try:
        taken = _TAKEN.get(function)
        if taken is None:
            taken = _TAKEN[function] = Taken(function, but_first=function is not run)
    except TypeError:  # an object that cannot be referred to weakly, or has no hash
        taken = Taken(run)
    return taken
