"""The broker, as the pool's process asks it in the middle of a run of merged calls: which connection, how patiently."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from celery.app.task import Task

from ..callers.caller_events import collected
from ..callers.sharing import DOWN
from ..callers.teller import Teller
from ..log_limit import limited_logger
from ..rules.cohorts import DEFAULT
from ..rules.redis_keys import COHORT
from ..server.scheduler import Scheduler
from ..transport.channel import AffinityChannel
from .started_request import NotBegunError

logger = limited_logger(__name__)

_T = TypeVar("_T")

#: What a policy of retries says of connecting; a user's may say more, of publishing.
_PAUSES = ("max_retries", "interval_start", "interval_step", "interval_max")

#: Longest waits, s, for a broker that is down: of a run that can be given back, and of one that was acked, which would
#: fail for all callers. The pause between two tries.
_PATIENCE_S, _PATIENCE_AFTER_ACK_S, _PAUSE_S = 60.0, 600.0, 0.5


def once_it_answers(task: Task, ask: Callable[[], _T], what: str) -> _T:
    """Return what *ask* returns. Waits while the broker is down: the batch stays claimed. *what*: what fails then."""
    deadline_s = time.monotonic() + (_PATIENCE_S if task.acks_late else _PATIENCE_AFTER_ACK_S)
    is_said = False
    while True:
        try:
            return ask()
        except DOWN as exc:
            if not is_said:
                logger.warning("%s, because the broker does not answer; retrying: %s", what % task.request.id, exc)
                is_said = True
            if time.monotonic() >= deadline_s:
                if task.acks_late:
                    raise NotBegunError(f"{what % task.request.id}: {exc}") from exc
                raise
        time.sleep(_PAUSE_S)


@contextmanager
def broker(task: Task) -> Iterator[tuple[Scheduler, Teller]]:
    """Yield a scheduler on a connection of the app's pool, by which its tasks publish, and a teller.

    The connection goes back to the pool first. What follows from a call is published on another connection of the
    pool, and a thread that held one connection while it waited for another could wait for ever.
    """
    app = task.app
    with app.producer_or_acquire() as producer:
        policy = app.conf.task_publish_retry_policy
        producer.connection.ensure_connection(**{name: policy[name] for name in _PAUSES if name in policy})
        scheduler = _scheduler_of(task, producer.channel)
    with collected(app, task.request) as events:
        yield scheduler, Teller(app, task.request.hostname or "", lambda: events)


def _scheduler_of(task: Task, channel: AffinityChannel) -> Scheduler:
    """Return the scheduler of the cohort that has the batch."""
    cohort = (task.request.properties or {}).get(COHORT, DEFAULT)
    routes = channel.routes
    return channel.scheduler if routes is None or cohort == DEFAULT else routes.channel_of(cohort).scheduler
