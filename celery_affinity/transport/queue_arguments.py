"""Warn about queue arguments that make a broker drop jobs. They have no effect on scheduled queues."""

from collections.abc import Mapping

from celery import Celery

from ..client.of_app import settings_of
from ..log_limit import limited_logger

logger = limited_logger(__name__)

#: Queue argument -> replacement. kombu's Redis transport implements only x-expires.
INSTEAD = {
    "x-expires": "expires= of a task or of a call",
    "x-message-ttl": "expires= of a task or of a call",
    "x-max-length": "affinity_max_pending",
    "x-max-length-bytes": "affinity_max_pending",
}

#: Maximum number of warnings per process. Otherwise `_warned` would grow in a program that generates queue names.
_MOST = 10_000

_warned: set[tuple[str, str]] = set()


def warn(app: Celery, queue: str, arguments: Mapping[str, object]) -> None:
    """If *app* schedules *queue*, log each argument listed in INSTEAD once per process.

    Queues for events and replies contain no jobs. They are handled by kombu and keep their arguments.
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
