"""revoke: jobs that wait end at once; what is published under these names from now on ends, too."""

from collections.abc import Sequence

from celery_affinity.rules.protocol import MOST_MOVES

from ..jobs import ends
from ..model import Cohort
from ..replies import Revoked


def revoke(cohort: Cohort, task_ids: Sequence[str], *, now_us: int, after: int = 0) -> Revoked:
    """End the waiting jobs of these tasks. *after*: what the last reply said."""
    cohort.revoked |= dict.fromkeys(task_ids, now_us)
    ended = looked_at = 0
    for nth, task_id in enumerate(task_ids):
        if looked_at == MOST_MOVES:
            return Revoked(ended, len(task_ids) - nth, 0)
        jobs = cohort.tasks.get(task_id, {})
        passed = after if nth == 0 and len(jobs) > 1 else 0
        page = [job_id for job_id, number in jobs.items() if number > passed][: MOST_MOVES - looked_at]
        looked_at += len(page)
        ended += sum([ends.waiting(cohort, cohort.jobs[each], "revoked", now_us) for each in page])
        if looked_at == MOST_MOVES and len(jobs) > 1:
            return Revoked(ended, len(task_ids) - nth, jobs[page[-1]])
    return Revoked(ended, 0, 0)


def revoke_stamped(cohort: Cohort, stamps: Sequence[str], *, now_us: int) -> Revoked:
    """End the waiting jobs that bear one of these stamps."""
    cohort.revoked_stamps |= dict.fromkeys(stamps, now_us)
    ended = looked_at = 0
    for nth, stamp in enumerate(stamps):
        bearing = sorted((at_us, job_id) for job_id, at_us in cohort.stamped.get(stamp, {}).items())
        for _, job_id in bearing[: MOST_MOVES - looked_at]:
            del cohort.stamped[stamp][job_id]
            looked_at += 1
            ended += ends.waiting(cohort, cohort.jobs[job_id], "revoked", now_us)
        if looked_at == MOST_MOVES:
            return Revoked(ended, len(stamps) - nth, 0)
    return Revoked(ended, 0, 0)
