"""Computes what the records of a side say: waits, runs of a city that overlapped, changes that got lost.

Each change is a call. A run plans the changes of one call, or of many that were merged: it is the first of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from examples.comparing import runs
from examples.routes import books
from examples.routes.cities import all_cities

WORKERS = ("north", "south")

#: Slots of each worker.
SLOTS = 2

#: The side whose calls merge, and whose callers ask for results.
MERGED = "merged"


@dataclass
class Job(runs.Job):
    """A call, and its run if it has one: that holds a slot from `started`, and plans from `began`, with its lock, to
    `planned`.

    *changes*: their numbers, if this is a run. *told*, *is_in_plan*: where callers ask for results, when this one was
    known, and whether it was a plan that has the change.
    """

    began: float | None = None
    planned: float | None = None
    cpu_s: float = 0.0
    changes: list[int] = field(default_factory=list)
    told: float | None = None
    is_in_plan: bool = False

    @property
    def number(self) -> int:
        """The number of the change that was called for; 0 for a recurring call, which has none."""
        number, has_change, _ = self.about.partition(":")
        return int(number) if has_change else 0

    @property
    def held_idle_s(self) -> float:
        """Return how long the run held a slot and only waited for its city's lock."""
        return 0.0 if self.began is None or self.started is None else self.began - self.started


@dataclass
class Run(runs.Run):
    """All that is known of one side, live or afterwards."""

    jobs: dict[str, Job] = field(default_factory=dict)  # type: ignore[assignment]

    def new_job(self, **fields: object) -> Job:
        return Job(**fields)  # type: ignore[arg-type]

    @property
    def began(self) -> float:
        """When the first change came; recurring calls may be made before."""
        return min((job.published for job in self.wishes()), default=0.0)

    @property
    def took_s(self) -> float:
        return max((job.ended - self.began for job in self.wishes() if job.ended is not None), default=0.0)

    def wishes(self) -> list[Job]:
        """Return the calls for a change: all but the recurring ones."""
        return [job for job in self.jobs.values() if job.number]

    def runs_by_number(self) -> dict[int, Job]:
        """Return the run that planned each change; the last one of a change that was planned twice."""
        runs = sorted((job for job in self.jobs.values() if job.began), key=lambda job: job.began or 0.0)
        return {number: job for job in runs for number in job.changes}

    def of_city(self, city: str) -> list[Job]:
        """Return the runs of *city* that have begun, in that order."""
        return sorted(
            (job for job in self.jobs.values() if job.type == city and job.began), key=lambda job: job.began or 0
        )

    def planned(self, city: str | None = None) -> int:
        """Return how many changes of the flood have been planned."""
        return sum(job.planned is not None for job in self.select(city, "queued"))

    def unfinished(self, requests: int) -> int:
        """Return how many changes have not been planned, or their callers not been told where they ask for that."""
        ends = (job.told if self.side == MERGED else job.ended for job in self.jobs.values())
        return requests - sum(end is not None for end in ends)

    def user_waits(self, cities: set[str]) -> list[float]:
        """Return how long each user waited until the run that plans the change began."""
        return sorted(
            max(0.0, (run.began or 0.0) - user.published)
            for user, run in self.answered()
            if user.mode == "on_demand" and user.type in cities
        )

    def plan_waits(self) -> list[float]:
        """Return how long it took until each change was in a plan."""
        return sorted(run.planned - call.published for call, run in self.answered() if run.planned is not None)

    def answered(self) -> Iterator[tuple[Job, Job]]:
        """Yield each call whose change a run plans, and that run."""
        runs = self.runs_by_number()
        for call in self.jobs.values():
            if run := runs.get(call.number):
                yield call, run

    def overlapping(self) -> set[str]:
        """Return the ids of the runs that began while another run of their city had not ended."""
        found = set()
        for city in all_cities():
            end = 0.0
            for job in self.of_city(city):
                if (job.began or 0.0) < end:
                    found.add(job.id)
                end = max(end, job.planned or job.ended or float("inf"))
        return found

    def before(self, job: Job) -> int:
        """Return how many changes of its city's flood began while *job*, a user's, waited."""
        return sum(
            job.published < (other.began or 0.0) < (job.began or 0.0)
            for other in self.of_city(job.type)
            if other.mode == "queued"
        )

    def missing(self) -> list[Job]:
        """Return the runs that ended well, and have a change that no book has."""
        known = {number for city in all_cities().values() for number in self.book(city.name)["changes"]}
        done = [job for job in self.jobs.values() if job.state == "SUCCESS"]
        return [job for job in done if not known.issuperset(job.changes)]

    def book(self, city: str) -> books.Book:
        return books.read(Path(self.folder), all_cities()[city])

    def stretched(self) -> float:
        """Return how many times as long as its CPU time the planning took: what shared cores make of it."""
        done = [job for job in self.jobs.values() if job.began is not None and job.planned is not None]
        took_s = sum((job.planned or 0.0) - (job.began or 0.0) for job in done)
        return took_s / max(0.001, sum(job.cpu_s for job in done))

    def held_idle_s(self) -> float:
        return sum(job.held_idle_s for job in self.jobs.values())
