"""Choose, cancel or move any number of jobs, in pages, so that the server can serve other clients in between."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from typing import NamedTuple

from celery import Celery
from kombu import Connection

from ..reports.job_lists import MAX_JOBS_READ, JobFilter, jobs_page, read_full_jobs
from ..reports.job_rows import read_jobs
from ..reports.jobs import Job, get_jobs
from ..reports.report import with_cohort_name
from ..scheduler.cohorts import CohortAnswers, Cohorts
from ..scheduler.reader import Reader
from ..scheduler.scheduler import Scheduler
from ..schema.constants import MAX_MOVES, REVOKED_KEPT_S
from ..schema.job_record import is_batch
from ..schema.values import decode_text
from . import actions
from .actions import MoveTarget, can_terminate_error

#: Number of chosen jobs whose facts are kept, to be shown.
MAX_SHOWN = 5

#: States of jobs that can be moved, and that can be cancelled.
MOVABLE = ("pending", "scheduled")
CANCELLABLE = (*MOVABLE, "claimed", "running")

#: Number of calls of a run per round trip.
_PAGE = 1_000


class ChosenJobs(NamedTuple):
    """A chosen job: the id of its task, its own id, and its state at that time."""

    id: str
    job_id: str
    state: str


@dataclass
class JobChoice:
    """The jobs that a filter chooses. *shown*: facts of the first jobs. *calls*: number of their calls.

    *more*: True if more jobs may match, because a limit of `choose_jobs` was reached.
    """

    chosen: list[ChosenJobs] = field(default_factory=list)
    shown: list[Job] = field(default_factory=list)
    calls: int = 0
    more: bool = False


#: Called once per page, with its number of jobs.
OnProgress = Callable[[int], object]


def choose_jobs(
    reader: Reader,
    which: JobFilter,
    states: Iterable[str],
    max_jobs: float = inf,
    max_pages: float = inf,
    on_read: OnProgress = lambda _: None,
) -> JobChoice:
    """Return the jobs of *states* that *which* admits. Jobs that start during the search may be missing.

    *max_jobs*: maximum number of jobs.
    *max_pages*: maximum number of pages per state, each with up to 1,000 jobs.
    *on_read*: called with the number of chosen jobs, once per page.
    """
    choice = _choose_jobs(reader, which, states, max_jobs, max_pages, on_read)
    shown = read_full_jobs(reader, [job.job_id for job in choice.chosen[:MAX_SHOWN]]) if choice.chosen else {}
    choice.shown = list(shown.values())
    return choice


def _choose_jobs(
    reader: Reader,
    which: JobFilter,
    states: Iterable[str],
    max_jobs: float,
    max_pages: float,
    on_read: OnProgress,
) -> JobChoice:
    choice, seen = JobChoice(), set[str]()
    for state in states:
        for job in _all(reader, replace(which, state=state), max_pages, choice, on_read):
            if job.job_id is None or job.job_id in seen:
                continue
            if len(choice.chosen) >= max_jobs:
                choice.more = True
                return choice
            seen.add(job.job_id)
            choice.chosen.append(ChosenJobs(job.id, job.job_id, job.state))
            choice.calls += job.calls if is_batch(job.job_id) else 1
    return choice


def choose_jobs_in(
    fleet: Cohorts,
    which: Callable[[Reader], JobFilter],
    names: Sequence[str],
    states: Sequence[str],
    max_jobs: float = inf,
    max_pages: float = inf,
    on_read: OnProgress = lambda _: None,
) -> CohortAnswers[JobChoice]:
    """Return the result of `choose_jobs` for each of the cohorts *names*."""

    def ask(scheduler: Scheduler) -> JobChoice:
        return choose_jobs(scheduler.reader, which(scheduler.reader), states, max_jobs, max_pages, on_read)

    return fleet.each(ask, names, is_long=True)


def merge_chosen(replies: CohortAnswers[JobChoice], is_split: bool) -> JobChoice:
    """Return the choices of all cohorts as one, to be shown."""
    choice = JobChoice()
    for name, cohort_choice in replies.answers.items():
        choice.chosen += cohort_choice.chosen
        choice.shown += with_cohort_name(cohort_choice.shown, name) if is_split else cohort_choice.shown
        choice.calls += cohort_choice.calls
        choice.more = choice.more or cohort_choice.more
    del choice.shown[MAX_SHOWN:]
    return choice


def _all(reader: Reader, which: JobFilter, max_pages: float, choice: JobChoice, on_read: OnProgress) -> Iterator[Job]:
    cursor: str | None = None
    pages = 0
    while pages < max_pages:
        page = jobs_page(reader, which, MAX_JOBS_READ, cursor, is_brief=True)
        pages += 1
        on_read(len(page.jobs))
        yield from page.jobs
        cursor = page.cursor
        if cursor is None:
            return
    choice.more = True


def chosen_task_ids(reader: Reader, chosen: Sequence[ChosenJobs]) -> Iterator[str]:
    """Yield the task ids of *chosen*. For a run of merged calls, yield the ids of all calls."""
    for job in chosen:
        if not is_batch(job.job_id):
            yield job.id
            continue
        key, first = reader.key("callers", job.job_id), 0
        while calls := reader.ask_one("zrange", key, first, first + _PAGE - 1):
            rows = read_jobs(reader, [decode_text(call) for call in calls], ("task",))
            yield from (row.task_id for row in rows if row.task_id)
            first += _PAGE


def chosen_pages(ids: Iterable[str], max_jobs: int) -> Iterator[list[str]]:
    """Yield *ids* in lists of *max_jobs*."""
    remaining = iter(ids)
    while page := list(islice(remaining, max_jobs)):
        yield page


#: Number of jobs per broadcast of remote control.
_BROADCAST_SIZE = 100

#: Number of jobs that are moved before their outcomes are read.
_MOVE_PAGE_SIZE = 100 * MAX_MOVES


class BulkResult(NamedTuple):
    """The result of an action. *done*: number of changed jobs or calls. *left*: state -> number of unchanged jobs."""

    done: int
    left: dict[str, int]
    warning: str | None = None


def run_in_cohorts(
    fleet: Cohorts, replies: CohortAnswers[JobChoice], act: Callable[[Scheduler, JobChoice], BulkResult]
) -> tuple[BulkResult, Mapping[str, str]]:
    """Return the result of *act* in all cohorts, and why cohorts are down. In these, *act* may be incomplete."""
    chosen = {name: choice for name, choice in replies.answers.items() if choice.chosen}
    acted = fleet.act_in_each(lambda scheduler: act(scheduler, chosen[scheduler.keys.cohort]), chosen)
    results = list(acted.answers.values())
    unchanged = Counter[str]()
    for result in results:
        unchanged.update(result.left)
    warnings = dict.fromkeys(result.warning for result in results if result.warning)
    done = sum(result.done for result in results)
    return BulkResult(done, dict(unchanged), "; ".join(warnings) or None), acted.down


def move_jobs(
    app: Celery,
    scheduler: Scheduler,
    chosen: Sequence[ChosenJobs],
    target: MoveTarget,
    *,
    on_done: OnProgress = lambda _: None,
) -> BulkResult:
    """Apply *target* to the jobs of *chosen* that still wait. Raises OptionError. *on_done*: as in `cancel_jobs`."""
    done, unchanged, warning = 0, Counter[str](), None
    for page in chosen_pages((job.job_id for job in chosen), _MOVE_PAGE_SIZE):
        outcome = actions.move_job(app, scheduler, page, target)
        on_done(len(page))
        warning = warning or outcome.warning
        for job in outcome.found:
            done += job.waits
            unchanged[job.state or "unknown"] += not job.waits
    return BulkResult(done, +unchanged, warning)


def cancel_jobs(
    app: Celery,
    scheduler: Scheduler,
    chosen: Sequence[ChosenJobs],
    terminate: bool = False,
    *,
    connection: Connection | None = None,
    on_done: OnProgress = lambda _: None,
) -> BulkResult:
    """Revoke *chosen*, with all calls of merged runs. Waiting jobs end immediately, and held jobs do not start.

    *terminate*: also terminate running jobs, if their pool can. Workers are sent only the jobs that they hold, because
    they remember only 50,000 revokes. *on_done*: is called with the number of processed jobs of each page.
    """
    done, unchanged, pools = 0, Counter[str](), dict[str, str | None]()
    not_terminated = 0
    for page in chosen_pages(chosen_task_ids(scheduler.reader, chosen), _BROADCAST_SIZE):
        revoked = scheduler.revoke(page, [], keep_s=REVOKED_KEPT_S)
        done += revoked.jobs
        on_done(len(page))
        jobs = get_jobs(scheduler.reader, revoked.others) if revoked.others else []
        running = {job.worker for job in jobs if terminate and job.state == "running"}
        pools |= can_terminate_error(app, running - pools.keys(), connection)
        held = []
        for job in jobs:
            is_terminated = terminate and job.state == "running" and not pools.get(job.worker or "")
            if job.state == "claimed" or is_terminated:
                held.append(job.id)
            elif job.state != "revoked":
                unchanged[job.state] += 1
                not_terminated += terminate and job.state == "running"
        if held:
            app.control.revoke(held, terminate=terminate, connection=connection)
        done += len(held)
    names = ", ".join(sorted({pool for pool in pools.values() if pool}))
    return BulkResult(
        done,
        +unchanged,
        f"{not_terminated} go on: their workers' pools ({names}) cannot end a task" if not_terminated else None,
    )
