"""The publisher's warning about a type that no live worker serves."""

import threading
from contextlib import suppress
from weakref import WeakKeyDictionary

import redis

from ..log_limit import limited_logger
from ..rules.encoding import decode, unmarked
from ..rules.rows import number_of
from ..rules.type_name import did_you_mean
from ..server.reader import as_text
from ..server.scheduler import Scheduler

logger = limited_logger(__name__)

#: Largest number of types that are remembered, so that a publisher that makes up types does not fill its memory.
_MOST = 10_000

#: Largest number of commands that search for a served type with a similar name, and number of types that each of them
#: reads.
_PAGES = 10
_TYPES = 100

_warned: dict[tuple[object, ...], set[str]] = {}
#: The type in the last call of `warn`, by scheduler: the decision whether to log that type is made.
_last: "WeakKeyDictionary[Scheduler, str]" = WeakKeyDictionary()
_lock = threading.Lock()


def warn(type_: str, scheduler: Scheduler) -> None:
    """Log that jobs of *type_* wait for a worker, once in a process for each type and each place that has workers."""
    if _last.get(scheduler) == type_:
        return  # the next job is most often of the same type
    _last[scheduler] = type_
    place = _place(scheduler)
    with _lock:
        known = _warned.setdefault(place, set())
        if type_ in known or sum(map(len, _warned.values())) >= _MOST:
            return
        known.add(type_)
    logger.warning(
        "No live worker serves type %r: its jobs wait until one does (start a worker with -Q %s)%s",
        type_,
        type_,
        did_you_mean(type_, _served(scheduler)),
    )


def _served(scheduler: Scheduler) -> set[str]:
    """Return types that live workers serve, as many as a few commands find; none if the server forbids the commands."""
    found: dict[str, str] = {}
    with suppress(redis.RedisError, OSError):
        cursor = 0
        for _ in range(_PAGES):
            cursor, some = scheduler.client.hscan(scheduler.keys.key("capacity"), cursor, count=_TYPES)
            found.update(as_text(some))
            if cursor == 0:
                break
    return {decode(unmarked(type_)) for type_, slots in found.items() if number_of(slots) > 0}


def _place(scheduler: Scheduler) -> tuple[object, ...]:
    """Return the place of a scheduler's jobs: server, database, prefix, namespace and cohort."""
    pool, keys = scheduler.client.connection_pool, scheduler.keys
    server = [pool.connection_kwargs.get(name) for name in ("host", "port", "path", "db")]
    return (*server, getattr(pool, "service_name", None), keys.global_keyprefix, keys.namespace, keys.cohort)
