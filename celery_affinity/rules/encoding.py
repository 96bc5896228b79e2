"""Names as Redis has them: types, tenants and nodes in keys and rows; and the word of a type whose workers withdrew."""

import re
from urllib.parse import quote, unquote

#: Names that `quote` leaves as they are: most types, and every task id.
_PLAIN = re.compile(r"[A-Za-z0-9_.~-]*")


def encode(name: str) -> str:
    """Return *name* (a type, a tenant, a node) as it is written in Redis: no blank, colon, brace or comma."""
    return name if _PLAIN.fullmatch(name) else quote(name, safe="")


def decode(name: str) -> str:
    """Return the name that `encode` was given."""
    return unquote(name) if "%" in name else name


#: First character of a type in the profile of workers that have withdrawn from it: such workers serve the type, but
#: take none of its jobs for a moment.
WITHDRAWN = "!"


def withdrawn(type_: str) -> str:
    """Return the word for *type_* (not encoded) in the profile of workers that have withdrawn from the type."""
    return WITHDRAWN + type_


def marked(type_: str) -> str:
    """Return the word of `withdrawn`, encoded, for *type_*, which is encoded already."""
    return encode(WITHDRAWN) + type_


def unmarked(type_: str) -> str:
    """Return the type that *type_*, an encoded word of a profile, stands for, whether the workers withdrew or not."""
    return type_.removeprefix(encode(WITHDRAWN))
