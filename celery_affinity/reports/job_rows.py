"""A job's hash in Redis, parsed. Reports get the fields, and the meaning of a missing one, from here alone.

The calls of batches: calls that merged, wait together and share one run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..scheduler.reader import Lane, Reader
from ..schema.values import decode_number, decode_part, decode_text
from . import sentences

#: Largest number of characters shown of an exception: a few more than a worker sends.
_LONGEST_WHY = 300


@dataclass(frozen=True)
class JobRow:
    """The hash of one job. A missing text is "", a missing number 0; a field that may be None is None if missing.

    *lane*: the lane where the job waits or would wait, with the job's type (encoded) and the time that orders the job
    in the lane: the end of its last pause, else its enqueue time. *published_us*: only of a job with an ETA, whose
    enqueue time is the ETA. *requeues*: number of requeues by its task. *paused_until_us*: the end of the pause after a
    requeue or an aborted run, while the job is scheduled. *worker*: the id of the worker that holds the job. *reason*:
    the reason of a dead letter. *why*: the exception that ended the job, if its worker sent it; of any other dead
    letter what its reason means. *rules*: as the arrows read them. *into*: the id of the batch that it was merged into.
    *patient_us*: the time until which it waits for more calls that merge, while it is scheduled; None once it waits for
    no more, and for the next tick alone. *recurring*: name of the recurring call that made it.
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

    @property
    def type(self) -> str:
        return decode_part(self.lane.type)


def read_jobs(reader: Reader, ids: Sequence[str], fields: Sequence[str] = ()) -> list[JobRow]:
    """Return the rows of jobs, in the order of *ids*; the row of an unknown job has the state "".

    With *fields* (names in the hash) nothing else is read.
    """
    keys = [reader.key("job", job_id) for job_id in ids]
    if fields:
        found = reader.ask([("hmget", key, list(fields)) for key in keys])
        raws = [{name: value for name, value in zip(fields, row, strict=True) if value is not None} for row in found]
    else:
        found = reader.ask([("hgetall", key) for key in keys])
        raws = [{decode_text(name): value for name, value in row.items()} for row in found]
    return [parse_row(job_id, raw) for job_id, raw in zip(ids, raws, strict=True)]


def parse_row(job_id: str, raw: Mapping[str, bytes]) -> JobRow:
    """Return the row of a job from its hash, without the names of missing fields."""
    row = {name: decode_text(value) for name, value in raw.items()}
    enqueued_us, rank_us = decode_number(row.get("enqueued")), _time_in(row, "rank")
    return JobRow(
        job_id=job_id,
        state=row.get("state", ""),
        task_id=decode_part(row.get("task", "")),
        task=row.get("name", ""),
        lane=Lane(rank_us or enqueued_us, job_id, row.get("type", ""), row.get("lane", "")),
        enqueued_us=enqueued_us,
        deliveries=decode_number(row.get("deliveries")),
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
        why=row.get("why", "")[:_LONGEST_WHY] or _why_dead(row),
        rules=row.get("rules", ""),
        into=row.get("into", ""),
        patient_us=_time_in(row, "patient") or None,  # `AT_ONCE_US`
        recurring=decode_part(row["recurring"]) if "recurring" in row else None,
    )


def _why_dead(row: Mapping[str, str]) -> str | None:
    """Return in words why a job is a dead letter of which no worker said more; None for any other job."""
    if row.get("state") != "dead":
        return None
    return sentences.dead_sentence(row.get("reason", ""), decode_number(row.get("deliveries")))


def _time_in(row: Mapping[str, str], name: str) -> int | None:
    return decode_number(row[name]) if name in row else None


class BatchCalls(NamedTuple):
    """Calls of one batch. *first*: the job id of the oldest one, "" if there is none."""

    first: str
    number: int


def calls_of(reader: Reader, batches: Sequence[str]) -> dict[str, BatchCalls]:
    """Return, by batch, its calls that have not ended. All calls of a dead letter count: a replay runs them again."""
    if not batches:
        return {}
    keys = [reader.key(name, batch) for batch in batches for name in ("callers", "told_callers")]
    heads = reader.ask([("zrange", key, 0, 0, False, True) for key in keys])
    numbers = reader.ask([("zcard", key) for key in keys])
    found = {}
    for nth, batch in enumerate(batches):
        both = slice(2 * nth, 2 * nth + 2)
        first = min((head[0] for head in heads[both] if head), key=lambda member: member[1], default=(b"", 0))
        found[batch] = BatchCalls(decode_text(first[0]), sum(number or 0 for number in numbers[both]))
    return found
