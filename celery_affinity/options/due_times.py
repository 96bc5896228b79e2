"""The options `start_within` and `deadline`, and the words of a job that they and the job's size become.

A deadline is seconds from the call until the call publishes. From then on it is the text of a time, which retries,
links and the later steps of a canvas inherit, and which every serializer can represent.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from ..clock import SECOND_US
from ..errors import OptionError, refuse
from ..schema.constants import MAX_DUE_DIGITS
from ..schema.untrusted import MAX_SHORT_LENGTH, is_number
from ..schema.values import MAX_DURATION_S, SECONDS

WITHIN, DEADLINE = "start_within", "deadline"
#: The accepted deadlines, as text.
ACCEPTED = (
    f"an aware datetime, such a time in ISO 8601 with an offset, or seconds from the call, up to {MAX_DURATION_S:,}"
)
_MAX_SIZE = 10**MAX_DUE_DIGITS - 1
#: Largest time in µs, 317 years. Its sum with the current time also has at most `MAX_DUE_DIGITS` digits.
_MAX_TIME_US = 10 ** (MAX_DUE_DIGITS - 1)


def check_within(value: object) -> float:
    """Return *value* if it is a valid `start_within`. Raises OptionError."""
    if (accepted := SECONDS(value)) is not None:
        raise refuse(WITHIN, accepted, value)
    return value  # type: ignore[return-value]


def read_deadline(value: object) -> float | str:
    """Return a `deadline` as seconds from the call, or as the text of a time with an offset. Raises OptionError."""
    if is_number(value, MAX_DURATION_S):
        return value  # type: ignore[return-value]
    time = value
    if isinstance(value, str) and len(value) <= MAX_SHORT_LENGTH:
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            time = None
    if not isinstance(time, datetime) or time.utcoffset() is None:
        raise refuse(DEADLINE, ACCEPTED, value)
    return value if isinstance(value, str) else time.isoformat()


def is_deadline(value: object) -> bool:
    """Return True if `read_deadline` accepts *value*."""
    try:
        read_deadline(value)
    except OptionError:
        return False
    return True


def absolute_deadline(value: object, now_s: float) -> str:
    """Return a `deadline` of a call made at the Unix time *now_s* as the text of a time. Raises OptionError."""
    deadline = read_deadline(value)
    if isinstance(deadline, str):
        return deadline
    return (datetime.fromtimestamp(now_s, UTC) + timedelta(seconds=deadline)).isoformat()


def refuse_fixed_deadline(options: Mapping[str, Any], name: str = DEADLINE) -> None:
    """Raise OptionError if *options* of repeated calls have a deadline that is not in seconds.

    *name*: the name of the option in the error.
    """
    deadline = None if DEADLINE in (options.get("stamped_headers") or ()) else options.get(DEADLINE)
    if deadline is not None and isinstance(read_deadline(deadline), str):
        raise refuse(name, "seconds from the call, because it is made repeatedly", deadline)


def earlier(deadline: str, seconds: float) -> str:
    """Return a deadline of `absolute_deadline` that is *seconds* earlier."""
    try:
        return (datetime.fromisoformat(deadline) - timedelta(seconds=seconds)).isoformat()
    except OverflowError:
        return deadline


def seconds_until(deadline: str, now_s: float) -> float:
    """Return the seconds from the Unix time *now_s* to a deadline of `absolute_deadline`. Negative if it is over."""
    return datetime.fromisoformat(deadline).timestamp() - now_s


def due_words(within_s: float | None, until_deadline_s: float | None, size: float | None) -> str:
    """Return the words in the field "times" of a job (`job_record.FIELDS`), or "" if all values are None.

    Args:
        within_s: seconds within which the job should start.
        until_deadline_s: seconds from now to its deadline, negative if it is over.
        size: the size of the call.
    """
    values = ("w", within_s, _MAX_TIME_US), ("d", until_deadline_s, _MAX_TIME_US), ("s", size, _MAX_SIZE)
    return " ".join(f"{letter}{_millionths(value, most)}" for letter, value, most in values if value is not None)


def _millionths(value: float, most: int) -> int:
    number: float = max(-most, min(value * SECOND_US, most))
    return round(number)


class StoredDue(NamedTuple):
    """Field "due" of a job's hash. None: without."""

    #: When the job is due to start, by its own options: server time in µs.
    due_us: int | None = None
    #: `start_within` in µs.
    within_us: int | None = None
    #: Server time in µs.
    deadline_us: int | None = None
    #: Size in millionths.
    size_millionths: int | None = None


_NUMBER = rf"(-?[0-9]{{1,{MAX_DUE_DIGITS + 1}}})"
_STORED = re.compile(rf"(?:-|{_NUMBER})(?: w{_NUMBER})?(?: d{_NUMBER})?(?: s{_NUMBER})?")


def stored_due(text: str) -> StoredDue:
    """Return the values in field "due" of a job's hash. A damaged field has none."""
    match = _STORED.fullmatch(text)
    return StoredDue(*[None if number is None else int(number) for number in match.groups()]) if match else StoredDue()
