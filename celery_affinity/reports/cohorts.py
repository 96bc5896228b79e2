"""Merge the reports of all cohorts of a fleet. Each row gets the name of its cohort.

The report of a single cohort is unchanged. A cohort that is down is named, and the other cohorts are shown.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import merge
from itertools import islice
from typing import TypeVar

from ..errors import CohortDownError, OptionError, SettingError
from ..scheduler.cohorts import CohortAnswers, CohortRow, Cohorts
from ..scheduler.reader import Reader
from ..schema.bounds import Bound
from ..schema.keys import StockLists
from ..schema.values import decode_part, encode_part, is_readable
from ..settings.cohorts import DEFAULT
from . import explain as explain_module
from . import job_lists, queue_order
from . import jobs as job_facts
from .explain import Explanation
from .job_lists import JobFilter, JobsPage
from .jobs import Job
from .metrics import Metrics, read_metrics
from .queue_order import NextJob
from .report import rows_of_all, with_cohort_name
from .scale import Scale, scale_of, scale_of_types
from .status import Batches, Report, Status, WorkerStatus
from .stock_messages import StockMessages

R = TypeVar("R", bound=CohortRow)
S = TypeVar("S", bound=Status)


def status_of_all(
    fleet: Cohorts, bounds: Mapping[str, int | Bound] | None = None, lists: StockLists | None = None
) -> Status:
    """Return the merged state of all cohorts. *lists*: the lists to which the app's stock producers publish."""
    status = merge_status(fleet.each(lambda scheduler: Report(scheduler.reader, bounds).status()))
    return status if lists is None else with_unserved_lists(fleet, status, lists)


def with_unserved_lists(fleet: Cohorts, status: Status, lists: StockLists) -> Status:
    """Return the status with the messages in stock Celery's lists that no live worker serves.

    Only the server and the types of the cohort `default` are searched.
    """
    if fleet.main.keys.cohort != DEFAULT:
        return status
    messages = _stock_messages(fleet, lists, [row.type for row in status.types])
    unserved = messages.unserved({type_ for worker in status.workers for type_ in worker.types})
    of_default = [row for row in unserved if _is_of_default(fleet, row.queue)]
    return replace(status, unserved_lists=of_default, more_lists=not messages.are_all)


def _is_of_default(fleet: Cohorts, queue: str) -> bool:
    try:
        return fleet.cohort_of(queue) == DEFAULT
    except SettingError:  # several cohorts match, so calls fail with this error
        return False


def _stock_messages(fleet: Cohorts, lists: StockLists, types: Iterable[str]) -> StockMessages:
    return StockMessages(fleet.main.reader, lists, fleet.main.keys.of_kombu, types)


def merge_status(replies: CohortAnswers[S]) -> S | Status:
    """Return the rows of all cohorts and the sums of their counts."""
    statuses = list(replies.answers.values())
    if not replies.is_split:
        return statuses[0]

    def all_of(pick: Callable[[S], list[R]]) -> list[R]:
        return rows_of_all(
            CohortAnswers({name: pick(status) for name, status in replies.answers.items()}, replies.down)
        )

    stale_s = [status.stale_s for status in statuses if status.stale_s is not None]
    return Status(
        types=sorted(all_of(lambda status: status.types), key=lambda row: row.type),
        workers=sorted(all_of(lambda status: status.workers), key=lambda worker: worker.name),
        scheduled=sum(status.scheduled for status in statuses),
        dead=sum(status.dead for status in statuses),
        counters=_sums(status.counters for status in statuses),
        waiting_keys=sum(status.waiting_keys for status in statuses),
        pauses=sorted(all_of(lambda status: status.pauses), key=lambda pause: pause.since),
        stale_s=max(stale_s, default=None),
        batches=Batches(
            _sums(status.batches.runs for status in statuses), sum(status.batches.calls for status in statuses)
        ),
        refused=_sums(status.refused for status in statuses),
        dropped=_sums(status.dropped for status in statuses),
        tenants=all_of(lambda status: status.tenants),
        down=dict(replies.down) or None,
        requeued=sum(status.requeued for status in statuses),
    )


def metrics_of_all(fleet: Cohorts, bounds: Mapping[str, int | Bound] | None = None) -> Metrics:
    """Return the exported metrics. For several cohorts, return their sums and the metrics of each cohort."""
    replies = fleet.each(lambda scheduler: read_metrics(scheduler.reader, bounds))
    if not replies.is_split:
        return replies.answers[fleet.names[0]]
    return replace(Metrics.of(merge_status(replies)), of_cohorts=dict(replies.answers))


def whole_workers(workers: Sequence[WorkerStatus]) -> list[WorkerStatus]:
    """Return the workers, with one row for each worker that is in several cohorts. *id*: all its ids.

    A worker has the same name in each of its cohorts.
    """
    whole: dict[str, WorkerStatus] = {}
    for worker in workers:
        if worker.cohort is None or worker.name not in whole:
            whole[worker.id if worker.cohort is None else worker.name] = worker
            continue
        other = whole[worker.name]
        whole[worker.name] = replace(
            other,
            id=f"{other.id} {worker.id}",
            types=sorted({*other.types, *worker.types}),
            slots=other.slots + worker.slots,
            free=other.free + worker.free,
            held=other.held + worker.held,
            draining=other.draining or worker.draining,
            withdrawn=sorted({*other.withdrawn, *worker.withdrawn}),
            cohort=None,
        )
    return list(whole.values())


def scale_of_all(
    fleet: Cohorts, replies: CohortAnswers[Status], types: Sequence[str], target_wait_s: float
) -> list[Scale]:
    """Return the wanted slots of each group of workers or, for *types*, of their workers in each cohort."""
    scales: dict[str, list[Scale]] = {}
    for name, status in replies.answers.items():
        of_types = [type_ for type_ in types if fleet.cohort_of(type_) == name]
        if of_types:
            scales[name] = [scale_of(status, of_types, target_wait_s)]
        elif not types:
            scales[name] = scale_of_types(status, target_wait_s)
    return rows_of_all(CohortAnswers(scales, replies.down))


def _sums(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for counter in counts:
        total.update(counter)
    return dict(total)


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
        message = _stock_messages(fleet, lists, is_served).find(task_id, is_served)
        if message is not None:
            return explain_module.explain_listed(task_id, message, lists)
    return replace(explanation, cohort=name) if fleet.is_split and explanation.source else explanation


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


def next_jobs_of_all(
    fleet: Cohorts, types: Iterable[str] | None, limit: int
) -> tuple[list[NextJob], Mapping[str, str]]:
    """Return the next pending jobs of *types*, or of all types, and the reasons why cohorts are down.

    Cohorts claim separately. The merged jobs are ordered by score.
    """
    names = None if types is None else [encode_part(type_) for type_ in types]
    replies = fleet.each(lambda scheduler: queue_order.next_jobs(scheduler.reader, names, limit))
    if not replies.is_split:
        return rows_of_all(replies), {}
    lists = [with_cohort_name(jobs, name) for name, jobs in replies.answers.items()]
    return list(islice(merge(*lists, key=lambda job: -job.score), limit)), replies.down


def served_by(fleet: Cohorts) -> set[str]:
    """Return the types that live workers serve."""
    replies = fleet.each(lambda scheduler: list(scheduler.reader.capacity()))
    return {decode_part(type_) for types in replies.answers.values() for type_ in types}


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
