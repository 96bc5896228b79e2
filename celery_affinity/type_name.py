"""Which names a type can have. A type is a Celery queue, and a worker serves it if ``-Q`` can name it."""

import difflib
from collections.abc import Collection, Iterable

#: Longest name of a type, in characters: the name is a part of Redis keys.
MAX_LENGTH = 255

ACCEPTED = (
    "the name of a queue that -Q can give: a str without commas, which begins and ends with no blank, of "
    f"{MAX_LENGTH} characters at most"
)


def is_type(name: object) -> bool:
    """Return whether *name* can be the name of a type. ``-Q`` separates queues by commas, and keeps every blank."""
    return (
        isinstance(name, str)
        and 0 < len(name) <= MAX_LENGTH
        and "," not in name
        and name == name.strip()
        and _is_utf8(name)
    )


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


def alike(name: str, others: Iterable[str]) -> str | None:
    """Return the one of *others* that differs from *name* in case or blanks alone, the first in order; None if none."""
    return min((other for other in others if other != name and _folded(other) == _folded(name)), default=None)


def did_you_mean(name: str, others: Collection[str]) -> str:
    """Return a question that ends a message, if one of *others* is close to *name*; "" if none is."""
    close = alike(name, others) or next(iter(difflib.get_close_matches(name, others, n=1, cutoff=0.8)), None)
    return "" if close is None else f"; did you mean {close!r}?"


def _folded(name: str) -> str:
    return "".join(name.split()).casefold()
