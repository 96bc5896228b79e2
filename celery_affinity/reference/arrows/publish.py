"""publish: client -> pending, or scheduled if its time is still to come."""

from collections.abc import Sequence

from ...rules.protocol import IS_PENDING, IS_REFUSED
from ..jobs import enter
from ..model import Cohort, NewJob
from ..placing.fill import fill
from ..replies import NONE, Published


def publish(cohort: Cohort, jobs: Sequence[NewJob | str], *, now_us: int) -> list[Published]:
    """Add *jobs*. A known id changes nothing. The first reply says `more`.

    They stay in order: each is enqueued 1 µs after the one before. In the place of a job stands the name of its field
    for which it is refused (`job_fields.bad`), if there is one.
    """
    waiting = {job.type for job in cohort.jobs.values() if job.state == "pending"}
    published, types = [], set()
    for nth, job in enumerate(jobs):
        if isinstance(job, str):
            published.append(Published(IS_REFUSED, NONE, True, job))
            continue
        reply = enter.put(cohort, job, now_us + nth, now_us)
        published.append(reply)
        if reply.state == IS_PENDING and reply.served:
            types.add(job.type)
    more = fill(cohort, types - waiting, now_us)  # if some wait, no free slot fits, or somebody goes on with them
    return [published[0]._replace(more=more), *published[1:]]
