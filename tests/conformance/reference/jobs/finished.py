"""A job that its worker ended: only what is known of it is kept, and for a while."""

from ..keyed import keyed
from ..merging import callers
from ..model import Cohort, Job, State
from ..types import type_rules
from . import find_by, memory


def on_worker(cohort: Cohort, job: Job, state: State, why: str, now_us: int) -> None:
    """Record how a claimed job ended: a repeated publish changes nothing until a server forgets the job."""
    assert job.worker is not None
    keep_s = cohort.workers[job.worker].keep_s
    del cohort.workers[job.worker].claims[job.id]
    type_rules.free(cohort, job)
    keyed.free(cohort, job, now_us)
    find_by.remove(cohort, job, keeps_last=True)
    callers.close(cohort, job)
    job.state, job.why, job.ended_us, job.message = state, why, now_us, None
    memory.remember(cohort, job, keep_s, now_us)
