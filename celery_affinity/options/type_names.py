"""Valid names of types. A type is a Celery queue, which a worker serves if ``-Q`` can name it."""

import unicodedata
from collections.abc import Collection, Iterable

from .did_you_mean import differ_in_one_letter

#: Maximum length of a type's name, which is part of Redis keys.
MAX_LENGTH = 255

ACCEPTED = (
    "the name of a queue that -Q can give: a str without commas, control characters and blanks at its ends, "
    f"of {MAX_LENGTH} characters at most"
)

#: Categories of invisible characters, which users can hardly pass to -Q: control, format, lone surrogates, line and
#: paragraph separators. Exceptions are two characters that join letters, in Persian and in emoji.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"


def is_type_name(name: object) -> bool:
    """Return True if *name* is a valid type. ``-Q`` separates queues by commas and keeps all spaces."""
    return (
        isinstance(name, str)
        and 0 < len(name) <= MAX_LENGTH
        and "," not in name
        and name == name.strip(" " + _JOINERS).strip()
        and (
            (name.isascii() and name.isprintable())
            or not any(c not in _JOINERS and unicodedata.category(c) in _UNSEEN for c in name)
        )
    )


def similar_types(name: str, others: Iterable[str]) -> str | None:
    """Return the first of *others* that differs from *name* only in case or spaces, or None."""
    return min((other for other in others if other != name and _folded(other) == _folded(name)), default=None)


def misspelt_type(name: str, others: Iterable[str]) -> str | None:
    """Return one of *others* that differs from *name* only in case, spaces or one letter, or None."""
    names = sorted(others)
    return similar_types(name, names) or next((other for other in names if differ_in_one_letter(name, other)), None)


def did_you_mean(name: str, others: Collection[str]) -> str:
    """Return a question to append to a message if one of *others* resembles *name*; otherwise an empty string."""
    from difflib import get_close_matches  # imported here because only misspelt names need it

    close = misspelt_type(name, others) or next(iter(get_close_matches(name, others, n=1, cutoff=0.8)), None)
    return "" if close is None else f"; did you mean {close!r}?"


def _folded(name: str) -> str:
    return "".join(name.split()).casefold()
