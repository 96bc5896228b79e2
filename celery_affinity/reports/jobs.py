"""Whether a claimed job runs already: workers say with each heartbeat which jobs have started; before, nobody knows.

What is known decides: the start that a worker told, an ack, the inbox, the time since the claim.

The facts of jobs by id, in few round trips: the answer of `celery_affinity.jobs` and of the HTTP interface.

`explain` says more of one job, and costs more. Lists of jobs are in `job_lists`.

The workers that hold the hint of a job: who would be near to it, and what the others do not know of.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from redis.exceptions import NoPermissionError

from ..clock import SECOND_US
from ..options.merge import merge_key_in
from ..policy.score import Weights
from ..scheduler.cohorts import CohortRow
from ..scheduler.reader import Command, Reader
from ..schema.constants import is_recently_reported
from ..schema.job_record import is_batch
from ..schema.keys import SEVERAL
from ..schema.rules_codec import hint_in
from ..schema.values import decode_number, decode_part, decode_text, encode_part, is_readable
from ..settings import wire
from ..settings.wire import complete_settings
from . import json, sentences
from .job_rows import JobRow, calls_of, parse_row, read_jobs
from .keys import stated_keys


class ClaimedJob(NamedTuple):
    """A claimed job: *state*, "claimed" or "running", *since_us* of that (server's clock), and *note* for people."""

    state: str
    since_us: int
    note: str | None = None


def claimed_jobs(
    reader: Reader, runs: Sequence[JobRow], heartbeat_us: int
) -> tuple[dict[str, str], dict[str, ClaimedJob]]:
    """Return the names of workers by id, and what is known of each claimed job of *runs* by its id.

    *runs*: jobs that have, or had, a worker. One round trip; a second one if a job has just been claimed.
    """
    if not runs:
        return {}, {}
    claimed = [run for run in runs if run.state == "claimed"]
    unsure = [run for run in claimed if run.started_us is None and not run.acked]
    names, unread = _of_workers(reader, list(dict.fromkeys(run.worker for run in runs)), {run.worker for run in unsure})
    found = {run.job_id: ClaimedJob("running", run.started_us or run.claimed_us) for run in claimed}
    now_us = reader.now_us() if unsure else 0
    for run in unsure:
        found[run.job_id] = _unsure(run, unread, now_us, heartbeat_us)
    return names, found


def _unsure(run: JobRow, unread: Collection[str] | None, now_us: int, heartbeat_us: int) -> ClaimedJob:
    if unread is None:
        note = sentences.NOT_TOLD
    elif f"{run.job_id} {run.fence}" in unread:
        note = sentences.UNREAD
    elif is_recently_reported(now_us - run.claimed_us, heartbeat_us):  # that its task started, if so
        note = sentences.NOT_STARTED
    else:
        return ClaimedJob("running", run.claimed_us)
    return ClaimedJob("claimed", run.claimed_us, note)


def _of_workers(
    reader: Reader, workers: Sequence[str], asked: Collection[str]
) -> tuple[dict[str, str], set[str] | None]:
    """Return the names of workers by id, and what the inboxes of those *asked* have: job ids and fencing numbers.

    None without the right to look into inboxes.
    """
    of_names: list[Command] = [("hget", reader.key("worker", worker), "name") for worker in workers]
    of_inboxes: list[Command] = [("lrange", reader.key("inbox", worker), 0, -1) for worker in asked]
    try:
        found = reader.ask([*of_names, *of_inboxes])
    except NoPermissionError:  # a user without a right to messages has none to inboxes, which hold messages
        found = [*reader.ask(of_names), None]
    names = {worker: decode_part(decode_text(name)) for worker, name in zip(workers, found, strict=False) if name}
    inboxes = found[len(workers) :]
    if None in inboxes:
        return names, None
    return names, {decode_text(b" ".join(payload.split(b" ", 2)[:2])) for inbox in inboxes for payload in inbox}


#: States in which a job stays as it is. The others change by themselves.
ENDED = ("done", "failed", "revoked", "expired", "dead")

#: All states of a job. "unknown": never published here, or forgotten.
STATES = ("scheduled", "pending", "claimed", "running", *ENDED, "unknown")

#: States in Redis of a job that has not ended.
_LIVE = (b"scheduled", b"pending", b"claimed", b"merged")

#: Settings in Redis that the facts of a job depend on.
_SETTINGS = ("priority_reversed", "heartbeat_interval_us")


@dataclass(frozen=True)
class Job(CohortRow):
    """The facts of the newest job of a task. For a merged call, these are the facts of its run.

    *id*: the id of the task. *state*: one of `STATES`. *source*: "broker", or "backend" if only the result backend
    knows the job. Times are Unix times by the server's clock, None if unknown: *due_s* is the ETA, *claimed_s* the time
    of the last claim. *mode*: "queued" or "on_demand". *priority*: 0..10, 10 highest. *deliveries*: number of times
    that the job came back: its worker died, or gave it back unacked. *requeues*: number of times that its task
    requeued it. *worker*: name of the worker that holds, or held,
    the job. *reason*: for a dead job, one of `dead_reasons.REASONS`. *why*: for a failed or dead job, the type of the
    exception and the first 200 characters of its message. *keys*: those of a rate, and of exclusion. *hint*: what the
    job works with, for workers that hold it. *calls*: number of calls that share the run. *patient_until_s*: the time
    until which a scheduled job waits for more calls to merge with. *paused_until_s*: the end of the pause after which a
    scheduled job starts again that was requeued, or whose run was ended. *recurring*: the name of the recurring call
    that made the job. *other_jobs*: ids of jobs of the same task that have not ended.
    """

    id: str
    state: str
    source: str | None = None
    job_id: str | None = None
    task: str | None = None
    type: str | None = None
    mode: str | None = None
    priority: int | None = None
    deliveries: int = 0
    requeues: int = 0
    enqueued_s: float | None = None
    due_s: float | None = None
    claimed_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None
    worker: str | None = None
    reason: str | None = None
    why: str | None = None
    keys: list[str] = field(default_factory=list)
    merge_key: str | None = None
    hint: str | None = None
    calls: int = 1
    patient_until_s: float | None = None
    paused_until_s: float | None = None
    recurring: str | None = None
    other_jobs: list[str] = field(default_factory=list)
    note: str | None = None

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def waited_s(self) -> float | None:
        """The time from the ETA, or the enqueue time, to the last claim, or to the end of a job that had no claim.

        None while the job waits.
        """
        return json.waited_s(self.state, self.enqueued_s, self.due_s, self.claimed_s, self.ended_s)

    @property
    def ran_s(self) -> float | None:
        """The time from the start to the end; from the last claim if the start is unknown, as that of short jobs is."""
        return json.ran_s(self.claimed_s, self.started_s, self.ended_s)


def unknown_job(id: str, note: str = "never published here, or forgotten") -> Job:
    return Job(id, "unknown", note=note)


def get_job(reader: Reader, id: str) -> Job:
    """Return the facts of the newest job of a task, or of a job; *id* is that of either. Two or three round trips."""
    return get_jobs(reader, [id])[0]


def get_jobs(reader: Reader, ids: Sequence[str]) -> list[Job]:
    """Return what `get` returns of each of *ids*, in as many round trips as `get` needs for one."""
    asked = [each for each in dict.fromkeys(ids) if is_readable(each)]
    *replies, settings = reader.ask(
        [
            *(("get", reader.key("task", encode_part(each))) for each in asked),
            *(("hgetall", reader.key("job", each)) for each in asked),
            settings_command(reader),
        ]
    )
    of_tasks = dict(zip(asked, replies, strict=False))
    jobs = {each: [decode_text(job_id)] for each, job_id in of_tasks.items() if job_id}
    several = [each for each, job_id in of_tasks.items() if job_id == SEVERAL]
    if several:
        jobs |= dict(zip(several, reader.jobs_of(several), strict=True))
    newest = {each: its[-1] for each, its in jobs.items() if its}
    rows = read_jobs(reader, list(newest.values())) if newest else []
    for each, raw in zip(asked, replies[len(asked) :], strict=True):
        if each not in newest and raw:
            rows.append(parse_row(each, {decode_text(name): value for name, value in raw.items()}))
    others = {newest[each]: its[:-1] for each, its in jobs.items() if its}
    found = {job.job_id: job for job in describe_jobs(reader, rows, settings, others)}
    return [found.get(newest.get(each, each)) or unknown_job(each) for each in ids]


def settings_command(reader: Reader) -> Command:
    """Return the command that reads what `described` has to know."""
    return "hmget", reader.key("settings"), list(_SETTINGS)


def describe_jobs(
    reader: Reader,
    rows: Sequence[JobRow],
    settings: Sequence[bytes | None],
    others: Mapping[str, list[str]] | None = None,
) -> list[Job]:
    """Return the facts of the jobs of *rows*, in order, without those that are gone.

    *settings*: the reply to `settings_command`. *others*: other jobs of the task, by the id of the job.
    """
    return [each.job for each in with_runs(reader, rows, settings, others)]


class DescribedJobs(NamedTuple):
    """The facts of a job, the row of its run, and what is known of its claim; None if it is not claimed."""

    job: Job
    run: JobRow
    held: ClaimedJob | None


def with_runs(
    reader: Reader,
    rows: Sequence[JobRow],
    settings: Sequence[bytes | None],
    others: Mapping[str, list[str]] | None = None,
) -> list[DescribedJobs]:
    """Return what `described` does, each with the row that the facts are of."""
    given = {name: decode_text(value) for name, value in zip(_SETTINGS, settings, strict=True) if value is not None}
    in_force = complete_settings(given)
    runs = _runs(reader, rows)
    calls = _calls(reader, [run for run in runs.values() if is_batch(run.job_id)])
    names, of_claims = claimed_jobs(
        reader, [run for run in runs.values() if run.worker], int(in_force["heartbeat_interval_us"])
    )
    read_priority = Weights(priority_reversed=in_force["priority_reversed"] == "1").read
    found = []
    for row in rows:
        run = runs[row.job_id]
        if not run.state:
            continue
        first, number = calls.get(run.job_id, ("", 1))
        claim = of_claims.get(run.job_id)
        found.append(
            DescribedJobs(
                Job(
                    id=row.task_id or first or row.job_id,
                    state=claim.state if claim else run.state,
                    source="broker",
                    job_id=row.job_id,
                    task=row.task,
                    type=run.type,
                    mode="on_demand" if run.lane.on_demand else "queued",
                    priority=read_priority(run.lane.priority),
                    deliveries=run.deliveries,
                    requeues=run.requeues,
                    enqueued_s=seconds_between(row.published_us or row.enqueued_us),
                    due_s=None if row.published_us is None else seconds_between(row.enqueued_us),
                    claimed_s=seconds_between(run.claimed_us),
                    started_s=seconds_between(run.started_us),
                    ended_s=seconds_between(run.ended_us),
                    worker=names.get(run.worker),
                    reason=run.reason,
                    why=run.why,
                    keys=[decode_part(each.key) for each in stated_keys(run.rules)],
                    merge_key=merge_key_in(run.rules),
                    hint=decode_part(hint_in(run.rules or "")) or None,
                    calls=number,
                    patient_until_s=seconds_between(run.patient_us) if run.state == "scheduled" else None,
                    paused_until_s=seconds_between(run.paused_until_us),
                    recurring=row.recurring,
                    other_jobs=(others or {}).get(row.job_id, []),
                    note=claim.note if claim else None,
                ),
                run,
                claim,
            )
        )
    return found


def seconds_between(time_us: int | None) -> float | None:
    """Return a time in µs in seconds; None for one that is unknown."""
    return time_us / SECOND_US if time_us else None


def _runs(reader: Reader, rows: Sequence[JobRow]) -> dict[str, JobRow]:
    """Return by job id the row that waits, or runs, for a job: that of its batch if there is one, else its own."""
    merged = [row for row in rows if row.into]
    batches = read_jobs(reader, [row.into for row in merged]) if merged else []
    runs = {row.job_id: row for row in rows}
    return runs | {row.job_id: batch for row, batch in zip(merged, batches, strict=True) if batch.state}


def _calls(reader: Reader, batches: Sequence[JobRow]) -> dict[str, tuple[str, int]]:
    """Return by batch the task id of its first call, and the number of its calls."""
    if not batches:
        return {}
    found = calls_of(reader, [each.job_id for each in batches])
    firsts = read_jobs(reader, [calls.first for calls in found.values()], ("task",))
    return {
        batch: (first.task_id, max(1, calls.number))
        for (batch, calls), first in zip(found.items(), firsts, strict=True)
    }


def live_jobs(reader: Reader, ids: Sequence[str]) -> set[str]:
    """Return those of *ids*, of tasks or jobs, whose newest job has not ended. Cheaper than `get` for many ids."""
    jobs = reader.jobs_of(ids)
    newest = [its[-1] if its else each for each, its in zip(ids, jobs, strict=True)]
    states = reader.ask([("hget", reader.key("job", job_id), "state") for job_id in newest])
    return {each for each, state in zip(ids, states, strict=True) if state in _LIVE}


#: Holders of a hint that are shown, and hints of a worker: those of the last jobs.
_SHOWN = 10


@dataclass(frozen=True)
class LocalWorker:
    """A worker that holds the hint of a job. *used_s*: time since it ended such a job last."""

    name: str
    used_s: float
    free: int


@dataclass(frozen=True)
class LocalWorkers:
    """*workers*: those that hold the hint, the last one first. *bonus*: points that the job gets there; 0: none."""

    workers: list[LocalWorker]
    bonus: float


def local_workers(reader: Reader, hint: str, now_us: int, settings: Mapping[str, str]) -> LocalWorkers:
    """Return who holds *hint*. *settings*: complete. Two round trips."""
    found = reader.ask_one("zrevrange", reader.key("holders", encode_part(hint)), 0, _SHOWN - 1, "WITHSCORES")
    holders = _pairs(found)
    rows = [("hmget", reader.key("worker", each), ["name", "free"]) for each, _ in holders]
    times = [("zscore", reader.key("hints", each), encode_part(hint)) for each, _ in holders]
    replies = reader.ask([*rows, *times]) if holders else []
    workers = [
        LocalWorker(
            decode_part(decode_text(name or b"")),
            max(0.0, now_us - float(at_us or since_us)) / SECOND_US,
            decode_number(free),
        )
        for (_, since_us), (name, free), at_us in zip(holders, replies, replies[len(holders) :], strict=False)
    ]
    workers.sort(key=lambda each: each.used_s)
    return LocalWorkers(workers, wire.bonus_seconds_in(settings))


def hints_of(reader: Reader, worker: str) -> dict[str, float]:
    """Return the hints that *worker* holds -> when it ended such a job last, Unix time; the last one first."""
    found = reader.ask_one("zrevrange", reader.key("hints", worker), 0, _SHOWN - 1, "WITHSCORES")
    return {decode_part(hint): at_us / SECOND_US for hint, at_us in _pairs(found)}


def _pairs(found: object) -> list[tuple[str, int]]:
    """Return members and scores of a reply, in whichever form the client has it."""
    flat = list(found) if isinstance(found, list) else []
    pairs = flat if flat and isinstance(flat[0], list | tuple) else zip(flat[::2], flat[1::2], strict=True)
    return [(decode_text(member), round(float(score))) for member, score in pairs]
