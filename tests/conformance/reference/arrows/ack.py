"""ack: the message is settled, and the job will not run again. Its slot stays taken until the release."""

from collections.abc import Iterable

from ..jobs import claims
from ..model import Cohort


def ack(cohort: Cohort, worker_id: str, acks: Iterable[tuple[str, int]]) -> int:
    """Settle messages (job id, fencing number). Return how many the worker held."""
    held = [job for job_id, fence in acks if (job := claims.held(cohort, worker_id, job_id, fence))]
    for job in held:
        job.acked = True
    return len(held)
