"""Templates of keys, such as ``"city:{city}"``, filled with the arguments of each call, and the encoding of keys.

A field is ``{name}``, an argument of the task; ``{args[0]}``, the first positional argument; or ``{task}``, the task's
name. ``{{`` and ``}}`` are braces. The parameters of a task's function are read once (`arguments_read_by`). In a job, a
key is percent-encoded and has at most 255 characters. Also here: ids derived from a text, so that a repetition gets the
same id.
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
from ..schema.constants import MAX_KEY_LENGTH
from ..schema.untrusted import is_too_deep
from ..schema.values import encode_part
from .did_you_mean import closest_question

_ACCEPTED = "{name} of an argument, {args[0]} or {task}"
_POSITION = re.compile(r"args\[([0-9]{1,6})\]")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

_ANY_PARAMETERS = [
    inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL),
    inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
]

#: Marks an argument that a call does not pass, and that has no default.
_MISSING = object()


class TemplateField(NamedTuple):
    """A field of a template."""

    #: The text between the braces.
    text: str
    #: The number in ``{args[number]}``.
    position: int | None

    @property
    def is_task(self) -> bool:
        return self.text == "task"


class Arguments(Protocol):
    """Source of a call's arguments: the task's function, or only the call."""

    def complaint(self, field: TemplateField) -> str | None:
        """Return an error to append to the task's name if no call can fill *field*, or None."""

    def value(self, field: TemplateField, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Return the value of *field* in a call. Raises LookupError with a text that describes the call's arguments."""


@lru_cache(maxsize=4096)
def parse_template(option: str, template: str) -> tuple[str | TemplateField, ...]:
    """Return the parts of *template*: texts and fields. Raises OptionError for an invalid template."""
    parts: list[str | TemplateField] = []
    try:
        for text, name, spec, conversion in string.Formatter().parse(template):
            if text:
                parts.append(text)
            if name is None:
                continue
            position = _POSITION.fullmatch(name)
            if spec or conversion or not (position or name.isidentifier()):
                written = name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
                raise ValueError(f"got: {{{written}}}")
            parts.append(TemplateField(name, int(position[1]) if position else None))
    except ValueError as exc:
        raise OptionError(f'{option} "{template}": the text in braces must be {_ACCEPTED}; {exc}') from None
    return tuple(parts)


def count_arguments(option: str, template: str) -> int:
    """Return the number of distinct arguments in *template*. Raises OptionError for an invalid template."""
    return len(
        {part for part in parse_template(option, template) if isinstance(part, TemplateField) and not part.is_task}
    )


def template_complaint(option: str, template: str, task_name: str, arguments: Arguments) -> str | None:
    """Return an error if no call of the task can fill *template*, or None."""
    for part in parse_template(option, template):
        if isinstance(part, TemplateField) and not part.is_task and (complaint := arguments.complaint(part)):
            return f'{option} "{template}": task {task_name} {complaint}'
    return None


def may_be_none(option: str, template: str, arguments: "ReadArguments") -> tuple[str, ...]:
    """Return the fields of *template* whose default is None. A call without such an argument has no key."""
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
    """Return *template* filled for one call, or None if a field is None. Other values are converted by ``str``.

    Raises OptionError if the call lacks an argument, or a value is nested too deeply.
    """
    parts: list[str] = []
    for part in parse_template(option, template):
        if isinstance(part, str):
            parts.append(part)
        elif part.is_task:
            parts.append(task_name)
        else:
            try:
                value = arguments.value(part, args, kwargs)
            except LookupError as exc:
                raise OptionError(f'{option} "{template}": task {task_name} {exc.args[0]}') from None
            if value is None:
                return None
            if is_too_deep(value):
                raise OptionError(f'{option} "{template}": the value of {{{part.text}}} is nested too deep for a key')
            parts.append(str(value))
    return "".join(parts)


def pattern_of(option: str, template: str, task_name: str) -> str:
    """Return the pattern of the keys made from *template*, with ``*`` for each argument. Raises OptionError."""
    parts = parse_template(option, template)
    return "".join(part if isinstance(part, str) else task_name if part.is_task else "*" for part in parts)


class ReadArguments:
    """The parameters of a function, without the first parameter of a method."""

    def __init__(self, function: Callable[..., object], *, skip_first: bool = False) -> None:
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):  # a C function without a signature: any arguments may be valid
            parameters = _ANY_PARAMETERS
        if skip_first and parameters and parameters[0].kind in _POSITIONAL:
            del parameters[0]
        kinds = {parameter.kind for parameter in parameters}
        self._takes_any_name = inspect.Parameter.VAR_KEYWORD in kinds
        self._takes_any_number = inspect.Parameter.VAR_POSITIONAL in kinds
        self._positional = [parameter.name for parameter in parameters if parameter.kind in _POSITIONAL]
        self._positions = {name: position for position, name in enumerate(self._positional)}
        self._defaults = {
            parameter.name: _MISSING if parameter.default is parameter.empty else parameter.default
            for parameter in parameters
            if parameter.kind in (*_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)
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
        """Return True if *field* is None in calls that omit its argument."""
        return self._defaults.get(self._place(field)[1], _MISSING) is None

    def value(self, field: TemplateField, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """See `Arguments.value`. ``{args[0]}`` is the first positional parameter, even if a call passes it by name."""
        position, name = self._place(field)
        if position is not None and position < len(args):
            return args[position]
        value = kwargs.get(name, self._defaults.get(name, _MISSING))
        if value is _MISSING:
            raise LookupError(self.complaint(field) or f"was called without argument {name!r}; {self._in_words}")
        return value

    def _place(self, field: TemplateField) -> tuple[int | None, str]:
        """Return the position of *field*'s argument (None if keyword-only), and its name."""
        position, name = field.position, field.text
        if position is None:
            return self._positions.get(name), name
        return position, self._positional[position] if position < len(self._positional) else name

    @property
    def _in_words(self) -> str:
        named = [*self._defaults, *(["any other by name"] if self._takes_any_name else [])]
        return f"it takes: {', '.join(named)}" if named else "it takes none"


class CallArguments:
    """The arguments of calls whose task is not available. They are found only by name or position, as passed."""

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


_ARGUMENTS: "WeakKeyDictionary[Any, ReadArguments]" = WeakKeyDictionary()


def arguments_read_by(run: Callable[..., object]) -> ReadArguments:
    """Return the parameters of *run*, a task's function or bound method. They are cached while the function exists."""
    function = getattr(run, "__func__", run)
    try:
        taken = _ARGUMENTS.get(function)
        if taken is None:
            taken = _ARGUMENTS[function] = ReadArguments(function, skip_first=function is not run)
    except TypeError:  # the object does not support weak references, or is not hashable
        taken = ReadArguments(run)
    return taken


#: Function of a call's positional and keyword arguments that returns a key, or None if the call has no key.
KeyFunction = Callable[[tuple[Any, ...], dict[str, Any]], str | None]

#: Number of hexadecimal digits at the end of a hashed key, and the separator before them. `encode_part` never produces
#: these two characters, so no other key has such a form.
_HASH_DIGITS, HASHED = 32, "%-"
_ACCEPTED_KEYS = "a text that is not empty, such as 'city:{city}', or a function of args and kwargs"


class NamedKey:
    """A dataclass whose constructor rejects unknown fields and suggests the intended one."""

    def __new__(cls, *_: object, **named: object) -> Self:
        names = [dataclass_field.name for dataclass_field in fields(cls) if dataclass_field.init]  # type: ignore[arg-type]  # a dataclass by then
        for name in named:
            if name not in names:
                question = closest_question(name.lower(), names)
                raise OptionError(f"{cls.__name__} takes {', '.join(names)}, got: {name!r}{question}")
        return super().__new__(cls)


def check_template(option: str, key: object) -> None:
    """Raise OptionError, which names *option*, unless *key* is a template or a function that returns keys."""
    if callable(key):
        return
    if not isinstance(key, str) or not key:
        raise refuse(f"key of {option}", _ACCEPTED_KEYS, key)
    parse_template(option, key)


def check_key(option: str, key: object) -> None:
    """Raise OptionError, which names *option*, unless *key* is a non-empty str."""
    if not isinstance(key, str) or not key:
        raise refuse(f"key of {option}", "a text that is not empty", key)


def encoded_key(option: str, key: str) -> str:
    """Return *key* encoded with at most 255 characters. A longer key is cut, and its hash is appended.

    Raises OptionError, which names *option*, for a key that is empty or cannot be encoded in UTF-8.
    """
    check_key(option, key)
    try:
        encoded = encode_part(key)
        if len(encoded) <= MAX_KEY_LENGTH:
            return encoded
        digest = hashlib.blake2b(key.encode(), digest_size=_HASH_DIGITS // 2).hexdigest()
    except UnicodeEncodeError as exc:
        raise refuse(f"key of {option}", "a text in UTF-8", key) from exc
    max_length = MAX_KEY_LENGTH - len(HASHED) - _HASH_DIGITS
    begin = key[:max_length]
    while (excess := len(encode_part(begin)) - max_length) > 0:
        begin = begin[: -max(1, excess // 12)]  # an encoded character takes at most twelve characters
    return f"{encode_part(begin)}{HASHED}{digest}"


def readable_key(option: str, key: str | KeyFunction) -> str:
    """Return *key* for a message. Raises OptionError, which names *option*, if it is a function."""
    if callable(key):
        raise OptionError(
            f"key of {option} must be a text where a signature with it is written into a message, got: {key!r}"
        )
    return key


def derived_id(text: str) -> str:
    """Return an id derived from *text*: 32 hexadecimal digits."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def derived_task_id(text: str) -> str:
    """Return a task id derived from *text*: a UUID of version 8."""
    digits = derived_id(text)
    return f"{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"
