"""Conversions and checks of values in Redis, settings and requests.

Names (types, tenants, nodes, rule keys) are percent-encoded in Redis keys and hashes. Patterns of names, in which ``*``
matches any characters, have three forms: unencoded in an app.conf; with escapes such as ``%20`` for a space, as users
type and see them; and encoded, except for ``*``, in Redis. Corrupt data in one hash must not hide all other hashes, so
the decoders never raise. `untrusted` checks the numbers in messages.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeGuard
from urllib.parse import quote, unquote

from ..log_limit import limited_logger
from .constants import MAX_PRIORITY
from .untrusted import is_number

#: Matches names that `quote` does not change: most types, and every task id.
_PLAIN = re.compile(r"[A-Za-z0-9_.~-]*")


def encode_part(name: str) -> str:
    """Return *name* percent-encoded for Redis: without spaces, colons, braces and commas."""
    return name if _PLAIN.fullmatch(name) else quote(name, safe="")


def decode_part(name: str) -> str:
    """Return the unencoded form of *name*."""
    return unquote(name) if "%" in name else name


#: Prefix of a type in the profile of workers that have withdrawn from the type: they serve it, but temporarily accept
#: none of its jobs.
WITHDRAWN = "!"


def withdrawn_mark(type_: str) -> str:
    """Return the token for the unencoded *type_* in the profile of workers that have withdrawn from it."""
    return WITHDRAWN + type_


_ENCODED_MARK = encode_part(WITHDRAWN)


def with_mark(type_: str) -> str:
    """Return the encoded token for the encoded *type_* in the profile of workers that have withdrawn from it."""
    return _ENCODED_MARK + type_


def without_mark(type_: str) -> str:
    """Return the encoded type of the encoded profile token *type_*, with or without the withdrawn mark."""
    return type_.removeprefix(_ENCODED_MARK)


#: Characters shown unescaped: the printable ones except "%", which starts an escape, and the comma, which can separate
#: settings.
_SHOWN_CHARACTERS = "".join(character for character in map(chr, range(0x21, 0x7F)) if character not in "%,")


def is_pattern(value: object) -> bool:
    """Return True if *value* is a string that Redis can store."""
    try:
        return isinstance(value, str) and bool(encode_part(value))
    except UnicodeEncodeError:
        return False


def matches(pattern: str, text: str) -> bool:
    """Return True if *pattern* matches the whole of *text*. Both must be encoded, or both unencoded."""
    return _pattern_regex(pattern).fullmatch(text) is not None


def pattern_precedence(pattern: str) -> tuple[bool, int, int, str]:
    """Return the sort key of unencoded patterns: the first pattern that matches a text takes precedence.

    Names without ``*`` are first, then longer patterns before shorter ones. Among patterns of equal length, a later
    first ``*`` takes precedence, then the order of characters.
    """
    return "*" in pattern, -len(pattern), -pattern.find("*"), pattern


def patterns_overlap(pattern: str, other: str) -> bool:
    """Return True if some text matches both patterns. Both must have the same form."""
    if "*" not in pattern or "*" not in other:
        return matches(pattern, other) if "*" not in other else matches(other, pattern)
    begin, end = pattern.partition("*")[0], pattern.rpartition("*")[2]
    other_begin, other_end = other.partition("*")[0], other.rpartition("*")[2]
    # The parts between the first and the last * of each pattern can match whatever the other pattern requires.
    begins = begin.startswith(other_begin) or other_begin.startswith(begin)
    return begins and (end.endswith(other_end) or other_end.endswith(end))


@lru_cache(maxsize=1024)
def _pattern_regex(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def shown_pattern(pattern: str) -> str:
    """Return the unencoded *pattern* as a user would type it."""
    return quote(pattern, safe=_SHOWN_CHARACTERS)


def encoded_pattern(pattern: str) -> str:
    """Return the unencoded *pattern* in the encoded form for Redis."""
    return "*".join(map(encode_part, pattern.split("*")))


#: Largest integer in Redis.
LARGEST = 2**63 - 1


def decode_text(value: bytes | None) -> str:
    """Return a Redis field as a string: "" if missing; invalid UTF-8 bytes become replacement characters."""
    return "" if value is None else value.decode(errors="replace")


def decode_number(value: bytes | str | float | None, otherwise: int = 0) -> int:
    """Return a Redis field as an integer, or *otherwise* if it is missing, invalid or beyond `LARGEST`."""
    try:
        number = otherwise if value is None else int(value)
    except (ValueError, OverflowError):
        return otherwise
    return number if abs(number) <= LARGEST else otherwise


#: Maximum number of characters of unreadable data that are logged.
_MAX_SHOWN = 4096


def is_readable(text: str) -> bool:
    """Return True if Redis can store *text*. JSON can contain lone surrogates, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown_bytes(data: object) -> str:
    """Return the beginning of the unreadable *data* in plain ASCII, for the log."""
    text = ascii(data[:_MAX_SHOWN] if isinstance(data, (bytes, str)) else data)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


#: Maximum number of seconds: ten years. In µs, its sum with the current time is an exact float.
MAX_DURATION_S = 3_650 * 86_400
#: Maximum number of jobs, slots, deliveries or result rows.
MAX_COUNT = 10**9
#: Returns None for an accepted value, or a description of the accepted values.
NumberCheck = Callable[[object], str | None]


def is_whole(value: object) -> TypeGuard[int]:
    """Return True if *value* is an integer, and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number_between(accepted: str, test: Callable[[float], bool], maximum: float = MAX_DURATION_S) -> NumberCheck:
    """Return a check that accepts numbers up to *maximum* that pass *test*. *accepted* describes the accepted numbers.

    All number checks are created here, so every setting has an upper bound, checked before any conversion.
    """
    description = f"{accepted}, up to {maximum:,}"

    def check(value: Any) -> str | None:
        return None if is_number(value, maximum) and test(value) else description

    return check


def check_whole(accepted: str, test: Callable[[int], bool], maximum: int = MAX_COUNT) -> NumberCheck:
    """Return a check of integers, with the arguments of `is_number_between`."""
    return is_number_between(accepted, lambda value: is_whole(value) and test(value), maximum)


COUNT = check_whole("a whole number above 0", lambda value: value > 0)
COUNT_OR_0 = check_whole("a whole number, 0 or more", lambda value: value >= 0)
SECONDS = is_number_between("a number of seconds above 0", lambda value: value > 0)
SECONDS_OR_0 = is_number_between("a number of seconds, 0 or more", lambda value: value >= 0)
SECONDS_FROM_1 = is_number_between("a number of seconds, 1 or more", lambda value: value >= 1)
#: Matches the part of a URL up to the password, the password, and the "@" after it.
_PASSWORD = re.compile(r"(://[^:/@\s'\"]*):[^\s'\"]*@")


def mask_password(text: str) -> str:
    """Return *text* with "**" for the password of each URL in it. Semicolons can separate URLs."""
    return ";".join(_PASSWORD.sub(r"\1:**@", part) for part in text.split(";"))


QUEUED, DEMAND = "queued", "demand"
#: Number of lanes per mode.
_LANES_PER_MODE = MAX_PRIORITY + 1

#: Names of all lanes that a type can have: ``mode.priority``, such as ``demand.7``. Priorities are in the order of the
#: server functions (10 is the highest) or of the app, depending on the caller.
NAMES = tuple(f"{mode}.{priority}" for mode in (QUEUED, DEMAND) for priority in range(_LANES_PER_MODE))


def lane_name(on_demand: bool, priority: int) -> str:
    return f"{DEMAND if on_demand else QUEUED}.{priority}"


def is_on_demand(lane: str) -> bool:
    """Return True if the lane named *lane* has on-demand jobs."""
    return lane.startswith(DEMAND)


def lane_number(on_demand: bool, priority: int) -> int:
    """Return the number of a lane: its priority, plus 11 for an on-demand lane."""
    return priority + _LANES_PER_MODE * on_demand


logger = limited_logger(__name__)


def log_and_drop_untrusted(source: str, what: object, why: object) -> None:
    """Log that unreadable data from *source* is dropped, as Celery drops a message that it cannot decode.

    Args:
        source: where the data came from.
        what: the data, or None if it is not available.
        why: the reason why the data is unreadable.
    """
    logger.error("A message from %r cannot be read and is dropped: %s. It was: %s", source, why, shown_bytes(what))
