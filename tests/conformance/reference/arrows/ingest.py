"""ingest: a list of stock Celery -> pending, or scheduled."""

from typing import cast

from celery_affinity.rules import job_fields
from celery_affinity.rules.protocol import IS_KNOWN, IS_NOT_NEXT, IS_UNREADABLE

from ..jobs import come_back
from ..model import Cohort, Job
from ..replies import NONE, Published
from .publish import publish


def ingest(cohort: Cohort, list_: str, job: job_fields.Job, *, readable: bool, now_us: int) -> Published:
    """Move a message as `publish` does; if it is not *readable*, it is a dead letter.

    If it is not the next one in the list, nothing changes. One that says what is refused is not readable.
    """
    waiting = cohort.lists.get(list_, [])
    if waiting[:1] != [job.message]:
        return Published(IS_NOT_NEXT, NONE, True)
    if job.id in cohort.jobs:
        return Published(IS_KNOWN, NONE, True)
    waiting.pop(0)
    if readable:
        (published,) = publish(cohort, [job], now_us=now_us)
        return published
    unreadable = Job(job.id, job.type, False, 0, now_us, "pending", cast("str", job.message))
    cohort.jobs[job.id] = unreadable
    come_back.bury(cohort, unreadable, "unreadable", now_us)
    return Published(IS_UNREADABLE, NONE, True)
