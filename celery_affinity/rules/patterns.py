"""Patterns of keys and of types, in which ``*`` stands for any characters.

A pattern has three forms: as an app.conf says it; as somebody types it, and as it is shown, with escapes such as
``%20`` for a blank; and as Redis has it, encoded as keys are (`encoding.encode`), but for its ``*``.
"""

import re
from functools import lru_cache
from urllib.parse import quote

from .encoding import encode

#: Characters that are shown as they are: all that can be seen but the sign of an escape, and the comma, by which
#: somebody may want to separate settings.
_SHOWN = "".join(each for each in map(chr, range(0x21, 0x7F)) if each not in "%,")


def is_pattern(value: object) -> bool:
    """Return whether *value* is a text that Redis can have."""
    try:
        return isinstance(value, str) and bool(encode(value))
    except UnicodeEncodeError:
        return False


def matches(pattern: str, text: str) -> bool:
    """Return whether *pattern* stands for the whole of *text*. Either both are encoded, or neither is."""
    return _of(pattern).fullmatch(text) is not None


def precedence(pattern: str) -> tuple[bool, int, int, str]:
    """Return what patterns, of an app.conf, are sorted by: the first that matches a text is the one that counts.

    A name without ``*`` comes first, then the longest pattern. Of patterns of one length the one whose first ``*``
    stands further back comes first, and then the one that is first in the order of characters.
    """
    return "*" in pattern, -len(pattern), -pattern.find("*"), pattern


def overlap(pattern: str, other: str) -> bool:
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


def shown(pattern: str) -> str:
    """Return *pattern*, of an app.conf, as somebody would type it."""
    return quote(pattern, safe=_SHOWN)


def encoded(pattern: str) -> str:
    """Return *pattern*, of an app.conf, as Redis has it."""
    return "*".join(map(encode, pattern.split("*")))
