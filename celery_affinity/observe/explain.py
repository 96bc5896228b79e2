"""The place of a task's job: the answer of ``celery affinity explain`` and of `celery_affinity.explain`.

The reasons why a pending job waits are in `waiting`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..clock import SECOND_US
from ..rules.protocol import SILENCE_COUNTS_US
from ..rules.rows import number_of
from ..rules.shared_settings import complete
from ..rules.stock_lists import StockLists
from ..server.reader import Reader
from . import sentences
from .job_row import JobRow, read_jobs
from .jobs import Job, settings_command, with_runs
from .locality import Near, near
from .preemption import Stop, Stopped, stopped_last, stops, why_none
from .stock_messages import StockMessage
from .waiting import Waiting
from .why_it_waits import waiting_of

#: Largest number of attempts to read a job that moves meanwhile.
_TRIES = 5


@dataclass(frozen=True)
class Explanation(Job):
    """The facts of a task's newest job, and the reasons why it waits.

    *since_s*, the time of the last change of state, and *now_s*, the time of this answer, are Unix times by the
    server's clock; None if the state is "unknown". *waiting*: why a pending job waits. *near*: which workers hold the
    hint of a job that waits. *stopped*: the last time that the job was stopped while it ran, for a tenant below its
    minimum. *stops*: of a running job, the order to stop it; of a pending job, the stops that are under way for its
    tenant and type. *why_no_stop*: why there are none, although its tenant is below its minimum and it has waited for
    long enough. *in_list*: the list of stock Celery that has the message of a task without a job.
    """

    since_s: float | None = None
    now_s: float | None = None
    waiting: Waiting | None = None
    stopped: Stopped | None = None
    stops: list[Stop] = field(default_factory=list)
    near: Near | None = None
    why_no_stop: str | None = None
    in_list: StockMessage | None = None


def in_a_list(task_id: str, message: StockMessage, lists: StockLists) -> Explanation:
    """Return where the message of a task without a job is, in a list of stock Celery, and why no worker takes it."""
    note = sentences.in_a_list(message, is_scheduled=lists.schedules(message.queue), ingests=lists.ingests)
    return Explanation(task_id, "unknown", task=message.task, note=note, in_list=message)


def explain(reader: Reader, task_id: str) -> Explanation:
    """Return the place of the newest job of *task_id* and, for a pending job, the reasons why it waits."""
    (ids,) = reader.jobs_of([task_id])
    for _ in range(_TRIES):
        found = _explain_job(reader, ids) if ids else None
        if found:
            return found
    note = "never published here, or forgotten (`affinity_keep` after its end): the result backend may know it"
    return Explanation(task_id, "unknown", note=note)


def _explain_job(reader: Reader, ids: Sequence[str]) -> Explanation | None:
    """Return the place of the last of *ids*; None if that job moved meanwhile, or is forgotten."""
    (row,) = read_jobs(reader, ids[-1:])
    found = with_runs(reader, [row], reader.ask_one(*settings_command(reader)), {row.job_id: list(ids[:-1])})
    if not found:
        return None
    ((job, run, claim),) = found
    now_us = reader.now_us()
    since_us, note, waiting, its_near = run.enqueued_us, job.note, None, None
    settings = complete(reader.hash("settings"))
    if job.state == "scheduled":
        since_us = since_us if run.patient_us is not None else run.published_us or since_us
        note = _missed_ticks(reader, now_us) or _pause_of(run, now_us)
    elif claim is not None:
        since_us = claim.since_us
    elif job.has_ended:
        since_us = run.ended_us
    elif job.state == "pending":
        waiting = waiting_of(reader, run.lane, run.rules, now_us, settings)
        if waiting is None:
            return None
        if job.hint is not None:
            its_near = near(reader, job.hint, now_us, settings)
    if job.calls > 1:
        merged = sentences.merged(job.calls - 1, job.merge_key)
        note = f"{merged}; {note}" if note else merged
    facts = {**vars(job), "note": note}
    ordered = stops(reader, run, now_us) if run.rules and run.state in ("pending", "claimed") else []
    is_due = waiting is not None and waiting.goes_first and not waiting.kept_back
    is_due = is_due and now_us - run.lane.enqueued_us >= int(settings["preemption_delay_us"])
    return Explanation(
        **facts,
        since_s=since_us / SECOND_US,
        now_s=now_us / SECOND_US,
        waiting=waiting,
        near=its_near,
        stopped=stopped_last(reader, run.job_id, int(settings["preemption_max"])),
        stops=ordered,
        why_no_stop=why_none(reader) if is_due and not ordered else None,
    )


def _pause_of(run: JobRow, now_us: int) -> str | None:
    """Return when a scheduled job starts again that was requeued, or whose run was ended; None for any other job."""
    if run.paused_until_us is None:
        return None
    return sentences.waits_out_a_pause(run.requeues, run.deliveries, (run.paused_until_us - now_us) / SECOND_US)


def _missed_ticks(reader: Reader, now_us: int) -> str | None:
    ticked_us = number_of(reader.hash("clock").get("ticked"))
    if now_us - ticked_us > SILENCE_COUNTS_US:
        return sentences.NO_TICKS
    return None
