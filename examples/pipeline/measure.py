"""Computes waits, shares and idle slots from the records of a run."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from examples.comparing import runs
from examples.comparing.runs import Job

TYPES = ("pdf", "excel", "index")
MODES = ("queued", "on_demand")

#: The workers of the demo: name -> types.
WORKERS = {"pdf": ("pdf",), "excel": ("excel",), "index": ("index",), "versatile": TYPES}

#: Gaps between two jobs of a slot are idle time only if they are longer than this. Shorter gaps are hand-overs.
GAP_S = 0.05


@dataclass
class Run(runs.Run):
    """The records of one side, during the run or afterwards."""

    def waits(self, type: str | None = None, mode: str | None = None) -> list[float]:
        return sorted(job.wait_s for job in self.select(type, mode) if job.started is not None)

    def first_waits(self, mode: str) -> list[float]:
        """Return how long documents waited for the start of their first task, as the user notices it."""
        return sorted(job.wait_s for job in self.select(mode=mode) if job.type != "index" and job.started is not None)

    def unfinished(self, requests: int) -> int:
        """Return the number of unfinished chains. A chain is finished if it is indexed, or if its reading failed."""
        ended = [job for job in self.jobs.values() if job.ended is not None]
        return requests - sum(job.type == "index" or job.state != "SUCCESS" for job in ended)

    def errors(self) -> list[str]:
        return sorted({job.error for job in self.jobs.values() if job.error})

    def computed_s(self) -> float:
        """Return the total run time of all jobs. The work is the same on both sides: a difference means other load."""
        return sum(
            job.ended - job.started for job in self.jobs.values() if job.started is not None and job.ended is not None
        )

    def slots(self) -> dict[tuple[str, int], list[Job]]:
        """Return the jobs of each slot in order, by (worker, slot number)."""
        by_process: dict[tuple[str, int], list[Job]] = defaultdict(list)
        for job in sorted(self.jobs.values(), key=lambda job: job.started or math.inf):
            if job.started is not None:
                by_process[job.worker, job.pid].append(job)
        slots: dict[tuple[str, int], list[Job]] = {}
        for name in WORKERS:
            slots_of_worker = [jobs for (worker, _), jobs in by_process.items() if worker == name]
            slots |= {(name, number): jobs for number, jobs in enumerate(slots_of_worker or [[]], 1)}
        return slots

    def misplaced(self) -> list[Job]:
        """Return the jobs that the versatile worker ran while the specialist for their type was idle."""
        busy = {name: [job for job in self.jobs.values() if job.worker == name] for name in TYPES}
        return [
            job for job in self.select(worker="versatile") if not any(_overlaps(job, other) for other in busy[job.type])
        ]

    def avoidable_idle_s(self) -> float:
        """Return the total time in seconds for which slots were idle while a job that they could run was waiting."""
        total = 0.0
        for (worker, _), jobs in self.slots().items():
            idle = list(_gaps(jobs, self.began, self.began + self.took_s))
            waiting = [
                (job.published, job.started)
                for type_ in WORKERS[worker]
                for job in self.select(type_)
                if job.started is not None
            ]
            total += _shared(idle, _union(waiting))
        return total


Span = tuple[float, float]


def _overlaps(job: Job, other: Job) -> bool:
    """Return True if *other* was running when *job* was started, with a tolerance of GAP_S."""
    if job.started is None or other.started is None:
        return True
    return other.started - GAP_S <= job.started <= (other.ended or math.inf) + GAP_S


def _gaps(jobs: list[Job], start: float, end: float) -> Iterator[Span]:
    for job in jobs:
        if job.started is not None and job.started - start > GAP_S:
            yield start, job.started
        start = max(start, job.ended or end)
    if end > start:
        yield start, end


def _union(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def _shared(some: list[Span], others: list[Span]) -> float:
    return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in some for b in others)
