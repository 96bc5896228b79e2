"""The names that a type can have. A type is a Celery queue, which a worker serves if ``-Q`` can name it."""

import unicodedata
from collections.abc import Collection, Iterable

from .did_you_mean import differ_in_one_letter

#: Number of characters of the longest name of a type: the name is a part of Redis keys.
MAX_LENGTH = 255

ACCEPTED = (
    "the name of a queue that -Q can give: a str without commas, control characters and blanks at its ends, "
    f"of {MAX_LENGTH} characters at most"
)

#: Categories of characters that nobody sees, and that -Q can hardly give: control, format, lone surrogates, ends of
#: lines and paragraphs. Two characters among them join letters, in Persian and in emoji.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"


def is_type_name(name: object) -> bool:
    """Return whether *name* can be the name of a type. ``-Q`` separates queues by commas, and keeps every blank."""
    return (
        isinstance(name, str)
        and 0 < len(name) <= MAX_LENGTH
        and "," not in name
        and name == name.strip(" " + _JOINERS).strip()
        and ((name.isascii() and name.isprintable()) or not any(map(_is_unseen, name)))
    )


def _is_unseen(character: str) -> bool:
    return character not in _JOINERS and unicodedata.category(character) in _UNSEEN


def similar_types(name: str, others: Iterable[str]) -> str | None:
    """Return the one of *others* that differs from *name* in case or blanks alone, the first in order; None if none."""
    return min((other for other in others if other != name and _folded(other) == _folded(name)), default=None)


def misspelt_type(name: str, others: Iterable[str]) -> str | None:
    """Return the one of *others* that differs from *name* in case, blanks or one letter; None if none does."""
    known = sorted(others)
    return similar_types(name, known) or next((other for other in known if differ_in_one_letter(name, other)), None)


def did_you_mean(name: str, others: Collection[str]) -> str:
    """Return a question that ends a message, if one of *others* is close to *name*; "" if none is."""
    from difflib import get_close_matches  # not at the top: only what is misspelt needs it

    close = misspelt_type(name, others) or next(iter(get_close_matches(name, others, n=1, cutoff=0.8)), None)
    return "" if close is None else f"; did you mean {close!r}?"


def _folded(name: str) -> str:
    return "".join(name.split()).casefold()
