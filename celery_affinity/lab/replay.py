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
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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
    kept = sum(_kept_in_order([run.number for run in runs], theirs.get(profile, ())) for profile, runs in ours.items())
    return Fidelity(len(recorded.runs), kept, _first_difference(ours, theirs))


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


def _first_difference(
    ours: dict[WorkerProfile, list[ScheduledRun]], theirs: dict[WorkerProfile, list[ScheduledRun]]
) -> Difference | None:
    differences = [
        _difference(profile, ours.get(profile, []), theirs.get(profile, [])) for profile in ours.keys() | theirs.keys()
    ]
    return min((difference for difference in differences if difference is not None), key=_difference_time, default=None)


def _difference(
    profile: WorkerProfile, ours: Sequence[ScheduledRun], theirs: Sequence[ScheduledRun]
) -> Difference | None:
    for index, (ours_run, theirs_run) in enumerate(zip(ours, theirs, strict=False)):
        if ours_run.number != theirs_run.number:
            return Difference(profile, index, ours_run, theirs_run)
    index = min(len(ours), len(theirs))
    if len(ours) == len(theirs):
        return None
    return Difference(
        profile, index, ours[index] if index < len(ours) else None, theirs[index] if index < len(theirs) else None
    )


def _difference_time(difference: Difference) -> tuple[int, WorkerProfile]:
    runs = (difference.recorded, difference.replayed)
    return min(run.claimed_us for run in runs if run is not None), difference.profile


@dataclass(frozen=True)
class PassedJob:
    """A claim that passed a job beyond the job's bound."""

    passed: int  #: number of the waiting job
    by: int  #: number of the claimed job
    claimed_us: int
    later_us: int  #: time from the passed job's enqueue to the claimed job's, at least `bound_us`
    bound_us: float


@dataclass
class _Lane:
    """The waiting jobs of one type, mode and priority: a heap of (enqueued, number)."""

    type: str
    bound_us: float
    jobs: list[tuple[int, int]]


def jobs_beyond_bound(schedule: Schedule) -> list[PassedJob]:
    """Return the claims of *schedule* that the overtaking bound forbids. There are none; not checked with a reserve.

    A job can be passed only by jobs enqueued less than D later. A claim passes a waiting job if the slot could have run
    it and no rule blocks it: jobs of paused types, of types at their limit, and jobs with keys are not passed.
    """
    if complete_settings(schedule.scenario.settings)["reserve"].strip():
        return []
    return list(_OvertakingCheck(schedule).passed_jobs())


class _OvertakingCheck:
    def __init__(self, schedule: Schedule) -> None:
        scenario = schedule.scenario
        self._schedule = schedule
        self._weights = weights_of(complete_settings(scenario.settings))
        self._limits = limits_of_types(complete_settings(scenario.settings)["limits"])
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._running: dict[str, list[int]] = {}  # limited type -> end times of its runs, a heap
        self._claimed: set[int] = set()

    def passed_jobs(self) -> Iterator[PassedJob]:
        scenario = self._schedule.scenario
        arrivals = iter(scenario.arrivals)
        arrival = next(arrivals, None)
        by_number = {job.number: job for job in scenario.arrivals}
        profiles = Profiles(scenario.workers)
        for run in self._schedule.runs:
            while arrival is not None and arrival.since_us < run.claimed_us:
                self._add_waiting(arrival)
                arrival = next(arrivals, None)
            self._claimed.add(run.number)
            yield from self._check_claim(run, by_number[run.number], profiles.of(run))
            if (type_ := by_number[run.number].type) in self._limits:
                heapq.heappush(self._running.setdefault(type_, []), run.ended_us)

    def _add_waiting(self, job: Arrival) -> None:
        if job.number in self._claimed or _is_blocked(job, self._schedule.scenario):
            return
        name = job.type, lane_number(job.on_demand, job.priority)
        if name not in self._lanes:
            bound_s = wire.overtaking_seconds(job.priority, job.on_demand, self._weights)
            self._lanes[name] = _Lane(job.type, bound_s * SECOND_US, [])
        heapq.heappush(self._lanes[name].jobs, (job.enqueued_us, job.number))

    def _check_claim(self, run: ScheduledRun, job: Arrival, types: tuple[str, ...]) -> Iterator[PassedJob]:
        for lane in self._lanes.values():
            if lane.type not in types or self._is_type_full(lane.type, run.claimed_us):
                continue
            while lane.jobs and lane.jobs[0][1] in self._claimed:
                heapq.heappop(lane.jobs)
            if lane.jobs:
                enqueued_us, passed = lane.jobs[0]
                later_us = job.enqueued_us - enqueued_us
                if later_us > 0 and later_us >= lane.bound_us:
                    yield PassedJob(passed, run.number, run.claimed_us, later_us, lane.bound_us)

    def _is_type_full(self, type_: str, now_us: int) -> bool:
        if type_ not in self._limits:
            return False
        ends = self._running.setdefault(type_, [])
        while ends and ends[0] < now_us:  # a run that ends exactly now can still occupy the limit
            heapq.heappop(ends)
        return len(ends) >= self._limits[type_]


def _is_blocked(job: Arrival, scenario: Scenario) -> bool:
    if not {job.type, ALL}.isdisjoint(scenario.paused):
        return True
    has_quotas = bool(complete_settings(scenario.settings)["tenants"].strip())
    return not (job.exclusive is job.rate is job.merge is None) or (has_quotas and job.tenant is not None)


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
    if chosen == "twin":
        return EngineResult(fast_engine.schedule_fast(scenario, progress), chosen)
    return EngineResult(scripts_engine.schedule_exact(scenario, progress), chosen)


def engine_of(scenario: Scenario) -> Literal["twin", "judge"]:
    """Return "twin" if the fast engine supports the scenario's rules, "judge" otherwise."""
    return "twin" if unknown_rule(scenario) is None else "judge"


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


def replay(trace: Trace, engine: Engine = "auto", progress: Iterable[object] | None = None) -> Replay:
    """Replay *trace*. *progress*: stepped per arriving job. Raises UnknownRuleError."""
    return replay_scenario(record_of(trace), engine, progress)


def replay_scenario(record: Record, engine: Engine = "auto", progress: Iterable[object] | None = None) -> Replay:
    """Replay the *record* of a trace, like `replay`."""
    ours, length_us = record
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
    claimed = [index for index, job in enumerate(jobs) if job.claimed_us is not None and job.worker in worker_names]
    claimed.sort(key=lambda index: jobs[index].claimed_us or 0)
    if all(jobs[index].fence for index in claimed):
        claimed.sort(key=lambda index: jobs[index].fence or 0)

    def run(index: int) -> ScheduledRun:
        job, claimed_us = jobs[index], jobs[index].claimed_us or 0
        return ScheduledRun(
            index, job.worker or "", claimed_us, claimed_us + took_us[index] if job.ended_us is None else job.ended_us
        )

    return Schedule(scenario, tuple(map(run, claimed)))


def _explain_difference(difference: Difference, ours: Schedule, theirs: Schedule) -> WhyNotComparable:
    run = difference.replayed or difference.recorded
    assert run is not None, "a difference has one of them"
    schedule = theirs if difference.replayed else ours
    chosen = advise.candidate_at(schedule, run.number, run.claimed_us, is_chosen=True)
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
        engine = "judge" if "judge" in (engine_of(scenario), engine_of(changed)) else "twin"
    before, after = run_engine(scenario, engine, steps), run_engine(changed, engine, steps)
    return before.schedule, after.schedule, after.engine


def compare_waits(before: Schedule, after: Schedule, engine: str) -> WhatIf:
    return WhatIf(engine, waits.report_waits(before), waits.report_waits(after), waits.gains_between(before, after))
