"""Merge the reports of all cohorts of a fleet. Each row gets the name of its cohort.

The report of a single cohort is unchanged. A cohort that is down is named, and the other cohorts are shown.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..errors import CohortDownError, OptionError
from ..scheduler.cohorts import Cohorts
from ..scheduler.reader import Reader
from ..schema.bounds import Bound
from ..schema.keys import StockLists
from ..schema.values import is_readable
from ..settings.cohorts import DEFAULT
from . import explain as explain_module
from . import job_lists, sentences
from . import jobs as job_facts
from .explain import Explanation
from .fleet_status import merge_status, stock_messages
from .job_lists import JobFilter, JobsPage
from .jobs import Job
from .metrics import Metrics, read_metrics
from .queue_order import served_by
from .report import rows_of_all, with_cohort_name
from .requeues import read_requeues, requeues_of


def metrics_of_all(fleet: Cohorts, bounds: Mapping[str, int | Bound] | None = None) -> Metrics:
    """Return the exported metrics. For several cohorts, return their sums and the metrics of each cohort."""
    replies = fleet.each(lambda scheduler: read_metrics(scheduler.reader, bounds))
    if not replies.is_split:
        return replies.answers[fleet.names[0]]
    return replace(Metrics.of(merge_status(replies)), of_cohorts=dict(replies.answers))


def explain_in_all(fleet: Cohorts, task_id: str, lists: StockLists | None = None) -> Explanation:
    """Explain the newest job of a task in any cohort. A missing job may be in a cohort that is down.

    *lists*: stock Celery's lists, where the message of a task without a job is searched.
    """
    try:
        name = fleet.cohort_of_job(task_id)
    except CohortDownError as exc:
        return Explanation(task_id, "unknown", note=f"it is in no cohort that answers; {exc}")
    explanation = fleet.ask(name, lambda scheduler: explain_module.explain(scheduler.reader, task_id))
    if lists is not None and not explanation.source and is_readable(task_id) and fleet.main.keys.cohort == DEFAULT:
        is_served = served_by(fleet)
        message = stock_messages(fleet, lists, is_served).find(task_id, is_served)
        if message is not None:
            is_scheduled, ingests = lists.schedules(message.queue), lists.ingests
            note = sentences.in_a_list_sentence(message, is_scheduled=is_scheduled, ingests=ingests)
            return Explanation(task_id, "unknown", task=message.task, note=note, in_list=message)
    if fleet.is_split and not explanation.source:  # the task is forgotten: any cohort may have had its job
        rows = rows_of_all(fleet.each(lambda scheduler: read_requeues(scheduler.reader)))
        return replace(explanation, left_workers=requeues_of(rows, [task_id]))
    return replace(explanation, cohort=name) if fleet.is_split else explanation


def jobs_of_all(fleet: Cohorts, ids: Sequence[str]) -> list[Job]:
    """Return the facts of jobs by id, from all cohorts. A missing job may be in a cohort that is down."""
    replies = fleet.each(lambda scheduler: job_facts.get_jobs(scheduler.reader, ids))
    if not replies.is_split:
        return replies.answers[fleet.names[0]]
    jobs: dict[str, Job] = {}
    for name, cohort_jobs in replies.answers.items():
        jobs |= {id_: replace(job, cohort=name) for id_, job in zip(ids, cohort_jobs, strict=True) if job.source}
    if not replies.down:
        return [jobs.get(id_) or job_facts.unknown_job(id_) for id_ in ids]
    (cohort, why), *_ = replies.down.items()
    note = f"it is in no cohort that answers; {CohortDownError(cohort, why)}"
    return [jobs.get(id_) or job_facts.unknown_job(id_, note) for id_ in ids]


def held_keys(fleet: Cohorts, limit: int) -> list[Job]:
    """Return jobs that workers hold."""
    return rows_of_all(fleet.each(lambda scheduler: job_lists.held_jobs(scheduler.reader, limit)))[:limit]


def page_of_all(
    fleet: Cohorts, which: Callable[[Reader], JobFilter], names: Sequence[str], limit: int, cursor: str | None
) -> JobsPage:
    """Return a page of jobs of the cohorts *names* in this order. *which*: makes the filter by a cohort's clock."""
    if not fleet.is_split:
        return fleet.ask(names[0], lambda scheduler: _page(scheduler.reader, which, limit, cursor))
    first, cohort_cursor = _split_cursor(cursor, names)
    jobs, down = list[Job](), dict[str, str]()
    for name in names[first:]:
        remaining, start = limit - len(jobs), cohort_cursor
        try:
            page = fleet.ask(name, lambda scheduler: _page(scheduler.reader, which, remaining, start))  # noqa: B023 - called now
        except CohortDownError as exc:
            down[name] = exc.why
            continue
        jobs += with_cohort_name(page.jobs, name)
        cohort_cursor = None
        if page.cursor is not None:
            return JobsPage(jobs, f"{name}:{page.cursor}", page.partial, down or None)
        if len(jobs) >= limit and name != names[-1]:
            return JobsPage(jobs, f"{names[names.index(name) + 1]}:", down=down or None)
    return JobsPage(jobs, None, down=down or None)


def _page(reader: Reader, which: Callable[[Reader], JobFilter], limit: int, cursor: str | None) -> JobsPage:
    return job_lists.jobs_page(reader, which(reader), limit, cursor)


def _split_cursor(cursor: str | None, names: Sequence[str]) -> tuple[int, str | None]:
    if cursor is None:
        return 0, None
    name, colon, cohort_cursor = cursor.partition(":")
    if not colon or name not in names:
        raise OptionError(f"cursor must be one that a page of this list had, got: {cursor[:100]!r}")
    return names.index(name), cohort_cursor or None
