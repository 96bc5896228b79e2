"""Report the jobs that left a worker unfinished in the last day, with the cause: why a job ran twice, or was lost."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

from redis.exceptions import NoPermissionError

from ..clock import SECOND_US
from ..scheduler.cohorts import CohortRow
from ..scheduler.reader import Reader
from ..schema.constants import MAX_NUMBER_LENGTH, MAX_REQUEUE_TOKEN, MAX_REQUEUES, REQUEUES_KEPT_S
from ..schema.values import decode_number, decode_part, decode_text
from .render import Table, time_text
from .report import Answer, Param, Source, report

#: Cause of the jobs that a tick reclaims.
SILENT = "silent"
#: Cause, as `requeue_log` records it -> clause.
CAUSES = {
    "died": "the worker died: its guard saw the process end",
    SILENT: "the worker sent no heartbeat for affinity_worker_timeout: it was declared dead",
    "shutdown": "the worker shut down and returned it",
    "preempted": "the worker stopped it for a job of another tenant",
    "returned": "the worker returned it after its start",
    "unsettled": "the worker ended the run without an ack",
    "aborted": "a time limit, or the loss of the pool process, ended the run",
    "requeued": "the task requeued it",
}

#: Maximum number of requeues that `explain` shows.
MAX_EXPLAINED = 20

#: An entry of the log: time, cause, how the job was requeued, outcome, worker, type, job id, task id.
_ENTRY = re.compile(rf"([0-9]{{1,{MAX_NUMBER_LENGTH}}}) " + " ".join([rf"([!-~]{{1,{MAX_REQUEUE_TOKEN}}})"] * 7))


@dataclass(frozen=True)
class Requeue(CohortRow):
    """A job that left a worker unfinished.

    - *at_s*: Unix time by the server's clock.
    - *task_id*: for merged calls, the id of the call that was run.
    - *worker*: name of the worker.
    - *cause*: one of `CAUSES`.
    - *why*: the cause as text.
    - *then*: "pending" or "scheduled" (after a pause): the job runs again. Otherwise the reason of its dead letter.
    """

    at_s: float
    task_id: str
    job_id: str
    type: str
    worker: str
    cause: str
    why: str
    then: str


def read_requeues(reader: Reader, since_us: int | None = None) -> list[Requeue]:
    """Return the requeues since *since_us*, the newest first. Empty for a user without the right to read them.

    *since_us*: Unix time in µs by the server's clock; None: a day ago.
    """
    try:
        lines = reader.ask_one("lrange", reader.key("requeues"), 0, MAX_REQUEUES - 1)
    except NoPermissionError:
        return []
    if since_us is None:
        since_us = reader.now_us() - REQUEUES_KEPT_S * SECOND_US
    rows = (_parse_entry(line, since_us) for line in lines)
    return [row for row in rows if row is not None]


def requeues_of(rows: Sequence[Requeue], ids: Collection[str]) -> list[Requeue]:
    """Return the newest of *rows* with an id in *ids*, of a task or a job."""
    return [row for row in rows if row.task_id in ids or row.job_id in ids][:MAX_EXPLAINED]


def requeue_sentence(row: Requeue) -> str:
    """Return a requeue as text."""
    return f"from {row.worker} at {time_text(row.at_s)}: {row.why}{_dead_letter(row)}"


def _parse_entry(line: bytes, oldest_us: int) -> Requeue | None:
    """Return an entry of the log, or None if it is too old or another client wrote it."""
    match = _ENTRY.fullmatch(decode_text(line))
    if match is None:
        return None
    time, cause, how, then, worker, type_, job_id, task = match.groups()
    at_us = decode_number(time)
    if cause not in CAUSES or at_us < oldest_us:
        return None
    unstarted = "; the job had not started" if cause in ("died", SILENT) and how == "returned" else ""
    return Requeue(
        at_s=at_us / SECOND_US,
        task_id="" if task == "-" else decode_part(task),
        job_id=job_id,
        type=decode_part(type_),
        worker=decode_part(worker),
        cause=cause,
        why=f"{CAUSES[cause]}{unstarted}",
        then=then,
    )


def _dead_letter(row: Requeue) -> str:
    return "" if row.then in ("pending", "scheduled") else f"; it is a dead letter ({row.then})"


_REQUEUES = Table[Requeue](
    {
        "time": lambda row: time_text(row.at_s),
        "task id": lambda row: row.task_id or row.job_id,
        "type": "type",
        "worker": "worker",
        "cause": "cause",
        "then": lambda row: "waits again" if not _dead_letter(row) else f"dead letter: {row.then}",
        "why": "why",
    },
    empty="no job has left a worker unfinished in the last day",
)

Type = Annotated[str | None, Param("Only jobs of this type.")]
Worker = Annotated[str | None, Param("Only jobs that left the worker with this name.")]
Cause = Annotated[str | None, Param("Only jobs with this cause.", choices=tuple(CAUSES))]
Limit = Annotated[int, Param("Largest number to show.", min_value=1, max_value=MAX_REQUEUES, max_over_http=1000)]


@report(
    "requeues",
    "/api/requeues",
    "Jobs that left a worker unfinished in the last day: worker, time and cause",
    text=_REQUEUES.text,
)
def list_requeues(
    source: Source, type: Type = None, worker: Worker = None, cause: Cause = None, limit: Limit = 100
) -> Answer[list[Requeue]]:
    """List jobs that left a worker unfinished in the last day, the newest first: why a job ran twice."""
    answer = source.rows(lambda scheduler: read_requeues(scheduler.reader))
    rows = [
        row
        for row in sorted(answer.report, key=lambda row: row.at_s, reverse=True)
        if type in (None, row.type) and worker in (None, row.worker) and cause in (None, row.cause)
    ]
    is_filtered = any(value is not None for value in (type, worker, cause))
    return Answer(rows[:limit], answer.down, if_empty="no requeue of the last day matches" if is_filtered else "")
