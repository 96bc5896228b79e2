"""Choose jobs by what they are: all those of a customer, a type, a task, or an age, in any number.

Cancel or move very many jobs, some in each call: other callers of the server are served in between.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from typing import NamedTuple

from celery import Celery
from kombu import Connection

from ..reports.cohorts import with_cohort_name
from ..reports.job_lists import MOST, JobFilter, jobs_page
from ..reports.job_rows import read_jobs
from ..reports.jobs import Job, get_jobs
from ..scheduler.cohorts import CohortAnswers, Cohorts
from ..scheduler.reader import Reader
from ..scheduler.scheduler import Scheduler
from ..schema.constants import MOST_MOVES, REVOKED_KEPT_S
from ..schema.job_record import is_batch
from ..schema.values import decode_text
from . import actions
from .actions import MoveTarget, can_terminate_error

#: Number of chosen jobs that are kept whole, to be shown.
MOST_SHOWN = 5

#: Calls of a run that are read together.
_PAGE = 1_000


class ChosenJobs(NamedTuple):
    """A job that was chosen: the id of its task, its own, and its state then."""

    id: str
    job_id: str
    state: str


@dataclass
class JobChoice:
    """The jobs that a filter chooses. *shown*: all facts of the first ones. *calls*: how many calls they stand for.

    *more*: whether there may be others, because the limits of `choose` were reached.
    """

    chosen: list[ChosenJobs] = field(default_factory=list)
    shown: list[Job] = field(default_factory=list)
    calls: int = 0
    more: bool = False


def choose_jobs(
    reader: Reader,
    which: JobFilter,
    states: Iterable[str],
    most: float = inf,
    most_pages: float = inf,
) -> JobChoice:
    """Return the jobs of *states* that *which* admits. Jobs that start meanwhile may be among them, or not.

    *most*: largest number of jobs; *most_pages*: of pages that are read of each state, each up to 1,000 jobs.
    """
    choice, seen = JobChoice(), set[str]()
    for state in states:
        for job in _all(reader, replace(which, state=state), most_pages, choice):
            if job.job_id is None or job.job_id in seen:
                continue
            if len(choice.chosen) >= most:
                choice.more = True
                return choice
            seen.add(job.job_id)
            choice.chosen.append(ChosenJobs(job.id, job.job_id, job.state))
            choice.calls += job.calls if is_batch(job.job_id) else 1
            if len(choice.shown) < MOST_SHOWN:
                choice.shown.append(job)
    return choice


def choose_jobs_in(
    fleet: Cohorts,
    which: Callable[[Reader], JobFilter],
    names: Sequence[str],
    states: Sequence[str],
    most: float = inf,
    most_pages: float = inf,
) -> CohortAnswers[JobChoice]:
    """Return what `choose` does of each of the cohorts *names*."""

    def ask(scheduler: Scheduler) -> JobChoice:
        return choose_jobs(scheduler.reader, which(scheduler.reader), states, most, most_pages)

    return fleet.each(ask, names, is_long=True)


def merge_chosen(asked: CohortAnswers[JobChoice], is_split: bool) -> JobChoice:
    """Return the choices of cohorts as one, to be shown."""
    choice = JobChoice()
    for name, each in asked.answers.items():
        choice.chosen += each.chosen
        choice.shown += with_cohort_name(each.shown, name) if is_split else each.shown
        choice.calls += each.calls
        choice.more = choice.more or each.more
    del choice.shown[MOST_SHOWN:]
    return choice


def _all(reader: Reader, which: JobFilter, most_pages: float, choice: JobChoice) -> Iterator[Job]:
    cursor: str | None = None
    pages = 0
    while pages < most_pages:
        page = jobs_page(reader, which, MOST, cursor)
        pages += 1
        yield from page.jobs
        cursor = page.cursor
        if cursor is None:
            return
    choice.more = True


def chosen_task_ids(reader: Reader, chosen: Sequence[ChosenJobs]) -> Iterator[str]:
    """Yield the ids of the tasks of *chosen*; of a run of merged calls those of all of them."""
    for each in chosen:
        if not is_batch(each.job_id):
            yield each.id
            continue
        key, first = reader.key("callers", each.job_id), 0
        while found := reader.ask_one("zrange", key, first, first + _PAGE - 1):
            rows = read_jobs(reader, [decode_text(call) for call in found], ("task",))
            yield from (row.task_id for row in rows if row.task_id)
            first += _PAGE


def chosen_pages(ids: Iterable[str], most: int) -> Iterator[list[str]]:
    """Yield *ids*, *most* together."""
    left = iter(ids)
    while page := list(islice(left, most)):
        yield page


#: Number of jobs of which one broadcast of remote control tells workers.
_TOLD_TOGETHER = 100

#: Number of jobs that are moved before it is looked at what came of them.
_MOVED_TOGETHER = 100 * MOST_MOVES


class BulkResult(NamedTuple):
    """What was done. *done*: number of jobs, or of calls. *left*: state -> number of the jobs left as they were."""

    done: int
    left: dict[str, int]
    warning: str | None = None


def run_in_cohorts(
    fleet: Cohorts, asked: CohortAnswers[JobChoice], act: Callable[[Scheduler, JobChoice], BulkResult]
) -> tuple[BulkResult, Mapping[str, str]]:
    """Return what *act* did to the choices of all cohorts, and why some are down, of which it did a part at most."""
    chosen = {name: choice for name, choice in asked.answers.items() if choice.chosen}
    acted = fleet.act_in_each(lambda scheduler: act(scheduler, chosen[scheduler.keys.cohort]), chosen)
    every = list(acted.answers.values())
    left = Counter[str]()
    for each in every:
        left.update(each.left)
    warnings = [each.warning for each in every if each.warning]
    done = BulkResult(sum(each.done for each in every), dict(left), "; ".join(dict.fromkeys(warnings)) or None)
    return done, acted.down


def move_jobs(app: Celery, scheduler: Scheduler, chosen: Sequence[ChosenJobs], wish: MoveTarget) -> BulkResult:
    """Have those of *chosen* that still wait be as *wish* says. Raises OptionError."""
    done, left, warning = 0, Counter[str](), None
    for page in chosen_pages((each.job_id for each in chosen), _MOVED_TOGETHER):
        outcome = actions.move_job(app, scheduler, page, wish)
        warning = warning or outcome.warning
        for found in outcome.found:
            done += found.waits
            left[found.state or "unknown"] += not found.waits
    return BulkResult(done, +left, warning)


def cancel_jobs(
    app: Celery,
    scheduler: Scheduler,
    chosen: Sequence[ChosenJobs],
    terminate: bool = False,
    *,
    connection: Connection | None = None,
) -> BulkResult:
    """Revoke *chosen*, calls of merged runs one by one: what waits ends at once, what workers hold does not start.

    *terminate*: what runs is ended as well, where the pool can. Workers are told only of what they hold: they remember
    50,000 revokes, so others would be forgotten.
    """
    done, left, pools = 0, Counter[str](), dict[str, str | None]()
    going_on = 0
    for page in chosen_pages(chosen_task_ids(scheduler.reader, chosen), _TOLD_TOGETHER):
        done += scheduler.revoke(page, [], keep_s=REVOKED_KEPT_S)
        jobs = get_jobs(scheduler.reader, page)
        running = {job.worker for job in jobs if terminate and job.state == "running"}
        pools |= can_terminate_error(app, running - pools.keys(), connection)
        held = []
        for job in jobs:
            is_ended = terminate and job.state == "running" and not pools.get(job.worker or "")
            if job.state == "claimed" or is_ended:
                held.append(job.id)
            elif job.state != "revoked":
                left[job.state] += 1
                going_on += terminate and job.state == "running"
        if held:
            app.control.revoke(held, terminate=terminate, connection=connection)
        done += len(held)
    names = ", ".join(sorted({pool for pool in pools.values() if pool}))
    return BulkResult(
        done, +left, f"{going_on} go on: their workers' pools ({names}) cannot end a task" if going_on else None
    )
