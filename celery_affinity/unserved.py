"""The publisher's warning about a type that no live worker serves."""

import threading

from kombu.log import get_logger

logger = get_logger(__name__)

#: Types remembered, so that a publisher that makes up types does not fill its memory.
_MOST = 10_000

_warned: set[str] = set()
_lock = threading.Lock()


def warn(type_: str) -> None:
    """Log that jobs of *type_* wait for a worker, once for each type in a process."""
    with _lock:
        if type_ in _warned or len(_warned) >= _MOST:
            return
        _warned.add(type_)
    logger.warning(
        "No live worker serves type %r: its jobs wait until one does (start a worker with -Q %s)", type_, type_
    )
