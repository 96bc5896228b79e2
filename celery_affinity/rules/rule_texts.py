"""What the field ``rules`` of a job says: how the job merges, and its keys.

The field has some of three parts, in this order: ``merge=K most=N bytes=N wait=US/US``, ``wait=`` only where a call
waits for others; ``key=rate%3AK rate=N/US`` and ``key=K limit=N``, in the order in which the job passes its keys: the
one that fewer jobs share comes first, since a job that waits there holds up no others. Arrows read these texts by
``lua/jobs/rule_texts.lua``. `merging` and `keyed.key_rules` write them.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from .protocol import LONGEST_NUMBER, USUAL_BOUNDS, USUAL_MOST, USUAL_MOST_BYTES

_COUNT = re.compile(rf"[1-9][0-9]{{0,{LONGEST_NUMBER - 1}}}")

#: What a text says of one key.
_KEY_PART = re.compile(r"key=\S+ (?:(?!key=)\S+ ?)+(?<! )")


class StatedRate(NamedTuple):
    """*tokens* jobs of a key may start in *period_us*: at once, or each after its share of the period."""

    tokens: int
    period_us: int

    @property
    def interval_us(self) -> int:
        """Time after which one start is free again, µs."""
        return max(1, self.period_us // self.tokens)

    def room(self, ahead_us: int) -> int:
        """Return how many jobs may start. *ahead_us*: time until all starts are free again, µs; 0 or less: they are.

        This is the generic cell rate algorithm (ITU-T I.371): one time, instead of a number of tokens and a time.
        """
        return min(self.tokens, (self.period_us - max(0, ahead_us)) // self.interval_us)


class StatedKey(NamedTuple):
    """A key of one job. *key*: encoded. *stated*: the limit, jobs that may hold the key; or the rate."""

    key: str
    stated: int | StatedRate
    keeps_order: bool = False


class StatedMerge(NamedTuple):
    """How a call merges. *key*: encoded. *most*: calls of one run, and *most_bytes* of their messages together.

    *wait_us*: how long the first call, and each further one, has the run wait for more, and *at_most_us* all together.
    """

    key: str
    most: int
    most_bytes: int
    wait_us: int = 0
    at_most_us: int = 0


@lru_cache(maxsize=1024)
def merge_in(text: str) -> StatedMerge | None:
    """Return how the job merges whose rules are *text*, which `job_fields.FIELDS` accepts, or `as_kept`; None: not."""
    if not text.startswith("merge="):
        return None
    said = dict(word.split("=", 1) for word in parts_of(text)[0].split(" "))
    wait_us, _, at_most_us = said.get("wait", "0/0").partition("/")
    most, most_bytes = said.get("most", USUAL_MOST), said.get("bytes", USUAL_MOST_BYTES)
    return StatedMerge(said["merge"], int(most), int(most_bytes), int(wait_us), int(at_most_us))


def as_kept(text: str) -> str:
    """Return what a job's row keeps of the rules *text*: the usual bounds of a run go without saying."""
    return re.sub(rf"{USUAL_BOUNDS}(?!\d)", "", text, count=1)


def in_full(kept: str) -> str:
    """Return the rules of which a job's row keeps *kept*."""
    return re.sub(r"^(merge=[^ ]+)(?= |$)(?! most=)", rf"\1{USUAL_BOUNDS}", kept, count=1)


def parts_of(text: str) -> tuple[str, str]:
    """Return what *text* says of merging, and what it says of keys; "" for nothing."""
    start = text.find("key=")  # no encoded key has an equals sign
    keys = "" if start < 0 else text[start:]
    return text.removesuffix(keys).rstrip(), keys


def rate_and_exclusive(text: str) -> tuple[str, str]:
    """Return what *text* says of a rate, and what it says of an exclusive key; "" for nothing."""
    found = {" rate=" in part: part for part in _KEY_PART.findall(text)}
    return found.get(True, ""), found.get(False, "")


def joined(*parts: str) -> str:
    """Return the rules that have these *parts*, in the order of the field; "" is none."""
    return " ".join(filter(None, parts))


@lru_cache(maxsize=1024)
def keys_in(text: str) -> tuple[StatedKey, ...]:
    """Return the keys in *text*, which `job_fields.FIELDS` accepts, in the order in which the job passes them."""
    found = []
    for part in _KEY_PART.findall(text):
        key, word, *order = part.split(" ")
        numbers = word.partition("=")[2]
        found.append(StatedKey(key.removeprefix("key="), rate_in(numbers) or int(numbers), bool(order)))
    return tuple(found)


def rate_in(stated: str) -> StatedRate | None:
    """Return the rate that a task stated of a key, ``tokens/period_us``; None for a limit, or for no number."""
    tokens, slash, period_us = stated.partition("/")
    is_one = slash and _COUNT.fullmatch(tokens) and _COUNT.fullmatch(period_us)
    return StatedRate(int(tokens), int(period_us)) if is_one else None
