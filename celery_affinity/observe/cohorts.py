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
from ..rules.bounds import Bound
from ..rules.cohorts import DEFAULT
from ..rules.encoding import decode, encode
from ..rules.stock_lists import StockLists
from ..rules.unreadable import is_text
from ..server.fleet import Asked, Row, WholeFleet
from ..server.reader import Reader
from . import claim_order, job_lists
from . import explain as explanation
from . import jobs as job_facts
from .claim_order import Next
from .explain import Explanation
from .job_filter import Filter
from .job_lists import JobsPage
from .jobs import Job
from .keyed.in_use import Found
from .metrics import Metrics, read_metrics
from .scale import Scale, scale_of, scales
from .status import Batches, Report, Status, WorkerStatus
from .stock_messages import StockMessages

R = TypeVar("R", bound=Row)
S = TypeVar("S", bound=Status)


def rows(asked: Asked[list[R]]) -> list[R]:
    """Return the rows of all cohorts, each with its cohort if there is more than one."""
    return _rows(asked.answers, asked.is_split)


def _rows(answers: Mapping[str, list[R]], is_split: bool) -> list[R]:
    return [row for name, its in answers.items() for row in (named(its, name) if is_split else its)]


def named(its: Iterable[R], cohort: str) -> list[R]:
    return [replace(row, cohort=cohort) for row in its]


def status(
    fleet: WholeFleet, bounds: Mapping[str, int | Bound] | None = None, lists: StockLists | None = None
) -> Status:
    """Return the state of all cohorts as one. *lists*: where stock Celery's producers of the app put messages."""
    found = one_status(fleet.each(lambda scheduler: Report(scheduler.reader, bounds).status()))
    return found if lists is None else with_unserved_lists(fleet, found, lists)


def with_unserved_lists(fleet: WholeFleet, found: Status, lists: StockLists) -> Status:
    """Return the status with the messages in stock Celery's lists that no live worker serves.

    Those on the server of `default`, for its types.
    """
    if fleet.main.keys.cohort != DEFAULT:
        return found
    messages = _stock_messages(fleet, lists, [each.type for each in found.types])
    unserved = messages.unserved({type_ for worker in found.workers for type_ in worker.types})
    own = [each for each in unserved if _is_of_default(fleet, each.queue)]
    return replace(found, unserved_lists=own, more_lists=not messages.are_all)


def _is_of_default(fleet: WholeFleet, queue: str) -> bool:
    try:
        return fleet.cohort_of(queue) == DEFAULT
    except SettingError:  # several cohorts match: calls are refused, and say so
        return False


def _stock_messages(fleet: WholeFleet, lists: StockLists, types: Iterable[str]) -> StockMessages:
    return StockMessages(fleet.main.reader, lists, fleet.main.keys.of_kombu, types)


def one_status(asked: Asked[S]) -> S | Status:
    """Return the rows of all cohorts, and the sums of their counts."""
    every = list(asked.answers.values())
    if not asked.is_split:
        return every[0]

    def all_of(pick: Callable[[S], list[R]]) -> list[R]:
        return rows(Asked({name: pick(each) for name, each in asked.answers.items()}, asked.down))

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


def metrics(fleet: WholeFleet, bounds: Mapping[str, int | Bound] | None = None) -> Metrics:
    """Return what is exported: of several cohorts the sums, and what each has."""
    asked = fleet.each(lambda scheduler: read_metrics(scheduler.reader, bounds))
    if not asked.is_split:
        return asked.answers[fleet.names[0]]
    return replace(Metrics.of(one_status(asked)), of_cohorts=dict(asked.answers))


def found(asked: Asked[Found]) -> Found:
    """Return the keys that are in use in all cohorts as one report."""
    keys = Asked({name: each.keys for name, each in asked.answers.items()}, asked.down)
    types = Asked({name: each.types for name, each in asked.answers.items()}, asked.down)
    return Found(rows(keys), all(each.are_all for each in asked.answers.values()), rows(types))


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


def scale(fleet: WholeFleet, asked: Asked[Status], types: Sequence[str], target_wait_s: float) -> list[Scale]:
    """Return the slots that each group of workers should have, or those of just *types*, in each of their cohorts."""
    found: dict[str, list[Scale]] = {}
    for name, its in asked.answers.items():
        of_types = [type_ for type_ in types if fleet.cohort_of(type_) == name]
        if of_types:
            found[name] = [scale_of(its, of_types, target_wait_s)]
        elif not types:
            found[name] = scales(its, target_wait_s)
    return _rows(found, asked.is_split)


def _sums(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found = Counter[str]()
    for each in counts:
        found.update(each)
    return dict(found)


def explain(fleet: WholeFleet, task_id: str, lists: StockLists | None = None) -> Explanation:
    """Return the place of the newest job of a task, wherever it is. What is nowhere may be in a cohort that is down.

    *lists*: stock Celery's lists, where the message of a task that has no job is looked for.
    """
    try:
        name = fleet.has_job(task_id)
    except CohortDownError as exc:
        return Explanation(task_id, "unknown", note=f"it is in no cohort that answers; {exc}")
    found = fleet.ask(name, lambda scheduler: explanation.explain(scheduler.reader, task_id))
    if lists is not None and not found.source and is_text(task_id) and fleet.main.keys.cohort == DEFAULT:
        is_served = served(fleet)
        message = _stock_messages(fleet, lists, is_served).find(task_id, is_served)
        if message is not None:
            return explanation.in_a_list(task_id, message, lists)
    return replace(found, cohort=name) if fleet.is_split and found.source else found


def jobs(fleet: WholeFleet, ids: Sequence[str]) -> list[Job]:
    """Return the facts of jobs by id, wherever they are. One that is nowhere may be in a cohort that is down."""
    asked = fleet.each(lambda scheduler: job_facts.get_many(scheduler.reader, ids))
    if not asked.is_split:
        return asked.answers[fleet.names[0]]
    known: dict[str, Job] = {}
    for name, its in asked.answers.items():
        known |= {id_: replace(job, cohort=name) for id_, job in zip(ids, its, strict=True) if job.source}
    if not asked.down:
        return [known.get(id_) or job_facts.unknown(id_) for id_ in ids]
    (cohort, why), *_ = asked.down.items()
    note = f"it is in no cohort that answers; {CohortDownError(cohort, why)}"
    return [known.get(id_) or job_facts.unknown(id_, note) for id_ in ids]


def next_jobs(fleet: WholeFleet, types: Iterable[str] | None, limit: int) -> tuple[list[Next], Mapping[str, str]]:
    """Return the next pending jobs of *types*, or of all, and why cohorts are down.

    Cohorts claim apart: their jobs go by score.
    """
    names = None if types is None else [encode(type_) for type_ in types]
    asked = fleet.each(lambda scheduler: claim_order.next_jobs(scheduler.reader, names, limit))
    if not asked.is_split:
        return rows(asked), {}
    lists = [named(its, name) for name, its in asked.answers.items()]
    return list(islice(merge(*lists, key=lambda each: -each.score), limit)), asked.down


def served(fleet: WholeFleet) -> set[str]:
    """Return the types that live workers serve."""
    asked = fleet.each(lambda scheduler: list(scheduler.reader.capacity()))
    return {decode(type_) for its in asked.answers.values() for type_ in its}


def held(fleet: WholeFleet, limit: int) -> list[Job]:
    """Return jobs that workers hold."""
    return rows(fleet.each(lambda scheduler: job_lists.held(scheduler.reader, limit)))[:limit]


def page_of(
    fleet: WholeFleet, which: Callable[[Reader], Filter], names: Sequence[str], limit: int, cursor: str | None
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
        jobs += named(page.jobs, name)
        its_cursor = None
        if page.cursor is not None:
            return JobsPage(jobs, f"{name}:{page.cursor}", page.partial, down or None)
        if len(jobs) >= limit and name != names[-1]:
            return JobsPage(jobs, f"{names[names.index(name) + 1]}:", down=down or None)
    return JobsPage(jobs, None, down=down or None)


def _page(reader: Reader, which: Callable[[Reader], Filter], limit: int, cursor: str | None) -> JobsPage:
    return job_lists.page_of(reader, which(reader), limit, cursor)


def _parted(cursor: str | None, names: Sequence[str]) -> tuple[int, str | None]:
    if cursor is None:
        return 0, None
    name, colon, its = cursor.partition(":")
    if not colon or name not in names:
        raise OptionError(f"cursor must be one that a page of this list had, got: {cursor[:100]!r}")
    return names.index(name), its or None
