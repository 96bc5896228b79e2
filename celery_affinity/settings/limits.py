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

from ..options.keys import OF_RATE, as_explicit, as_stated, is_rate
from ..options.type_names import is_type_name
from ..schema import values
from ..schema.constants import LONGEST_NUMBER, RATE_PREFIX
from ..schema.keys import OF_TYPE
from ..schema.rules_codec import StatedRate, rate_in
from ..schema.values import COUNT_OR_0, MOST_COUNT

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


def check_limits(value: object) -> str | None:
    """Return None if *value* can be the setting, as a mapping or as somebody types it; else what is accepted."""
    limits = typed_limits(value) if isinstance(value, str) else value
    good = isinstance(limits, Mapping) and all(_are_good(pattern, limit) for pattern, limit in limits.items())
    return None if good else ACCEPTED


def _are_good(pattern: object, limit: object) -> bool:
    if not isinstance(pattern, str):
        return False
    if pattern.startswith(OF_RATE):
        return values.is_pattern(pattern) and is_rate(limit)
    if pattern.startswith(OF_TYPE):
        name = pattern.removeprefix(OF_TYPE)
        return is_type_name(name) and "*" not in name and _is_limit(limit)
    return values.is_pattern(pattern) and _is_limit(limit)


def _is_limit(limit: object) -> bool:
    return COUNT_OR_0(limit) is None


def typed_limits(text: str) -> dict[str, Limit] | None:
    """Return the limits that *text* says, as somebody types them or as Redis has them; None if it says none."""
    words = [] if text.strip() in ("", NONE) else text.split()
    found = [_WORD.fullmatch(word) for word in words]
    if None in found:
        return None
    return {unquote(word[1]): typed_limit(word[2]) for word in found if word is not None}


def typed_limit(limit: str) -> Limit:
    """Return one *limit* as somebody types it, or as Redis has it: a number, or a rate."""
    return int(limit) if limit.isdecimal() and len(limit) <= LONGEST_NUMBER else as_explicit(limit)


def shown_limits(value: Mapping[str, Limit] | str) -> str:
    """Return limits that `check` accepts as somebody would type them."""
    return _words(value, values.shown_pattern, str) or NONE


def encoded_limits(value: Mapping[str, Limit] | str) -> str:
    """Return limits that `check` accepts as Redis has them; "" for none."""
    return _words(
        value, values.encoded_pattern, lambda limit: as_stated(limit) if isinstance(limit, str) else str(limit)
    )


def _words(value: Mapping[str, Limit] | str, spelled: Callable[[str], str], in_words: Callable[[Limit], str]) -> str:
    limits = typed_limits(value) or {} if isinstance(value, str) else value
    ordered = sorted(limits, key=values.pattern_precedence)
    return " ".join(f"{spelled(pattern)}={in_words(limits[pattern])}" for pattern in ordered)


def limits_in_force(text: str | None) -> str:
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
    return (limit for pattern, _, limit in words if values.matches(pattern, key))
