"""How many jobs of a key, or of a whole type, may run together, or start: ``affinity_limits``, in its three forms.

- in an app.conf: ``{"crawl:*": 8, "type:pdf": 20, "rate:mail:*": "100/m"}``, pattern of keys -> limit, 0 = closed.
  ``type:`` goes before the whole name of a type, ``rate:`` before a pattern of the keys of rates;
- as somebody types it, and as it is shown: ``crawl:*=8 type:pdf=20 rate:mail:*=100/m``, and ``none`` for none;
- in Redis: likewise, with a rate's period in µs. `patterns` has the three forms of a pattern, and the order in which
  patterns count, which is the order of the words.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import unquote

from .. import patterns
from ..addresses import OF_TYPE
from ..numbers import COUNT_OR_0, MOST_COUNT
from ..protocol import LONGEST_NUMBER, RATE_PREFIX
from ..rule_texts import StatedRate, rate_in
from ..type_name import is_type
from .key_rules import OF_RATE, as_said, as_stated, is_rate

ACCEPTED = (
    "limits by key such as {'crawl:*': 8, 'type:pdf': 20, 'rate:mail:*': '100/m'}, at run time "
    f"'crawl:*=8 type:pdf=20 rate:mail:*=100/m' or 'none': whole numbers, 0 to {MOST_COUNT:,}, each for a pattern of "
    "keys, in which * stands for any characters, or for 'type:' and the whole name of a type; rates for patterns that "
    "begin with 'rate:'"
)

#: A limit of keys or of a type, or a rate, such as "100/m".
Limit = int | str


#: What stands for no limits where somebody reads or types them, and where Redis has them as a change at run time: there
#: an empty text would be a reset.
NONE, NONE_AT_RUN_TIME = "none", " "

_WORD = re.compile(rf"([^\s,]+)=([0-9]{{1,{LONGEST_NUMBER}}}(?:/(?:[smh]|[0-9]{{1,{LONGEST_NUMBER}}}))?)")


def check(value: object) -> str | None:
    """Return None if *value* can be the setting, as a mapping or as somebody types it; else what is accepted."""
    limits = typed(value) if isinstance(value, str) else value
    good = isinstance(limits, Mapping) and all(_are_good(pattern, limit) for pattern, limit in limits.items())
    return None if good else ACCEPTED


def _are_good(pattern: object, limit: object) -> bool:
    if not isinstance(pattern, str):
        return False
    if pattern.startswith(OF_RATE):
        return patterns.is_pattern(pattern) and is_rate(limit)
    if pattern.startswith(OF_TYPE):
        name = pattern.removeprefix(OF_TYPE)
        return is_type(name) and "*" not in name and _is_limit(limit)
    return patterns.is_pattern(pattern) and _is_limit(limit)


def _is_limit(limit: object) -> bool:
    return COUNT_OR_0(limit) is None


def typed(text: str) -> dict[str, Limit] | None:
    """Return the limits that *text* says, as somebody types them or as Redis has them; None if it says none."""
    words = [] if text.strip() in ("", NONE) else text.split()
    found = [_WORD.fullmatch(word) for word in words]
    if None in found:
        return None
    return {unquote(word[1]): one_typed(word[2]) for word in found if word is not None}


def one_typed(limit: str) -> Limit:
    """Return one *limit* as somebody types it, or as Redis has it: a number, or a rate."""
    return int(limit) if limit.isdecimal() and len(limit) <= LONGEST_NUMBER else as_said(limit)


def shown(value: Mapping[str, Limit] | str) -> str:
    """Return limits that `check` accepts as somebody would type them."""
    return _words(value, patterns.shown, str) or NONE


def encoded(value: Mapping[str, Limit] | str) -> str:
    """Return limits that `check` accepts as Redis has them; "" for none."""
    return _words(value, patterns.encoded, lambda limit: as_stated(limit) if isinstance(limit, str) else str(limit))


def _words(value: Mapping[str, Limit] | str, spelled: Callable[[str], str], in_words: Callable[[Limit], str]) -> str:
    limits = typed(value) or {} if isinstance(value, str) else value
    ordered = sorted(limits, key=patterns.precedence)
    return " ".join(f"{spelled(pattern)}={in_words(limits[pattern])}" for pattern in ordered)


def in_force(text: str | None) -> str:
    """Return the words of *text* in Redis that say a limit, in their order; "" for none."""
    return " ".join(word for word in (text or "").split() if _WORD.fullmatch(word))


def limit_set(key: str, limits: str) -> int | None:
    """Return the limit that *limits*, as Redis has them, have for *key* (encoded), by the first pattern that matches.

    None: no pattern matches.
    """
    return next((int(limit) for limit in _for_key(key, limits) if limit.isdecimal()), None)


def rate_set(key: str, limits: str) -> StatedRate | None:
    """Return the rate that *limits*, as Redis has them, have for *key* (encoded), as `limit_set` does."""
    found = _for_key(key, limits) if key.startswith(RATE_PREFIX) else ()
    return next((rate for limit in found if (rate := rate_in(limit))), None)


def _for_key(key: str, limits: str) -> Iterator[str]:
    words = (word.rpartition("=") for word in limits.split())
    return (limit for pattern, _, limit in words if patterns.matches(pattern, key))
