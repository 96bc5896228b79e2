"""Values that others wrote: their numbers, texts, depth and JSON are bounded before they are converted.

Anybody who may write to the server, or send a request, may have written them, and kombu's JSON makes objects of some:
Decimal, UUID, datetime, bytes. A conversion may take for ever (``int(Decimal("1E+999999999"))``), and holds the GIL.
Each function here takes any object, and its time grows with the length of what was written, not with its value.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from numbers import Integral
from typing import Any
from uuid import UUID

from ..errors import refuse

#: Maximum depth of nested lists and mappings.
MOST_NESTED = 100

#: Maximum number of characters of an id or a name in a message.
LONGEST_TEXT = 10_000

#: Maximum number of characters of a time or a number that is written as a text.
LONGEST_SHORT = 100

#: Numbers from here on do not become integers, or times.
_LARGEST = 2**62

_DIGITS = re.compile(rf"\s*[+-]?[0-9]{{1,{LONGEST_SHORT}}}\s*")

_CONTAINERS = (Mapping, list, tuple, set, frozenset)

#: Errors that the makers of special JSON objects raise for arguments of theirs that others wrote.
_BAD_OBJECT = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError)


class TooDeepError(ValueError):
    """A value is nested deeper than `MOST_NESTED`."""

    def __init__(self, most: int = MOST_NESTED) -> None:
        super().__init__(f"it is nested more than {most} levels deep")


# -- numbers


def _real(value: object) -> int | float | Decimal | None:
    """Return a finite number, None for everything else. It can be compared, but must not be converted yet."""
    if isinstance(value, str):
        return int(value) if len(value) <= LONGEST_SHORT and _DIGITS.fullmatch(value) else None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return value if value.is_finite() else None
    return int(value) if isinstance(value, Integral) else None  # of NumPy: no message has one, but a call may


def clamped(value: object, least: int, most: int, otherwise: int) -> int:
    """Return a number, or digits in a text, as an integer from *least* to *most*; *otherwise* for anything else."""
    number = _real(value)
    if number is None:
        return otherwise
    if number <= least:
        return least
    return most if number >= most else int(number)


def whole(value: object, least: int = 0, most: int = _LARGEST) -> int | None:
    """Return *value* if it is an integer from *least* to *most*; None for anything else, also a bool or a Decimal."""
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most else None


def is_number(value: object, most: float = _LARGEST) -> bool:
    """Return whether *value* is an integer or a float from *-most* to *most*: no bool, no Decimal, not infinite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -most <= value <= most


def are_usual(options: object) -> bool:
    """Return whether no number in *options*, at any depth, is larger than a time or a count can be."""
    level: list[object] = [options]
    while level:
        if not all(_is_usual(each) for each in level if isinstance(each, int | float | Decimal)):
            return False
        level = _parts(level)
    return True


def _is_usual(number: int | float | Decimal) -> bool:
    return -_LARGEST <= number <= _LARGEST if _real(number) is not None else False


# -- texts


def text(value: object, longest: int = LONGEST_TEXT) -> str | None:
    """Return a text, number or UUID as a text of at most *longest* characters; None for anything else.

    Lists and mappings have no text here: theirs may be nested without an end.
    """
    if isinstance(value, str):
        return value if len(value) <= longest else None
    if isinstance(value, bool):
        return None
    if isinstance(value, Integral):
        number = int(value)
        return str(number) if -_LARGEST <= number <= _LARGEST else None
    if isinstance(value, (float, Decimal, UUID)):
        written = str(value)  # of a Decimal: its digits and its exponent, as somebody has written them
        return written if len(written) <= longest else None
    return None


def text_of(name: str, value: object) -> str:
    """Return the text of a part of a message, "" for a part that is missing. Raises OptionError if it has none."""
    if value is None or value == "":
        return ""
    found = text(value)
    if found is None:
        raise refuse(name, f"a text, a number or a UUID, of up to {LONGEST_TEXT:,} characters", shape_of(value))
    return found


def shape_of(value: object) -> str:
    """Return the type and the size of *value*, for errors about values that are too large or too deep to be shown."""
    if isinstance(value, (str, bytes, list, tuple, dict)):
        return f"{type(value).__name__} of length {len(value):,}"
    return type(value).__name__


# -- depth and JSON


def is_too_deep(value: object, most: int = MOST_NESTED) -> bool:
    """Return whether *value* has lists or mappings in more than *most* levels. Does not recurse."""
    level = _containers([value])
    for _ in range(most):
        if not level:
            return False
        level = _containers(_parts(level))
    return bool(level)


def _parts(values: Iterable[object]) -> list[object]:
    """Return the values in the lists and mappings among *values*."""
    found: list[object] = []
    for each in _containers(values):
        found += each.values() if isinstance(each, Mapping) else each
    return found


def _containers(values: Iterable[object]) -> list[Any]:
    """Return the lists and mappings among *values*, each once: a list that is in two others has one depth."""
    return list({id(each): each for each in values if isinstance(each, _CONTAINERS)}.values())


def loads(
    written: str | bytes,
    *,
    longest: int | None = None,
    most_nested: int | None = MOST_NESTED,
    object_hook: Callable[[dict[str, Any]], Any] | None = None,
    parse_constant: Callable[[str], Any] | None = None,
) -> Any:
    """Return the value of JSON that somebody else wrote. Raises ValueError, and nothing else.

    *longest*: maximum number of characters, or of bytes. *most_nested*: None for as many levels as Python's parser
    takes, which stops at its own limit. *object_hook*, *parse_constant*: those of `json.loads`.
    """
    if longest is not None and len(written) > longest:
        raise ValueError(f"it must have at most {longest:,} characters, got: {len(written):,}")
    try:
        found = json.loads(
            written.decode() if isinstance(written, bytes) else written,
            object_hook=object_hook,
            parse_constant=parse_constant,
        )
    except _BAD_OBJECT as exc:
        raise ValueError(f"{type(exc).__name__}: {str(exc)[:200]}") from exc
    if most_nested is not None and is_too_deep(found, most_nested):
        raise TooDeepError(most_nested)
    return found


def strict_json(value: object, most_nested: int = MOST_NESTED) -> str:
    """Return *value* as JSON that every parser accepts: in UTF-8, without NaN and infinity, and not nested deeper.

    Raises ValueError, and nothing else, for a value that has no such JSON.
    """
    if is_too_deep(value, most_nested):
        raise TooDeepError(most_nested)
    try:
        written = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except TypeError as exc:
        raise ValueError(str(exc)[:200]) from exc
    written.encode()  # halves of surrogate pairs
    return written
