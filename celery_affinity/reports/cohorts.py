"""One report of many: what the cohorts of a fleet say of themselves, each row with the name of its cohort.

A report on one cohort alone is left as it is. A cohort that is down is named, and the others are shown.
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
from . import explain as explanation
from . import job_lists, queue_order
from . import jobs as job_facts
from .explain import Explanation
from .job_lists import JobFilter, JobsPage
from .jobs import Job
from .key_usage import KeysInUse
from .metrics import Metrics, read_metrics
from .queue_order import NextJob
from .scale import Scale, scale_of, scale_of_types
from .status import Batches, Report, Status, WorkerStatus
from .stock_messages import StockMessages

R = TypeVar("R", bound=CohortRow)
S = TypeVar("S", bound=Status)


def rows_of_all(asked: CohortAnswers[list[R]]) -> list[R]:
    """Return the rows of all cohorts, each with its cohort if there is more than one."""
    return _rows(asked.answers, asked.is_split)


def _rows(answers: Mapping[str, list[R]], is_split: bool) -> list[R]:
    return [row for name, its in answers.items() for row in (with_cohort_name(its, name) if is_split else its)]


def with_cohort_name(its: Iterable[R], cohort: str) -> list[R]:
    return [replace(row, cohort=cohort) for row in its]


def status_of_all(
    fleet: Cohorts, bounds: Mapping[str, int | Bound] | None = None, lists: StockLists | None = None
) -> Status:
    """Return the merged state of all cohorts. *lists*: the lists to which the app's stock producers publish."""
    found = merge_status(fleet.each(lambda scheduler: Report(scheduler.reader, bounds).status()))
    return found if lists is None else with_unserved_lists(fleet, found, lists)


def with_unserved_lists(fleet: Cohorts, found: Status, lists: StockLists) -> Status:
    """Return the status including messages in stock Celery's lists that no live worker serves.

    Only the server and the types of the cohort `default` are searched.
    """
    if fleet.main.keys.cohort != DEFAULT:
        return found
    messages = _stock_messages(fleet, lists, [each.type for each in found.types])
    unserved = messages.unserved({type_ for worker in found.workers for type_ in worker.types})
    own = [each for each in unserved if _is_of_default(fleet, each.queue)]
    return replace(found, unserved_lists=own, more_lists=not messages.are_all)


def _is_of_default(fleet: Cohorts, queue: str) -> bool:
    try:
        return fleet.cohort_of(queue) == DEFAULT
    except SettingError:  # several cohorts match, so calls fail with this error
        return False


def _stock_messages(fleet: Cohorts, lists: StockLists, types: Iterable[str]) -> StockMessages:
    return StockMessages(fleet.main.reader, lists, fleet.main.keys.of_kombu, types)


def merge_status(asked: CohortAnswers[S]) -> S | Status:
    """Return the rows of all cohorts, and the sums of their counts."""
    every = list(asked.answers.values())
    if not asked.is_split:
        return every[0]

    def all_of(pick: Callable[[S], list[R]]) -> list[R]:
        return rows_of_all(CohortAnswers({name: pick(each) for name, each in asked.answers.items()}, asked.down))

    stale_s = [each.stale_s for each in every if each.stale_s is not None]
    return Status(
        types=sorted(all_of(lambda each: each.types), key=lambda each: each.type),
        workers=sorted(all_of(lambda each: each.workers), key=lambda each: each.name),
        scheduled=sum(each.scheduled for each in every),
        dead=sum(each.dead for each in every),
        counters=_sums(each.counters for each in every),
        waiting_keys=sum(each.waiting_keys for each in every),
        pauses=sorted(all_of(lambda each: each.pauses), key=lambda each: each.since),
        stale_s=max(stale_s, default=None),
        batches=Batches(_sums(each.batches.runs for each in every), sum(each.batches.calls for each in every)),
        refused=_sums(each.refused for each in every),
        dropped=_sums(each.dropped for each in every),
        tenants=all_of(lambda each: each.tenants),
        down=dict(asked.down) or None,
        requeued=sum(each.requeued for each in every),
    )


def metrics_of_all(fleet: Cohorts, bounds: Mapping[str, int | Bound] | None = None) -> Metrics:
    """Return what is exported: of several cohorts the sums, and what each has."""
    asked = fleet.each(lambda scheduler: read_metrics(scheduler.reader, bounds))
    if not asked.is_split:
        return asked.answers[fleet.names[0]]
    return replace(Metrics.of(merge_status(asked)), of_cohorts=dict(asked.answers))


def found_in_cohorts(asked: CohortAnswers[KeysInUse]) -> KeysInUse:
    """Return the keys that are in use in all cohorts as one report."""
    keys = CohortAnswers({name: each.keys for name, each in asked.answers.items()}, asked.down)
    types = CohortAnswers({name: each.types for name, each in asked.answers.items()}, asked.down)
    return KeysInUse(rows_of_all(keys), all(each.are_all for each in asked.answers.values()), rows_of_all(types))


def whole_workers(workers: Sequence[WorkerStatus]) -> list[WorkerStatus]:
    """Return each worker once that stands in several cohorts, under the same name; *id*: all its ids."""
    whole: dict[str, WorkerStatus] = {}
    for each in workers:
        if each.cohort is None or each.name not in whole:
            whole[each.id if each.cohort is None else each.name] = each
            continue
        other = whole[each.name]
        whole[each.name] = replace(
            other,
            id=f"{other.id} {each.id}",
            types=sorted({*other.types, *each.types}),
            slots=other.slots + each.slots,
            free=other.free + each.free,
            held=other.held + each.held,
            draining=other.draining or each.draining,
            withdrawn=sorted({*other.withdrawn, *each.withdrawn}),
            cohort=None,
        )
    return list(whole.values())


def scale_of_all(
    fleet: Cohorts, asked: CohortAnswers[Status], types: Sequence[str], target_wait_s: float
) -> list[Scale]:
    """Return the slots that each group of workers should have, or those of just *types*, in each of their cohorts."""
    found: dict[str, list[Scale]] = {}
    for name, its in asked.answers.items():
        of_types = [type_ for type_ in types if fleet.cohort_of(type_) == name]
        if of_types:
            found[name] = [scale_of(its, of_types, target_wait_s)]
        elif not types:
            found[name] = scale_of_types(its, target_wait_s)
    return _rows(found, asked.is_split)


def _sums(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found = Counter[str]()
    for each in counts:
        found.update(each)
    return dict(found)


def explain_in_all(fleet: Cohorts, task_id: str, lists: StockLists | None = None) -> Explanation:
    """Return the place of the newest job of a task, wherever it is. What is nowhere may be in a cohort that is down.

    *lists*: stock Celery's lists, where the message of a task that has no job is looked for.
    """
    try:
        name = fleet.cohort_of_job(task_id)
    except CohortDownError as exc:
        return Explanation(task_id, "unknown", note=f"it is in no cohort that answers; {exc}")
    found = fleet.ask(name, lambda scheduler: explanation.explain(scheduler.reader, task_id))
    if lists is not None and not found.source and is_readable(task_id) and fleet.main.keys.cohort == DEFAULT:
        is_served = served_by(fleet)
        message = _stock_messages(fleet, lists, is_served).find(task_id, is_served)
        if message is not None:
            return explanation.explain_listed(task_id, message, lists)
    return replace(found, cohort=name) if fleet.is_split and found.source else found


def jobs_of_all(fleet: Cohorts, ids: Sequence[str]) -> list[Job]:
    """Return the facts of jobs by id, wherever they are. One that is nowhere may be in a cohort that is down."""
    asked = fleet.each(lambda scheduler: job_facts.get_jobs(scheduler.reader, ids))
    if not asked.is_split:
        return asked.answers[fleet.names[0]]
    known: dict[str, Job] = {}
    for name, its in asked.answers.items():
        known |= {id_: replace(job, cohort=name) for id_, job in zip(ids, its, strict=True) if job.source}
    if not asked.down:
        return [known.get(id_) or job_facts.unknown_job(id_) for id_ in ids]
    (cohort, why), *_ = asked.down.items()
    note = f"it is in no cohort that answers; {CohortDownError(cohort, why)}"
    return [known.get(id_) or job_facts.unknown_job(id_, note) for id_ in ids]


def next_jobs_of_all(
    fleet: Cohorts, types: Iterable[str] | None, limit: int
) -> tuple[list[NextJob], Mapping[str, str]]:
    """Return the next pending jobs of *types*, or of all, and why cohorts are down.

    Cohorts claim apart: their jobs go by score.
    """
    names = None if types is None else [encode_part(type_) for type_ in types]
    asked = fleet.each(lambda scheduler: queue_order.next_jobs(scheduler.reader, names, limit))
    if not asked.is_split:
        return rows_of_all(asked), {}
    lists = [with_cohort_name(its, name) for name, its in asked.answers.items()]
    return list(islice(merge(*lists, key=lambda each: -each.score), limit)), asked.down


def served_by(fleet: Cohorts) -> set[str]:
    """Return the types that live workers serve."""
    asked = fleet.each(lambda scheduler: list(scheduler.reader.capacity()))
    return {decode_part(type_) for its in asked.answers.values() for type_ in its}


def held_keys(fleet: Cohorts, limit: int) -> list[Job]:
    """Return jobs that workers hold."""
    return rows_of_all(fleet.each(lambda scheduler: job_lists.held_jobs(scheduler.reader, limit)))[:limit]


def page_of_all(
    fleet: Cohorts, which: Callable[[Reader], JobFilter], names: Sequence[str], limit: int, cursor: str | None
) -> JobsPage:
    """Return a page of jobs of the cohorts *names*, one after the other. *which*: the filter, by a cohort's clock."""
    if not fleet.is_split:
        return fleet.ask(names[0], lambda scheduler: _page(scheduler.reader, which, limit, cursor))
    first, its_cursor = _parted(cursor, names)
    jobs, down = list[Job](), dict[str, str]()
    for name in names[first:]:
        left, at = limit - len(jobs), its_cursor
        try:
            page = fleet.ask(name, lambda scheduler: _page(scheduler.reader, which, left, at))  # noqa: B023 - asked now
        except CohortDownError as exc:
            down[name] = exc.why
            continue
        jobs += with_cohort_name(page.jobs, name)
        its_cursor = None
        if page.cursor is not None:
            return JobsPage(jobs, f"{name}:{page.cursor}", page.partial, down or None)
        if len(jobs) >= limit and name != names[-1]:
            return JobsPage(jobs, f"{names[names.index(name) + 1]}:", down=down or None)
    return JobsPage(jobs, None, down=down or None)


def _page(reader: Reader, which: Callable[[Reader], JobFilter], limit: int, cursor: str | None) -> JobsPage:
    return job_lists.jobs_page(reader, which(reader), limit, cursor)


def _parted(cursor: str | None, names: Sequence[str]) -> tuple[int, str | None]:
    if cursor is None:
        return 0, None
    name, colon, its = cursor.partition(":")
    if not colon or name not in names:
        raise OptionError(f"cursor must be one that a page of this list had, got: {cursor[:100]!r}")
    return names.index(name), its or None
