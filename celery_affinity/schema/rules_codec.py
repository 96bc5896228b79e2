"""The marks at the end of a job's id, a row for each: the id alone tells arrows and workers what rules the job has.

An id has one mark of each place at most, in the order of the places: of a hint, of a rule, of keys. All that has to do
with marks is made from the rows: `marks`, the patterns of accepted fields (`job_fields`), how Lua reads ids and rules,
and what the conformance test draws.

What the field ``rules`` of a job says: how the job merges, and its keys.

The field has some of five parts, in this order: ``merge=K most=N bytes=N wait=US/US``, ``wait=`` only where a call
waits for others; rules of one word (`known_marks.WORDS`), such as ``near=H``, a hint of locality; ``key=rate%3AK
rate=N/US`` and ``key=K limit=N``, in the order in which the job passes its keys: the one that fewer jobs share comes
first, since a job that waits there holds up no others; ``key=tenant%3AK quota=settings``, and then perhaps
``preemptible=1``. Arrows read these texts by ``lua/jobs/rules_codec.lua``. `merging`, `word` and `keyed.key_rules` write
them.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from .constants import BY_SETTINGS, LONGEST_NUMBER, PREEMPTIBLE, USUAL_BOUNDS, USUAL_MOST, USUAL_MOST_BYTES

HINT, RULE, KEYS = range(3)


class IdSuffix(NamedTuple):
    """One mark. *place*: one of the three. *word*: the only word, ``word=K``, that the job's rules have for it; "":
    they have more than one word for it, whose grammar has code of its own.
    """

    character: str
    place: int
    word: str = ""


#: name -> mark, in the order of places.
MARKS = {
    "HINTED": IdSuffix("~", HINT, "near"),  # `locality`
    "MERGES": IdSuffix("+", RULE),  # a call that merges with others
    "BATCH": IdSuffix("*", RULE),  # what the arrows made of several such calls; no message has it
    "KEYED": IdSuffix("!", KEYS),  # one key
    "MANY_KEYED": IdSuffix("&", KEYS),  # several keys
    "TENANTED": IdSuffix("$", KEYS),  # the key of a tenant alone
}

#: The marks for which rules have one word, in the order in which rules have these words: before keys.
WORDS = tuple(mark for mark in MARKS.values() if mark.word)

HINTED, MERGES, BATCH, KEYED, MANY_KEYED, TENANTED = (
    MARKS[name].character for name in ("HINTED", "MERGES", "BATCH", "KEYED", "MANY_KEYED", "TENANTED")
)

#: All marks, as characters, and those of keys.
ALL = tuple(mark.character for mark in MARKS.values())
OF_KEYS = tuple(mark.character for mark in MARKS.values() if mark.place == KEYS)


def suffix_characters(place: int) -> str:
    """Return the marks of *place*."""
    return "".join(mark.character for mark in MARKS.values() if mark.place == place)


_COUNT = re.compile(rf"[1-9][0-9]{{0,{LONGEST_NUMBER - 1}}}")

#: What a text says of one key.
_KEY_PART = re.compile(r"key=\S+ (?:(?!key=)\S+ ?)+(?<! )")

#: What a text says of a rule of one word.
_WORD = re.compile(rf"(?:^| )({'|'.join(mark.word for mark in WORDS)})=(\S+)")


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
    """A key of one job. *key*: encoded. *stated*: the limit, jobs that may hold the key; or the rate; None of a tenant,
    whose limit the settings say.
    """

    key: str
    stated: int | StatedRate | None
    keeps_order: bool = False

    @property
    def is_of_tenant(self) -> bool:
        return self.stated is None


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
    said = dict(word.split("=", 1) for word in split_rules(text)[0].split(" "))
    wait_us, _, at_most_us = said.get("wait", "0/0").partition("/")
    most, most_bytes = said.get("most", USUAL_MOST), said.get("bytes", USUAL_MOST_BYTES)
    return StatedMerge(said["merge"], int(most), int(most_bytes), int(wait_us), int(at_most_us))


def encode_rules(text: str) -> str:
    """Return what a job's row keeps of the rules *text*: the usual bounds of a run go without saying."""
    return re.sub(rf"{USUAL_BOUNDS}(?!\d)", "", text, count=1)


def readable_rules(kept: str) -> str:
    """Return the rules of which a job's row keeps *kept*."""
    return re.sub(r"^(merge=[^ ]+)(?= |$)(?! most=)", rf"\1{USUAL_BOUNDS}", kept, count=1)


def split_rules(text: str) -> tuple[str, str]:
    """Return what *text* says of merging, and what it says of keys; "" for nothing."""
    text = without_words(text)
    start = text.find("key=")  # no encoded key has an equals sign
    keys = "" if start < 0 else text[start:]
    return text.removesuffix(keys).rstrip(), keys


def value_in(text: str, word: str) -> str:
    """Return the value, encoded, of a rule of one *word* in *text*; "" for none."""
    return next((value for its, value in _WORD.findall(text) if its == word), "")


def hint_in(text: str) -> str:
    """Return the hint, encoded, in *text*; "" for none."""
    return value_in(text, MARKS["HINTED"].word)


def without_words(text: str) -> str:
    """Return what *text* says besides rules of one word."""
    return _WORD.sub("", text).lstrip()


def texts_of_keys(text: str) -> tuple[str, str, str]:
    """Return what *text* says of a rate, of an exclusive key, and of a tenant; "" for nothing."""
    found = {part.split(" ")[1].partition("=")[0]: part for part in _KEY_PART.findall(text)}
    return found.get("rate", ""), found.get("limit", ""), found.get("quota", "")


def is_preemptible(text: str) -> bool:
    """Return whether the job whose rules are *text* may be stopped for the job of another tenant."""
    return text.endswith(f" {PREEMPTIBLE}")


def as_preemptible(text: str, preemptible: bool) -> str:
    """Return rules that say whether their job may be stopped. Without a tenant they cannot say that it may."""
    text = text.removesuffix(f" {PREEMPTIBLE}")
    return f"{text} {PREEMPTIBLE}" if preemptible and text.endswith(f" quota={BY_SETTINGS}") else text


def join_rules(*parts: str) -> str:
    """Return the rules that have these *parts*, in the order of the field; "" is none."""
    return " ".join(filter(None, parts))


@lru_cache(maxsize=1024)
def keys_in(text: str) -> tuple[StatedKey, ...]:
    """Return the keys in *text*, which `job_fields.FIELDS` accepts, in the order in which the job passes them."""
    found = []
    for part in _KEY_PART.findall(text):
        key, word, *order = part.split(" ")
        states = word.partition("=")[2]
        stated = None if states == BY_SETTINGS else rate_in(states) or int(states)
        found.append(StatedKey(key.removeprefix("key="), stated, order == ["order=1"]))
    return tuple(found)


def rate_in(stated: str) -> StatedRate | None:
    """Return the rate that a task stated of a key, ``tokens/period_us``; None for a limit, or for no number."""
    tokens, slash, period_us = stated.partition("/")
    is_one = slash and _COUNT.fullmatch(tokens) and _COUNT.fullmatch(period_us)
    return StatedRate(int(tokens), int(period_us)) if is_one else None
