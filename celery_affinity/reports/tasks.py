"""Report the tasks by name: runs, failures, waits and run times of the ended jobs that are kept (``affinity_keep``)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil

from ..clock import SECOND_US
from ..policy.run_times import RunTime
from ..scheduler.cohorts import CohortRow
from ..scheduler.reader import Reader
from ..schema.values import decode_text
from .job_rows import JobRow, read_jobs
from .jobs import Job, get_jobs
from .render import Table, duration_or_dash
from .report import Answer, Source, report
from .run_times import learned_run_times

#: Maximum number of ended jobs that are read, the newest ones.
MAX_READ = 1_000
#: Maximum number of jobs per worker.
MAX_RECENT = 50
#: Maximum number of failed jobs in a list.
MAX_FAILED = 200
#: States of jobs that a worker ran.
_RAN = ("done", "failed")


@dataclass(frozen=True)
class TaskSummary(CohortRow):
    """The kept jobs of a task that ended as done or failed. Times are in seconds, None if they are unknown.

    - *task*: the task's name.
    - *types*: types of its jobs.
    - *runs*, *failed*: number of ended jobs, and of failed jobs among them.
    - *last_failure*: the exception of the last failed job, or None.
    - *wait_p50_s*, *wait_p95_s*: time from the enqueue time to the last claim.
    - *run_p50_s*, *run_p95_s*: time from the last claim to the end.
    - *expected_s*: learned run time for the mean size.
    """

    task: str
    types: list[str]
    runs: int
    failed: int
    wait_p50_s: float | None
    wait_p95_s: float | None
    run_p50_s: float | None
    run_p95_s: float | None
    expected_s: float | None
    last_failure: str | None


@dataclass(frozen=True)
class EndedJobs:
    """The kept ended jobs: *tasks*, the most frequent first, and up to `MAX_FAILED` *failed* jobs, the newest first."""

    tasks: list[TaskSummary]
    failed: list[Job]


def ended_jobs(reader: Reader) -> EndedJobs:
    """Return the tasks and the failed jobs among the last `MAX_READ` ended jobs."""
    rows = read_jobs(reader, _ended(reader))
    failed = [row.job_id for row in rows if row.state == "failed"][:MAX_FAILED]
    return EndedJobs(_summaries(reader, rows), get_jobs(reader, failed) if failed else [])


def task_summaries(reader: Reader) -> list[TaskSummary]:
    """Summarize at most `MAX_READ` ended jobs by task, the most frequent task first."""
    return _summaries(reader, read_jobs(reader, _ended(reader)))


def _summaries(reader: Reader, ended: Sequence[JobRow]) -> list[TaskSummary]:
    rows = [row for row in ended if row.state in _RAN]
    names = {row.task for row in rows}
    learned = learned_run_times(reader) if names else {}
    summaries = [_summary(name, [row for row in rows if row.task == name], learned.get(name)) for name in names]
    return sorted(summaries, key=lambda summary: (-summary.runs, summary.task))


def recent_jobs(reader: Reader, workers: Collection[str]) -> list[Job]:
    """Return the last kept jobs that ended on *workers* (ids), the newest first."""
    rows = read_jobs(reader, _ended(reader), ("worker", "state"))
    ids = [row.job_id for row in rows if row.worker in workers and row.state in _RAN]
    return get_jobs(reader, ids[:MAX_RECENT]) if ids else []


def _ended(reader: Reader) -> list[str]:
    """Return the ids of the ended jobs that are read, the newest first."""
    ids = reader.ask_one("zrange", reader.key("ended"), -MAX_READ, -1)
    return list(map(decode_text, reversed(ids)))


def _summary(name: str, rows: Sequence[JobRow], learned: RunTime | None) -> TaskSummary:
    waits = sorted(max(0, row.claimed_us - row.enqueued_us) / SECOND_US for row in rows if row.claimed_us)
    runs = sorted(max(0, row.ended_us - row.claimed_us) / SECOND_US for row in rows if row.claimed_us)
    failures = [row.why for row in rows if row.state == "failed"]
    return TaskSummary(
        task=name,
        types=sorted({row.type for row in rows}),
        runs=len(rows),
        failed=len(failures),
        wait_p50_s=_quantile(waits, 0.5),
        wait_p95_s=_quantile(waits, 0.95),
        run_p50_s=_quantile(runs, 0.5),
        run_p95_s=_quantile(runs, 0.95),
        expected_s=None if learned is None else learned.expected_us() / SECOND_US,
        last_failure=failures[0] if failures else None,
    )


def _quantile(times_s: Sequence[float], share: float) -> float | None:
    return times_s[max(0, ceil(share * len(times_s)) - 1)] if times_s else None


_TASKS = Table[TaskSummary](
    {
        "task": "task",
        "types": lambda row: ",".join(row.types),
        "runs": "runs",
        "failed": "failed",
        "wait p50": lambda row: duration_or_dash(row.wait_p50_s),
        "wait p95": lambda row: duration_or_dash(row.wait_p95_s),
        "run p50": lambda row: duration_or_dash(row.run_p50_s),
        "run p95": lambda row: duration_or_dash(row.run_p95_s),
        "expected": lambda row: duration_or_dash(row.expected_s),
        "last failure": "last_failure",
    },
    empty="no ended job is kept: set affinity_keep above 60 s",
)


@report("tasks", "/api/tasks", "Tasks of the kept ended jobs: runs, failures, waits and run times", text=_TASKS.text)
def tasks(source: Source) -> Answer[list[TaskSummary]]:
    """Show runs, failures, waits and run times by task, for the last 1,000 ended jobs that affinity_keep keeps."""
    return source.rows(lambda scheduler: task_summaries(scheduler.reader))
