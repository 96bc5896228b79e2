"""Parse and format ``affinity_reserve``: slots that a class of jobs must leave free.

The setting has three forms:
- ``app.conf``: ``{"pdf": {"queued": 2, "0-4": "25%"}, "*": {"0": 1}}``, pattern of types -> class -> reserve.
- typed and shown: ``pdf:queued=2 pdf:0-4=25% *:0=1``, or ``none``.
- Redis: the same, with 10 as the highest priority.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import unquote

from ..errors import printable
from ..schema import values
from ..schema.constants import MAX_NUMBER_LENGTH, MAX_PRIORITY
from ..schema.values import COUNT, MAX_COUNT
from .limits import NONE

ACCEPTED = (
    "reserves by type and class such as {'pdf': {'queued': 2, '0-4': '25%'}, '*': {'0': 1}}, at run time "
    f"'pdf:queued=2 pdf:0-4=25% *:0=1' or 'none': * in a type stands for any characters; a class is 'queued', "
    f"'on_demand', a priority of 0 to {MAX_PRIORITY} or a range of them; a reserve is a whole number of slots, 1 to "
    f"{MAX_COUNT:,}, or a share of the live slots, '1%' to '100%'"
)

_CLASS = re.compile(r"queued|on_demand|([0-9]{1,2})(?:-([0-9]{1,2}))?")
_RESERVE = re.compile(rf"([1-9][0-9]{{0,{MAX_NUMBER_LENGTH - 1}}})(%?)")
_WORD = re.compile(r"([^\s,]+):([^\s:=,]+)=([^\s=,]+)")


class Reserve(NamedTuple):
    """Slots that a class of jobs must leave free: its jobs start only if that many fitting slots stay free.

    The class includes jobs whose encoded type matches *pattern* and whose mode is *mode* ("queued" or "on_demand").
    With None as the mode, it includes jobs with a priority from *first* to *last*, 10 as the highest. *amount*: a
    number of slots or, if *is_share*, a percentage of the fitting live slots.
    """

    pattern: str
    mode: str | None
    first: int
    last: int
    amount: int
    is_share: bool

    def concerns(self, type_: str) -> bool:
        """Return True if the reserve applies to *type_* (encoded)."""
        return values.matches(self.pattern, type_)

    def covers(self, on_demand: bool, priority: int) -> bool:
        """Return True if the class includes jobs of this mode and priority, with 10 as the highest."""
        if self.mode is not None:
            return on_demand == (self.mode == "on_demand")
        return self.first <= priority <= self.last

    def slots(self, live: int) -> int:
        """Return the number of reserved slots if *live* slots serve the type. A share is rounded up."""
        return -(-self.amount * live // 100) if self.is_share else self.amount

    @property
    def lane_numbers(self) -> list[tuple[int, int]]:
        """First and last numbers of the class's lanes, as one or two pairs (`values.lane_number`)."""
        ranges = [(values.lane_number(mode, self.first), values.lane_number(mode, self.last)) for mode in (False, True)]
        return ranges if self.mode is None else [ranges[self.mode == "on_demand"]]

    @property
    def of_class(self) -> str:
        """The class as text, in the form of the setting."""
        return self.mode or _of_range(self.first, self.last)


def check_reserves(value: object) -> str | None:
    """Return None if *value*, a mapping or a typed string, is valid. Otherwise return the accepted values as text."""
    by_type = typed_reserves(value) if isinstance(value, str) else value
    if not isinstance(by_type, Mapping):
        return ACCEPTED
    for pattern, by_class in by_type.items():
        if not values.is_pattern(pattern) or not isinstance(by_class, Mapping):
            return ACCEPTED
        for name, amount in by_class.items():
            if not _is_class(name):
                return f"{ACCEPTED}; {name!r} is not a class"
            if not _is_reserve(amount):
                hint = (
                    "; to reserve nothing, leave out the class" if amount in (0, "0%") and amount is not False else ""
                )
                return f"{ACCEPTED}{hint}; {printable(amount)} is not a valid amount"
    return None


def _is_class(name: object) -> bool:
    match = _CLASS.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        return False
    first, last = int(match[1] or 0), int(match[2] or match[1] or 0)
    return first <= last <= MAX_PRIORITY


def _is_reserve(amount: object) -> bool:
    if isinstance(amount, str):
        match = _RESERVE.fullmatch(amount)
        return match is not None and int(match[1]) <= (100 if match[2] else MAX_COUNT)
    return COUNT(amount) is None


def typed_reserves(text: str) -> dict[str, dict[str, int | str]] | None:
    """Return the reserves in *text*, in typed or Redis form, or None if *text* is invalid."""
    words = [] if text.strip() in ("", NONE) else text.split()
    by_type: dict[str, dict[str, int | str]] = {}
    for word in words:
        match = _WORD.fullmatch(word)
        if match is None:
            return None
        amount = match[3]
        is_number = amount.isdecimal() and len(amount) <= MAX_NUMBER_LENGTH
        by_type.setdefault(unquote(match[1]), {})[match[2]] = int(amount) if is_number else amount
    return by_type


def shown_reserves(text: str, *, lower_first: bool = False) -> str:
    """Return the reserves of *text*, in Redis form, in typed form. *lower_first*: show 0 as the highest priority."""
    by_type = typed_reserves(text) or {}
    return _words((values.shown_pattern(type_), rules) for type_, rules in _reversed(by_type, lower_first)) or NONE


def encoded_reserves(value: Mapping[str, Mapping[str, int | str]] | str, *, lower_first: bool = False) -> str:
    """Return valid reserves in Redis form, or "". *lower_first*: True if 0 is the highest priority in *value*."""
    by_type = typed_reserves(value) or {} if isinstance(value, str) else value
    return _words((values.encoded_pattern(type_), rules) for type_, rules in _reversed(by_type, lower_first))


def _words(reserves: Iterable[tuple[str, Mapping[str, int | str]]]) -> str:
    return " ".join(sorted(f"{type_}:{name}={amount}" for type_, rules in reserves for name, amount in rules.items()))


def _reversed(
    by_type: Mapping[str, Mapping[str, int | str]], lower_first: bool
) -> Iterable[tuple[str, Mapping[str, int | str]]]:
    """Yield the reserves with normalised classes. *lower_first*: reverse the priorities."""
    for type_, rules in by_type.items():
        yield type_, {_reversed_class(name, lower_first): amount for name, amount in rules.items()}


def _reversed_class(name: str, lower_first: bool) -> str:
    match = _CLASS.fullmatch(name)
    if match is None or match[1] is None:
        return name
    first, last = int(match[1]), int(match[2] or match[1])
    return _of_range(MAX_PRIORITY - last, MAX_PRIORITY - first) if lower_first else _of_range(first, last)


def _of_range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def parse_reserves(text: str) -> list[Reserve]:
    """Return the valid reserves of *text*, in Redis form."""
    parsed = (_parsed(word) for word in text.split())
    return [reserve for reserve in parsed if reserve is not None]


def _parsed(word: str) -> Reserve | None:
    match = _WORD.fullmatch(word)
    if match is None or not _is_class(match[2]) or not _is_reserve(match[3]):
        return None
    pattern, name, amount = match.groups()
    class_match = _CLASS.fullmatch(name)
    first, last = (
        (class_match[1], class_match[2] or class_match[1]) if class_match and class_match[1] else (0, MAX_PRIORITY)
    )
    mode = None if class_match and class_match[1] else name
    return Reserve(pattern, mode, int(first), int(last), int(amount.rstrip("%")), amount.endswith("%"))
