"""Checks the ledger of a fleet with cohorts: no job is lost or run twice, and no worker has more runs than slots."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from .cohorts_app import HEARTBEAT_S, REPLY_TIMEOUT_S
from .ledger import Event

#: Max seconds from the end of a run, or from the return of a server, until the worker has released the slot.
REPORTS_S = 1.5
RECONNECTS_S = REPLY_TIMEOUT_S + HEARTBEAT_S + REPORTS_S


@dataclass
class Run:
    """A run of a job by a worker. *key*: its exclusive key, or "-"."""

    job: str
    worker: int
    key: str
    start: float
    end: float = inf


@dataclass
class Runs:
    """The parsed ledger."""

    sent: set[str] = field(default_factory=set)
    accepted: set[str] = field(default_factory=set)
    runs: dict[str, Run] = field(default_factory=dict)
    #: Process id of a worker -> time of its death.
    deaths: dict[int, float] = field(default_factory=dict)
    #: Process id of a worker -> number of its slots.
    slots: dict[int, int] = field(default_factory=dict)
    #: Times (from, to) at which a server was down.
    away: list[tuple[float, float]] = field(default_factory=list)
    _down: dict[str, float] = field(default_factory=dict)

    def read(self, events: Iterable[Event]) -> None:
        for event in events:
            facts = event.facts
            if event.kind == "sent":
                self.sent.add(event.subject)
            elif event.kind == "accepted":
                self.accepted.add(event.subject)
            elif event.kind == "start":
                self.runs[facts["run"]] = Run(event.subject, int(facts["worker"]), facts["key"], event.at)
            elif event.kind == "end":
                self.runs[facts["run"]].end = event.at
            elif event.kind == "kill" and event.subject == "worker":
                self.deaths[int(facts["target"])] = event.at
            elif event.kind == "down":
                self._down[event.subject] = event.at
            elif event.kind == "up":
                self.away.append((self._down.pop(event.subject), event.at))
            elif event.kind == "born":
                self.slots[int(facts["target"])] = int(facts["slots"])

    @property
    def ended(self) -> set[str]:
        return {run.job for run in self.runs.values() if run.end < inf}

    def of_job(self) -> Mapping[str, list[Run]]:
        by_job = defaultdict(list)
        for run in self.runs.values():
            by_job[run.job].append(run)
        return by_job

    def until(self, run: Run) -> float:
        """Return the end of *run*. Its process can outlive its worker for a moment, which is ignored."""
        return min(run.end, self.deaths.get(run.worker, inf))

    def has_reason(self, run: Run) -> bool:
        """Return True if the worker of *run* was killed before it could report the end, so the job may run again."""
        return run.worker in self.deaths and self._told_by(run) >= self.deaths[run.worker]

    def _told_by(self, run: Run) -> float:
        """Return the latest time of the report of the end, which may need every server, for a retry as well."""
        reported_by = run.end + REPORTS_S
        for since, until in sorted(self.away):
            if since <= reported_by and until >= run.end:
                reported_by = max(reported_by, until + RECONNECTS_S)
        return reported_by


def check(history: Runs) -> Iterator[str]:
    """Yield the violations of a quiet fleet."""
    of_job = history.of_job()
    for job in sorted(history.accepted - history.ended):
        yield f"{job} was accepted and did not end; runs: {of_job.get(job)}"
    for job in sorted(of_job.keys() - history.sent):
        yield f"{job} ran, but was never sent"
    for job, runs in of_job.items():
        more = len(runs) - sum(map(history.has_reason, runs))
        # A run that was killed after it published its retry is repeated, and publishes another retry.
        first = of_job.get(job.removesuffix(".1") + ".0", runs) if job.endswith(".1") else runs[:1]
        if more > max(1, len(first)):
            yield f"{job} ran again without a kill: {runs}"
    yield from _more_than_slots(history)
    yield from _at_once_with_a_key(history)


def _more_than_slots(history: Runs) -> Iterator[str]:
    for worker, slots in history.slots.items():
        most = _most_at_once(history, [run for run in history.runs.values() if run.worker == worker])
        if most > slots:
            yield f"worker {worker} ran {most} jobs at once in {slots} slots"


def _at_once_with_a_key(history: Runs) -> Iterator[str]:
    for key in {run.key for run in history.runs.values()} - {"-"}:
        most = _most_at_once(history, [run for run in history.runs.values() if run.key == key])
        if most > 1:
            yield f"{most} jobs of key {key} ran at once"


def _most_at_once(history: Runs, runs: Iterable[Run]) -> int:
    changes = [(run.start, 1) for run in runs] + [(max(run.start, history.until(run)), -1) for run in runs]
    most = now = 0
    for _, change in sorted(changes):  # an end comes before a start at the same time
        now += change
        most = max(most, now)
    return most
