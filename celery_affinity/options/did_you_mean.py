"""Detect misspelt names.

A detected mistake prevents the start of a program, so names that may be intended are accepted: another first letter
(``in_demand``), an additional word (``affinity_group``, ``x_priority``), two wrong letters (``infinity``), a number.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

#: Boundary between words: ``on_demand``, ``on-demand`` and ``onDemand`` have one.
_WORD_BOUNDARY = re.compile(r"[\W_]+|(?<=[a-z])(?=[A-Z])")
#: Words that differ from an option in one letter, and that are no mistakes.
_OTHER_WORDS = ("headline",)
_REPEATED = re.compile(r"(.)\1+")


@lru_cache(maxsize=4096)
def closest_match(word: str, names: tuple[str, ...]) -> str | None:
    """Return the one of *names* (lower case) that *word* misspells, or None.

    Tolerates differences in case, separators, repeated letters, the order of letters, and one letter.
    """
    if word in names or word in _OTHER_WORDS or word.startswith("_"):
        return None
    return next((name for name in names if _is_misspelt(word, name)), None)


def _is_misspelt(word: str, name: str) -> bool:
    words = [part.lower() for part in _WORD_BOUNDARY.split(word) if part]
    *first, last = name.split("_")
    if not words or len(words) > len(first) + 1:
        return False
    if len(words) > 1 and [_REPEATED.sub(r"\1", part) for part in words[:-1]] != first:
        return False  # other words can precede the last one as well: in_demand, no_demand, one_demand
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
    """Return the differing letters of *word* and *other*: one each, or two in reverse order. None if more differ.

    A missing letter is "". Equal words return ("", "").
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
    """Return True if two names differ only in separators, in one letter, or in the order of two letters.

    Intentional differences do not count: a digit, a word of one or two letters (``queue_a``), another first letter
    (``csv``, ``tsv``).
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
    return [word for word in re.split(r"[\W_]+", name.casefold()) if word]


def closest_names(word: str, names: Iterable[str]) -> str | None:
    """Return the most similar name, or None. Use it only where no other names are accepted."""
    from difflib import get_close_matches  # imported here because only misspelt names need it

    return next(iter(get_close_matches(word, names, n=1)), None)


def closest_question(word: str, names: Iterable[str]) -> str:
    """Return the end of an error that asks whether the most similar name was meant, or ""."""
    close = closest_names(word, names)
    return f"; did you mean {close!r}?" if close else ""
