"""Check untrusted numbers, strings, nesting depth and JSON before converting them.

Untrusted data comes from any client that can write to the server or send a request. kombu's JSON decoder creates
objects from some values: Decimal, UUID, datetime, bytes. Converting such an object can take hours while holding the GIL
(``int(Decimal("1E+999999999"))``). Every function here accepts any object. Its run time depends on the length of the
data, not on the magnitude of a number.
"""

import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from numbers import Integral
from typing import Any
from uuid import UUID

from ..errors import refuse

#: Maximum nesting depth of lists and mappings.
MAX_NESTED = 100
#: Maximum number of characters per id or name in a message.
MAX_TEXT_LENGTH = 10_000
#: Maximum number of characters per time or number that arrives as a string.
MAX_SHORT_LENGTH = 100
#: Numbers above this limit are not converted to integers or times.
_MAX_NUMBER = 2**62
_DIGITS = re.compile(rf"\s*[+-]?[0-9]{{1,{MAX_SHORT_LENGTH}}}\s*")
_CONTAINERS = (Mapping, list, tuple, set, frozenset)
#: Errors that an object hook of `json.loads` can raise for untrusted arguments, in addition to ValueError.
_BAD_OBJECT = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError)


class TooDeepError(ValueError):
    """A value is nested deeper than `MAX_NESTED`."""

    def __init__(self, max_depth: int = MAX_NESTED) -> None:
        super().__init__(f"it is nested more than {max_depth} levels deep")


# -- numbers


def _real(value: object) -> int | float | Decimal | None:
    """Return *value* as a finite number, or None. The result can be compared, but is not yet safe to convert."""
    if isinstance(value, str):
        return int(value) if len(value) <= MAX_SHORT_LENGTH and _DIGITS.fullmatch(value) else None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return value if value.is_finite() else None
    return int(value) if isinstance(value, Integral) else None  # NumPy integers occur in calls, not in messages


def clamp(value: object, minimum: int, maximum: int, otherwise: int) -> int:
    """Clamp *value* (a number or digits) to an integer from *minimum* to *maximum*, or return *otherwise*."""
    number = _real(value)
    if number is None:
        return otherwise
    if number <= minimum:
        return minimum
    return maximum if number >= maximum else int(number)


def as_whole_number(value: object, minimum: int = 0, maximum: int = _MAX_NUMBER) -> int | None:
    """Return *value* if it is an integer from *minimum* to *maximum*, or None. A bool or Decimal is not one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum else None


def is_number(value: object, maximum: float = _MAX_NUMBER) -> bool:
    """Return True if *value* is an integer or a finite float from *-maximum* to *maximum*, and no bool or Decimal."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -maximum <= value <= maximum


def are_usual_types(options: object) -> bool:
    """Return True if every number in *options*, at any depth, is small enough for a time or a count."""
    level: list[object] = [options]
    while level:
        numbers = [value for value in level if isinstance(value, int | float | Decimal)]
        if not all(_real(number) is not None and -_MAX_NUMBER <= number <= _MAX_NUMBER for number in numbers):
            return False
        level = _parts(level)
    return True


# -- texts


def bounded_text(value: object, longest: int = MAX_TEXT_LENGTH) -> str | None:
    """Return a string, number or UUID as a string of at most *longest* characters, or None for any other value.

    Lists and mappings are not converted, because their nesting depth is unlimited.
    """
    if isinstance(value, str):
        return value if len(value) <= longest else None
    if isinstance(value, bool):
        return None
    if isinstance(value, Integral):
        number = int(value)
        return str(number) if -_MAX_NUMBER <= number <= _MAX_NUMBER else None
    if isinstance(value, (float, Decimal, UUID)):
        written = str(value)  # a Decimal keeps the digits and the exponent of the untrusted text
        return written if len(written) <= longest else None
    return None


def shown_text(name: str, value: object) -> str:
    """Return *value*, a field of a message, as a string, or "". Raises OptionError if `bounded_text` rejects it."""
    if value is None or value == "":
        return ""
    text = bounded_text(value)
    if text is None:
        raise refuse(
            name, f"a text, a number or a UUID, of up to {MAX_TEXT_LENGTH:,} characters", describe_shape(value)
        )
    return text


def describe_shape(value: object) -> str:
    """Return the type and size of *value*, for error messages about values that are too large or too deep to print."""
    if isinstance(value, (str, bytes, list, tuple, dict)):
        return f"{type(value).__name__} of length {len(value):,}"
    return type(value).__name__


# -- depth and JSON


def is_too_deep(value: object, max_depth: int = MAX_NESTED) -> bool:
    """Return True if lists and mappings in *value* are nested more than *max_depth* levels deep. Does not recurse."""
    level = _containers([value])
    for _ in range(max_depth):
        if not level:
            return False
        level = _containers(_parts(level))
    return bool(level)


def _parts(values: Iterable[object]) -> list[object]:
    """Return the values in the lists and mappings among *values*."""
    parts: list[object] = []
    for container in _containers(values):
        parts += container.values() if isinstance(container, Mapping) else container
    return parts


def _containers(values: Iterable[object]) -> list[Any]:
    """Return the lists and mappings in *values* without duplicates, so that a shared list is visited once per level."""
    return list({id(container): container for container in values if isinstance(container, _CONTAINERS)}.values())


def loads(
    written: str | bytes,
    *,
    longest: int | None = None,
    max_depth: int | None = MAX_NESTED,
    object_hook: Callable[[dict[str, Any]], Any] | None = None,
    parse_constant: Callable[[str], Any] | None = None,
) -> Any:
    """Parse untrusted JSON. Raises only ValueError.

    Args:
        written: the JSON text.
        longest: maximum number of characters, or of bytes if *written* is bytes.
        max_depth: maximum nesting depth; None for the limit of Python's parser.
        object_hook: as in `json.loads`.
        parse_constant: as in `json.loads`.
    """
    if longest is not None and len(written) > longest:
        raise ValueError(f"it must have at most {longest:,} characters, got: {len(written):,}")
    try:
        data = json.loads(
            written.decode() if isinstance(written, bytes) else written,
            object_hook=object_hook,
            parse_constant=parse_constant,
        )
    except _BAD_OBJECT as exc:
        raise ValueError(f"{type(exc).__name__}: {str(exc)[:200]}") from exc
    if max_depth is not None and is_too_deep(data, max_depth):
        raise TooDeepError(max_depth)
    return data


def inflate(data: object, maximum: int) -> bytes:
    """Return the content of *data*, compressed by zlib, or b"" if it is not valid or longer than *maximum* bytes."""
    try:
        content = zlib.decompressobj().decompress(data, maximum + 1) if isinstance(data, bytes) else b""
    except zlib.error:
        return b""
    return content if len(content) <= maximum else b""


def strict_json(value: object, max_depth: int = MAX_NESTED) -> str:
    """Return *value* as JSON that every parser accepts: UTF-8, without NaN and infinity, at most *max_depth* levels.

    Raises only ValueError, if *value* cannot be written in this way.
    """
    if is_too_deep(value, max_depth):
        raise TooDeepError(max_depth)
    try:
        written = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except TypeError as exc:
        raise ValueError(str(exc)[:200]) from exc
    written.encode()  # rejects unpaired surrogates
    return written
