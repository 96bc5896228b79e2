"""Replays: schedule the recorded arrivals and durations again, or a changed scenario, and compare the schedules.

A claim is reproduced if the job gets a slot of the recorded profile (set of types), in the recorded order of that
profile's claims. The measure is the longest common subsequence, so one late job is one difference, and the jobs after
it are not. Claims of different profiles are not ordered, because they do not compete for slots.

A trace ends, but a replay runs until every job has been claimed. Only jobs with a recorded claim are compared: the real
wait of the others is unknown.
"""

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal, NamedTuple

from ..clock import SECOND_US
from ..schema.keys import ALL
from ..schema.values import lane_number
from ..settings import wire
from ..settings.wire import complete_settings, weights_of
from . import advise, fast_engine, scripts_engine, waits
from .advise import Candidate
from .changes import Changes, apply_changes
from .fast_engine import limits_of_types, unknown_rule
from .head_starts import rank_us
from .scenario import Arrival, Profiles, Scenario, Schedule, ScheduledRun, WorkerProfile, scenario_of
from .trace import Trace
from .waits import WaitGain, WaitReport


@dataclass(frozen=True)
class Difference:
    """The first difference of two schedules: the claims with index *nth* (from 0) of a profile."""

    profile: WorkerProfile
    nth: int
    recorded: ScheduledRun | None  #: None if this schedule has no such claim
    replayed: ScheduledRun | None


@dataclass(frozen=True)
class Fidelity:
    """The number of recorded *claims*, and of those *kept*: reproduced in order."""

    claims: int
    kept: int
    first_difference: Difference | None = None

    @property
    def share(self) -> float:
        return self.kept / self.claims if self.claims else 1.0


def compare_with_record(recorded: Schedule, replayed: Schedule) -> Fidelity:
    ours, theirs = _runs_by_profile(recorded), _runs_by_profile(replayed)
    kept, differences = 0, []
    for profile in ours.keys() | theirs.keys():
        of_record, of_replay = ours.get(profile, []), theirs.get(profile, [])
        kept += _kept_in_order([run.number for run in of_record], of_replay)
        for nth, runs in enumerate(zip_longest(of_record, of_replay)):
            present = [run for run in runs if run is not None]
            if len({run.number for run in present}) != 1 or len(present) != 2:
                differences.append((min(run.claimed_us for run in present), Difference(profile, nth, *runs)))
                break
    _, first = min(differences, key=lambda timed: (timed[0], timed[1].profile), default=(0, None))
    return Fidelity(len(recorded.runs), kept, first)


def _runs_by_profile(schedule: Schedule) -> dict[WorkerProfile, list[ScheduledRun]]:
    profiles = Profiles(schedule.scenario.workers)
    runs_by_profile: dict[WorkerProfile, list[ScheduledRun]] = {}
    for run in schedule.runs:
        runs_by_profile.setdefault(profiles.of(run), []).append(run)
    return runs_by_profile


def _kept_in_order(recorded: Sequence[int], replayed: Iterable[ScheduledRun]) -> int:
    """Return the length of the longest common subsequence. No job occurs twice in either."""
    position_of = {number: position for position, number in enumerate(recorded)}
    ends: list[int] = []  # per length, the smallest last position of such a subsequence
    for run in replayed:
        position = position_of.get(run.number)
        if position is not None:
            length = bisect_left(ends, position)
            ends[length : length + 1] = [position]
    return len(ends)


@dataclass(frozen=True)
class PassedJob:
    """A claim that passed a job beyond the job's bound."""

    passed: int  #: number of the waiting job
    by: int  #: number of the claimed job
    claimed_us: int
    later_us: int  #: time from the passed job's rank to the claimed job's, at least `bound_us`
    bound_us: float


def jobs_beyond_bound(schedule: Schedule) -> list[PassedJob]:
    """Return the claims of *schedule* that the overtaking bound forbids. There are none; not checked with a reserve.

    A job can be passed only by jobs whose rank (enqueue time minus head start) is less than D later. A claim passes a
    waiting job if the slot could have run it and no rule blocks it: jobs of paused types, of types at their limit, and
    jobs with keys are not passed.
    """
    scenario, check = schedule.scenario, _OvertakingCheck(schedule.scenario, schedule.head_starts)
    if check.settings["reserve"].strip():
        return []
    passed: list[PassedJob] = []
    arrivals = iter(scenario.arrivals)
    arrival = next(arrivals, None)
    by_number = {job.number: job for job in scenario.arrivals}
    profiles = Profiles(scenario.workers)
    for run in schedule.runs:
        job = by_number[run.number]
        if run.worker == job.held_by:  # a given claim, from before the beginning
            check.count(run, job)
            continue
        while arrival is not None and arrival.since_us < run.claimed_us:
            check.add_waiting(arrival)
            arrival = next(arrivals, None)
        passed += check.passed_by(run, job, profiles.of(run))
        check.count(run, job)
    return passed


class _OvertakingCheck:
    def __init__(self, scenario: Scenario, head_starts: Mapping[int, int]) -> None:
        self._scenario, self.settings = scenario, complete_settings(scenario.settings)
        self._weights, self._limits = weights_of(self.settings), limits_of_types(self.settings["limits"])
        self._head_starts = head_starts
        #: The waiting jobs by type and lane number, as heaps of (rank, number), with the bound in µs.
        self._lanes: dict[tuple[str, int], tuple[float, list[tuple[int, int]]]] = {}
        self._running: dict[str, list[int]] = {type_: [] for type_ in self._limits}  # end times of runs, heaps
        self._claimed: set[int] = set()

    def add_waiting(self, job: Arrival) -> None:
        is_paused = not {job.type, ALL}.isdisjoint(self._scenario.paused)
        has_quota = job.tenant is not None and bool(self.settings["tenants"].strip())
        has_key = has_quota or not (job.exclusive is job.rate is job.merge is None)
        if job.number in self._claimed or is_paused or has_key:
            return
        bound_s = wire.overtaking_seconds(job.priority, job.on_demand, self._weights)
        name = job.type, lane_number(job.on_demand, job.priority)
        _, jobs = self._lanes.setdefault(name, (bound_s * SECOND_US, []))
        heapq.heappush(jobs, (rank_us(job, self._head_starts), job.number))

    def passed_by(self, run: ScheduledRun, job: Arrival, types: WorkerProfile) -> Iterator[PassedJob]:
        """Yield the jobs that the claim passed beyond their bound."""
        self._claimed.add(run.number)
        for (type_, _), (bound_us, jobs) in self._lanes.items():
            if type_ not in types or self._is_full(type_, run.claimed_us):
                continue
            while jobs and jobs[0][1] in self._claimed:
                heapq.heappop(jobs)
            later_us = rank_us(job, self._head_starts) - jobs[0][0] if jobs else 0
            if later_us > 0 and later_us >= bound_us:
                yield PassedJob(jobs[0][1], run.number, run.claimed_us, later_us, bound_us)

    def count(self, run: ScheduledRun, job: Arrival) -> None:
        """Note the claim: the job waits no longer, and counts for its type's limit."""
        self._claimed.add(run.number)
        if job.type in self._limits:
            heapq.heappush(self._running[job.type], run.ended_us)

    def _is_full(self, type_: str, now_us: int) -> bool:
        ends = self._running.get(type_, [])
        while ends and ends[0] < now_us:  # a run that ends exactly now can still occupy the limit
            heapq.heappop(ends)
        return type_ in self._limits and len(ends) >= self._limits[type_]


Engine = Literal["auto", "twin", "judge"]
#: All engines, as values of an option.
ENGINES: tuple[Engine, ...] = ("auto", "twin", "judge")


class EngineResult(NamedTuple):
    """A schedule, and the *engine* that made it: "twin" (the fast engine) or "judge" (the exact engine)."""

    schedule: Schedule
    engine: str


def run_engine(scenario: Scenario, engine: Engine = "auto", progress: Iterable[object] | None = None) -> EngineResult:
    """Return the schedule of *scenario*. *progress*: stepped per arriving job.

    Raises UnknownRuleError if *engine* is "twin" and the scenario has a rule that the fast engine lacks.
    """
    chosen = engine_of(scenario) if engine == "auto" else engine
    run = fast_engine.schedule_fast if chosen == "twin" else scripts_engine.schedule_exact
    return EngineResult(run(scenario, progress), chosen)


def engine_of(*scenarios: Scenario) -> Literal["twin", "judge"]:
    """Return "twin" if the fast engine supports the rules of all scenarios, "judge" otherwise."""
    return "judge" if any(unknown_rule(scenario) for scenario in scenarios) else "twin"


@dataclass(frozen=True)
class WhyNotComparable:
    """The first claim that differs."""

    types: tuple[str, ...]
    nth: int
    at_s: float
    worker: str
    replayed: Candidate | None  #: the job that got the slot in the replay; None: no job
    recorded: Candidate | None  #: the recorded job, in its state in the replay (without a replayed job: in the trace)


@dataclass(frozen=True)
class Replay:
    """The result of a replay. The claims before the trace began are given, and not counted."""

    engine: str
    claims: int
    kept: int
    fidelity: float  #: share, 0 to 1, of the *claims* in the recorded order on the recorded profile
    first_difference: WhyNotComparable | None
    still_waiting: int  #: number of jobs that the fleet had not claimed at the end of the trace
    still_waiting_replayed: int  #: number of jobs that the replay had not claimed at that time
    recorded: WaitReport  #: waits of the jobs with a recorded claim; of all jobs if there are no claims
    replayed: WaitReport
    beyond_bound: int  #: number of replayed claims that the overtaking bound forbids: 0


class Record(NamedTuple):
    """The parts of a trace that a replay needs: the recorded schedule and the trace's length."""

    schedule: Schedule
    length_us: int


def record_of(trace: Trace) -> Record:
    """Return the record in *trace*, which the caller can then discard: a million jobs take 300 MB."""
    return Record(recorded_jobs(trace, scenario_of(trace)), trace.length_us)


def replay(trace: Trace | Record, engine: Engine = "auto", progress: Iterable[object] | None = None) -> Replay:
    """Replay *trace*, or its record. *progress*: stepped per arriving job. Raises UnknownRuleError."""
    ours, length_us = record_of(trace) if isinstance(trace, Trace) else trace
    theirs, chosen = run_engine(ours.scenario, engine, progress)
    claimed = {run.number for run in ours.runs}
    fidelity = compare_with_record(decided_jobs(ours), decided_jobs(comparable_jobs(theirs, claimed, length_us)))
    difference = fidelity.first_difference
    return Replay(
        chosen,
        fidelity.claims,
        fidelity.kept,
        fidelity.share,
        None if difference is None else _explain_difference(difference, ours, theirs),
        _still_waiting(ours, length_us),
        _still_waiting(theirs, length_us),
        waits.report_waits(ours),
        waits.report_waits(theirs, claimed or None),
        len(jobs_beyond_bound(theirs)),
    )


def comparable_jobs(replayed: Schedule, claimed: Container[int], ends_us: int) -> Schedule:
    """Return *replayed* without the later claims, after *ends_us*, of jobs that are not in *claimed*."""
    runs = (run for run in replayed.runs if run.claimed_us <= ends_us or run.number in claimed)
    return replace(replayed, runs=tuple(runs))


def decided_jobs(schedule: Schedule) -> Schedule:
    """Return *schedule* without the claims from before its beginning, which are given."""
    given = {arrival.number for arrival in schedule.scenario.arrivals if arrival.held_by is not None}
    return replace(schedule, runs=tuple(run for run in schedule.runs if run.number not in given))


def _still_waiting(schedule: Schedule, ends_us: int) -> int:
    return len(schedule.scenario.arrivals) - len({run.number for run in schedule.runs if run.claimed_us <= ends_us})


def recorded_jobs(trace: Trace, scenario: Scenario) -> Schedule:
    """Return the recorded schedule of *trace*. *scenario*: the scenario of this trace."""
    jobs, worker_names = trace.jobs, {arrival.name for arrival in trace.workers}
    took_us = array("q", bytes(8 * len(jobs)))
    for arrival in scenario.arrivals:
        took_us[arrival.number] = arrival.took_us
    runs = []
    for index, job in enumerate(jobs):
        if job.claimed_us is not None and job.worker in worker_names:
            ended_us = job.claimed_us + took_us[index] if job.ended_us is None else job.ended_us
            runs.append(ScheduledRun(index, job.worker, job.claimed_us, ended_us))
    runs.sort(key=lambda run: run.claimed_us)
    if all(jobs[run.number].fence for run in runs):
        runs.sort(key=lambda run: jobs[run.number].fence or 0)
    head_starts = {index: job.head_us for index, job in enumerate(jobs) if job.head_us}
    return Schedule(scenario, tuple(runs), head_starts)


def _explain_difference(difference: Difference, ours: Schedule, theirs: Schedule) -> WhyNotComparable:
    run = difference.replayed or difference.recorded
    assert run is not None, "a difference has one of them"
    chosen = advise.candidate_at(theirs if difference.replayed else ours, run.number, run.claimed_us, is_chosen=True)
    other = None
    if difference.replayed and difference.recorded:
        other = advise.candidate_at(theirs, difference.recorded.number, run.claimed_us, is_chosen=False)
    replayed, recorded = (chosen, other) if difference.replayed else (None, chosen)
    return WhyNotComparable(difference.profile, difference.nth, run.claimed_us / 1e6, run.worker, replayed, recorded)


@dataclass(frozen=True)
class WhatIf:
    """Waits before and after a change. *gains*: of the jobs in both schedules, the largest gain first."""

    engine: str
    before: WaitReport
    after: WaitReport
    gains: Sequence[WaitGain]


def schedule_both(
    scenario: Scenario, changes: Changes, engine: Engine = "auto", progress: Iterable[object] | None = None
) -> tuple[Schedule, Schedule, str]:
    """Return the schedules of *scenario* without and with *changes*, made by the same engine, and its name.

    *progress*: stepped per arriving job, in both. Raises UnknownRuleError.
    """
    steps, changed = iter(progress or ()), apply_changes(scenario, changes)
    if engine == "auto":
        engine = engine_of(scenario, changed)
    before, after = run_engine(scenario, engine, steps), run_engine(changed, engine, steps)
    return before.schedule, after.schedule, after.engine


def compare_waits(before: Schedule, after: Schedule, engine: str) -> WhatIf:
    return WhatIf(engine, waits.report_waits(before), waits.report_waits(after), waits.gains_between(before, after))
