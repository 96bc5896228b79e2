"""Fields of Redis as texts and numbers, whoever wrote them: one row that is spoiled is no reason to show none."""

#: The largest number that Redis counts to.
LARGEST = 2**63 - 1


def text_of(value: bytes | None) -> str:
    """Return the text of a field; "" for a missing field, and a mark for each byte that belongs to no text."""
    return "" if value is None else value.decode(errors="replace")


def number_of(value: bytes | str | float | None, otherwise: int = 0) -> int:
    """Return the whole number in a field; *otherwise* if it has none, or one beyond `LARGEST`."""
    try:
        number = otherwise if value is None else int(value)
    except (ValueError, OverflowError):
        return otherwise
    return number if abs(number) <= LARGEST else otherwise
