"""Libraries of other versions that nobody calls any more: a server keeps each library until somebody deletes it.

A library itself knows when it was called last. So a library that processes of any namespace still call stays.
"""

import time

import redis

from ..log_limit import limited_logger
from .scheduler import Scheduler

logger = limited_logger(__name__)

#: Time, s, without a call after which a library is deleted.
IDLE_S = 86_400

#: Pause, s, between two looks.
_EVERY_S = 3_600.0

#: What begins the names of all versions' libraries.
_OURS = "affinity_"


class OldLibraries:
    """Looks for old libraries, once an hour at most."""

    def __init__(self) -> None:
        self._at_s = time.monotonic()

    def delete(self, scheduler: Scheduler) -> None:
        """Delete libraries that nobody has called for `IDLE_S`, if an hour has passed. Raises errors of connections."""
        if time.monotonic() >= self._at_s:
            self._at_s = time.monotonic() + _EVERY_S
            for name in delete_idle(scheduler):
                logger.info("The library %s of another version was deleted: nobody has called it for a day", name)


def delete_idle(scheduler: Scheduler, idle_s: float = IDLE_S) -> list[str]:
    """Delete all libraries but *scheduler*'s that were not called for *idle_s*. Return their names."""
    deleted = []
    try:
        for name in _names(scheduler):
            if name != scheduler.library.name and _idle_s(scheduler, name) >= idle_s:
                scheduler.client.execute_command("FUNCTION", "DELETE", name)
                deleted.append(name)
    except redis.ResponseError as exc:  # the user has no right, or the server has no functions
        logger.debug("Libraries of other versions are left as they are: %s", exc)
    return deleted


def _names(scheduler: Scheduler) -> list[str]:
    found = scheduler.client.execute_command("FUNCTION", "LIST", "LIBRARYNAME", f"{_OURS}*")
    rows = (each if isinstance(each, dict) else dict(zip(each[::2], each[1::2], strict=True)) for each in found)
    return [row[b"library_name"].decode() for row in rows]


def _idle_s(scheduler: Scheduler, name: str) -> float:
    """Return for how long nobody has called the library; -1 if it does not say, as one that somebody else named so."""
    try:
        return float(scheduler.client.execute_command("FCALL", f"{name}_idle", 0))
    except (redis.ResponseError, TypeError, ValueError):
        return -1.0
