"""Computes waits, overlapping runs and lost changes from the records of a side.

Each change is a call. A run plans the changes of one call, or of several merged calls; then it has the id of the first.
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

#: The side on which calls merge, and callers read their results.
MERGED = "merged"


@dataclass
class Job(runs.Job):
    """A call, and its run if it has one. A run holds a slot from `started` to `ended`."""

    #: When the planning began: after `started` and, on the side with locks, after the wait for the lock.
    began: float | None = None
    #: When the planning ended.
    planned: float | None = None
    cpu_s: float = 0.0
    #: Numbers of the changes that this run planned.
    changes: list[int] = field(default_factory=list)
    #: When the caller received the result, on the side where callers read results.
    received: float | None = None
    #: True if the result is a plan that includes the caller's change.
    is_in_plan: bool = False

    @property
    def number(self) -> int:
        """Number of the call's change, or 0 for a recurring call."""
        number, has_change, _ = self.about.partition(":")
        return int(number) if has_change else 0

    @property
    def held_idle_s(self) -> float:
        """Seconds for which the run held a slot only to wait for its city's lock."""
        return 0.0 if self.began is None or self.started is None else self.began - self.started


@dataclass
class Run(runs.Run):
    """The records of one side, during the run or afterwards."""

    jobs: dict[str, Job] = field(default_factory=dict)  # type: ignore[assignment]

    def new_job(self, **fields: object) -> Job:
        return Job(**fields)  # type: ignore[arg-type]

    @property
    def began(self) -> float:
        """When the first change was published. Recurring calls can be earlier."""
        return min((job.published for job in self.change_calls()), default=0.0)

    @property
    def took_s(self) -> float:
        return max((job.ended - self.began for job in self.change_calls() if job.ended is not None), default=0.0)

    def change_calls(self) -> list[Job]:
        """Return all calls except recurring calls."""
        return [job for job in self.jobs.values() if job.number]

    def runs_by_number(self) -> dict[int, Job]:
        """Return the run that planned each change, or the last run if a change was planned twice."""
        runs = sorted((job for job in self.jobs.values() if job.began), key=lambda job: job.began or 0.0)
        return {number: job for job in runs for number in job.changes}

    def of_city(self, city: str) -> list[Job]:
        """Return the runs of *city* whose planning has begun, in order."""
        return sorted(
            (job for job in self.jobs.values() if job.type == city and job.began), key=lambda job: job.began or 0
        )

    def planned(self, city: str | None = None) -> int:
        """Return the number of planned changes of the flood."""
        return sum(job.planned is not None for job in self.select(city, "queued"))

    def unfinished(self, requests: int) -> int:
        """Return the number of unplanned changes, or, where callers read results, of callers without a result."""
        ends = (job.received if self.side == MERGED else job.ended for job in self.jobs.values())
        return requests - sum(end is not None for end in ends)

    def user_waits(self, cities: set[str]) -> list[float]:
        """Return the seconds from each user's change to the start of its planning, sorted."""
        return sorted(
            max(0.0, (run.began or 0.0) - user.published)
            for user, run in self.answered()
            if user.mode == "on_demand" and user.type in cities
        )

    def plan_waits(self) -> list[float]:
        """Return the seconds from the publish of each change to the end of its planning, sorted."""
        return sorted(run.planned - call.published for call, run in self.answered() if run.planned is not None)

    def answered(self) -> Iterator[tuple[Job, Job]]:
        """Yield each call that has been answered by a run, and the run."""
        runs = self.runs_by_number()
        for call in self.jobs.values():
            if run := runs.get(call.number):
                yield call, run

    def overlapping(self) -> set[str]:
        """Return the ids of the runs whose planning began before another run of their city had ended."""
        overlapping = set()
        for city in all_cities():
            end = 0.0
            for job in self.of_city(city):
                if (job.began or 0.0) < end:
                    overlapping.add(job.id)
                end = max(end, job.planned or job.ended or float("inf"))
        return overlapping

    def overtaken_by(self, job: Job) -> int:
        """Return the number of flood changes in the same city that began while the user's change *job* waited."""
        return sum(
            job.published < (other.began or 0.0) < (job.began or 0.0)
            for other in self.of_city(job.type)
            if other.mode == "queued"
        )

    def missing(self) -> list[Job]:
        """Return the successful runs with a change that is in no book."""
        applied = {number for city in all_cities().values() for number in self.book(city.name)["changes"]}
        done = [job for job in self.jobs.values() if job.state == "SUCCESS"]
        return [job for job in done if not applied.issuperset(job.changes)]

    def book(self, city: str) -> books.Book:
        return books.read(Path(self.folder), all_cities()[city])

    def slowdown(self) -> float:
        """Return the duration of the planning as a multiple of its CPU time: above 1 if processes share cores."""
        done = [job for job in self.jobs.values() if job.began is not None and job.planned is not None]
        took_s = sum((job.planned or 0.0) - (job.began or 0.0) for job in done)
        return took_s / max(0.001, sum(job.cpu_s for job in done))

    def held_idle_s(self) -> float:
        return sum(job.held_idle_s for job in self.jobs.values())
