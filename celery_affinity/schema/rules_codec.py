"""The field ``rules`` of a job (how it merges, and its keys), and the suffix of a job id.

The id suffix names the kinds of rules. It has at most one character per place, in this order: hint, merge rule, keys.
The table `MARKS` generates all code about suffixes: the patterns of accepted fields (`job_record`), how Lua reads ids
and rules, and the samples of the conformance test.

The field ``rules`` has some of these parts, in this order:

- ``merge=K most=N bytes=N wait=US/US``; ``wait=`` only if the call has a merge window;
- single-token rules (`WORDS`), such as ``near=H``, a locality hint;
- ``key=rate%3AK rate=N/US`` and ``key=K limit=N``, in the order in which the job passes its keys. The key that fewer
  jobs share comes first, since a job that waits for it blocks no others;
- ``key=tenant%3AK quota=settings``, optionally followed by ``preemptible=1``.

Server functions parse these strings with ``lua/jobs/rules_codec.lua``. `options.merge`, `options.keys` and this module
write them.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from .constants import BY_SETTINGS, LONGEST_NUMBER, PREEMPTIBLE, USUAL_BOUNDS, USUAL_MOST, USUAL_MOST_BYTES

HINT, RULE, KEYS = range(3)


class IdSuffix(NamedTuple):
    """One character of an id suffix."""

    character: str
    #: HINT, RULE or KEYS.
    place: int
    #: Name of the single-token rule ``word=K``; "" for rules with more than one token, which have their own grammar.
    word: str = ""


#: Name -> suffix character, in the order of places.
MARKS = {
    "HINTED": IdSuffix("~", HINT, "near"),  # `locality`
    "MERGES": IdSuffix("+", RULE),  # a call that merges with others
    "BATCH": IdSuffix("*", RULE),  # several such calls, combined by the server functions; no message has this suffix
    "KEYED": IdSuffix("!", KEYS),  # one key
    "MANY_KEYED": IdSuffix("&", KEYS),  # several keys
    "TENANTED": IdSuffix("$", KEYS),  # only the key of a tenant
}

#: Suffixes of single-token rules, in the order of the rules. They precede keys.
WORDS = tuple(mark for mark in MARKS.values() if mark.word)

HINTED, MERGES, BATCH, KEYED, MANY_KEYED, TENANTED = (
    MARKS[name].character for name in ("HINTED", "MERGES", "BATCH", "KEYED", "MANY_KEYED", "TENANTED")
)

#: All suffix characters, and the suffix characters of keys.
ALL = tuple(mark.character for mark in MARKS.values())
OF_KEYS = tuple(mark.character for mark in MARKS.values() if mark.place == KEYS)


def suffix_characters(place: int) -> str:
    """Return the suffix characters of *place*."""
    return "".join(mark.character for mark in MARKS.values() if mark.place == place)


_COUNT = re.compile(rf"[1-9][0-9]{{0,{LONGEST_NUMBER - 1}}}")
#: Matches the rule of one key.
_KEY_PART = re.compile(r"key=\S+ (?:(?!key=)\S+ ?)+(?<! )")
#: Matches a single-token rule.
_WORD_RULE = re.compile(rf"(?:^| )({'|'.join(mark.word for mark in WORDS)})=(\S+)")


class StatedRate(NamedTuple):
    """At most *tokens* jobs of a key start in *period_us*: in a burst, or one per interval."""

    tokens: int
    period_us: int

    @property
    def interval_us(self) -> int:
        """Interval in µs at which single starts become available again."""
        return max(1, self.period_us // self.tokens)

    def room(self, ahead_us: int) -> int:
        """Return the number of jobs that can start if all starts are available in *ahead_us* µs (0 or less: now).

        Generic cell rate algorithm (ITU-T I.371): one time replaces a number of tokens and a time.
        """
        return min(self.tokens, (self.period_us - max(0, ahead_us)) // self.interval_us)


class StatedKey(NamedTuple):
    """A key of one job."""

    #: Encoded.
    key: str
    #: The limit (number of jobs that can hold the key) or the rate. None for a tenant, whose limit is in the settings.
    stated: int | StatedRate | None
    keeps_order: bool = False

    @property
    def is_of_tenant(self) -> bool:
        return self.stated is None


class StatedMerge(NamedTuple):
    """How a call merges."""

    #: Encoded.
    key: str
    #: Maximum number of calls per run.
    most: int
    #: Maximum size of a run's messages in bytes.
    most_bytes: int
    #: Time by which each call extends the merge window.
    wait_us: int = 0
    #: Maximum length of the merge window.
    at_most_us: int = 0


@lru_cache(maxsize=1024)
def merge_in(text: str) -> StatedMerge | None:
    """Return how a job with the valid or encoded rules *text* merges, or None if it does not."""
    if not text.startswith("merge="):
        return None
    tokens = dict(word.split("=", 1) for word in split_rules(text)[0].split(" "))
    wait_us, _, at_most_us = tokens.get("wait", "0/0").partition("/")
    most, most_bytes = tokens.get("most", USUAL_MOST), tokens.get("bytes", USUAL_MOST_BYTES)
    return StatedMerge(tokens["merge"], int(most), int(most_bytes), int(wait_us), int(at_most_us))


def encode_rules(text: str) -> str:
    """Return the rules *text* in the format of the job hash: without default limits of a run."""
    return re.sub(rf"{USUAL_BOUNDS}(?!\d)", "", text, count=1)


def readable_rules(kept: str) -> str:
    """Return the complete rules for the rules *kept* in a job hash."""
    return re.sub(r"^(merge=[^ ]+)(?= |$)(?! most=)", rf"\1{USUAL_BOUNDS}", kept, count=1)


def split_rules(text: str) -> tuple[str, str]:
    """Return the merge rule and the keys in *text*, each "" if missing."""
    text = without_words(text)
    start = text.find("key=")  # no encoded key has an equals sign
    keys = "" if start < 0 else text[start:]
    return text.removesuffix(keys).rstrip(), keys


def value_in(text: str, word: str) -> str:
    """Return the encoded value of the single-token rule *word* in *text*, or ""."""
    return next((value for name, value in _WORD_RULE.findall(text) if name == word), "")


def hint_in(text: str) -> str:
    """Return the encoded hint in *text*, or ""."""
    return value_in(text, MARKS["HINTED"].word)


def without_words(text: str) -> str:
    """Return *text* without single-token rules."""
    return _WORD_RULE.sub("", text).lstrip()


def texts_of_keys(text: str) -> tuple[str, str, str]:
    """Return the rules of the rate, the exclusive key and the tenant in *text*, each "" if missing."""
    parts = {part.split(" ")[1].partition("=")[0]: part for part in _KEY_PART.findall(text)}
    return parts.get("rate", ""), parts.get("limit", ""), parts.get("quota", "")


def is_preemptible(text: str) -> bool:
    """Return True if the job with these rules can be preempted for another tenant's job."""
    return text.endswith(f" {PREEMPTIBLE}")


def as_preemptible(text: str, preemptible: bool) -> str:
    """Return rules that set whether the job is preemptible. A job without a tenant is never preemptible."""
    text = text.removesuffix(f" {PREEMPTIBLE}")
    return f"{text} {PREEMPTIBLE}" if preemptible and text.endswith(f" quota={BY_SETTINGS}") else text


def join_rules(*parts: str) -> str:
    """Return the rules with the non-empty *parts*, which must be in the order of the field."""
    return " ".join(filter(None, parts))


@lru_cache(maxsize=1024)
def keys_in(text: str) -> tuple[StatedKey, ...]:
    """Return the keys in the valid rules *text*, in the order in which the job passes them."""
    stated_keys = []
    for part in _KEY_PART.findall(text):
        key, word, *order = part.split(" ")
        value = word.partition("=")[2]
        stated = None if value == BY_SETTINGS else rate_in(value) or int(value)
        stated_keys.append(StatedKey(key.removeprefix("key="), stated, order == ["order=1"]))
    return tuple(stated_keys)


def rate_in(stated: str) -> StatedRate | None:
    """Return the rate ``tokens/period_us``, or None if *stated* is a limit or invalid."""
    tokens, slash, period_us = stated.partition("/")
    is_one = slash and _COUNT.fullmatch(tokens) and _COUNT.fullmatch(period_us)
    return StatedRate(int(tokens), int(period_us)) if is_one else None
