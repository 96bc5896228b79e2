"""The place of a task's job: the answer of ``celery affinity explain`` and of `celery_affinity.explain`.

The reasons why a pending job waits are in `waiting`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from redis.exceptions import NoPermissionError

from ..rules.beats import has_been_said
from ..rules.keys import decode
from ..rules.merging import merge_key_in
from ..rules.protocol import SILENCE_COUNTS_US
from ..rules.rows import number_of, text_of
from ..rules.score import MICRO
from ..rules.shared_settings import complete, weights
from ..server.reader import Reader
from . import how_long
from .job_row import JobRow, read_jobs
from .jobs import seconds
from .merged_calls import calls_of
from .waiting import Waiting, waiting_of

#: Largest number of attempts to read a job that moves meanwhile.
_TRIES = 5


@dataclass(frozen=True)
class Explanation:
    """The state of a task's newest job, and the reasons why it waits.

    *state*: "scheduled", "pending", "claimed", "running", "done", "failed", "dead", "revoked", "expired" or "unknown".
    For "unknown", all fields but *note* are empty. *since_s*, the time of the last change of state, and *now_s*, the
    time of this answer, are Unix times by the server's clock. *priority*: 0..10, 10 highest. *deliveries*: number of
    times that the job came back: its worker died, or gave it back unacked. *due_s*: Unix time of the ETA.
    *patient_until_s*: Unix time until which a scheduled job waits for more calls to merge with. *reason*: for a dead
    job, one of `dead_letters.REASONS`. *why*: for a failed or dead job, the type of the exception and the first 200
    characters of its message, if a worker sent them. *other_jobs*: jobs of the same task that have not ended (copies
    for other queues, the job before a retry). *calls*: the number of calls that share the run; state, reasons and
    worker are those of the run. *recurring*: the name of the recurring call that made the job. *enqueued_s*,
    *claimed_s* (the last claim), *started_s*, *ended_s*: Unix times, None if unknown.
    """

    task_id: str
    state: str
    since_s: float | None = None
    now_s: float | None = None
    job_id: str | None = None
    task: str | None = None
    type: str | None = None
    on_demand: bool = False
    priority: int = 0
    deliveries: int = 0
    due_s: float | None = None
    patient_until_s: float | None = None
    worker: str | None = None
    reason: str | None = None
    why: str | None = None
    note: str | None = None
    other_jobs: list[str] = field(default_factory=list)
    calls: int = 1
    recurring: str | None = None
    waiting: Waiting | None = None
    enqueued_s: float | None = None
    claimed_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None

    @property
    def waited_s(self) -> float | None:
        """The time from the ETA, or the enqueue time, to the last claim, or to the end of a job that had no claim.

        None while the job waits.
        """
        return how_long.waited_s(self.state, self.enqueued_s, self.due_s, self.claimed_s, self.ended_s)

    @property
    def ran_s(self) -> float | None:
        """The time from the start to the end; from the last claim if the start is unknown, as that of short jobs is."""
        return how_long.ran_s(self.claimed_s, self.started_s, self.ended_s)


def explain(reader: Reader, task_id: str) -> Explanation:
    """Return the place of the newest job of *task_id* and, for a pending job, the reasons why it waits."""
    (ids,) = reader.jobs_of([task_id])
    for _ in range(_TRIES):
        found = _explain_job(reader, task_id, ids) if ids else None
        if found:
            return found
    note = "never published here, or forgotten (`affinity_keep` after its end): the result backend may know it"
    return Explanation(task_id, "unknown", note=note)


def _explain_job(reader: Reader, task_id: str, ids: Sequence[str]) -> Explanation | None:
    """Return the place of the last of *ids*; None if that job moved meanwhile, or is forgotten."""
    (job,) = read_jobs(reader, ids[-1:])
    run = _run_of(reader, job)
    if not run.state:
        return None
    now_us = reader.now_us()
    settings = complete(reader.hash("settings"))
    state, since_us, note = run.state, run.enqueued_us, None
    patient_us = run.patient_us if state == "scheduled" else None
    if state == "scheduled":
        began_us = run.published_us if patient_us is None else None
        since_us, note = began_us or since_us, _missed_ticks(reader, now_us)
    elif state == "claimed":
        state, since_us, note = _held(reader, run, now_us, settings)
    elif state in ("done", "failed", "dead", "revoked", "expired"):
        since_us = run.ended_us
    waiting = waiting_of(reader, run.lane, run.rules, now_us, settings) if state == "pending" else None
    if state == "pending" and waiting is None:
        return None
    worker = reader.ask_one("hget", reader.key("worker", run.worker), "name") if run.worker else None
    calls = calls_of(reader, [run.job_id])[run.job_id].number if run is not job else 1
    if calls > 1:
        merged = f"merged with {calls - 1} other call(s) of {merge_key_in(run.rules)!r}"
        note = f"{merged}; {note}" if note else merged
    return Explanation(
        task_id=task_id,
        state=state,
        since_s=since_us / MICRO,
        now_s=now_us / MICRO,
        job_id=job.job_id,
        task=job.task,
        type=job.type,
        on_demand=run.lane.on_demand,
        priority=weights(settings).read(run.lane.priority),
        deliveries=run.deliveries,
        due_s=None if job.published_us is None else job.enqueued_us / MICRO,
        patient_until_s=None if patient_us is None else patient_us / MICRO,
        worker=decode(text_of(worker)) if worker else None,
        reason=run.reason,
        why=run.why,
        note=note,
        other_jobs=list(ids[:-1]),
        calls=calls,
        recurring=job.recurring,
        waiting=waiting,
        enqueued_s=seconds(job.published_us or job.enqueued_us),
        claimed_s=seconds(run.claimed_us),
        started_s=seconds(run.started_us),
        ended_s=seconds(run.ended_us),
    )


def _run_of(reader: Reader, job: JobRow) -> JobRow:
    """Return the row that waits, or runs, for *job*: that of its batch if it was merged with others, else its own."""
    return read_jobs(reader, [job.into])[0] if job.into else job


def _held(reader: Reader, job: JobRow, now_us: int, settings: Mapping[str, str]) -> tuple[str, int, str | None]:
    """Return the state of a claimed job, the time of its change (µs) and a note. Each beat says which jobs started."""
    if job.started_us is not None:
        return "running", job.started_us, None
    if job.acked:
        return "running", job.claimed_us, None
    begins = f"{job.job_id} {job.fence} ".encode()
    try:
        inbox = reader.ask_one("lrange", reader.key("inbox", job.worker), 0, -1)
    except NoPermissionError:  # a user without a right to messages has none to inboxes, which hold messages
        return "claimed", job.claimed_us, "whether its worker has read it is not for this user: no right to inboxes"
    if any(payload.startswith(begins) for payload in inbox):
        return "claimed", job.claimed_us, "in the worker's inbox, which it has not read yet"
    if has_been_said(now_us - job.claimed_us, int(settings["heartbeat_interval_us"])):  # that its task started, if so
        return "claimed", job.claimed_us, "its worker has it and has not started it: a rate limit, or a full pool"
    return "running", job.claimed_us, None


def _missed_ticks(reader: Reader, now_us: int) -> str | None:
    ticked_us = number_of(reader.hash("clock").get("ticked"))
    if now_us - ticked_us > SILENCE_COUNTS_US:
        return "no dispatcher ticks: start a worker, or `celery affinity dispatcher`"
    return None
