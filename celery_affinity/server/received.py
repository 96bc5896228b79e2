"""Data from the server that anybody who can write there may have written: tested, shown in the log, dropped."""

import logging

import redis

logger = logging.getLogger(__name__)

#: Errors of a lost connection, which are raised however well reading is guarded: Celery makes another connection.
LOST = (redis.ConnectionError, redis.TimeoutError, OSError)

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


def drop(source: str, what: object, why: object) -> None:
    """Log that *what*, from *source*, cannot be read and is dropped, as Celery drops a message that cannot be decoded.

    *what*: None if the data is not known.
    """
    logger.error("A message from %r cannot be read and is dropped: %s. It was: %s", source, why, shown(what))
