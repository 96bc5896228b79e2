"""Start and end of a job of a worker over HTTP: once each, in whatever process, however often they are asked for.

An end has three steps: callers are told (`telling`), Redis notes that they were, and the slot is free. A request that
is repeated goes on where the last one stopped. All of this runs foreign code, and may hang.
"""

from dataclasses import dataclass

from celery import Celery, states

from ..callers.chord_parts import ChordIsClaimedError
from ..callers.failure import words
from ..callers.sharing import DOWN
from ..log_limit import limited_logger
from ..rules.ahead import NOTHING
from ..rules.protocol import PREEMPTED
from ..server.arguments import End
from ..server.scheduler import Scheduler
from . import counting
from .claims import RemoteClaim, StaleClaimError, all_of, claim_of, revoked, stale
from .handing_out import ONCE
from .incarnation import Incarnation, find, unknown
from .outcome import Note, Outcome
from .telling import tell, tell_unrun

logger = limited_logger(__name__)


class NotAcceptedError(Exception):
    """The end is not one that this job can have, or not here."""


class UnderWayError(Exception):
    """Another request that reports this end of the job is still being handled."""


@dataclass(frozen=True)
class Started:
    """A job that has started."""

    id: str
    fence: int


@dataclass(frozen=True)
class Ended:
    """A job whose end was told. *state*: "done", "failed" or "revoked"; "pending": it runs again; "dead": see below.

    A job is a dead letter, which says why, if Celery's code raised an error when it told the end.
    """

    id: str
    fence: int
    state: str


def start(scheduler: Scheduler, app: Celery, job_id: str, fence: int, secret: str) -> Started:
    """Say that a job starts now. Raises StaleClaimError: it is another's, or has ended, or ends now.

    A task that acks early is acked here: its job does not run again if the worker dies.
    """
    its, worker = _holder(scheduler, app, job_id, fence, secret)
    how = None if its.row.started_us is not None else _ended_meanwhile(scheduler, its)
    if how is not None:
        tell_unrun(scheduler, app, worker.name, its, how)
        _release(scheduler, worker, job_id, fence, how)
        raise StaleClaimError(f"job {job_id} is {how}: it does not start")
    task = app.tasks[its.row.task]
    claims = all_of(scheduler, worker.id, starting=job_id)
    synced = scheduler.sync(worker.id, claims, slots=worker.slots, other=0, draining=False)
    if not synced.known:
        raise unknown(worker.id)
    if job_id in synced.void or not (task.acks_late or _acks(scheduler, worker, its)):
        raise stale(job_id, fence)
    if task.track_started and not task.ignore_result:
        task.backend.store_result(its.row.task_id, {"hostname": worker.name}, states.STARTED)
    return Started(job_id, fence)


#: Claims whose ends threads of this process tell.
_under_way: set[tuple[str, int]] = set()


def end(scheduler: Scheduler, app: Celery, job_id: str, fence: int, secret: str, outcome: Outcome) -> Ended:
    """End a job. Raises StaleClaimError, NotAcceptedError, WrongSecretError, UnknownWorkerError.

    Raises UnderWayError, ChordIsClaimedError, or what the broker or a result backend raises, if the request is to be
    repeated later.
    """
    claim = (job_id, fence)
    if claim in _under_way:  # its backend hangs: requests that are repeated meanwhile would take all threads
        raise UnderWayError(f"the end of job {job_id} is being told: send the request again later")
    _under_way.add(claim)
    try:
        return _end(scheduler, app, job_id, fence, secret, outcome)
    finally:
        _under_way.discard(claim)


def _end(scheduler: Scheduler, app: Celery, job_id: str, fence: int, secret: str, outcome: Outcome) -> Ended:
    before = Note.read(scheduler, job_id, fence)
    if before is not None:
        before.check(outcome)
    if before is not None and before.state:
        worker = find(scheduler, before.worker)
        worker.check(secret)
        _release(scheduler, worker, job_id, fence, before.said)  # the last request may not have come so far
        return Ended(job_id, fence, before.state)
    its, worker = _holder(scheduler, app, job_id, fence, secret)
    _check_may_run_again(its, outcome)
    Note(job_id, worker.id, outcome.digest).begin(scheduler, fence)
    if not scheduler.heartbeat(worker.id, loop_runs=True):  # telling may take long
        raise unknown(worker.id)
    state, said = outcome.state_after, outcome.in_words
    if outcome.state == PREEMPTED:
        said += f" {max(0, scheduler.reader.now_us() - its.row.claimed_us)}"
    try:
        if not outcome.runs_again:
            tell(scheduler, app, worker.name, its, outcome, is_repeated=before is not None)
    except (ChordIsClaimedError, *DOWN):
        raise
    except Exception as exc:  # of a signal, a link, a serializer: the next try would fail as this one
        logger.exception("The end of job %s cannot be told: it becomes a dead letter", job_id)
        state, said = "dead", f"rejected {words(exc)}"
    Note(job_id, worker.id, outcome.digest, state, said).write(scheduler, fence)
    _release(scheduler, worker, job_id, fence, said)
    counting.count(scheduler, worker, its, state)
    return Ended(job_id, fence, state)


def _holder(scheduler: Scheduler, app: Celery, job_id: str, fence: int, secret: str) -> tuple[RemoteClaim, Incarnation]:
    """Return the claim, and the worker that holds it. Raises what `end` does."""
    its = claim_of(scheduler.reader, job_id, fence)
    worker = find(scheduler, its.row.worker)
    worker.check(secret)
    if its.row.task not in app.tasks:
        raise NotAcceptedError(f"the app of this web process lacks task {its.row.task}: another process may have it")
    return its, worker


def _ended_meanwhile(scheduler: Scheduler, its: RemoteClaim) -> str | None:
    if its.expires_us is not None and its.expires_us <= scheduler.reader.now_us():
        return "expired"
    return "revoked" if revoked(scheduler.reader, [its]) else None


def _acks(scheduler: Scheduler, worker: Incarnation, its: RemoteClaim) -> bool:
    """Ack a job. Return whether it is the worker's."""
    acked: list[int] = []
    scheduler.tell_ends(
        worker.id, acks=[its.number], ends=(), sequence=ONCE, inline=False, may_hold=NOTHING, on_acked=acked.append
    )
    return acked == [1]


def _check_may_run_again(its: RemoteClaim, outcome: Outcome) -> None:
    if outcome.runs_again and its.row.acked:
        field = "requeue must be false" if outcome.requeue else "state must be done, failed or revoked"
        raise NotAcceptedError(
            f"{field} for a job of task {its.row.task}, whose start acked it (acks_late is off): it does not run again"
        )


def _release(scheduler: Scheduler, worker: Incarnation, job_id: str, fence: int, said: str) -> None:
    """End a claim. A claim that has ended stays so."""
    ends = [End(job_id, str(fence), said)]
    scheduler.tell_ends(worker.id, acks=(), ends=ends, sequence=ONCE, inline=False, may_hold=NOTHING)
