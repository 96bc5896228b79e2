"""What the field ``rules`` of a job says: how the job merges, and its key.

The field has one of the two, or both, in this order: ``merge=K most=N bytes=N wait=US/US key=K limit=N``, ``wait=``
only where a call waits for others. Arrows read these texts by ``lua/jobs/rule_texts.lua``. `merging` and
`keyed.key_rules` write them.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from .protocol import LONGEST_NUMBER, USUAL_BOUNDS, USUAL_MOST, USUAL_MOST_BYTES

_COUNT = re.compile(rf"[1-9][0-9]{{0,{LONGEST_NUMBER - 1}}}")


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
    """The rules of one job. *key*: encoded. *stated*: the limit, jobs that may hold the key; or the rate."""

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


def key_part(text: str) -> str:
    """Return what *text* says of a key; "" for nothing."""
    start = text.find("key=")  # no encoded key has an equals sign
    return "" if start < 0 else text[start:]


def parts_of(text: str) -> tuple[str, str]:
    """Return what *text* says of merging, and what it says of a key; "" for nothing."""
    of_key = key_part(text)
    return text.removesuffix(of_key).rstrip(), of_key


def joined(of_merging: str, of_key: str) -> str:
    """Return the rules of which `parts_of` returns these."""
    return f"{of_merging} {of_key}".strip()


@lru_cache(maxsize=1024)
def parse(text: str) -> StatedKey | None:
    """Return what *text*, which is one that `job_fields.FIELDS` accepts, says of a key; None for nothing."""
    of_key = key_part(text)
    if not of_key:
        return None
    key, word, *order = of_key.split(" ")
    numbers = word.partition("=")[2]
    return StatedKey(key.removeprefix("key="), rate_in(numbers) or int(numbers), bool(order))


def rate_in(stated: str) -> StatedRate | None:
    """Return the rate that a task stated of a key, ``tokens/period_us``; None for a limit, or for no number."""
    tokens, slash, period_us = stated.partition("/")
    is_one = slash and _COUNT.fullmatch(tokens) and _COUNT.fullmatch(period_us)
    return StatedRate(int(tokens), int(period_us)) if is_one else None
