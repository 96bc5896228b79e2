"""Replay: the recorded arrivals and durations are scheduled again, and compared with what was recorded."""

from collections.abc import Iterable
from dataclasses import dataclass

from . import candidates, fidelity, waits
from .candidates import Candidate
from .engines import Engine, scheduled
from .fidelity import Difference
from .overtaking import beyond_bound
from .scenario import Scenario, of_trace
from .schedule import Run, Schedule
from .trace import Trace
from .waits import Report


@dataclass(frozen=True)
class Why:
    """The first claim that differs, at *at_s*: *replayed* got the slot, where the record has *recorded*; None: no job.

    Both are as they were in the replay, or in the record if only that has a claim there.
    """

    types: tuple[str, ...]
    nth: int
    at_s: float
    worker: str
    replayed: Candidate | None
    recorded: Candidate | None


@dataclass(frozen=True)
class Replay:
    """*fidelity*: the share, 0 to 1, of the *claims* in the recorded order on the recorded profile.

    *beyond_bound*: claims of the replay that the overtaking bound forbids, 0.
    """

    engine: str
    claims: int
    kept: int
    fidelity: float
    first_difference: Why | None
    recorded: Report
    replayed: Report
    beyond_bound: int


def replay(trace: Trace, engine: Engine = "auto", progress: Iterable[object] | None = None) -> Replay:
    """Schedule what *trace* recorded. *progress*: stepped for each job that arrives. Raises UnknownRuleError."""
    scenario = of_trace(trace)
    ours = recorded(trace, scenario)
    theirs, chosen = scheduled(scenario, engine, progress)
    found = fidelity.compared(ours, theirs)
    first = found.first_difference
    return Replay(
        chosen,
        found.claims,
        found.kept,
        found.share,
        None if first is None else _why(first, ours, theirs),
        waits.report(ours),
        waits.report(theirs),
        len(beyond_bound(theirs)),
    )


def recorded(trace: Trace, scenario: Scenario) -> Schedule:
    """Return what *trace* recorded as a schedule of *scenario*, its own."""
    took_us = {each.number: each.took_us for each in scenario.arrivals}
    known = {each.name for each in trace.workers}
    claimed = [
        (job.claimed_us, job.fence or 0, nth, job.worker, job.ended_us)
        for nth, job in enumerate(trace.jobs)
        if job.claimed_us is not None and job.worker in known
    ]
    has_fences = all(fence for _, fence, *_ in claimed)
    claimed.sort(key=lambda each: (each[1], each[0]) if has_fences else (each[0], each[2]))
    runs = (
        Run(nth, worker or "", claimed_us, claimed_us + took_us[nth] if ended_us is None else ended_us)
        for claimed_us, _, nth, worker, ended_us in claimed
    )
    return Schedule(scenario, tuple(runs))


def _why(first: Difference, ours: Schedule, theirs: Schedule) -> Why:
    run = first.replayed or first.recorded
    assert run is not None, "a difference has one of them"
    schedule = theirs if first.replayed else ours
    chosen = candidates.at(schedule, run.number, run.claimed_us, is_chosen=True)
    other = None
    if first.replayed and first.recorded:
        other = candidates.at(theirs, first.recorded.number, run.claimed_us, is_chosen=False)
    replayed, its_recorded = (chosen, other) if first.replayed else (None, chosen)
    return Why(first.profile, first.nth, run.claimed_us / 1e6, run.worker, replayed, its_recorded)
