"""The metrics of a job of a worker over HTTP: its wait, and its time in the slot, counted at its end."""

from collections import Counter

from redis.exceptions import RedisError

from ..log_limit import limited_logger
from ..rules import metrics
from ..server.arguments import TypeSums
from ..server.scheduler import Scheduler
from .claims import RemoteClaim
from .incarnation import Incarnation

logger = limited_logger(__name__)


def count(scheduler: Scheduler, worker: Incarnation, its: RemoteClaim, state: str) -> None:
    """Count a job that ended with *state*. An error keeps nobody from work: the job is not counted then.

    Two ends of one worker that two processes tell at the same moment may count as one.
    """
    if state not in metrics.RUNS:
        return
    row = its.row
    try:
        now_us = scheduler.reader.now_us()
        took_us = max(0, now_us - row.claimed_us)
        wait, waited_us = metrics.WAITS[row.lane.on_demand], max(0, row.claimed_us - row.enqueued_us)
        grown: Counter[str] = Counter()
        for kind, time_us in ((wait, waited_us), (state, took_us)):
            grown[metrics.field(kind, metrics.bucket_of(time_us))] += 1
            grown[metrics.sum_field(kind)] += metrics.within_us(time_us)
        scheduler.count(worker.id, now_us, [TypeSums(row.type, grown, 1, took_us)])
    except (RedisError, OSError) as exc:
        logger.warning("Job %s is not counted: %s", row.job_id, exc)
