"""fire: a recurring call that is due -> pending, or scheduled. Publishes its job, and sets the next time."""

from celery_affinity.rules.job_fields import Job
from celery_affinity.rules.protocol import IS_KNOWN, IS_REFUSED

from ..model import Cohort
from ..recurring import recurring
from ..replies import Published
from .publish import publish


def fire(cohort: Cohort, name: str, due: str, job: Job | str, *, now_us: int) -> Published | None:
    """Publish *job*, as `publish` does, if the call is due at *due* still; "": whenever it is due. None: it is not."""
    entry = cohort.recurring.get(name)
    if entry is None or (due and (due != str(entry.due_us) or entry.handed_out_us is None)):
        return None
    if due and entry.due_us > now_us:
        return None
    (published,) = publish(cohort, [job], now_us=now_us, recurring=name)
    if published.state == IS_REFUSED:
        return published
    recurring.set_due(entry, now_us + entry.call.stale_after_us)
    if published.state != IS_KNOWN:
        assert isinstance(job, Job), "else it is refused"
        entry.made = job.id
        cohort.counters["recurring_fired"] += 1
    return published
