"""Numbers that come from outside."""

from typing import TypeGuard


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether *value* is a whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)
