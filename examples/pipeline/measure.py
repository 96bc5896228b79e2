"""Reads the records of a run, and computes what they say: waits, shares, idle slots."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from examples.pipeline import record

TYPES = ("pdf", "excel", "index")
MODES = ("queued", "on_demand")

#: The workers of the demo: their names, and the types that each serves.
WORKERS = {"pdf": ("pdf",), "excel": ("excel",), "index": ("index",), "versatile": TYPES}

#: A slot counts as idle if nothing ran on it for this long around a moment: shorter gaps are hand-overs.
GAP_S = 0.05


@dataclass
class Job:
    """One task of one document. Times are Unix seconds, None as long as they have not come."""

    id: str
    root: str
    type: str
    mode: str
    published: float
    started: float | None = None
    ended: float | None = None
    worker: str = ""
    pid: int = 0
    document: str = ""
    state: str = ""
    error: str | None = None

    @property
    def wait_s(self) -> float:
        return 0.0 if self.started is None else max(0.0, self.started - self.published)


@dataclass
class Run:
    """All that is known of one side, live or afterwards."""

    side: str
    folder: Path
    jobs: dict[str, Job] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)
    _read: int = 0

    def follow(self) -> None:
        """Take in what has been written since the last call."""
        path = self.folder / record.NAME
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            self._take(**json.loads(line))

    def _take(self, event: str, at: float, **fields: object) -> None:
        if event == "ready":
            self.ready.add(str(fields["worker"]).partition("@")[0])
        elif event == "published":
            self.jobs[str(fields["id"])] = Job(published=at, **fields)  # type: ignore[arg-type]
        elif job := self.jobs.get(str(fields["id"])):
            setattr(job, event, at)
            for name, value in fields.items():
                setattr(job, name, str(value).partition("@")[0] if name == "worker" else value)

    def select(self, type: str | None = None, mode: str | None = None, worker: str | None = None) -> list[Job]:
        return [
            job
            for job in self.jobs.values()
            if type in (None, job.type) and mode in (None, job.mode) and worker in (None, job.worker)
        ]

    def waits(self, type: str | None = None, mode: str | None = None) -> list[float]:
        return sorted(job.wait_s for job in self.select(type, mode) if job.started is not None)

    def first_waits(self, mode: str) -> list[float]:
        """Return how long documents waited for their first task: what a person who asks for one feels."""
        return sorted(job.wait_s for job in self.select(mode=mode) if job.type != "index" and job.started is not None)

    def unfinished(self, requests: int) -> int:
        """Return how many of the requested chains have not come to their end: indexed, or their reading has failed."""
        ended = [job for job in self.jobs.values() if job.ended is not None]
        return requests - sum(job.type == "index" or job.state != "SUCCESS" for job in ended)

    def errors(self) -> list[str]:
        return sorted({job.error for job in self.jobs.values() if job.error})

    @property
    def began(self) -> float:
        return min((job.published for job in self.jobs.values()), default=0.0)

    @property
    def took_s(self) -> float:
        return max((job.ended - self.began for job in self.jobs.values() if job.ended is not None), default=0.0)

    def computed_s(self) -> float:
        """Return how long all jobs ran, summed: the same work, so it differs only by how busy the computer was."""
        return sum(
            job.ended - job.started for job in self.jobs.values() if job.started is not None and job.ended is not None
        )

    def slots(self) -> dict[tuple[str, int], list[Job]]:
        """Return the jobs of each slot in their order, by worker and number of the slot."""
        by_process: dict[tuple[str, int], list[Job]] = defaultdict(list)
        for job in sorted(self.jobs.values(), key=lambda job: job.started or math.inf):
            if job.started is not None:
                by_process[job.worker, job.pid].append(job)
        slots: dict[tuple[str, int], list[Job]] = {}
        for name in WORKERS:
            of_worker = [jobs for (worker, _), jobs in by_process.items() if worker == name]
            slots |= {(name, number): jobs for number, jobs in enumerate(of_worker or [[]], 1)}
        return slots

    def misplaced(self) -> list[Job]:
        """Return the jobs that the versatile worker ran while their own specialist stood idle."""
        busy = {name: [job for job in self.jobs.values() if job.worker == name] for name in TYPES}
        return [
            job for job in self.select(worker="versatile") if not any(_overlaps(job, other) for other in busy[job.type])
        ]

    def idle_beside_work_s(self) -> float:
        """Return for how many seconds slots stood idle, summed, while a job that they could run was waiting."""
        total = 0.0
        for (worker, _), jobs in self.slots().items():
            idle = list(_gaps(jobs, self.began, self.began + self.took_s))
            waiting = [
                (job.published, job.started)
                for t in WORKERS[worker]
                for job in self.select(t)
                if job.started is not None
            ]
            total += _shared(idle, _union(waiting))
        return total


def percentile(values: list[float], percent: int) -> float:
    """Return the nearest-rank percentile of sorted values: the smallest that *percent* of them do not exceed."""
    return values[max(0, math.ceil(len(values) * percent / 100) - 1)]


Span = tuple[float, float]


def _overlaps(job: Job, other: Job) -> bool:
    """Return whether *other* ran, give or take a hand-over, at the moment when *job* was started."""
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
