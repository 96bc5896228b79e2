"""Misspelt words: a word so close to another one that it is hardly a word of its own.

A program that is told of a mistake does not start, so a word that may be meant is no mistake: another first letter
(``in_demand``), one word more (``affinity_group``, ``x_priority``), two wrong letters (``infinity``), a number.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

#: Bounds between words: ``on_demand``, ``on-demand`` and ``onDemand`` have one.
_BOUNDS = re.compile(r"[\W_]+|(?<=[a-z])(?=[A-Z])")

_REPEATED = re.compile(r"(.)\1+")


@lru_cache(maxsize=4096)
def closest_match(word: str, names: tuple[str, ...]) -> str | None:
    """Return the one of *names* (in lower case) that *word* misspells; None for one of *names*, or a word of its own.

    Case, separators, repetitions of a letter, the order of letters or one letter do not make a word of its own.
    """
    if word in names or word.startswith("_"):
        return None
    return next((name for name in names if _is_misspelt(word, name)), None)


def _is_misspelt(word: str, name: str) -> bool:
    words = [each.lower() for each in _BOUNDS.split(word) if each]
    *first, last = name.split("_")
    if not words or len(words) > len(first) + 1:
        return False
    if len(words) > 1 and [_REPEATED.sub(r"\1", each) for each in words[:-1]] != first:
        return False  # other words go before the last one as well: in_demand, no_demand, one_demand
    begin, text = "".join(first), "".join(words)
    rest = words[-1] if len(words) > 1 else text.removeprefix(begin)
    if not (len(words) > 1 or text.startswith(begin)) or not rest:
        return False
    if sorted(rest) == sorted(last):
        return rest[0] == last[0]
    edit = spelling_distance(_REPEATED.sub(r"\1", rest), _REPEATED.sub(r"\1", last))
    if edit is None or edit[0].isdigit():
        return False
    return not (first and rest[0] != last[0] and len(edit[0]) == len(edit[1]))  # on_remand


def spelling_distance(word: str, other: str) -> tuple[str, str] | None:
    """Return the letters in which *word* and *other* differ: one each, or two in reverse order; None if more differ.

    A letter that one of the words lacks is "" there. Equal words differ in ("", "").
    """
    if abs(len(word) - len(other)) > 1:
        return None
    start = next((i for i, (a, b) in enumerate(zip(word, other, strict=False)) if a != b), min(len(word), len(other)))
    a, b = word[start:], other[start:]
    while a and b and a[-1] == b[-1]:
        a, b = a[:-1], b[:-1]
    if len(a) <= 1 and len(b) <= 1:
        return a, b
    return (a, b) if len(a) == 2 and a == b[::-1] else None


def differ_in_one_letter(name: str, other: str) -> bool:
    """Return whether two names differ only in separators, in one letter, or in the order of two letters.

    Differences that tell things apart are none of these: a digit, a word of one or two letters (``queue_a``), another
    first letter (``csv``, ``tsv``).
    """
    words, others = _words(name), _words(other)
    if name == other:
        return False
    if "".join(words) == "".join(others):
        return True
    unlike = [(a, b) for a, b in zip(words, others, strict=False) if a != b]
    if len(words) != len(others) or len(unlike) != 1:
        return False
    ((a, b),) = unlike
    edit = spelling_distance(a, b)
    return edit is not None and min(len(a), len(b)) > 2 and a[0] == b[0] and not any(map(str.isdigit, "".join(edit)))


def _words(name: str) -> list[str]:
    return [each for each in re.split(r"[\W_]+", name.casefold()) if each]


def closest_names(word: str, names: Iterable[str]) -> str | None:
    """Return the name that is most like *word*, for places where only *names* are accepted; None if none is like it."""
    from difflib import get_close_matches  # not at the top: only what is misspelt needs it

    return next(iter(get_close_matches(word, names, n=1)), None)
