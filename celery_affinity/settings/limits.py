"""Parse and format ``affinity_limits``: the limits and rates of job keys and of types.

The setting has three forms:
- ``app.conf``: ``{"crawl:*": 8, "type:pdf": 20, "rate:mail:*": "100/m"}``, pattern of keys -> limit, 0 to block all.
  ``type:`` precedes the full name of a type, ``rate:`` a pattern of rate keys.
- typed and shown: ``crawl:*=8 type:pdf=20 rate:mail:*=100/m``, or ``none``.
- Redis: the same, with a rate's period in µs. The words are sorted by precedence (`values.pattern_precedence`).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import unquote

from ..options.keys import OF_RATE, as_explicit, as_stated, is_rate
from ..options.type_names import is_type_name
from ..schema import values
from ..schema.constants import LONGEST_NUMBER, RATE_PREFIX
from ..schema.keys import OF_TYPE
from ..schema.rules_codec import StatedKey, StatedRate, rate_in
from ..schema.values import COUNT_OR_0, MOST_COUNT

ACCEPTED = (
    "limits by key such as {'crawl:*': 8, 'type:pdf': 20, 'rate:mail:*': '100/m'}, at run time "
    f"'crawl:*=8 type:pdf=20 rate:mail:*=100/m' or 'none': whole numbers, 0 to {MOST_COUNT:,}, each for a pattern of "
    "keys, in which * stands for any characters, or for 'type:' and the whole name of a type; rates for patterns that "
    "begin with 'rate:'"
)

#: A limit of keys or of a type, or a rate, such as "100/m".
Limit = int | str

#: No limits, as typed or shown; and in Redis, as a change at run time, where an empty string would be a reset.
NONE, NONE_AT_RUN_TIME = "none", " "

_WORD = re.compile(rf"([^\s,]+)=([0-9]{{1,{LONGEST_NUMBER}}}(?:/(?:[smh]|[0-9]{{1,{LONGEST_NUMBER}}}))?)")


def check_limits(value: object) -> str | None:
    """Return None if *value*, a mapping or a typed string, is valid. Otherwise return the accepted values as text."""
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
        return is_type_name(name) and "*" not in name and COUNT_OR_0(limit) is None
    return values.is_pattern(pattern) and COUNT_OR_0(limit) is None


def typed_limits(text: str) -> dict[str, Limit] | None:
    """Return the limits in *text*, in typed or Redis form, or None if *text* is invalid."""
    words = [] if text.strip() in ("", NONE) else text.split()
    matches = [_WORD.fullmatch(word) for word in words]
    if None in matches:
        return None
    return {unquote(match[1]): typed_limit(match[2]) for match in matches if match is not None}


def typed_limit(limit: str) -> Limit:
    """Return *limit*, in typed or Redis form, as a number or a rate."""
    return int(limit) if limit.isdecimal() and len(limit) <= LONGEST_NUMBER else as_explicit(limit)


def shown_limits(value: Mapping[str, Limit] | str) -> str:
    """Return valid limits in typed form."""
    return _words(value, values.shown_pattern, str) or NONE


def encoded_limits(value: Mapping[str, Limit] | str) -> str:
    """Return valid limits in Redis form, or "" if there are none."""
    return _words(
        value, values.encoded_pattern, lambda limit: as_stated(limit) if isinstance(limit, str) else str(limit)
    )


def _words(value: Mapping[str, Limit] | str, encode: Callable[[str], str], format_limit: Callable[[Limit], str]) -> str:
    limits = typed_limits(value) or {} if isinstance(value, str) else value
    ordered = sorted(limits, key=values.pattern_precedence)
    return " ".join(f"{encode(pattern)}={format_limit(limits[pattern])}" for pattern in ordered)


def limits_in_force(text: str | None) -> str:
    """Return the valid words of *text*, the setting in Redis, in their order."""
    return " ".join(word for word in (text or "").split() if _WORD.fullmatch(word))


def limit_set(key: str, limits: str) -> int | None:
    """Return the limit that *limits*, in Redis form, set for *key* (encoded), or None.

    The first matching pattern applies.
    """
    return next((int(limit) for limit in _for_key(key, limits) if limit.isdecimal()), None)


def rate_set(key: str, limits: str) -> StatedRate | None:
    """Return the rate that *limits*, in Redis form, set for *key* (encoded), or None, like `limit_set`."""
    matching = _for_key(key, limits) if key.startswith(RATE_PREFIX) else ()
    return next((rate for limit in matching if (rate := rate_in(limit))), None)


def limit_in_force(key: StatedKey, limits: str) -> int | StatedRate | None:
    """Return the limit or the rate that *limits*, in Redis form, set for *key*. By default, the one of its job."""
    limit = (rate_set if isinstance(key.stated, StatedRate) else limit_set)(key.key, limits)
    return key.stated if limit is None else limit


def _for_key(key: str, limits: str) -> Iterator[str]:
    words = (word.rpartition("=") for word in limits.split())
    return (limit for pattern, _, limit in words if values.matches(pattern, key))
