"""Names as Redis has them: types, tenants and nodes in keys and rows; and the word of a type whose workers withdrew.

Patterns of keys and of types, in which ``*`` stands for any characters.

A pattern has three forms: as an app.conf says it; as somebody types it, and as it is shown, with escapes such as
``%20`` for a blank; and as Redis has it, encoded as keys are (`encoding.encode`), but for its ``*``.

Fields of Redis as texts and numbers, whoever wrote them: one row that is spoiled is no reason to show none.

Texts that may hold anything: whether Redis can hold one, and how the log shows one.

Checks for numbers in settings, options and requests. Every number has an upper bound.

`untrusted` checks the numbers in messages.

Texts that people see have no password of a URL.

The lanes of a type: one for each mode and priority, by the name ``mode.priority``, such as ``demand.7``.

Priorities are as arrows count them, 10 highest, or as their app does: a lane's name says either.

Data from the server that anybody who can write there may have written: shown in the log, dropped.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeGuard
from urllib.parse import quote, unquote

import redis

from ..log_limit import limited_logger
from .constants import MAX_PRIORITY
from .untrusted import is_number

#: Names that `quote` leaves as they are: most types, and every task id.
_PLAIN = re.compile(r"[A-Za-z0-9_.~-]*")


def encode_part(name: str) -> str:
    """Return *name* (a type, a tenant, a node) as it is written in Redis: no blank, colon, brace or comma."""
    return name if _PLAIN.fullmatch(name) else quote(name, safe="")


def decode_part(name: str) -> str:
    """Return the name that `encode` was given."""
    return unquote(name) if "%" in name else name


#: First character of a type in the profile of workers that have withdrawn from it: such workers serve the type, but
#: take none of its jobs for a moment.
WITHDRAWN = "!"


def withdrawn_mark(type_: str) -> str:
    """Return the word for *type_* (not encoded) in the profile of workers that have withdrawn from the type."""
    return WITHDRAWN + type_


def with_mark(type_: str) -> str:
    """Return the word of `withdrawn`, encoded, for *type_*, which is encoded already."""
    return encode_part(WITHDRAWN) + type_


def without_mark(type_: str) -> str:
    """Return the type that *type_*, an encoded word of a profile, stands for, whether the workers withdrew or not."""
    return type_.removeprefix(encode_part(WITHDRAWN))


#: Characters that are shown as they are: all that can be seen but the sign of an escape, and the comma, by which
#: somebody may want to separate settings.
_SHOWN_CHARACTERS = "".join(each for each in map(chr, range(0x21, 0x7F)) if each not in "%,")


def is_pattern(value: object) -> bool:
    """Return whether *value* is a text that Redis can have."""
    try:
        return isinstance(value, str) and bool(encode_part(value))
    except UnicodeEncodeError:
        return False


def matches(pattern: str, text: str) -> bool:
    """Return whether *pattern* stands for the whole of *text*. Either both are encoded, or neither is."""
    return _of(pattern).fullmatch(text) is not None


def pattern_precedence(pattern: str) -> tuple[bool, int, int, str]:
    """Return what patterns, of an app.conf, are sorted by: the first that matches a text is the one that counts.

    A name without ``*`` comes first, then the longest pattern. Of patterns of one length the one whose first ``*``
    stands further back comes first, and then the one that is first in the order of characters.
    """
    return "*" in pattern, -len(pattern), -pattern.find("*"), pattern


def patterns_overlap(pattern: str, other: str) -> bool:
    """Return whether some text fits two patterns. Both have one form."""
    if "*" not in pattern or "*" not in other:
        return matches(pattern, other) if "*" not in other else matches(other, pattern)
    begin, end = pattern.partition("*")[0], pattern.rpartition("*")[2]
    its_begin, its_end = other.partition("*")[0], other.rpartition("*")[2]
    # Between a first and a last * of both, each may have what the other one asks for.
    begins = begin.startswith(its_begin) or its_begin.startswith(begin)
    return begins and (end.endswith(its_end) or its_end.endswith(end))


@lru_cache(maxsize=1024)
def _of(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def shown_pattern(pattern: str) -> str:
    """Return *pattern*, of an app.conf, as somebody would type it."""
    return quote(pattern, safe=_SHOWN_CHARACTERS)


def encoded_pattern(pattern: str) -> str:
    """Return *pattern*, of an app.conf, as Redis has it."""
    return "*".join(map(encode_part, pattern.split("*")))


#: The largest number that Redis counts to.
LARGEST = 2**63 - 1


def decode_text(value: bytes | None) -> str:
    """Return the text of a field; "" for a missing field, and a mark for each byte that belongs to no text."""
    return "" if value is None else value.decode(errors="replace")


def decode_number(value: bytes | str | float | None, otherwise: int = 0) -> int:
    """Return the whole number in a field; *otherwise* if it has none, or one beyond `LARGEST`."""
    try:
        number = otherwise if value is None else int(value)
    except (ValueError, OverflowError):
        return otherwise
    return number if abs(number) <= LARGEST else otherwise


#: Largest number of characters that are logged of unreadable data.
_SHOWN_BYTES = 4096


def is_readable(text: str) -> bool:
    """Return whether Redis can hold *text*: JSON may hold halves of surrogate pairs, which have no form in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown_bytes(what: object) -> str:
    """Return the beginning of *what*, which is unreadable data, in plain ASCII for the log."""
    text = ascii(what[:_SHOWN_BYTES] if isinstance(what, (bytes, str)) else what)
    return text if len(text) <= _SHOWN_BYTES else f"{text[:_SHOWN_BYTES]}..."


#: Maximum number of seconds: ten years. In µs, its sum with the current time is an exact float.
LONGEST_S = 3_650 * 86_400

#: Maximum number of jobs, slots, deliveries or rows.
MOST_COUNT = 10**9

#: Returns None for an accepted value, or a description of the accepted values.
NumberCheck = Callable[[object], str | None]


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether *value* is a whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number_between(accepted: str, test: Callable[[float], bool], most: float = LONGEST_S) -> NumberCheck:
    """Return a check that accepts numbers up to *most* that pass *test*. *accepted* describes the accepted numbers.

    All checks of numbers are created here, so every setting has an upper bound. `is_number` compares the value before
    it is converted.
    """
    words = f"{accepted}, up to {most:,}"

    def check(value: Any) -> str | None:
        return None if is_number(value, most) and test(value) else words

    return check


def check_whole(accepted: str, test: Callable[[int], bool], most: int = MOST_COUNT) -> NumberCheck:
    """Return a check of whole numbers, with the arguments of `number`."""
    return is_number_between(accepted, lambda value: is_whole(value) and test(value), most)


COUNT = check_whole("a whole number above 0", lambda value: value > 0)
COUNT_OR_0 = check_whole("a whole number, 0 or more", lambda value: value >= 0)
SECONDS = is_number_between("a number of seconds above 0", lambda value: value > 0)
SECONDS_OR_0 = is_number_between("a number of seconds, 0 or more", lambda value: value >= 0)
SECONDS_FROM_1 = is_number_between("a number of seconds, 1 or more", lambda value: value >= 1)


#: In a URL: what stands before the password, the password, and the "@" after it.
_PASSWORD = re.compile(r"(://[^:/@\s'\"]*):[^\s'\"]*@")


def mask_password(text: str) -> str:
    """Return *text* with "**" for the password of each URL in it, also of those that semicolons separate."""
    return ";".join(_PASSWORD.sub(r"\1:**@", part) for part in text.split(";"))


QUEUED, DEMAND = "queued", "demand"

#: Number of the lanes of one mode.
_OF_ONE_MODE = MAX_PRIORITY + 1

#: Names of all lanes that a type can have.
NAMES = tuple(f"{mode}.{priority}" for mode in (QUEUED, DEMAND) for priority in range(_OF_ONE_MODE))


def lane_name(on_demand: bool, priority: int) -> str:
    """Return the name of the lane of jobs with this mode and priority."""
    return f"{DEMAND if on_demand else QUEUED}.{priority}"


def is_on_demand(lane: str) -> bool:
    """Return whether the jobs of *lane*, a name, are on demand."""
    return lane.startswith(DEMAND)


def lane_number(on_demand: bool, priority: int) -> int:
    """Return the number of a lane: its priority; of an on-demand lane, from 11 on."""
    return priority + _OF_ONE_MODE * on_demand


def lane_of_number(number: int) -> tuple[bool, int]:
    """Return whether the jobs of the lane with this number are on demand, and their priority."""
    return number >= _OF_ONE_MODE, number % _OF_ONE_MODE


logger = limited_logger(__name__)

#: Errors of a lost connection, which are raised however well reading is guarded: Celery makes another connection.
LOST = (redis.ConnectionError, redis.TimeoutError, OSError)


def log_and_drop_untrusted(source: str, what: object, why: object) -> None:
    """Log that *what*, from *source*, cannot be read and is dropped, as Celery drops a message that cannot be decoded.

    *what*: None if the data is not known.
    """
    logger.error("A message from %r cannot be read and is dropped: %s. It was: %s", source, why, shown_bytes(what))
