"""For how long a job that has ended is known (``affinity_keep``), and the index of those known for over a minute."""

from ...rules import marks
from ...rules.protocol import ENDED_KEPT_S
from ...rules.score import MICRO
from ..model import Cohort, Job


def keep_s(cohort: Cohort) -> int:
    """Return the seconds for which a job that ends now is known."""
    return max(ENDED_KEPT_S, int(cohort.settings.get("keep_us")) // MICRO)


def remember(cohort: Cohort, job: Job, seconds: int, now_us: int) -> None:
    """Have *job*, which has ended, be known for *seconds*. A batch is not in the index: its calls are."""
    job.keep_s, job.forgotten_us = seconds, now_us + seconds * MICRO
    if seconds > ENDED_KEPT_S and not marks.is_batch(job.id):
        cohort.ended[job.id] = now_us
