"""The publisher's warning about a type that no live worker serves."""

import threading
from typing import Any

from kombu.log import get_logger

logger = get_logger(__name__)

#: Types remembered, so that a publisher that makes up types does not fill its memory.
_MOST = 10_000

_warned: dict[tuple[object, ...], set[str]] = {}
_lock = threading.Lock()


def warn(type_: str, scheduler: Any) -> None:
    """Log that jobs of *type_* wait for a worker, once in a process for each type and each place that has workers."""
    place = _place(scheduler)
    with _lock:
        known = _warned.setdefault(place, set())
        if type_ in known or sum(map(len, _warned.values())) >= _MOST:
            return
        known.add(type_)
    logger.warning(
        "No live worker serves type %r: its jobs wait until one does (start a worker with -Q %s)", type_, type_
    )


def _place(scheduler: Any) -> tuple[object, ...]:
    """Return what tells the jobs of one app from those of another: a server, a database, a prefix, a namespace."""
    pool, keys = scheduler.client.connection_pool, scheduler.keys
    server = [pool.connection_kwargs.get(name) for name in ("host", "port", "path", "db")]
    return (*server, getattr(pool, "service_name", None), keys.global_keyprefix, keys.namespace)
