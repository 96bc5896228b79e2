"""Forecast which jobs with an own due time will start late, and why: ``celery affinity due``.

A job's own due time comes from ``start_within`` or ``deadline``. The forecast is a list schedule (`policy/forecast`) of
the jobs that wait, the jobs that run, and the jobs that are expected to be published (`situation`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..clock import SECOND_US
from ..scheduler.cohorts import CohortRow
from ..scheduler.reader import Reader
from ..schema.job_record import is_batch
from ..schema.values import decode_part, decode_text
from .job_rows import calls_of
from .render import pluralize, printable_cell
from .report import Answer, Source, report, with_cohort_name
from .sentences import deadline_sentence, late_sentence, no_start_sentence, unserved_sentence
from .situation import Forecast, WaitingJob, forecast, waiting_jobs

#: Maximum number of overdue jobs that are searched for deadlines that cannot be met, the last ones.
_MAX_OVERDUE = 100
#: A job is named if it is expected to start this long after its due time.
_LATE_US = SECOND_US


@dataclass(frozen=True)
class LateJob(CohortRow):
    """A job that is expected to start late. Times are Unix times.

    - *expected_s*: expected start; None if it is unknown: no live worker serves the type, or it is paused.
    - *late_s*: seconds between both; None without an expected start.
    - *slots*: number of slots that fit it.
    - *jobs_before*, *work_before_s*: jobs that start before it on these slots, and the sum of their run times.
    - *deadline_s*: its deadline, if it cannot be met: when it became pending, its run time was longer than the time
      left. None otherwise.
    - *why*: the reason as text.
    """

    job_id: str
    task_id: str
    task: str
    type: str
    due_s: float
    expected_s: float | None = None
    late_s: float | None = None
    slots: int = 0
    jobs_before: int = 0
    work_before_s: float = 0.0
    deadline_s: float | None = None
    why: str = ""


@dataclass(frozen=True)
class DueReport:
    """Which jobs with an own due time are expected to start late.

    - *waiting*: number of waiting jobs whose due time is in the future.
    - *forecast*: number of these jobs that are forecast, the next ones; at most 1,000.
    - *overdue*: number of waiting jobs whose due time has passed.
    - *late*: the jobs that are expected to start more than 1 s late, the next due time first. Jobs whose deadline
      cannot be met come first.
    """

    waiting: int = 0
    forecast: int = 0
    overdue: int = 0
    late: list[LateJob] = field(default_factory=list)

    def plus(self, other: "DueReport") -> "DueReport":
        late = sorted([*self.late, *other.late], key=lambda job: (job.deadline_s is None, job.due_s))
        return DueReport(
            self.waiting + other.waiting, self.forecast + other.forecast, self.overdue + other.overdue, late
        )


def read_due(reader: Reader) -> DueReport:
    """Return which jobs of a cohort are expected to start late."""
    now_us, key = reader.now_us(), reader.key("due_times")
    waiting, overdue = reader.ask([("zcount", key, now_us, "+inf"), ("zcount", key, "-inf", f"({now_us}")])
    late = _unmeetable(reader, now_us) if overdue else []
    if not waiting:
        return DueReport(overdue=overdue, late=late)
    forecast_now = forecast(reader)
    return DueReport(waiting, len(forecast_now.jobs), overdue, late + _late_jobs(reader, forecast_now))


def expected_start(reader: Reader, job_id: str) -> tuple[float | None, str | None]:
    """Return the Unix time at which a waiting job is expected to start, and why it is late; None if it is not."""
    forecast_now = forecast(reader, job_id)
    forecast_now = forecast_now._replace(jobs=[job for job in forecast_now.jobs if job.job_id == job_id])
    start = forecast_now.starts.get(job_id)
    why = [job.why for job in _late_jobs(reader, forecast_now)]
    return None if start is None else start.start_us / SECOND_US, why[0] if why else None


def _late_jobs(reader: Reader, forecast_now: Forecast) -> list[LateJob]:
    """Return the jobs of a forecast that are expected to start late."""
    late = []
    for job in forecast_now.jobs:
        due_us, start = job.due.due_us, forecast_now.start_of(job)
        if due_us is not None and (start is None or start.start_us - due_us > _LATE_US):
            late.append(job)
    return [_late_job(job, forecast_now) for job in _by_first_call(reader, late)]


def _late_job(job: WaitingJob, forecast_now: Forecast) -> LateJob:
    task_id, type_, due_s = decode_part(job.task_id), decode_part(job.kind.type), (job.due.due_us or 0) / SECOND_US
    slots, start = forecast_now.fits.get(job.kind.type, 0), forecast_now.start_of(job)
    name, identity = _name(job, task_id), (job.job_id, task_id, job.task, type_, due_s)
    if start is not None:
        start_s, work_s = start.start_us / SECOND_US, start.work_us / SECOND_US
        why = late_sentence(name, due_s, start_s, slots, start.jobs_before, work_s)
        return LateJob(*identity, start_s, start_s - due_s, slots, start.jobs_before, work_s, None, why)
    if forecast_now.is_paused(job):
        why = f"type {type_!r} is paused"
    else:
        why = "the forecast does not reach that far" if slots else unserved_sentence(type_)
    return LateJob(*identity, slots=slots, why=no_start_sentence(name, due_s, why))


def _name(job: WaitingJob, task_id: str) -> str:
    return f"{task_id or job.job_id} ({job.task})" if job.task else task_id or job.job_id


def _by_first_call(reader: Reader, jobs: Sequence[WaitingJob]) -> list[WaitingJob]:
    """Return *jobs*, with the task of its first call for each batch."""
    calls = calls_of(reader, [job.job_id for job in jobs if is_batch(job.job_id)])
    rows = reader.fields_of_jobs([of_batch.first for of_batch in calls.values()], ("task", "name"))
    tasks = {batch: tuple(map(decode_text, row)) for batch, row in zip(calls, rows, strict=True)}
    return [
        job._replace(task_id=tasks[job.job_id][0], task=tasks[job.job_id][1]) if job.job_id in tasks else job
        for job in jobs
    ]


def _unmeetable(reader: Reader, now_us: int) -> list[LateJob]:
    """Return the last waiting jobs whose deadline was too close for their run time when they became pending."""
    span = reader.key("due_times"), f"({now_us}", "-inf", True, False, float, True, False, 0, _MAX_OVERDUE
    jobs = waiting_jobs(reader, list(map(decode_text, reader.ask_one("zrange", *span))))
    late = []
    for job in _by_first_call(reader, jobs):
        due_us, deadline_us = job.due.due_us, job.due.deadline_us
        if deadline_us is not None and due_us is not None and due_us <= job.enqueued_us:
            task_id, deadline_s = decode_part(job.task_id), deadline_us / SECOND_US
            identity = job.job_id, task_id, job.task, decode_part(job.kind.type), due_us / SECOND_US
            why = deadline_sentence(_name(job, task_id), deadline_s)
            late.append(LateJob(*identity, deadline_s=deadline_s, why=why))
    return late


def due_text(due_report: DueReport) -> str:
    """Return the report as text: numbers, and a sentence for each late job."""
    if not due_report.waiting and not due_report.overdue:
        return "no waiting job has a due time"
    many = "" if due_report.forecast == due_report.waiting else f" (the next {due_report.forecast:,} are forecast)"
    late = sum(job.deadline_s is None for job in due_report.late)
    numbers = (
        f"{pluralize(due_report.waiting, 'waiting job')} with a due time to come{many}: {late or 'none'} of them "
        f"{'is' if late == 1 else 'are'} expected to start late; {due_report.overdue:,} more are overdue"
    )
    return "\n".join([numbers, *map(_line, due_report.late)])


def _line(job: LateJob) -> str:
    return printable_cell(f"{job.why} [cohort {job.cohort}]" if job.cohort else job.why)


@report("due", "/api/due", "Jobs that are expected to start after their due time, and why", text=due_text)
def due(source: Source) -> Answer[DueReport]:
    """Show which jobs with a due time (start_within, deadline) will probably start late, and why."""
    answers = source.fleet.each(lambda scheduler: read_due(scheduler.reader))
    total = DueReport()
    for name, in_cohort in answers.answers.items():
        total = total.plus(
            replace(in_cohort, late=with_cohort_name(in_cohort.late, name)) if answers.is_split else in_cohort
        )
    return Answer(total, answers.down)
