"""What comes from the server, and may be anybody's who can write there: told from what Redis can have, and shown."""

import logging

import redis

logger = logging.getLogger(__name__)

#: Errors that are raised, however well reading is guarded: the connection is lost, and Celery makes another.
LOST = (redis.ConnectionError, redis.TimeoutError, OSError)

#: Characters that are logged of what cannot be read.
_SHOWN = 4096


def is_text(text: str) -> bool:
    """Return whether Redis can have *text*: JSON has some that is none, halves of pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(what: object) -> str:
    """Return the part of *what*, which cannot be read, that is logged: plain ASCII."""
    text = ascii(what[:_SHOWN] if isinstance(what, (bytes, str)) else what)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def drop(source: str, what: object, why: object) -> None:
    """Log that *what*, which came from *source*, cannot be read: Celery drops a message that it cannot decode, too.

    *what*: None if it is not known.
    """
    logger.error("What came from %r cannot be read, it is dropped: %s. It was: %s", source, why, shown(what))
