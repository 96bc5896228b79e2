"""Checks the ledger: each accepted job ended, with at most one repetition for each run in a killed worker."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from ..ledger import Event

#: The server surely has an end this many seconds later, even without a noted reply. The Python worker notes each reply.
REPORTS_S = 3.0

#: The same for the Node worker, which repeats the end of a chord's part while a dead process holds the chord.
REPEATS_S = 45.0

#: A start or a kill may be noted this many seconds early: a process may continue after its kill was noted.
_AT_ONCE_S = 0.5


@dataclass
class Run:
    """One start of a job."""

    run: str
    pid: int
    worker: int
    by: str
    start: float
    #: None for workers that do not get the number.
    deliveries: int | None = None
    end: float = inf
    #: Time of the reply to the report of the end.
    reported: float = inf


@dataclass
class History:
    """The parsed ledger. *away*: times at which the server or a web process was killed."""

    accepted: set[str] = field(default_factory=set)
    intended: set[str] = field(default_factory=set)
    runs: dict[str, list[Run]] = field(default_factory=dict)
    deaths: dict[int, float] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)
    away: list[float] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)


@dataclass
class Verdict:
    """*by*: runs by kind of worker. *again*: further runs that a kill explains."""

    accepted: int = 0
    runs: int = 0
    again: int = 0
    by: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


def read(events: Iterable[Event]) -> History:
    history, by_id = History(), {}
    for event in events:
        facts = event.facts
        if event.kind in ("intended", "accepted"):
            getattr(history, event.kind).add(event.subject)
        elif event.kind == "start":
            run = Run(facts["run"], event.pid, int(facts["worker"]), facts["by"], event.at)
            run.deliveries = int(facts["deliveries"]) if "deliveries" in facts else None
            by_id[run.run] = run
            history.runs.setdefault(event.subject, []).append(run)
        elif event.kind == "end":
            by_id[facts["run"]].end = event.at
        elif event.kind == "reported":
            by_id[facts["run"]].reported = event.at
            if facts["status"] not in ("200", "409"):
                history.strange.append(f"the end of {event.subject} was answered with {facts['status']}")
        elif event.kind == "kill":
            history.kills[facts.get("moment", event.subject)] += 1
            history.deaths[int(facts["target"])] = event.at
            if event.subject in ("server", "web"):
                history.away.append(event.at)
        elif event.kind == "unknown":
            history.strange.append(f"{event.subject} was reported dead at {event.at:.2f}, but was alive")
    return history


def check(history: History, results: dict[str, object], sums: dict[str, int]) -> Verdict:
    """Check *history*. *results*: result, or the state without one, by token. *sums*: expected results of chords."""
    verdict = Verdict(len(history.accepted), kills=history.kills, violations=list(history.strange))
    for token in sorted(history.accepted | history.runs.keys()):
        runs = sorted(history.runs.get(token, ()), key=lambda run: run.start)
        verdict.by.update(run.by for run in runs)
        verdict.runs += len(runs)
        verdict.violations += [f"{what}: {_described(token, runs, history)}" for what in _wrong(token, runs, history)]
        verdict.again += max(0, len(runs) - 1)
        if token in history.accepted and results.get(token) != sums.get(token, token):
            verdict.violations.append(f"its result is {results.get(token)!r}: {_described(token, runs, history)}")
    return verdict


def _wrong(token: str, runs: list[Run], history: History) -> Iterable[str]:
    if token not in history.intended:
        yield "ran, but was never published"
    if token in history.accepted and not any(run.end < inf for run in runs):
        yield "accepted, and never ran to its end"
    killed = [run for run in runs if is_killed(run, history)]
    if len(runs) - len(killed) > 1:
        yield "ran again, and no worker that had it was killed"
    if any(_counts_too_few(run, killed) for run in runs):
        yield "a run in a killed worker counts no delivery"


def _counts_too_few(run: Run, killed: list[Run]) -> bool:
    return run.deliveries is not None and run.deliveries < sum(each.start < run.start for each in killed)


def is_killed(run: Run, history: History) -> bool:
    """Return True if the process of *run*, or its worker, was killed before the server surely had the end."""
    reported = run.reported
    if run.by != "http":
        reported = run.end + (REPEATS_S if run.by in ("node", "shell") else REPORTS_S)
        for at in sorted(history.away):
            reported = at + 2 * REPORTS_S if run.end <= at <= reported else reported
    return any(
        at is not None and run.start - _AT_ONCE_S <= at <= reported
        for at in (history.deaths.get(run.pid), history.deaths.get(run.worker))
    )


def _described(token: str, runs: list[Run], history: History) -> str:
    words = [
        f"run {each.run} by {each.by} of worker {each.worker}, deliveries {each.deliveries}, "
        f"{each.start:.2f}..{each.end:.2f}, reported {each.reported:.2f}, "
        f"killed {history.deaths.get(each.worker, inf):.2f}"
        for each in runs
    ]
    return "; ".join([token, *words])
