"""What the field ``rules`` of a job says, and which limit the setting ``limits`` has for a key.

The scripts read the same texts (``server/lua/jobs/key_rows.lua``). `keyed` writes them.
"""

from functools import lru_cache
from typing import NamedTuple

from .patterns import matches


class Rate(NamedTuple):
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


class JobRules(NamedTuple):
    """The rules of one job. *key*: encoded. *stated*: the limit, jobs that may hold the key; or the rate."""

    key: str
    stated: int | Rate
    keeps_order: bool = False


@lru_cache(maxsize=1024)
def parse(text: str) -> JobRules:
    """Return the rules in *text*, which is one that `job_fields.FIELDS` accepts and not empty."""
    key, word, *order = text.split(" ")
    name, _, figures = word.partition("=")
    if name == "rate":
        tokens, _, period_us = figures.partition("/")
        return JobRules(key.removeprefix("key="), Rate(int(tokens), int(period_us)))
    return JobRules(key.removeprefix("key="), int(figures), bool(order))


def limit_set(key: str, limits: str) -> int | None:
    """Return the limit that *limits* (words ``pattern=number``) has for *key*, by the longest pattern that matches.

    None: no pattern matches. ``*`` in a pattern stands for any characters.
    """
    longest, limit = "", None
    for word in limits.split():
        pattern, _, number = word.rpartition("=")
        if len(pattern) > len(longest) and matches(pattern, key):
            longest, limit = pattern, int(number)
    return limit
