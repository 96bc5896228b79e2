"""Start and end jobs of workers over HTTP: once each, in any process, even if requests are repeated.

An end has three steps: the callers get the result, Redis records that, and the slot is freed. A repeated request
continues after the last completed step. The report runs Celery's own code (result, links, chain, chord, errbacks) and
untrusted code, so it can block.
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
from ..publishing.message import decode_message as read_message
from ..publishing.message_body import read_body
from ..publishing.option_resolution import arguments_in, size_of_call, size_of_task
from ..publishing.publish_call import publishing_follow_ups
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
from ..scheduler.messages import BatchCall, EndArguments, TaskRuns, TypeMetricsDelta, UnreportedEnd
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

#: Seconds for which the note of an end is kept for repeated requests.
_NOTE_KEPT_S = 3600
#: Maps the reported state of an end to the state of the job after it.
STATES = {"done": "done", "failed": "failed", "revoked": "revoked", "returned": "pending", PREEMPTED: "pending"}


@dataclass(frozen=True)
class ReportedError:
    """An exception, as text."""

    type: str
    message: str
    traceback: str | None = None

    @property
    def exception(self) -> Exception:
        kind: type[Exception] = create_exception_cls(self.type, "remote")
        return kind(self.message)


@dataclass(frozen=True)
class Outcome:
    """An end. *state*: one of `STATES`. *requeue*: True for a failure that is not reported, because the job runs again.

    A failure that is requeued counts as a requeue, and a pause precedes the next run. Jobs that are returned unstarted,
    or stopped on request of the server, count no requeue.
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
        """The outcome in the format of the release."""
        how = {"done": "acked", "failed": REQUEUED if self.requeue else "failed"}.get(self.state, self.state)
        return f"{how} {describe_error(self.error.exception)}" if self.error else how

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class OutcomeNote:
    """The note of an end in Redis. *state*: the job's next state; "" during the report. *said*: the outcome's text."""

    job_id: str
    worker: str
    digest: str
    state: str = ""
    said: str = ""

    @classmethod
    def read(cls, scheduler: Scheduler, job_id: str, fence: int) -> "OutcomeNote | None":
        value = scheduler.client.get(_redis_key(scheduler, fence))
        note = None if value is None else cls(**json.loads(decode_text(value)))
        return note if note is not None and note.job_id == job_id else None

    def begin(self, scheduler: Scheduler, fence: int) -> None:
        """Record that the report to the callers is about to start."""
        scheduler.client.set(_redis_key(scheduler, fence), json.dumps(asdict(self)), ex=_NOTE_KEPT_S, nx=True)

    def write(self, scheduler: Scheduler, fence: int) -> None:
        """Record that the report is complete."""
        scheduler.client.set(_redis_key(scheduler, fence), json.dumps(asdict(self)), ex=_NOTE_KEPT_S)

    def check(self, outcome: Outcome) -> None:
        """Raise StaleClaimError if *outcome* is a different end."""
        if self.digest != outcome.digest:
            raise StaleClaimError(f"another end of job {self.job_id} was told before: an end is repeated as it was")


def _redis_key(scheduler: Scheduler, fence: int) -> str:
    return scheduler.keys.key("remote_end", str(fence))


@publishing_follow_ups()
def report_end(
    scheduler: Scheduler, app: Celery, hostname: str, job: RemoteClaim, outcome: Outcome, *, is_repeated: bool
) -> None:
    """Report the end of a job to its callers. *is_repeated*: some may have a report already, and keep it.

    Raises the errors of Celery's code, a backend or the broker, and ChordIsClaimedError if the request must be repeated
    later.
    """
    chords.install_chord_parts()
    if outcome.state == "revoked":
        report_unrun_job(scheduler, app, hostname, job, "revoked")
        return
    row = job.row
    reporter = ResultReporter(app, hostname, lambda: None)
    batch = BatchRun(row.job_id, row.task, row.fence, row.task_id)
    has_run = row.deliveries > 0 or row.requeues > 0  # another worker may have reported a part of this
    caller = BatchCall(job.primary or row.job_id, row.task_id, row.enqueued_us, job.message(scheduler.reader))
    end: StoredSuccess | StoredFailure = StoredSuccess(lambda _: outcome.result)
    if outcome.error is not None:
        end = StoredFailure(outcome.error.exception, outcome.error.traceback)
    request = reporter.request_of(row.task, caller.task_id, caller.message) if has_run else None
    if request is not None:  # raises while Celery would ignore this chord part because a dead process has claimed it
        chords.check_claim(request.task.backend, request._context)
    stored = stored_end_of_call(app, row.task, row.task_id) if is_repeated else None
    if not is_revoked(stored):
        report_to_caller(reporter, batch, caller, stored or end, is_stored=stored is not None)
    if is_batch(row.job_id) and not (isinstance(end, StoredFailure) and settings_of(app).keep_failed):
        deliver_merged_result(reporter, batch, end, scheduler=scheduler, is_repeated=is_repeated or has_run)
    _send_signal(app, job, outcome, end)


def report_unrun_job(scheduler: Scheduler, app: Celery, hostname: str, job: RemoteClaim, how: str) -> None:
    """Report to the caller of a job that it is "revoked", or has "expired"."""
    row = job.row
    ending = UnreportedEnd(row.job_id, how, row.type, row.task_id, row.task)
    ack: Callable[[], None] = lambda: None  # noqa: E731  # the release follows
    ResultReporter(app, hostname, lambda: None).tell(ending, job.message(scheduler.reader), ack)


def _send_signal(app: Celery, job: RemoteClaim, outcome: Outcome, end: StoredSuccess | StoredFailure) -> None:
    task = app.tasks[job.row.task]
    if isinstance(end, StoredFailure):
        fields = {"exception": end.error, "args": None, "kwargs": None, "traceback": None, "einfo": None}
        signals.task_failure.send(sender=task, task_id=job.row.task_id, **fields)
    else:
        signals.task_success.send(sender=task, result=outcome.result)


logger = limited_logger(__name__)


def count_end(scheduler: Scheduler, worker: HttpWorker, job: RemoteClaim, state: str, size: float | None) -> None:
    """Count a job of this *size* (None: unknown) that ended with *state*. Errors are only logged.

    Two ends of one worker that two processes report at the same time may count as one.
    """
    if state not in histograms.RUNS:
        return
    row = job.row
    try:
        now_us = scheduler.reader.now_us()
        took_us = max(0, now_us - row.claimed_us)
        wait, waited_us = histograms.WAITS[row.lane.on_demand], max(0, row.claimed_us - row.enqueued_us)
        counts: Counter[str] = Counter()
        for kind, time_us in ((wait, waited_us), (state, took_us)):
            counts[histograms.wait_field(kind, histograms.bucket_of(time_us))] += 1
            counts[histograms.sum_field(kind)] += histograms.within_us(time_us)
        runs = [TaskRuns(row.task, 1, [(size, took_us)])] if state == "done" and not is_batch(row.job_id) else []
        scheduler.add_metrics(worker.id, now_us, [TypeMetricsDelta(row.type, counts, 1, took_us)], runs)
    except (RedisError, OSError) as exc:
        logger.warning("Job %s is not counted: %s", row.job_id, exc)


def _size_of(scheduler: Scheduler, app: Celery, job: RemoteClaim) -> float | None:
    """Return the size of a job's call, or None if it is unknown."""
    task = app.tasks[job.row.task]
    try:
        if size_of_task(task) is None:
            return None
        message = read_message(job.message(scheduler.reader))
        return size_of_call(task, *arguments_in(task.name, read_body(message)))
    except (ValueError, RedisError, OSError) as exc:  # an OptionError is a ValueError
        logger.warning("The size of job %s is unknown: %s", job.row.job_id, exc)
        return None


class EndRefusedError(Exception):
    """The end is not possible for this job, or not in this process."""


class EndInProgressError(Exception):
    """Another request that reports this end of the job is still being handled."""


@dataclass(frozen=True)
class StartReply:
    """A job that has started."""

    id: str
    fence: int


@dataclass(frozen=True)
class EndReply:
    """A job whose end was reported. *state*: "done", "failed" or "revoked"; "pending" if it runs again; or "dead".

    The job is a dead letter, with the reason, if Celery's code raised an error during the report.
    """

    id: str
    fence: int
    state: str


def start_job(scheduler: Scheduler, app: Celery, job_id: str, fence: int, secret: str) -> StartReply:
    """Record that a job starts now. Raises StaleClaimError if another worker has it, or if it has ended or ends now.

    A task that acks early is acked here: its job does not run again if the worker dies.
    """
    job, worker = _claim_and_holder(scheduler, app, job_id, fence, secret)
    outcome = None if job.row.started_us is not None else _end_before_start(scheduler, job)
    if outcome is not None:
        report_unrun_job(scheduler, app, worker.name, job, outcome)
        _release(scheduler, worker, job_id, fence, outcome)
        raise StaleClaimError(f"job {job_id} is {outcome}: it does not start")
    task = app.tasks[job.row.task]
    claims = all_claims(scheduler, worker.id, starting=job_id)
    reply = scheduler.sync(worker.id, claims, slots=worker.slots, other=0, draining=False)
    if not reply.is_registered:
        raise unknown_worker_error(worker.id)
    if job_id in reply.void or not (task.acks_late or _ack_job(scheduler, worker, job)):
        raise is_stale(job_id, fence)
    if task.track_started and not task.ignore_result:
        task.backend.store_result(job.row.task_id, {"hostname": worker.name}, states.STARTED)
    return StartReply(job_id, fence)


#: Claims whose ends are being reported by threads of this process.
_ends_in_progress: set[tuple[str, int]] = set()


def end_job(scheduler: Scheduler, app: Celery, job_id: str, fence: int, secret: str, outcome: Outcome) -> EndReply:
    """End a job. Raises StaleClaimError, EndRefusedError, WrongSecretError, UnknownWorkerError.

    Raises EndInProgressError, ChordIsClaimedError, or errors of the broker or a result backend, if the request must be
    repeated later.
    """
    claim = (job_id, fence)
    if claim in _ends_in_progress:  # its backend hangs: repeated requests would block all threads
        raise EndInProgressError(f"the end of job {job_id} is being told: send the request again later")
    _ends_in_progress.add(claim)
    try:
        return _end(scheduler, app, job_id, fence, secret, outcome)
    finally:
        _ends_in_progress.discard(claim)


def _end(scheduler: Scheduler, app: Celery, job_id: str, fence: int, secret: str, outcome: Outcome) -> EndReply:
    previous = OutcomeNote.read(scheduler, job_id, fence)
    if previous is not None:
        previous.check(outcome)
    if previous is not None and previous.state:
        worker = find_worker(scheduler, previous.worker, secret)
        _release(scheduler, worker, job_id, fence, previous.said)  # the last request may have failed before the release
        return EndReply(job_id, fence, previous.state)
    job, worker = _claim_and_holder(scheduler, app, job_id, fence, secret)
    _check_can_requeue(job, outcome)
    OutcomeNote(job_id, worker.id, outcome.digest).begin(scheduler, fence)
    if not scheduler.heartbeat(worker.id, loop_runs=True):  # the report may take long
        raise unknown_worker_error(worker.id)
    state, release_outcome = outcome.state_after, outcome.in_words
    if outcome.state == PREEMPTED:
        release_outcome += f" {max(0, scheduler.reader.now_us() - job.row.claimed_us)}"
    try:
        if not outcome.runs_again:
            report_end(scheduler, app, worker.name, job, outcome, is_repeated=previous is not None)
    except (ChordIsClaimedError, *DOWN):
        raise
    except Exception as exc:  # from a signal, a link or a serializer: another attempt would fail too
        logger.exception("The end of job %s cannot be reported: it becomes a dead letter", job_id)
        state, release_outcome = "dead", f"rejected {describe_error(exc)}"
    OutcomeNote(job_id, worker.id, outcome.digest, state, release_outcome).write(scheduler, fence)
    size = _size_of(scheduler, app, job)  # the release deletes the message
    _release(scheduler, worker, job_id, fence, release_outcome)
    count_end(scheduler, worker, job, state, size)
    return EndReply(job_id, fence, state)


def _claim_and_holder(
    scheduler: Scheduler, app: Celery, job_id: str, fence: int, secret: str
) -> tuple[RemoteClaim, HttpWorker]:
    """Return the claim, and the worker that holds it. Raises the errors of `end_job`."""
    job = claim_of_job(scheduler.reader, job_id, fence)
    worker = find_worker(scheduler, job.row.worker, secret)
    if job.row.task not in app.tasks:
        raise EndRefusedError(f"the app of this web process lacks task {job.row.task}: another process may have it")
    return job, worker


def _end_before_start(scheduler: Scheduler, job: RemoteClaim) -> str | None:
    if job.expires_us is not None and job.expires_us <= scheduler.reader.now_us():
        return "expired"
    return "revoked" if revoke_control(scheduler.reader, [job]) else None


def _ack_job(scheduler: Scheduler, worker: HttpWorker, job: RemoteClaim) -> bool:
    """Ack a job. Return True if the worker still holds it."""
    acked: list[int] = []
    scheduler.release_and_claim(
        worker.id, acks=[job.number], ends=(), sequence=ONCE, inline=False, may_hold=NOTHING, on_acked=acked.append
    )
    return acked == [1]


def _check_can_requeue(job: RemoteClaim, outcome: Outcome) -> None:
    if outcome.runs_again and job.row.acked:
        field = "requeue must be false" if outcome.requeue else "state must be done, failed or revoked"
        raise EndRefusedError(
            f"{field} for a job of task {job.row.task}, whose start acked it (acks_late is off): it does not run again"
        )


def _release(scheduler: Scheduler, worker: HttpWorker, job_id: str, fence: int, outcome: str) -> None:
    """End a claim, unless it has ended."""
    ends = [EndArguments(job_id, str(fence), outcome)]
    scheduler.release_and_claim(worker.id, acks=(), ends=ends, sequence=ONCE, inline=False, may_hold=NOTHING)
