"""Which names a type can have. A type is a Celery queue, and a worker serves it if ``-Q`` can name it."""

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
