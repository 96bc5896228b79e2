"""What a message may say of its job: checked before anything is written, by who publishes and by the scripts.

It goes into names of keys, lists of words and sums that every worker reads, so one bad field would stop them all.
"""

import re
from collections.abc import Mapping
from operator import itemgetter

from ..errors import OptionError, refuse
from .protocol import LONGEST_ID, LONGEST_NUMBER, MAX_PRIORITY, MOST_STAMP_BYTES, MOST_STAMPS

#: Of each field, as the scripts take it: what is accepted, in words, and as a pattern. *id* is a job's, *type* and
#: *task_id* are percent-encoded. Times of up to 31,000 years are no trouble for the scripts' numbers.
_ACCEPTED: dict[str, tuple[str, re.Pattern[str]]] = {
    "id": (f"1 to {LONGEST_ID} printable ASCII characters without a blank", re.compile(rf"[!-~]{{1,{LONGEST_ID}}}")),
    "type": ("a name that is not empty, percent-encoded", re.compile(r"[A-Za-z0-9_.~%-]+")),
    "mode": ("'queued' or 'demand'", re.compile(r"queued|demand")),
    "priority": (f"a whole number from 0 to {MAX_PRIORITY}", re.compile(r"[0-9]|10")),
    "delay_us": (
        f"a whole number of microseconds, of up to {LONGEST_NUMBER} characters",
        re.compile(rf"(?=.{{1,{LONGEST_NUMBER}}}\Z)-?[0-9]+"),
    ),
    "task_id": ("a text, percent-encoded", re.compile(r"[A-Za-z0-9_.~%-]*")),
    "expires_us": (
        f"nothing, or a whole number of microseconds, of up to {LONGEST_NUMBER} characters",
        re.compile(rf"(?=.{{0,{LONGEST_NUMBER}}}\Z)(-?[0-9]+)?"),
    ),
    "stamps": (
        f"names and values ('name:value'), percent-encoded: {MOST_STAMPS} at most, {MOST_STAMP_BYTES:,} bytes",
        re.compile(rf"(?=.{{0,{MOST_STAMP_BYTES}}}\Z) *([A-Za-z0-9_.~%:-]+( +|\Z)){{0,{MOST_STAMPS}}}"),
    ),
    "task_name": ("a text in UTF-8", re.compile(r"[^\ud800-\udfff]*")),
}

_CHECKS = [(name, pattern.fullmatch) for name, (_, pattern) in _ACCEPTED.items()]

#: Most jobs, all fields but the last two in one text: one match takes a third of the time of nine.
_NUMBER = rf"-?[0-9]{{1,{LONGEST_NUMBER - 1}}}"
_ORDINARY = re.compile(
    rf"[!-~]{{1,{LONGEST_ID}}} [A-Za-z0-9_.~%-]+ (queued|demand) ([0-9]|{MAX_PRIORITY}) {_NUMBER} "
    rf"[A-Za-z0-9_.~%-]* ({_NUMBER})?"
).fullmatch
_IN_ONE = itemgetter("id", "type", "mode", "priority", "delay_us", "task_id", "expires_us")


def bad(arguments: Mapping[str, object]) -> str | None:
    """Return the name of a field of *arguments*, those of ``publish.lua``, that is not accepted; None if all are."""
    is_plain = not arguments["stamps"] and str(arguments["task_name"]).isascii()
    if is_plain and _ORDINARY(" ".join(map(str, _IN_ONE(arguments)))):
        return None
    for name, matches in _CHECKS:
        if not matches(str(arguments[name])):
            return name
    return None


def refused(field: str, got: object) -> OptionError:
    """Return the error for a message of which *field* is not accepted."""
    return refuse(f"{field} of a job", _ACCEPTED[field][0], got)
