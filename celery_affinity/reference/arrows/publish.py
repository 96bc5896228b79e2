"""publish: client -> pending, or scheduled if its time is still to come."""

from collections.abc import Sequence

from ...rules.job_fields import Job
from ...rules.protocol import IS_PENDING, IS_REFUSED
from ..jobs import enter, keyed
from ..model import Cohort
from ..placing import reserves
from ..placing.fill import fill
from ..replies import NONE, Published


def publish(cohort: Cohort, jobs: Sequence[Job | str], *, now_us: int) -> list[Published]:
    """Add *jobs*. A known id changes nothing. The first reply says `more`.

    They stay in order: each is enqueued 1 µs after the one before. In the place of a job stands the name of its field
    for which it is refused (`job_fields.bad`), if there is one.
    """
    published, types, fresh = [], set(), set()
    for nth, job in enumerate(jobs):
        if isinstance(job, str):
            published.append(Published(IS_REFUSED, NONE, True, job))
            continue
        others_wait = bool(keyed.standing(cohort, {job.type}))
        reply = enter.put(cohort, job, now_us + nth, now_us)
        published.append(reply)
        if reply.state == IS_PENDING:
            fresh.add(job.id)
        if reply.state == IS_PENDING and reply.served and (not others_wait or reserves.in_force(cohort)):
            types.add(job.type)  # else no free slot fits, or somebody goes on with them
    more = fill(cohort, types, now_us, only=fresh)
    return [published[0]._replace(more=more), *published[1:]]
