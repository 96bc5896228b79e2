"""Free slots that jobs of a class leave to others: the setting ``affinity_reserve``, in its three forms.

- in an app.conf: ``{"pdf": {"queued": 2, "0-4": "25%"}, "*": {"0": 1}}``, pattern of types -> class -> reserve;
- as somebody types it, and as it is shown: ``pdf:queued=2 pdf:0-4=25% *:0=1``, and ``none`` for none;
- in Redis: likewise, with 10 as the highest priority. `patterns` has the three forms of a pattern.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import unquote

from ..errors import printable
from ..schema import values
from ..schema.constants import LONGEST_NUMBER, MAX_PRIORITY
from ..schema.values import COUNT, MOST_COUNT
from .limits import NONE

ACCEPTED = (
    "reserves by type and class such as {'pdf': {'queued': 2, '0-4': '25%'}, '*': {'0': 1}}, at run time "
    f"'pdf:queued=2 pdf:0-4=25% *:0=1' or 'none': * in a type stands for any characters; a class is 'queued', "
    f"'on_demand', a priority of 0 to {MAX_PRIORITY} or a range of them; a reserve is a whole number of slots, 1 to "
    f"{MOST_COUNT:,}, or a share of the live slots, '1%' to '100%'"
)

_CLASS = re.compile(r"queued|on_demand|([0-9]{1,2})(?:-([0-9]{1,2}))?")
_RESERVE = re.compile(rf"([1-9][0-9]{{0,{LONGEST_NUMBER - 1}}})(%?)")
_WORD = re.compile(r"([^\s,]+):([^\s:=,]+)=([^\s=,]+)")


class Reserve(NamedTuple):
    """A number of slots that jobs of a class leave free: such a job starts only if so many fitting slots stay free.

    The class are the jobs whose encoded type matches *pattern*, and whose mode is *mode*, "queued" or "on_demand"; with
    None as the mode, whose priority is *first* to *last*, 10 as the highest. *amount*: a number of slots, or, if
    *is_share*, a percentage of the live slots that fit.
    """

    pattern: str
    mode: str | None
    first: int
    last: int
    amount: int
    is_share: bool

    def concerns(self, type_: str) -> bool:
        """Return whether the types that it is for include *type_*, encoded."""
        return values.matches(self.pattern, type_)

    def covers(self, on_demand: bool, priority: int) -> bool:
        """Return whether jobs of this mode and priority, 10 as the highest, are of the class."""
        if self.mode is not None:
            return on_demand == (self.mode == "on_demand")
        return self.first <= priority <= self.last

    def slots(self, live: int) -> int:
        """Return how many slots are kept free if *live* slots serve the type. A share is rounded up."""
        return -(-self.amount * live // 100) if self.is_share else self.amount

    @property
    def lane_numbers(self) -> list[tuple[int, int]]:
        """The first and last numbers of its lanes, one pair or two (`lanes.number`)."""
        found = [(values.lane_number(mode, self.first), values.lane_number(mode, self.last)) for mode in (False, True)]
        return found if self.mode is None else [found[self.mode == "on_demand"]]

    @property
    def of_class(self) -> str:
        """The class in words, as a setting has it."""
        return self.mode or _of_range(self.first, self.last)


def check_reserves(value: object) -> str | None:
    """Return None if *value* can be the setting, as a mapping or as somebody types it; else what is accepted."""
    found = typed_reserves(value) if isinstance(value, str) else value
    if not isinstance(found, Mapping):
        return ACCEPTED
    for pattern, of_type in found.items():
        if not values.is_pattern(pattern) or not isinstance(of_type, Mapping):
            return ACCEPTED
        for name, amount in of_type.items():
            if not _is_class(name):
                return f"{ACCEPTED}; {name!r} is no class"
            if not _is_reserve(amount):
                return f"{ACCEPTED}; {printable(amount)} is no reserve"
    return None


def _is_class(name: object) -> bool:
    said = _CLASS.fullmatch(name) if isinstance(name, str) else None
    if said is None:
        return False
    first, last = int(said[1] or 0), int(said[2] or said[1] or 0)
    return first <= last <= MAX_PRIORITY


def _is_reserve(amount: object) -> bool:
    if isinstance(amount, str):
        said = _RESERVE.fullmatch(amount)
        return said is not None and int(said[1]) <= (100 if said[2] else MOST_COUNT)
    return COUNT(amount) is None


def typed_reserves(text: str) -> dict[str, dict[str, int | str]] | None:
    """Return the reserves that *text* says, as somebody types them or as Redis has them; None if it says none."""
    words = [] if text.strip() in ("", NONE) else text.split()
    found: dict[str, dict[str, int | str]] = {}
    for word in words:
        said = _WORD.fullmatch(word)
        if said is None:
            return None
        amount = said[3]
        is_number = amount.isdecimal() and len(amount) <= LONGEST_NUMBER
        found.setdefault(unquote(said[1]), {})[said[2]] = int(amount) if is_number else amount
    return found


def shown_reserves(text: str, *, lower_first: bool = False) -> str:
    """Return the reserves that Redis has as somebody would type them; *lower_first*: to whom 0 is the highest."""
    found = typed_reserves(text) or {}
    return _words((values.shown_pattern(each), rules) for each, rules in _reversed(found, lower_first)) or NONE


def encoded_reserves(value: Mapping[str, Mapping[str, int | str]] | str, *, lower_first: bool = False) -> str:
    """Return reserves that `check` accepts as Redis has them; "" for none. *lower_first*: who says them reads so."""
    found = typed_reserves(value) or {} if isinstance(value, str) else value
    return _words((values.encoded_pattern(each), rules) for each, rules in _reversed(found, lower_first))


def _words(reserves: Iterable[tuple[str, Mapping[str, int | str]]]) -> str:
    return " ".join(sorted(f"{type_}:{name}={amount}" for type_, rules in reserves for name, amount in rules.items()))


def _reversed(
    found: Mapping[str, Mapping[str, int | str]], lower_first: bool
) -> Iterable[tuple[str, Mapping[str, int | str]]]:
    """Yield reserves with one spelling for each class, and with 10 as the highest priority if 0 was, or 0 if 10 was."""
    for type_, rules in found.items():
        yield type_, {_reversed_class(name, lower_first): amount for name, amount in rules.items()}


def _reversed_class(name: str, lower_first: bool) -> str:
    said = _CLASS.fullmatch(name)
    if said is None or said[1] is None:
        return name
    first, last = int(said[1]), int(said[2] or said[1])
    return _of_range(MAX_PRIORITY - last, MAX_PRIORITY - first) if lower_first else _of_range(first, last)


def _of_range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def parse_reserves(text: str) -> list[Reserve]:
    """Return the reserves in *text*, as Redis has it. What is none is left out."""
    found = (_parsed(word) for word in text.split())
    return [each for each in found if each is not None]


def _parsed(word: str) -> Reserve | None:
    said = _WORD.fullmatch(word)
    if said is None or not _is_class(said[2]) or not _is_reserve(said[3]):
        return None
    pattern, name, amount = said.groups()
    of_range = _CLASS.fullmatch(name)
    first, last = (of_range[1], of_range[2] or of_range[1]) if of_range and of_range[1] else (0, MAX_PRIORITY)
    mode = None if of_range and of_range[1] else name
    return Reserve(pattern, mode, int(first), int(last), int(amount.rstrip("%")), amount.endswith("%"))
