"""How many jobs of a key, or of a whole type, may run together: the setting ``affinity_limits``, in its three forms.

- in an app.conf: ``{"crawl:*": 8, "type:pdf": 20}``, pattern of keys -> limit, 0 = closed. ``type:`` goes before the
  whole name of a type;
- as somebody types it, and as it is shown: ``crawl:*=8 type:pdf=20``, and ``none`` for none;
- in Redis: likewise. `patterns` has the three forms of a pattern, and the order in which patterns count, which is the
  order of the words.
"""

import re
from collections.abc import Callable, Mapping
from urllib.parse import unquote

from .. import patterns
from ..numbers import is_whole
from ..protocol import LONGEST_NUMBER
from ..type_name import is_type
from .key_rules import RESERVED

ACCEPTED = (
    "limits by key such as {'crawl:*': 8, 'type:pdf': 20}, at run time 'crawl:*=8 type:pdf=20' or 'none': whole "
    "numbers, 0 or more, each for a pattern of keys, in which * stands for any characters, and which does not begin "
    "with 'rate:'; or for 'type:' and the whole name of a type"
)

_OF_RATE, _OF_TYPE = RESERVED

#: What stands for no limits where somebody reads or types them, and where Redis has them as a change at run time: there
#: an empty text would be a reset.
NONE, NONE_AT_RUN_TIME = "none", " "

_WORD = re.compile(rf"([^\s,]+)=([0-9]{{1,{LONGEST_NUMBER}}})")


def check(value: object) -> str | None:
    """Return None if *value* can be the setting, as a mapping or as somebody types it; else what is accepted."""
    limits = typed(value) if isinstance(value, str) else value
    good = isinstance(limits, Mapping) and all(_is_pattern(key) and _is_limit(limit) for key, limit in limits.items())
    return None if good else ACCEPTED


def _is_pattern(pattern: object) -> bool:
    if not isinstance(pattern, str) or pattern.startswith(_OF_RATE):
        return False
    if pattern.startswith(_OF_TYPE):
        name = pattern.removeprefix(_OF_TYPE)
        return is_type(name) and "*" not in name
    return patterns.is_pattern(pattern)


def _is_limit(limit: object) -> bool:
    return is_whole(limit) and 0 <= limit < 10**LONGEST_NUMBER


def typed(text: str) -> dict[str, int] | None:
    """Return the limits that *text* says, as somebody types them or as Redis has them; None if it says none."""
    words = [] if text.strip() in ("", NONE) else text.split()
    found = [_WORD.fullmatch(word) for word in words]
    if None in found:
        return None
    return {unquote(word[1]): int(word[2]) for word in found if word is not None}


def shown(value: Mapping[str, int] | str) -> str:
    """Return limits that `check` accepts as somebody would type them."""
    return _words(value, patterns.shown) or NONE


def encoded(value: Mapping[str, int] | str) -> str:
    """Return limits that `check` accepts as Redis has them; "" for none."""
    return _words(value, patterns.encoded)


def _words(value: Mapping[str, int] | str, spelled: Callable[[str], str]) -> str:
    limits = typed(value) or {} if isinstance(value, str) else value
    return " ".join(f"{spelled(pattern)}={limits[pattern]}" for pattern in sorted(limits, key=patterns.precedence))


def in_force(text: str | None) -> str:
    """Return the words of *text* in Redis that say a limit, in their order; "" for none."""
    return " ".join(word for word in (text or "").split() if _WORD.fullmatch(word))


def limit_set(key: str, limits: str) -> int | None:
    """Return the limit that *limits*, as Redis has them, have for *key* (encoded), by the first pattern that matches.

    None: no pattern matches.
    """
    words = (word.rpartition("=") for word in limits.split())
    return next((int(number) for pattern, _, number in words if patterns.matches(pattern, key)), None)
