"""Keys of rules: what names one, and the text of it in a job, percent-encoded and of 255 characters at most."""

import hashlib
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Self

from ...errors import OptionError, refuse
from ..encoding import encode
from ..protocol import LONGEST_KEY
from ..spelling import closest
from .template import parsed

#: A function that makes a key of a call's positional and keyword arguments; None: the call has no key.
KeyFunction = Callable[[tuple[Any, ...], dict[str, Any]], str | None]

#: Hexadecimal digits that end the encoded form of a key that is too long, and what goes before them: `encode` never
#: writes these two characters, so no other key has such a form.
_DIGITS, HASHED = 32, "%-"

_ACCEPTED = "a text that is not empty, such as 'city:{city}', or a function of args and kwargs"


class Named:
    """A dataclass whose constructor refuses a field that there is not, and asks which one is meant."""

    def __new__(cls, *_: object, **named: object) -> Self:
        names = [each.name for each in fields(cls) if each.init]  # type: ignore[arg-type]  # a dataclass by then
        for name in named:
            if name not in names:
                close = closest(name.lower(), names)
                question = f"; did you mean {close!r}?" if close else ""
                raise OptionError(f"{cls.__name__} takes {', '.join(names)}, got: {name!r}{question}")
        return super().__new__(cls)


def check_template(option: str, key: object) -> None:
    """Raise OptionError, which names *option*, unless *key* is a template of keys or a function that makes them."""
    if callable(key):
        return
    if not isinstance(key, str) or not key:
        raise refuse(f"key of {option}", _ACCEPTED, key)
    parsed(option, key)


def check_filled(option: str, key: object) -> None:
    """Raise OptionError, which names *option*, unless *key* is a text that is not empty."""
    if not isinstance(key, str) or not key:
        raise refuse(f"key of {option}", "a text that is not empty", key)


def encoded_key(option: str, key: str) -> str:
    """Return *key* as the arrows have it, of 255 characters at most: a longer one keeps its begin, and has a hash.

    *option*: named by the OptionError that an empty key raises, or one that has no UTF-8 form.
    """
    check_filled(option, key)
    try:
        encoded = encode(key)
        if len(encoded) <= LONGEST_KEY:
            return encoded
        digest = hashlib.blake2b(key.encode(), digest_size=_DIGITS // 2).hexdigest()
    except UnicodeEncodeError as exc:
        raise refuse(f"key of {option}", "a text in UTF-8", key) from exc
    room = LONGEST_KEY - len(HASHED) - _DIGITS
    begin = key[:room]
    while (excess := len(encode(begin)) - room) > 0:
        begin = begin[: -max(1, excess // 12)]  # no character takes more than twelve
    return f"{encode(begin)}{HASHED}{digest}"


def written(option: str, key: str | KeyFunction) -> str:
    """Return *key* as a message has it. Raises OptionError, which names *option*, for a function."""
    if callable(key):
        raise OptionError(
            f"key of {option} must be a text where a signature with it is written into a message, got: {key!r}"
        )
    return key
