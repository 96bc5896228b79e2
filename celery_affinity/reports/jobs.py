"""Return the facts of jobs by id in few round trips, for `celery_affinity.jobs` and the HTTP API.

`explain` returns more about one job at a higher cost. `job_lists` lists jobs.
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
from ..schema.constants import should_be_reported
from ..schema.job_record import is_batch
from ..schema.keys import SEVERAL
from ..schema.rules_codec import decode_rules
from ..schema.values import decode_number, decode_part, decode_text, encode_part, is_readable
from ..settings import wire
from ..settings.wire import complete_settings
from . import sentences
from .job_rows import JobRow, calls_of, parse_row, read_jobs
from .keys import stated_keys


class ClaimedJob(NamedTuple):
    """A claimed job: *state* ("claimed" or "running"), its start *since_us* (server's clock), and a *note*."""

    state: str
    since_us: int
    note: str | None = None


def claimed_jobs(
    reader: Reader, runs: Sequence[JobRow], heartbeat_us: int
) -> tuple[dict[str, str], dict[str, ClaimedJob]]:
    """Return the names of workers by id, and the claims of claimed jobs in *runs* by job id.

    Workers report started jobs with each heartbeat. Before that, an ack, the inbox and the time since the claim decide.
    *runs*: jobs that have or had a worker. Takes one round trip, and a second one if a job has just been claimed.
    """
    if not runs:
        return {}, {}
    claimed = [run for run in runs if run.state == "claimed"]
    unsure = [run for run in claimed if run.started_us is None and not run.acked]
    names, unread = _read_workers(
        reader, list(dict.fromkeys(run.worker for run in runs)), {run.worker for run in unsure}
    )
    claims = {run.job_id: ClaimedJob("running", run.started_us or run.claimed_us) for run in claimed}
    now_us = reader.now_us() if unsure else 0
    for run in unsure:
        claims[run.job_id] = _classify_claim(run, unread, now_us, heartbeat_us)
    return names, claims


def _classify_claim(run: JobRow, unread: Collection[str] | None, now_us: int, heartbeat_us: int) -> ClaimedJob:
    if unread is None:
        note = sentences.NOT_TOLD
    elif f"{run.job_id} {run.fence}" in unread:
        note = sentences.UNREAD
    elif should_be_reported(now_us - run.claimed_us, heartbeat_us):  # a start would have been reported
        note = sentences.NOT_STARTED
    else:
        return ClaimedJob("running", run.claimed_us)
    return ClaimedJob("claimed", run.claimed_us, note)


def _read_workers(
    reader: Reader, workers: Sequence[str], with_inbox: Collection[str]
) -> tuple[dict[str, str], set[str] | None]:
    """Return the names of workers by id, and the "job id, fencing token" strings in the inboxes of *with_inbox*.

    The second value is None without the right to read inboxes.
    """
    of_names: list[Command] = [("hget", reader.key("worker", worker), "name") for worker in workers]
    of_inboxes: list[Command] = [("lrange", reader.key("inbox", worker), 0, -1) for worker in with_inbox]
    try:
        replies = reader.ask([*of_names, *of_inboxes])
    except NoPermissionError:  # inboxes hold messages, so a user without rights to messages cannot read them
        replies = [*reader.ask(of_names), None]
    names = {worker: decode_part(decode_text(name)) for worker, name in zip(workers, replies, strict=False) if name}
    inboxes = replies[len(workers) :]
    if None in inboxes:
        return names, None
    return names, {decode_text(b" ".join(payload.split(b" ", 2)[:2])) for inbox in inboxes for payload in inbox}


#: Final states. Jobs in other states change by themselves.
ENDED = ("done", "failed", "revoked", "expired", "dead")

#: All states of a job. "unknown": never published here, or deleted.
STATES = ("scheduled", "pending", "claimed", "running", *ENDED, "unknown")

#: States in Redis of an unfinished job.
_LIVE = (b"scheduled", b"pending", b"claimed", b"merged")

#: Settings in Redis that affect the facts of a job.
_SETTINGS = ("priority_reversed", "heartbeat_interval_us")


@dataclass(frozen=True)
class Job(CohortRow):
    """The facts of the newest job of a task. For a merged call, these are the facts of its run.

    Times are Unix times by the server's clock, or None.

    - *id*: the task id.
    - *state*: one of `STATES`.
    - *source*: "broker", or "backend" if only the result backend has the job.
    - *due_s*: the ETA.
    - *claimed_s*: the time of the last claim.
    - *mode*: "queued" or "on_demand".
    - *priority*: 0 to 10, 10 is the highest.
    - *deliveries*: number of times that the job was reclaimed from a dead worker or returned unacked.
    - *requeues*: number of requeues by its task.
    - *worker*: name of the worker that holds or held the job.
    - *reason*: one of `dead_reasons.REASONS`, for a dead job.
    - *why*: for a failed or dead job, the exception's type and the first 200 characters of its message.
    - *keys*: its rate and exclusive keys.
    - *hint*: the data that the job works with, for workers that hold it.
    - *calls*: number of calls in the run.
    - *patient_until_s*: end of the merge window of a scheduled job.
    - *paused_until_s*: end of the pause of a scheduled job that was requeued or whose run was ended.
    - *recurring*: name of the recurring call that published the job.
    - *start_by_s*: the time by which the job should start, by its *start_within_s* and its *deadline_s*.
    - *size*: the size of the call, which predicts its run time.
    - *other_jobs*: ids of unfinished jobs of the same task.
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
    start_within_s: float | None = None
    deadline_s: float | None = None
    start_by_s: float | None = None
    size: float | None = None
    other_jobs: list[str] = field(default_factory=list)
    note: str | None = None

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def waited_s(self) -> float | None:
        """Seconds from the ETA or enqueue time to the last claim, or to the end if the job was never claimed.

        None while the job waits.
        """
        if self.state in ("scheduled", "pending"):  # it may have been claimed before a requeue
            return None
        return _between(self.due_s or self.enqueued_s, self.claimed_s or self.ended_s)

    @property
    def ran_s(self) -> float | None:
        """Seconds from the start, or from the last claim if the start is unknown (short jobs), to the end."""
        return _between(self.started_s or self.claimed_s, self.ended_s if self.claimed_s else None)


def _between(from_s: float | None, to_s: float | None) -> float | None:
    return None if from_s is None or to_s is None else max(0.0, to_s - from_s)


def unknown_job(id: str, note: str = "never published here, or forgotten") -> Job:
    return Job(id, "unknown", note=note)


def get_jobs(reader: Reader, ids: Sequence[str]) -> list[Job]:
    """Return the facts of the newest job of each task, or of each job, in *ids*. Two or three round trips."""
    readable = [id_ for id_ in dict.fromkeys(ids) if is_readable(id_)]
    *replies, settings = reader.ask(
        [
            *(("get", reader.key("task", encode_part(id_))) for id_ in readable),
            *(("hgetall", reader.key("job", id_)) for id_ in readable),
            settings_command(reader),
        ]
    )
    of_tasks = dict(zip(readable, replies, strict=False))
    jobs = {id_: [decode_text(job_id)] for id_, job_id in of_tasks.items() if job_id}
    several = [id_ for id_, job_id in of_tasks.items() if job_id == SEVERAL]
    if several:
        jobs |= dict(zip(several, reader.jobs_of(several), strict=True))
    newest = {id_: job_ids[-1] for id_, job_ids in jobs.items() if job_ids}
    rows = read_jobs(reader, list(newest.values())) if newest else []
    for id_, raw in zip(readable, replies[len(readable) :], strict=True):
        if id_ not in newest and raw:
            rows.append(parse_row(id_, {decode_text(name): value for name, value in raw.items()}))
    others = {newest[id_]: job_ids[:-1] for id_, job_ids in jobs.items() if job_ids}
    described = {one.job.job_id: one.job for one in describe_jobs(reader, rows, settings, others)}
    return [described.get(newest.get(id_, id_)) or unknown_job(id_) for id_ in ids]


def settings_command(reader: Reader) -> Command:
    """Return the command that reads the settings for `describe_jobs`."""
    return "hmget", reader.key("settings"), list(_SETTINGS)


class DescribedJobs(NamedTuple):
    """The facts of a job, the row of its run, and its claim or None."""

    job: Job
    run: JobRow
    held: ClaimedJob | None


def describe_jobs(
    reader: Reader,
    rows: Sequence[JobRow],
    settings: Sequence[bytes | None],
    others: Mapping[str, list[str]] | None = None,
) -> list[DescribedJobs]:
    """Return the facts of the jobs of *rows*, in order, without missing jobs.

    *settings*: reply to `settings_command`. *others*: other jobs of the task, by job id.
    """
    stored = {name: decode_text(value) for name, value in zip(_SETTINGS, settings, strict=True) if value is not None}
    in_force = complete_settings(stored)
    runs = _runs(reader, rows)
    calls = _calls(reader, [run for run in runs.values() if is_batch(run.job_id)])
    names, of_claims = claimed_jobs(
        reader, [run for run in runs.values() if run.worker], int(in_force["heartbeat_interval_us"])
    )
    read_priority = Weights(priority_reversed=in_force["priority_reversed"] == "1").read
    described = []
    for row in rows:
        run = runs[row.job_id]
        if not run.state:
            continue
        first, number = calls.get(run.job_id, ("", 1))
        claim = of_claims.get(run.job_id)
        described.append(
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
                    keys=[decode_part(key.key) for key in stated_keys(run.rules)],
                    merge_key=merge_key_in(run.rules),
                    hint=decode_part(decode_rules(run.rules or "").hint) or None,
                    calls=number,
                    patient_until_s=seconds_between(run.patient_us) if run.state == "scheduled" else None,
                    paused_until_s=seconds_between(run.paused_until_us),
                    recurring=row.recurring,
                    start_within_s=seconds_between(row.due.within_us),
                    deadline_s=seconds_between(row.due.deadline_us),
                    start_by_s=seconds_between(row.due.due_us),
                    size=None if row.due.size_millionths is None else row.due.size_millionths / SECOND_US,
                    other_jobs=(others or {}).get(row.job_id, []),
                    note=claim.note if claim else None,
                ),
                run,
                claim,
            )
        )
    return described


def seconds_between(time_us: int | None) -> float | None:
    """Return a time in µs in seconds, or None if it is unknown."""
    return time_us / SECOND_US if time_us else None


def _runs(reader: Reader, rows: Sequence[JobRow]) -> dict[str, JobRow]:
    """Return by job id the row of its batch or, without a batch, its own row."""
    merged = [row for row in rows if row.into]
    batches = read_jobs(reader, [row.into for row in merged]) if merged else []
    runs = {row.job_id: row for row in rows}
    return runs | {row.job_id: batch for row, batch in zip(merged, batches, strict=True) if batch.state}


def _calls(reader: Reader, batches: Sequence[JobRow]) -> dict[str, tuple[str, int]]:
    """Return by batch the task id of its first call, and its number of calls."""
    if not batches:
        return {}
    calls_by_batch = calls_of(reader, [batch.job_id for batch in batches])
    firsts = read_jobs(reader, [calls.first for calls in calls_by_batch.values()], ("task",))
    return {
        batch: (first.task_id, max(1, calls.number))
        for (batch, calls), first in zip(calls_by_batch.items(), firsts, strict=True)
    }


def live_jobs(reader: Reader, ids: Sequence[str]) -> set[str]:
    """Return the ids, of tasks or jobs, whose newest job is unfinished. Cheaper than `get_jobs` for many ids."""
    jobs = reader.jobs_of(ids)
    newest = [job_ids[-1] if job_ids else id_ for id_, job_ids in zip(ids, jobs, strict=True)]
    states = reader.ask([("hget", reader.key("job", job_id), "state") for job_id in newest])
    return {id_ for id_, state in zip(ids, states, strict=True) if state in _LIVE}


#: Maximum number of holders of a hint, and of a worker's hints, that are shown. The most recent ones are shown.
_MAX_SHOWN = 10


@dataclass(frozen=True)
class LocalWorker:
    """A worker that holds the hint of a job. *used_s*: seconds since its last job with the hint ended."""

    name: str
    used_s: float
    free: int


@dataclass(frozen=True)
class LocalWorkers:
    """*workers* that hold the hint, the most recent first. *bonus*: points of the job on such a worker."""

    workers: list[LocalWorker]
    bonus: float


def local_workers(reader: Reader, hint: str, now_us: int, settings: Mapping[str, str]) -> LocalWorkers:
    """Return the workers that hold *hint*. *settings*: complete settings. Two round trips."""
    reply = reader.ask_one("zrange", reader.key("holders", encode_part(hint)), -_MAX_SHOWN, -1, False, True)
    holders = _pairs(reply)
    rows = [("hmget", reader.key("worker", worker), ["name", "free"]) for worker, _ in holders]
    times = [("zscore", reader.key("hints", worker), encode_part(hint)) for worker, _ in holders]
    replies = reader.ask([*rows, *times]) if holders else []
    workers = [
        LocalWorker(
            decode_part(decode_text(name or b"")),
            max(0.0, now_us - float(at_us or since_us)) / SECOND_US,
            decode_number(free),
        )
        for (_, since_us), (name, free), at_us in zip(holders, replies, replies[len(holders) :], strict=False)
    ]
    workers.sort(key=lambda worker: worker.used_s)
    return LocalWorkers(workers, wire.bonus_seconds_in(settings))


def hints_of(reader: Reader, worker: str) -> dict[str, float]:
    """Return hint -> Unix time when *worker* last ended a job with it, the most recent first."""
    reply = reader.ask_one("zrange", reader.key("hints", worker), -_MAX_SHOWN, -1, False, True)
    return {decode_part(hint): at_us / SECOND_US for hint, at_us in reversed(_pairs(reply))}


def _pairs(reply: object) -> list[tuple[str, int]]:
    """Return the members and scores of a reply, flat or in pairs."""
    flat = list(reply) if isinstance(reply, list) else []
    pairs = flat if flat and isinstance(flat[0], list | tuple) else zip(flat[::2], flat[1::2], strict=True)
    return [(decode_text(member), round(float(score))) for member, score in pairs]
