"""Data from the server that anybody who can write there may have written: shown in the log, dropped."""

import redis

from ..log_limit import limited_logger
from ..rules.unreadable import shown

logger = limited_logger(__name__)

#: Errors of a lost connection, which are raised however well reading is guarded: Celery makes another connection.
LOST = (redis.ConnectionError, redis.TimeoutError, OSError)


def drop(source: str, what: object, why: object) -> None:
    """Log that *what*, from *source*, cannot be read and is dropped, as Celery drops a message that cannot be decoded.

    *what*: None if the data is not known.
    """
    logger.error("A message from %r cannot be read and is dropped: %s. It was: %s", source, why, shown(what))
