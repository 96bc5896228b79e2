"""Replay: the recorded arrivals and durations are scheduled again, and compared with what was recorded.

A record ends, and a replay goes on until every job has been claimed. So only jobs that the record has a claim of are
compared: what still waited as it ended waited for nobody knows how long, and counts on neither side (`comparable`).
"""

from array import array
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from . import candidates, fidelity, waits
from .candidates import Candidate
from .engines import Engine, scheduled
from .fidelity import Difference
from .overtaking import beyond_bound
from .scenario import Scenario, scenario_of
from .schedule import Run, Schedule
from .trace import Trace
from .waits import WaitReport


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
    """*fidelity*: the share, 0 to 1, of the *claims* in the recorded order on the recorded profile. Those of before the
    record began are given, and do not count.

    *still_waiting*, *still_waiting_replayed*: jobs that the record, and the replay, had not claimed as the record
    ended. The waits in *recorded* and *replayed* are of the jobs that the record has a claim of; of all jobs, if it has
    no claims. *beyond_bound*: claims of the replay that the overtaking bound forbids, 0.
    """

    engine: str
    claims: int
    kept: int
    fidelity: float
    first_difference: Why | None
    still_waiting: int
    still_waiting_replayed: int
    recorded: WaitReport
    replayed: WaitReport
    beyond_bound: int


class Record(NamedTuple):
    """What a trace recorded, as a schedule, and how long the trace is: all that a replay needs of it."""

    schedule: Schedule
    length_us: int


def record_of(trace: Trace) -> Record:
    """Return the record in *trace*, which may be forgotten then: a million of its jobs take 300 MB."""
    return Record(recorded(trace, scenario_of(trace)), trace.length_us)


def replay(trace: Trace, engine: Engine = "auto", progress: Iterable[object] | None = None) -> Replay:
    """Schedule what *trace* recorded. *progress*: stepped for each job that arrives. Raises UnknownRuleError."""
    return replayed(record_of(trace), engine, progress)


def replayed(record: Record, engine: Engine = "auto", progress: Iterable[object] | None = None) -> Replay:
    """Do as `replay` does, for the *record* of a trace."""
    ours, length_us = record
    theirs, chosen = scheduled(ours.scenario, engine, progress)
    claimed = {run.number for run in ours.runs}
    found = fidelity.compared(decided(ours), decided(comparable(theirs, claimed, length_us)))
    first = found.first_difference
    return Replay(
        chosen,
        found.claims,
        found.kept,
        found.share,
        None if first is None else _why(first, ours, theirs),
        _still_waiting(ours, length_us),
        _still_waiting(theirs, length_us),
        waits.report(ours),
        waits.report(theirs, claimed or None),
        len(beyond_bound(theirs)),
    )


def comparable(replayed: Schedule, claimed: Container[int], ends_us: int) -> Schedule:
    """Return *replayed* without the claims, after the record ended at *ends_us*, of jobs that it has no claim of."""
    runs = (run for run in replayed.runs if run.claimed_us <= ends_us or run.number in claimed)
    return replace(replayed, runs=tuple(runs))


def decided(schedule: Schedule) -> Schedule:
    """Return *schedule* without the claims of before its beginning, which are given."""
    given = {each.number for each in schedule.scenario.arrivals if each.held_by is not None}
    return replace(schedule, runs=tuple(run for run in schedule.runs if run.number not in given))


def _still_waiting(schedule: Schedule, ends_us: int) -> int:
    return len(schedule.scenario.arrivals) - len({run.number for run in schedule.runs if run.claimed_us <= ends_us})


def recorded(trace: Trace, scenario: Scenario) -> Schedule:
    """Return what *trace* recorded as a schedule of *scenario*, its own."""
    jobs, known = trace.jobs, {each.name for each in trace.workers}
    took_us = array("q", bytes(8 * len(jobs)))
    for each in scenario.arrivals:
        took_us[each.number] = each.took_us
    claimed = [nth for nth, job in enumerate(jobs) if job.claimed_us is not None and job.worker in known]
    claimed.sort(key=lambda nth: jobs[nth].claimed_us or 0)
    if all(jobs[nth].fence for nth in claimed):
        claimed.sort(key=lambda nth: jobs[nth].fence or 0)

    def run(nth: int) -> Run:
        job, claimed_us = jobs[nth], jobs[nth].claimed_us or 0
        return Run(
            nth, job.worker or "", claimed_us, claimed_us + took_us[nth] if job.ended_us is None else job.ended_us
        )

    return Schedule(scenario, tuple(map(run, claimed)))


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
