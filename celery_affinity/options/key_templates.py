"""Templates of keys: ``"city:{city}"``, filled with the arguments of each call.

A field is ``{name}``, an argument of the task; ``{args[0]}``, the first positional one; or ``{task}``, the task's name.
``{{`` and ``}}`` are braces. The arguments that a task takes are read from its function once (`taken_by`).

Keys of rules: what names one, and the text of it in a job, percent-encoded and of 255 characters at most.

Ids that are made from a text, so that whoever does something again finds what was done before.
"""

import hashlib
import inspect
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, Self
from weakref import WeakKeyDictionary

from ..errors import OptionError, refuse
from ..schema.constants import LONGEST_KEY
from ..schema.untrusted import is_too_deep
from ..schema.values import encode_part
from .did_you_mean import closest_names

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
def parse_template(option: str, template: str) -> tuple[str | TemplateField, ...]:
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


def count_arguments(option: str, template: str) -> int:
    """Return how many different arguments *template* names. Raises OptionError for what is no template."""
    return len(
        {part for part in parse_template(option, template) if isinstance(part, TemplateField) and not part.is_task}
    )


def template_complaint(option: str, template: str, task_name: str, arguments: Arguments) -> str | None:
    """Return a complaint if no call of a task can fill *template*; None if some can."""
    for part in parse_template(option, template):
        if isinstance(part, TemplateField) and not part.is_task and (found := arguments.complaint(part)):
            return f'{option} "{template}": task {task_name} {found}'
    return None


def may_be_none(option: str, template: str, arguments: "ReadArguments") -> tuple[str, ...]:
    """Return the fields of *template* that are None in calls that leave the argument out: such calls have no key."""
    fields = (part for part in parse_template(option, template) if isinstance(part, TemplateField) and not part.is_task)
    return tuple(dict.fromkeys(field.text for field in fields if arguments.may_be_none(field)))


def fill_template(
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
    for part in parse_template(option, template):
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
    parts = parse_template(option, template)
    return "".join(part if isinstance(part, str) else task_name if part.is_task else "*" for part in parts)


class ReadArguments:
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


class CallArguments:
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


_TAKEN: "WeakKeyDictionary[Any, ReadArguments]" = WeakKeyDictionary()


def arguments_read_by(run: Callable[..., object]) -> ReadArguments:
    """Return the arguments of *run*, a task's function or bound method. They are kept as long as the function lives."""
    function = getattr(run, "__func__", run)
    try:
        taken = _TAKEN.get(function)
        if taken is None:
            taken = _TAKEN[function] = ReadArguments(function, but_first=function is not run)
    except TypeError:  # an object that cannot be referred to weakly, or has no hash
        taken = ReadArguments(run)
    return taken


#: A function that makes a key of a call's positional and keyword arguments; None: the call has no key.
KeyFunction = Callable[[tuple[Any, ...], dict[str, Any]], str | None]

#: Hexadecimal digits that end the encoded form of a key that is too long, and what goes before them: `encode` never
#: writes these two characters, so no other key has such a form.
_DIGITS, HASHED = 32, "%-"

_ACCEPTED_KEYS = "a text that is not empty, such as 'city:{city}', or a function of args and kwargs"


class NamedKey:
    """A dataclass whose constructor refuses a field that there is not, and asks which one is meant."""

    def __new__(cls, *_: object, **named: object) -> Self:
        names = [each.name for each in fields(cls) if each.init]  # type: ignore[arg-type]  # a dataclass by then
        for name in named:
            if name not in names:
                close = closest_names(name.lower(), names)
                question = f"; did you mean {close!r}?" if close else ""
                raise OptionError(f"{cls.__name__} takes {', '.join(names)}, got: {name!r}{question}")
        return super().__new__(cls)


def check_template(option: str, key: object) -> None:
    """Raise OptionError, which names *option*, unless *key* is a template of keys or a function that makes them."""
    if callable(key):
        return
    if not isinstance(key, str) or not key:
        raise refuse(f"key of {option}", _ACCEPTED_KEYS, key)
    parse_template(option, key)


def check_key(option: str, key: object) -> None:
    """Raise OptionError, which names *option*, unless *key* is a text that is not empty."""
    if not isinstance(key, str) or not key:
        raise refuse(f"key of {option}", "a text that is not empty", key)


def encoded_key(option: str, key: str) -> str:
    """Return *key* as the arrows have it, of 255 characters at most: a longer one keeps its begin, and has a hash.

    *option*: named by the OptionError that an empty key raises, or one that has no UTF-8 form.
    """
    check_key(option, key)
    try:
        encoded = encode_part(key)
        if len(encoded) <= LONGEST_KEY:
            return encoded
        digest = hashlib.blake2b(key.encode(), digest_size=_DIGITS // 2).hexdigest()
    except UnicodeEncodeError as exc:
        raise refuse(f"key of {option}", "a text in UTF-8", key) from exc
    room = LONGEST_KEY - len(HASHED) - _DIGITS
    begin = key[:room]
    while (excess := len(encode_part(begin)) - room) > 0:
        begin = begin[: -max(1, excess // 12)]  # no character takes more than twelve
    return f"{encode_part(begin)}{HASHED}{digest}"


def readable_key(option: str, key: str | KeyFunction) -> str:
    """Return *key* as a message has it. Raises OptionError, which names *option*, for a function."""
    if callable(key):
        raise OptionError(
            f"key of {option} must be a text where a signature with it is written into a message, got: {key!r}"
        )
    return key


def derived_id(text: str) -> str:
    """Return an id made of *text*: 32 hexadecimal digits."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def derived_task_id(text: str) -> str:
    """Return a task id made of *text*: a UUID of version 8."""
    digits = derived_id(text)
    return f"{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"
