"""Reads the records of one side, during the run or afterwards."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from examples.comparing import record


@dataclass
class Job:
    """One task call. Times are Unix seconds, or None if the event has not happened yet."""

    id: str
    root: str
    type: str
    mode: str
    about: str
    published: float
    started: float | None = None
    ended: float | None = None
    worker: str = ""
    pid: int = 0
    state: str = ""
    error: str | None = None

    @property
    def wait_s(self) -> float:
        return 0.0 if self.started is None else max(0.0, self.started - self.published)


@dataclass
class Run:
    """The recorded jobs and the ready workers of one side."""

    side: str
    folder: Path
    jobs: dict[str, Job] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)
    _read_bytes: int = 0

    def follow(self) -> None:
        """Read the events that were recorded since the last call."""
        path = self.folder / record.NAME
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._read_bytes)
            new = file.read()
        complete = new[: new.rfind(b"\n") + 1]
        self._read_bytes += len(complete)
        for line in complete.splitlines():
            self._apply(**json.loads(line))

    def _apply(self, event: str, at: float, **fields: object) -> None:
        if event == "ready":
            self.ready.add(str(fields["worker"]).partition("@")[0])
        elif event == "published":
            self.jobs[str(fields["id"])] = self.new_job(published=at, **fields)
        elif job := self.jobs.get(str(fields["id"])):
            setattr(job, event, at)
            for name, value in fields.items():
                setattr(job, name, str(value).partition("@")[0] if name == "worker" else value)

    def new_job(self, **fields: object) -> Job:
        return Job(**fields)  # type: ignore[arg-type]

    def select(self, type: str | None = None, mode: str | None = None, worker: str | None = None) -> list[Job]:
        return [
            job
            for job in self.jobs.values()
            if type in (None, job.type) and mode in (None, job.mode) and worker in (None, job.worker)
        ]

    @property
    def began(self) -> float:
        return min((job.published for job in self.jobs.values()), default=0.0)

    @property
    def took_s(self) -> float:
        return max((job.ended - self.began for job in self.jobs.values() if job.ended is not None), default=0.0)
