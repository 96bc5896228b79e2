"""Computes what the records of a side say: waits, runs of a city that overlapped, changes that got lost."""

from dataclasses import dataclass, field
from pathlib import Path

from examples.comparing import runs
from examples.routes import books
from examples.routes.cities import all_cities

WORKERS = ("north", "south")

#: Slots of each worker.
SLOTS = 2


@dataclass
class Job(runs.Job):
    """A run of a city: it holds a slot from `started`, and plans from `began`, with its lock, to `planned`."""

    began: float | None = None
    planned: float | None = None
    cpu_s: float = 0.0

    @property
    def user_waited_s(self) -> float:
        return 0.0 if self.began is None else max(0.0, self.began - self.published)

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

    def of_city(self, city: str) -> list[Job]:
        """Return the runs of *city* that have begun, in that order."""
        return sorted(
            (job for job in self.jobs.values() if job.type == city and job.began), key=lambda job: job.began or 0
        )

    def planned(self, city: str | None = None) -> int:
        """Return how many changes of the flood have been planned."""
        return sum(job.planned is not None for job in self.select(city, "queued"))

    def unfinished(self, requests: int) -> int:
        return requests - sum(job.ended is not None for job in self.jobs.values())

    def user_waits(self, cities: set[str]) -> list[float]:
        users = self.select(mode="on_demand")
        return sorted(job.user_waited_s for job in users if job.type in cities and job.began is not None)  # type: ignore[attr-defined]

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
        """Return the runs that ended well, and whose change no book has."""
        known = {number for city in all_cities().values() for number in self.book(city.name)["changes"]}
        done = [job for job in self.jobs.values() if job.state == "SUCCESS"]
        return [job for job in done if int(job.about.partition(":")[0]) not in known]

    def book(self, city: str) -> books.Book:
        return books.read(Path(self.folder), all_cities()[city])

    def stretched(self) -> float:
        """Return how many times as long as its CPU time the planning took: what shared cores make of it."""
        done = [job for job in self.jobs.values() if job.began is not None and job.planned is not None]
        took_s = sum((job.planned or 0.0) - (job.began or 0.0) for job in done)
        return took_s / max(0.001, sum(job.cpu_s for job in done))

    def held_idle_s(self) -> float:
        return sum(job.held_idle_s for job in self.jobs.values())
