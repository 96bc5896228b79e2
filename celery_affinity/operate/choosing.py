"""Choose jobs by what they are: all those of a customer, a type, a task, or an age, in any number."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from typing import NamedTuple

from ..observe.cohorts import named
from ..observe.job_filter import Filter
from ..observe.job_lists import MOST, page_of
from ..observe.job_row import read_jobs
from ..observe.jobs import Job
from ..rules.marks import is_batch
from ..rules.rows import text_of
from ..server.fleet import Asked, WholeFleet
from ..server.reader import Reader
from ..server.scheduler import Scheduler

#: Number of chosen jobs that are kept whole, to be shown.
MOST_SHOWN = 5

#: Calls of a run that are read together.
_PAGE = 1_000


class Chosen(NamedTuple):
    """A job that was chosen: the id of its task, its own, and its state then."""

    id: str
    job_id: str
    state: str


@dataclass
class Choice:
    """The jobs that a filter chooses. *shown*: all facts of the first ones. *calls*: how many calls they stand for.

    *more*: whether there may be others, because the limits of `choose` were reached.
    """

    chosen: list[Chosen] = field(default_factory=list)
    shown: list[Job] = field(default_factory=list)
    calls: int = 0
    more: bool = False


def choose(
    reader: Reader,
    which: Filter,
    states: Iterable[str],
    most: float = inf,
    most_pages: float = inf,
) -> Choice:
    """Return the jobs of *states* that *which* admits. Jobs that start meanwhile may be among them, or not.

    *most*: largest number of jobs; *most_pages*: of pages that are read of each state, each up to 1,000 jobs.
    """
    choice, seen = Choice(), set[str]()
    for state in states:
        for job in _all(reader, replace(which, state=state), most_pages, choice):
            if job.job_id is None or job.job_id in seen:
                continue
            if len(choice.chosen) >= most:
                choice.more = True
                return choice
            seen.add(job.job_id)
            choice.chosen.append(Chosen(job.id, job.job_id, job.state))
            choice.calls += job.calls if is_batch(job.job_id) else 1
            if len(choice.shown) < MOST_SHOWN:
                choice.shown.append(job)
    return choice


def choose_in(
    fleet: WholeFleet,
    which: Callable[[Reader], Filter],
    names: Sequence[str],
    states: Sequence[str],
    most: float = inf,
    most_pages: float = inf,
) -> Asked[Choice]:
    """Return what `choose` does of each of the cohorts *names*."""

    def ask(scheduler: Scheduler) -> Choice:
        return choose(scheduler.reader, which(scheduler.reader), states, most, most_pages)

    return fleet.each(ask, names, is_long=True)


def together(asked: Asked[Choice], is_split: bool) -> Choice:
    """Return the choices of cohorts as one, to be shown."""
    choice = Choice()
    for name, each in asked.answers.items():
        choice.chosen += each.chosen
        choice.shown += named(each.shown, name) if is_split else each.shown
        choice.calls += each.calls
        choice.more = choice.more or each.more
    del choice.shown[MOST_SHOWN:]
    return choice


def _all(reader: Reader, which: Filter, most_pages: float, choice: Choice) -> Iterator[Job]:
    cursor: str | None = None
    pages = 0
    while pages < most_pages:
        page = page_of(reader, which, MOST, cursor)
        pages += 1
        yield from page.jobs
        cursor = page.cursor
        if cursor is None:
            return
    choice.more = True


def task_ids(reader: Reader, chosen: Sequence[Chosen]) -> Iterator[str]:
    """Yield the ids of the tasks of *chosen*; of a run of merged calls those of all of them."""
    for each in chosen:
        if not is_batch(each.job_id):
            yield each.id
            continue
        key, first = reader.key("callers", each.job_id), 0
        while found := reader.ask_one("zrange", key, first, first + _PAGE - 1):
            rows = read_jobs(reader, [text_of(call) for call in found], ("task",))
            yield from (row.task_id for row in rows if row.task_id)
            first += _PAGE


def pages(ids: Iterable[str], most: int) -> Iterator[list[str]]:
    """Yield *ids*, *most* together."""
    left = iter(ids)
    while page := list(islice(left, most)):
        yield page
