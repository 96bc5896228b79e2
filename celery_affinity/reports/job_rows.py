"""Parse the job hash, and read the calls of batches.

All reports get the fields, and the defaults of missing ones, from here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..options.due_times import StoredDue, stored_due
from ..scheduler.reader import Lane, Reader
from ..schema.values import decode_number, decode_part, decode_text
from . import sentences

#: Maximum length of an exception text, a little more than a worker sends.
_MAX_WHY_LENGTH = 300


@dataclass(frozen=True)
class JobRow:
    """A parsed job hash. A missing string is "", a missing number 0, a missing optional field None.

    - *lane*: the lane where the job waits or would wait, with its type (encoded) and the time that orders it in the
      lane: the end of its last pause or, without one, its enqueue time, minus its head start.
    - *published_us*: set only for a job with an ETA, whose enqueue time is the ETA.
    - *requeues*: number of requeues by its task.
    - *paused_until_us*: end of the pause after a requeue or an aborted run, while the job is scheduled.
    - *worker*: id of the worker that holds the job.
    - *reason*: reason of a dead letter.
    - *why*: the exception that ended the job, if its worker sent it; for other dead letters, the meaning of *reason*.
    - *rules*: the job's rules, in the format of server functions.
    - *into*: id of the batch into which the job was merged.
    - *patient_us*: end of the merge window of a scheduled job. None if it only waits for the next tick.
    - *recurring*: name of the recurring call that published it.
    - *due*: its own due time, deadline and size.
    """

    job_id: str
    state: str
    task_id: str
    task: str
    lane: Lane
    enqueued_us: int
    deliveries: int
    requeues: int
    paused_until_us: int | None
    published_us: int | None
    claimed_us: int
    fence: str
    worker: str
    started_us: int | None
    acked: bool
    ended_us: int
    reason: str | None
    why: str | None
    rules: str
    into: str
    patient_us: int | None
    recurring: str | None
    due: StoredDue

    @property
    def type(self) -> str:
        return decode_part(self.lane.type)


def read_jobs(reader: Reader, ids: Sequence[str], fields: Sequence[str] = ()) -> list[JobRow]:
    """Return the rows of jobs in the order of *ids*. A missing job has the state "".

    If *fields* (names in the hash) are given, only these are read.
    """
    keys = [reader.key("job", job_id) for job_id in ids]
    if fields:
        hashes = reader.ask([("hmget", key, list(fields)) for key in keys])
        raws = [{name: value for name, value in zip(fields, row, strict=True) if value is not None} for row in hashes]
    else:
        hashes = reader.ask([("hgetall", key) for key in keys])
        raws = [{decode_text(name): value for name, value in row.items()} for row in hashes]
    return [parse_row(job_id, raw) for job_id, raw in zip(ids, raws, strict=True)]


def parse_row(job_id: str, raw: Mapping[str, bytes]) -> JobRow:
    """Return the row of a job from its hash."""
    row = {name: decode_text(value) for name, value in raw.items()}
    enqueued_us, rank_us, head_us = (
        decode_number(row.get("enqueued")),
        _time_in(row, "rank"),
        _time_in(row, "head") or 0,
    )
    deliveries, is_dead = decode_number(row.get("deliveries")), row.get("state") == "dead"
    why_dead = sentences.dead_sentence(row.get("reason", ""), deliveries) if is_dead else None
    return JobRow(
        job_id=job_id,
        state=row.get("state", ""),
        task_id=decode_part(row.get("task", "")),
        task=row.get("name", ""),
        lane=Lane(
            (rank_us or enqueued_us) - head_us, job_id, row.get("type", ""), row.get("lane", ""), head_us=head_us
        ),
        enqueued_us=enqueued_us,
        deliveries=deliveries,
        requeues=decode_number(row.get("requeues")),
        paused_until_us=rank_us if row.get("state") == "scheduled" else None,
        published_us=_time_in(row, "published"),
        claimed_us=decode_number(row.get("claimed")),
        fence=row.get("fence", ""),
        worker=row.get("worker", ""),
        started_us=_time_in(row, "started"),
        acked=row.get("acked") == "1",
        ended_us=decode_number(row.get("ended")),
        reason=row.get("reason"),
        why=row.get("why", "")[:_MAX_WHY_LENGTH] or why_dead,
        rules=row.get("rules", ""),
        into=row.get("into", ""),
        patient_us=_time_in(row, "patient") or None,  # `AT_ONCE_US`
        recurring=decode_part(row["recurring"]) if "recurring" in row else None,
        due=stored_due(row.get("due", "")),
    )


def _time_in(row: Mapping[str, str], name: str) -> int | None:
    return decode_number(row[name]) if name in row else None


class BatchCalls(NamedTuple):
    """Calls of a batch. *first*: job id of the oldest call, or ""."""

    first: str
    number: int


def calls_of(reader: Reader, batches: Sequence[str]) -> dict[str, BatchCalls]:
    """Return the unfinished calls of each batch. All calls of a dead letter are included: a replay runs them again."""
    if not batches:
        return {}
    keys = [reader.key(name, batch) for batch in batches for name in ("callers", "reported_calls")]
    heads = reader.ask([("zrange", key, 0, 0, False, True) for key in keys])
    numbers = reader.ask([("zcard", key) for key in keys])
    calls = {}
    for i, batch in enumerate(batches):
        both = slice(2 * i, 2 * i + 2)
        first = min((head[0] for head in heads[both] if head), key=lambda member: member[1], default=(b"", 0))
        calls[batch] = BatchCalls(decode_text(first[0]), sum(number or 0 for number in numbers[both]))
    return calls
