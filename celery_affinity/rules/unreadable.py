"""Texts that may hold anything: whether Redis can hold one, and how the log shows one."""

#: Largest number of characters that are logged of unreadable data.
_SHOWN = 4096


def is_text(text: str) -> bool:
    """Return whether Redis can hold *text*: JSON may hold halves of surrogate pairs, which have no form in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(what: object) -> str:
    """Return the beginning of *what*, which is unreadable data, in plain ASCII for the log."""
    text = ascii(what[:_SHOWN] if isinstance(what, (bytes, str)) else what)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
