"""Arguments of a queue by which a broker would drop jobs. Jobs of a scheduled queue are kept, and a warning says so."""

from collections.abc import Mapping

from celery import Celery

from ..client.of_app import settings_of
from ..log_limit import limited_logger

logger = limited_logger(__name__)

#: Argument -> what to use instead. kombu's Redis transport honours x-expires alone.
INSTEAD = {
    "x-expires": "expires= of a task or of a call",
    "x-message-ttl": "expires= of a task or of a call",
    "x-max-length": "affinity_max_pending",
    "x-max-length-bytes": "affinity_max_pending",
}

#: Maximum number of queues that are remembered: a program that makes up queue names must not fill its memory.
_MOST = 10_000

_warned: set[tuple[str, str]] = set()


def warn(app: Celery, queue: str, arguments: Mapping[str, object]) -> None:
    """Log each of *arguments* that is in INSTEAD, once in a process, if *queue* is a scheduled queue of *app*.

    Other queues, such as those of events and of replies, hold no jobs: kombu alone treats them.
    """
    for name in INSTEAD.keys() & arguments.keys():
        if (queue, name) in _warned or len(_warned) >= _MOST:
            continue
        if queue in app.amqp.queues and settings_of(app).schedules(queue):
            _warned.add((queue, name))
            logger.warning(
                "Queue %r is declared with %s=%r, which has no effect: its jobs are kept. Use %s instead",
                queue,
                name,
                arguments[name],
                INSTEAD[name],
            )
