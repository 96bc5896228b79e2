"""The priority of a worker, by which it gets jobs before or after equally specialised ones (`placement`)."""

from .numbers import is_whole

#: Largest priority; the smallest is as far below 0.
LARGEST = 1_000

ACCEPTED = f"a whole number from {-LARGEST} to {LARGEST}"


def check(value: object) -> str | None:
    """Return None if *value* is accepted as a priority; else what is accepted, in words."""
    return None if is_whole(value) and abs(value) <= LARGEST else ACCEPTED
