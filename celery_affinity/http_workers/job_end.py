"""An end as a worker tells it, and the note of it in Redis, by which a repeated request gets the same reply.

Callers are told by Celery's own code how a job of a worker over HTTP ended: result, links, chain, chord, errbacks.

All of this is foreign code, and may hang.

The metrics of a job of a worker over HTTP: its wait, and its time in the slot, counted at its end.

Start and end of a job of a worker over HTTP: once each, in whatever process, however often they are asked for.

An end has three steps: callers are told (`telling`), Redis notes that they were, and the slot is free. A request that
is repeated goes on where the last one stopped. All of this runs foreign code, and may hang.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass

from celery import Celery, signals, states
from celery.utils.serialization import create_exception_cls
from redis.exceptions import RedisError

from ..leases.held_claim import REQUEUED
from ..log_limit import limited_logger
from ..policy.slot_math import NOTHING
from ..publishing.app_config import settings_of
from ..publishing.publish_call import publishes_follow_ups
from ..results import chords
from ..results.chords import ChordIsClaimedError
from ..results.merged import (
    DOWN,
    BatchRun,
    StoredFailure,
    StoredSuccess,
    deliver_merged_result,
    is_revoked,
    report_to_caller,
    stored_end_of_call,
)
from ..results.reporter import ResultReporter, describe_error
from ..scheduler.messages import BatchCall, EndArguments, TypeMetricsDelta, UnreportedEnd
from ..scheduler.scheduler import Scheduler
from ..schema import histograms
from ..schema.constants import PREEMPTED
from ..schema.job_record import is_batch
from ..schema.values import decode_text
from .handout import ONCE
from .worker import (
    HttpWorker,
    RemoteClaim,
    StaleClaimError,
    all_claims,
    claim_of_job,
    find_worker,
    is_stale,
    revoke_control,
    unknown_worker_error,
)

#: Time, s, for which an end is known that may be repeated.
_KEPT_S = 3600

#: What a worker says of an end -> the state of the job after it.
STATES = {"done": "done", "failed": "failed", "revoked": "revoked", "returned": "pending", PREEMPTED: "pending"}


@dataclass(frozen=True)
class ReportedError:
    """An exception, in words."""

    type: str
    message: str
    traceback: str | None = None

    @property
    def exception(self) -> Exception:
        kind: type[Exception] = create_exception_cls(self.type, "remote")
        return kind(self.message)


@dataclass(frozen=True)
class Outcome:
    """An end. *state*: one of `STATES`. *requeue*: a failure of which no caller hears: the job runs again.

    A failure that is requeued counts as a requeue, and a pause comes before the next run. A job that is returned, since
    it was not begun, counts none; nor does one that was stopped because the server asked for that.
    """

    state: str
    result: object = None
    error: ReportedError | None = None
    requeue: bool = False

    @property
    def runs_again(self) -> bool:
        return self.requeue or self.state in ("returned", PREEMPTED)

    @property
    def state_after(self) -> str:
        return "pending" if self.runs_again else STATES[self.state]

    @property
    def in_words(self) -> str:
        """The outcome as the release takes it."""
        how = {"done": "acked", "failed": REQUEUED if self.requeue else "failed"}.get(self.state, self.state)
        return f"{how} {describe_error(self.error.exception)}" if self.error else how

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class OutcomeNote:
    """What Redis has of an end. *state*: of the job after it; "" while callers are told. *said*: for the release."""

    job_id: str
    worker: str
    digest: str
    state: str = ""
    said: str = ""

    @classmethod
    def read(cls, scheduler: Scheduler, job_id: str, fence: int) -> "OutcomeNote | None":
        found = scheduler.client.get(_key(scheduler, fence))
        note = None if found is None else cls(**json.loads(decode_text(found)))
        return note if note is not None and note.job_id == job_id else None

    def begin(self, scheduler: Scheduler, fence: int) -> None:
        """Note that callers are about to be told."""
        scheduler.client.set(_key(scheduler, fence), json.dumps(asdict(self)), ex=_KEPT_S, nx=True)

    def write(self, scheduler: Scheduler, fence: int) -> None:
        """Note that callers were told."""
        scheduler.client.set(_key(scheduler, fence), json.dumps(asdict(self)), ex=_KEPT_S)

    def check(self, outcome: Outcome) -> None:
        """Raise StaleClaimError for another end than this one."""
        if self.digest != outcome.digest:
            raise StaleClaimError(f"another end of job {self.job_id} was told before: an end is repeated as it was")


def _key(scheduler: Scheduler, fence: int) -> str:
    return scheduler.keys.key("remote_end", str(fence))


@publishes_follow_ups
def report_end(
    scheduler: Scheduler, app: Celery, hostname: str, its: RemoteClaim, outcome: Outcome, *, is_repeated: bool
) -> None:
    """Tell the callers of a job how it ended. *is_repeated*: some may know it; who has an end keeps it.

    Raises what Celery's code, a backend or the broker raises; ChordIsClaimedError if this is to be repeated later.
    """
    chords.install_chord_parts()
    if outcome.state == "revoked":
        report_unrun_job(scheduler, app, hostname, its, "revoked")
        return
    row = its.row
    teller = ResultReporter(app, hostname, lambda: None)
    batch = BatchRun(row.job_id, row.task, row.fence, row.task_id)
    has_run = row.deliveries > 0 or row.requeues > 0  # elsewhere: who ran it may have told some of this
    caller = BatchCall(its.primary or row.job_id, row.task_id, row.enqueued_us, its.message(scheduler.reader))
    end = _end_of(outcome)
    if has_run:
        _check_chord(teller, row.task, caller)
    known = stored_end_of_call(app, row.task, row.task_id) if is_repeated else None
    if not is_revoked(known):
        report_to_caller(teller, batch, caller, known or end, is_stored=known is not None)
    if is_batch(row.job_id) and not (isinstance(end, StoredFailure) and settings_of(app).keep_failed):
        deliver_merged_result(teller, batch, end, scheduler=scheduler, is_repeated=is_repeated or has_run)
    _send_signal(app, its, outcome, end)


def _check_chord(teller: ResultReporter, task: str, caller: BatchCall) -> None:
    """Raise ChordIsClaimedError while Celery would ignore this part of a chord: a process died that had claimed it."""
    request = teller.request_of(task, caller.task_id, caller.message)
    if request is not None:
        chords.check_claim(request.task.backend, request._context)


def report_unrun_job(scheduler: Scheduler, app: Celery, hostname: str, its: RemoteClaim, how: str) -> None:
    """Tell the caller of a job that it is "revoked", or has "expired"."""
    row = its.row
    ending = UnreportedEnd(row.job_id, how, row.type, row.task_id, row.task)
    said: Callable[[], None] = lambda: None  # noqa: E731  # the release follows
    ResultReporter(app, hostname, lambda: None).tell(ending, its.message(scheduler.reader), said)


def _end_of(outcome: Outcome) -> StoredSuccess | StoredFailure:
    if outcome.error is None:
        return StoredSuccess(lambda _: outcome.result)
    return StoredFailure(outcome.error.exception, outcome.error.traceback)


def _send_signal(app: Celery, its: RemoteClaim, outcome: Outcome, end: StoredSuccess | StoredFailure) -> None:
    task = app.tasks[its.row.task]
    if isinstance(end, StoredFailure):
        said = {"exception": end.error, "args": None, "kwargs": None, "traceback": None, "einfo": None}
        signals.task_failure.send(sender=task, task_id=its.row.task_id, **said)
    else:
        signals.task_success.send(sender=task, result=outcome.result)


logger = limited_logger(__name__)


def count_end(scheduler: Scheduler, worker: HttpWorker, its: RemoteClaim, state: str) -> None:
    """Count a job that ended with *state*. An error keeps nobody from work: the job is not counted then.

    Two ends of one worker that two processes tell at the same moment may count as one.
    """
    if state not in histograms.RUNS:
        return
    row = its.row
    try:
        now_us = scheduler.reader.now_us()
        took_us = max(0, now_us - row.claimed_us)
        wait, waited_us = histograms.WAITS[row.lane.on_demand], max(0, row.claimed_us - row.enqueued_us)
        grown: Counter[str] = Counter()
        for kind, time_us in ((wait, waited_us), (state, took_us)):
            grown[histograms.wait_field(kind, histograms.bucket_of(time_us))] += 1
            grown[histograms.sum_field(kind)] += histograms.within_us(time_us)
        scheduler.add_metrics(worker.id, now_us, [TypeMetricsDelta(row.type, grown, 1, took_us)])
    except (RedisError, OSError) as exc:
        logger.warning("Job %s is not counted: %s", row.job_id, exc)


class EndRefusedError(Exception):
    """The end is not one that this job can have, or not here."""


class EndInProgressError(Exception):
    """Another request that reports this end of the job is still being handled."""


@dataclass(frozen=True)
class StartReply:
    """A job that has started."""

    id: str
    fence: int


@dataclass(frozen=True)
class EndReply:
    """A job whose end was told. *state*: "done", "failed" or "revoked"; "pending": it runs again; "dead": see below.

    A job is a dead letter, which says why, if Celery's code raised an error when it told the end.
    """

    id: str
    fence: int
    state: str


def start_job(scheduler: Scheduler, app: Celery, job_id: str, fence: int, secret: str) -> StartReply:
    """Say that a job starts now. Raises StaleClaimError: it is another's, or has ended, or ends now.

    A task that acks early is acked here: its job does not run again if the worker dies.
    """
    its, worker = _holder(scheduler, app, job_id, fence, secret)
    how = None if its.row.started_us is not None else _ended_meanwhile(scheduler, its)
    if how is not None:
        report_unrun_job(scheduler, app, worker.name, its, how)
        _release(scheduler, worker, job_id, fence, how)
        raise StaleClaimError(f"job {job_id} is {how}: it does not start")
    task = app.tasks[its.row.task]
    claims = all_claims(scheduler, worker.id, starting=job_id)
    synced = scheduler.sync(worker.id, claims, slots=worker.slots, other=0, draining=False)
    if not synced.known:
        raise unknown_worker_error(worker.id)
    if job_id in synced.void or not (task.acks_late or _acks(scheduler, worker, its)):
        raise is_stale(job_id, fence)
    if task.track_started and not task.ignore_result:
        task.backend.store_result(its.row.task_id, {"hostname": worker.name}, states.STARTED)
    return StartReply(job_id, fence)


#: Claims whose ends threads of this process tell.
_under_way: set[tuple[str, int]] = set()


def end_job(scheduler: Scheduler, app: Celery, job_id: str, fence: int, secret: str, outcome: Outcome) -> EndReply:
    """End a job. Raises StaleClaimError, NotAcceptedError, WrongSecretError, UnknownWorkerError.

    Raises UnderWayError, ChordIsClaimedError, or what the broker or a result backend raises, if the request is to be
    repeated later.
    """
    claim = (job_id, fence)
    if claim in _under_way:  # its backend hangs: requests that are repeated meanwhile would take all threads
        raise EndInProgressError(f"the end of job {job_id} is being told: send the request again later")
    _under_way.add(claim)
    try:
        return _end(scheduler, app, job_id, fence, secret, outcome)
    finally:
        _under_way.discard(claim)


def _end(scheduler: Scheduler, app: Celery, job_id: str, fence: int, secret: str, outcome: Outcome) -> EndReply:
    before = OutcomeNote.read(scheduler, job_id, fence)
    if before is not None:
        before.check(outcome)
    if before is not None and before.state:
        worker = find_worker(scheduler, before.worker)
        worker.check(secret)
        _release(scheduler, worker, job_id, fence, before.said)  # the last request may not have come so far
        return EndReply(job_id, fence, before.state)
    its, worker = _holder(scheduler, app, job_id, fence, secret)
    _check_may_run_again(its, outcome)
    OutcomeNote(job_id, worker.id, outcome.digest).begin(scheduler, fence)
    if not scheduler.heartbeat(worker.id, loop_runs=True):  # telling may take long
        raise unknown_worker_error(worker.id)
    state, said = outcome.state_after, outcome.in_words
    if outcome.state == PREEMPTED:
        said += f" {max(0, scheduler.reader.now_us() - its.row.claimed_us)}"
    try:
        if not outcome.runs_again:
            report_end(scheduler, app, worker.name, its, outcome, is_repeated=before is not None)
    except (ChordIsClaimedError, *DOWN):
        raise
    except Exception as exc:  # of a signal, a link, a serializer: the next try would fail as this one
        logger.exception("The end of job %s cannot be told: it becomes a dead letter", job_id)
        state, said = "dead", f"rejected {describe_error(exc)}"
    OutcomeNote(job_id, worker.id, outcome.digest, state, said).write(scheduler, fence)
    _release(scheduler, worker, job_id, fence, said)
    count_end(scheduler, worker, its, state)
    return EndReply(job_id, fence, state)


def _holder(scheduler: Scheduler, app: Celery, job_id: str, fence: int, secret: str) -> tuple[RemoteClaim, HttpWorker]:
    """Return the claim, and the worker that holds it. Raises what `end` does."""
    its = claim_of_job(scheduler.reader, job_id, fence)
    worker = find_worker(scheduler, its.row.worker)
    worker.check(secret)
    if its.row.task not in app.tasks:
        raise EndRefusedError(f"the app of this web process lacks task {its.row.task}: another process may have it")
    return its, worker


def _ended_meanwhile(scheduler: Scheduler, its: RemoteClaim) -> str | None:
    if its.expires_us is not None and its.expires_us <= scheduler.reader.now_us():
        return "expired"
    return "revoked" if revoke_control(scheduler.reader, [its]) else None


def _acks(scheduler: Scheduler, worker: HttpWorker, its: RemoteClaim) -> bool:
    """Ack a job. Return whether it is the worker's."""
    acked: list[int] = []
    scheduler.release_and_claim(
        worker.id, acks=[its.number], ends=(), sequence=ONCE, inline=False, may_hold=NOTHING, on_acked=acked.append
    )
    return acked == [1]


def _check_may_run_again(its: RemoteClaim, outcome: Outcome) -> None:
    if outcome.runs_again and its.row.acked:
        field = "requeue must be false" if outcome.requeue else "state must be done, failed or revoked"
        raise EndRefusedError(
            f"{field} for a job of task {its.row.task}, whose start acked it (acks_late is off): it does not run again"
        )


def _release(scheduler: Scheduler, worker: HttpWorker, job_id: str, fence: int, said: str) -> None:
    """End a claim. A claim that has ended stays so."""
    ends = [EndArguments(job_id, str(fence), said)]
    scheduler.release_and_claim(worker.id, acks=(), ends=ends, sequence=ONCE, inline=False, may_hold=NOTHING)
