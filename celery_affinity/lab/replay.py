"""How true a replay is: which of the recorded claims it makes again, in the recorded order.

A claim is made again if the job gets a slot of the recorded profile (set of types), and if it does so in the recorded
order of that profile's claims: the largest number of claims that can be kept in order counts (the longest common
subsequence), so one job that comes late is one claim, and not all that follow. Claims of different profiles have no
order: their slots are not in each other's way.

Looks for claims of a schedule that the overtaking bound forbids (`rules.overtaking`): there are none.

A job may be passed only by jobs enqueued less than D after it. A claim passes a job that waited then and that the same
slot could have run. What a rule keeps back is not passed: jobs of paused and of full types, and jobs with keys.

Which engine schedules a scenario: the twin if it knows the rules, else the judge.

Replay: the recorded arrivals and durations are scheduled again, and compared with what was recorded.

A record ends, and a replay goes on until every job has been claimed. So only jobs that the record has a claim of are
compared: what still waited as it ended waited for nobody knows how long, and counts on neither side (`comparable`).

What if: a trace is scheduled as it was recorded, and with changes; who waits less then, and who longer.
"""

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, cast

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
    """The first place where two schedules differ: the claims of *profile* that are the *nth*, from 0, in each.

    None: that schedule has no such claim.
    """

    profile: WorkerProfile
    nth: int
    recorded: ScheduledRun | None
    replayed: ScheduledRun | None


@dataclass(frozen=True)
class Fidelity:
    """*claims*: those recorded; *kept*: those that the replay made again in their order."""

    claims: int
    kept: int
    first_difference: Difference | None = None

    @property
    def share(self) -> float:
        return self.kept / self.claims if self.claims else 1.0


def compare_with_record(recorded: Schedule, replayed: Schedule) -> Fidelity:
    ours, theirs = _by_profile(recorded), _by_profile(replayed)
    kept = sum(_kept([run.number for run in runs], theirs.get(profile, ())) for profile, runs in ours.items())
    return Fidelity(len(recorded.runs), kept, _first_difference(ours, theirs))


def _by_profile(schedule: Schedule) -> dict[WorkerProfile, list[ScheduledRun]]:
    profiles = Profiles(schedule.scenario.workers)
    found: dict[WorkerProfile, list[ScheduledRun]] = {}
    for run in schedule.runs:
        found.setdefault(profiles.of(run), []).append(run)
    return found


def _kept(recorded: Sequence[int], replayed: Iterable[ScheduledRun]) -> int:
    """Return the length of the longest common subsequence. Each job is in both at most once."""
    place_of = {number: place for place, number in enumerate(recorded)}
    ends: list[int] = []  # the smallest last place of a subsequence of each length
    for run in replayed:
        place = place_of.get(run.number)
        if place is not None:
            length = bisect_left(ends, place)
            ends[length : length + 1] = [place]
    return len(ends)


def _first_difference(
    ours: dict[WorkerProfile, list[ScheduledRun]], theirs: dict[WorkerProfile, list[ScheduledRun]]
) -> Difference | None:
    found = [
        _difference(profile, ours.get(profile, []), theirs.get(profile, [])) for profile in ours.keys() | theirs.keys()
    ]
    return min((each for each in found if each is not None), key=_when, default=None)


def _difference(
    profile: WorkerProfile, ours: Sequence[ScheduledRun], theirs: Sequence[ScheduledRun]
) -> Difference | None:
    for nth, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one.number != other.number:
            return Difference(profile, nth, one, other)
    nth = min(len(ours), len(theirs))
    if len(ours) == len(theirs):
        return None
    return Difference(profile, nth, ours[nth] if nth < len(ours) else None, theirs[nth] if nth < len(theirs) else None)


def _when(difference: Difference) -> tuple[int, WorkerProfile]:
    runs = (difference.recorded, difference.replayed)
    return min(run.claimed_us for run in runs if run is not None), difference.profile


@dataclass(frozen=True)
class PassedJob:
    """Job *passed* was passed by job *by*, at the claim of the latter, which was enqueued *later_us* after it, not less
    than *bound_us*.
    """

    passed: int
    by: int
    claimed_us: int
    later_us: int
    bound_us: float


@dataclass
class _Lane:
    """Jobs of one type, mode and priority that wait: a heap of (enqueued, number)."""

    type: str
    bound_us: float
    jobs: list[tuple[int, int]]


def jobs_beyond_bound(schedule: Schedule) -> list[PassedJob]:
    """Return the claims of *schedule* that passed a job beyond its bound. With a reserve none is looked for."""
    if complete_settings(schedule.scenario.settings)["reserve"].strip():
        return []
    return list(_Search(schedule).found())


class _Search:
    def __init__(self, schedule: Schedule) -> None:
        scenario = schedule.scenario
        self._schedule = schedule
        self._weights = weights_of(complete_settings(scenario.settings))
        self._limits = limits_of_types(complete_settings(scenario.settings)["limits"])
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._running: dict[str, list[int]] = {}  # limited type -> when its runs end, a heap
        self._claimed: set[int] = set()

    def found(self) -> Iterator[PassedJob]:
        scenario = self._schedule.scenario
        arrivals = iter(scenario.arrivals)
        arrival = next(arrivals, None)
        by_number = {each.number: each for each in scenario.arrivals}
        profiles = Profiles(scenario.workers)
        for run in self._schedule.runs:
            while arrival is not None and arrival.since_us < run.claimed_us:
                self._wait(arrival)
                arrival = next(arrivals, None)
            self._claimed.add(run.number)
            yield from self._passed(run, by_number[run.number], profiles.of(run))
            self._count(run, by_number[run.number].type)

    def _wait(self, job: Arrival) -> None:
        if job.number in self._claimed or _is_kept_back(job, self._schedule.scenario):
            return
        name = job.type, lane_number(job.on_demand, job.priority)
        if name not in self._lanes:
            bound_s = wire.overtaking_seconds(job.priority, job.on_demand, self._weights)
            self._lanes[name] = _Lane(job.type, bound_s * SECOND_US, [])
        heapq.heappush(self._lanes[name].jobs, (job.enqueued_us, job.number))

    def _passed(self, run: ScheduledRun, job: Arrival, types: tuple[str, ...]) -> Iterator[PassedJob]:
        for lane in self._lanes.values():
            if lane.type not in types or self._is_full(lane.type, run.claimed_us):
                continue
            while lane.jobs and lane.jobs[0][1] in self._claimed:
                heapq.heappop(lane.jobs)
            if lane.jobs:
                enqueued_us, passed = lane.jobs[0]
                later_us = job.enqueued_us - enqueued_us
                if later_us > 0 and later_us >= lane.bound_us:
                    yield PassedJob(passed, run.number, run.claimed_us, later_us, lane.bound_us)

    def _count(self, run: ScheduledRun, type_: str) -> None:
        if type_ in self._limits:
            heapq.heappush(self._running.setdefault(type_, []), run.ended_us)

    def _is_full(self, type_: str, now_us: int) -> bool:
        if type_ not in self._limits:
            return False
        ends = self._running.setdefault(type_, [])
        while ends and ends[0] < now_us:  # one that ends just now may count still
            heapq.heappop(ends)
        return len(ends) >= self._limits[type_]


def _is_kept_back(job: Arrival, scenario: Scenario) -> bool:
    if not {job.type, ALL}.isdisjoint(scenario.paused):
        return True
    has_quotas = bool(complete_settings(scenario.settings)["tenants"].strip())
    return not (job.exclusive is job.rate is job.merge is None) or (has_quotas and job.tenant is not None)


Engine = Literal["auto", "twin", "judge"]

#: All of these, for an option.
ENGINES: tuple[Engine, ...] = ("auto", "twin", "judge")


class EngineResult(NamedTuple):
    """A schedule, and the *engine* that made it: "twin" or "judge"."""

    schedule: Schedule
    engine: str


def run_engine(scenario: Scenario, engine: Engine = "auto", progress: Iterable[object] | None = None) -> EngineResult:
    """Return what comes of *scenario*. *progress*: stepped for each job that arrives.

    Raises UnknownRuleError if *engine* is "twin" and there is a rule that it does not know.
    """
    chosen = engine_of(scenario) if engine == "auto" else engine
    run = cast(
        Callable[[Scenario, Iterable[object] | None], Schedule],
        {"twin": fast_engine, "judge": scripts_engine}[chosen].schedule,
    )
    return EngineResult(run(scenario, progress), chosen)


def engine_of(scenario: Scenario) -> Literal["twin", "judge"]:
    """Return the engine for *scenario*."""
    return "twin" if unknown_rule(scenario) is None else "judge"


@dataclass(frozen=True)
class WhyNotComparable:
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
    first_difference: WhyNotComparable | None
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
    return Record(recorded_jobs(trace, scenario_of(trace)), trace.length_us)


def replay(trace: Trace, engine: Engine = "auto", progress: Iterable[object] | None = None) -> Replay:
    """Schedule what *trace* recorded. *progress*: stepped for each job that arrives. Raises UnknownRuleError."""
    return replay_scenario(record_of(trace), engine, progress)


def replay_scenario(record: Record, engine: Engine = "auto", progress: Iterable[object] | None = None) -> Replay:
    """Do as `replay` does, for the *record* of a trace."""
    ours, length_us = record
    theirs, chosen = run_engine(ours.scenario, engine, progress)
    claimed = {run.number for run in ours.runs}
    found = compare_with_record(decided_jobs(ours), decided_jobs(comparable_jobs(theirs, claimed, length_us)))
    first = found.first_difference
    return Replay(
        chosen,
        found.claims,
        found.kept,
        found.share,
        None if first is None else _why(first, ours, theirs),
        _still_waiting(ours, length_us),
        _still_waiting(theirs, length_us),
        waits.report_waits(ours),
        waits.report_waits(theirs, claimed or None),
        len(jobs_beyond_bound(theirs)),
    )


def comparable_jobs(replayed: Schedule, claimed: Container[int], ends_us: int) -> Schedule:
    """Return *replayed* without the claims, after the record ended at *ends_us*, of jobs that it has no claim of."""
    runs = (run for run in replayed.runs if run.claimed_us <= ends_us or run.number in claimed)
    return replace(replayed, runs=tuple(runs))


def decided_jobs(schedule: Schedule) -> Schedule:
    """Return *schedule* without the claims of before its beginning, which are given."""
    given = {each.number for each in schedule.scenario.arrivals if each.held_by is not None}
    return replace(schedule, runs=tuple(run for run in schedule.runs if run.number not in given))


def _still_waiting(schedule: Schedule, ends_us: int) -> int:
    return len(schedule.scenario.arrivals) - len({run.number for run in schedule.runs if run.claimed_us <= ends_us})


def recorded_jobs(trace: Trace, scenario: Scenario) -> Schedule:
    """Return what *trace* recorded as a schedule of *scenario*, its own."""
    jobs, known = trace.jobs, {each.name for each in trace.workers}
    took_us = array("q", bytes(8 * len(jobs)))
    for each in scenario.arrivals:
        took_us[each.number] = each.took_us
    claimed = [nth for nth, job in enumerate(jobs) if job.claimed_us is not None and job.worker in known]
    claimed.sort(key=lambda nth: jobs[nth].claimed_us or 0)
    if all(jobs[nth].fence for nth in claimed):
        claimed.sort(key=lambda nth: jobs[nth].fence or 0)

    def run(nth: int) -> ScheduledRun:
        job, claimed_us = jobs[nth], jobs[nth].claimed_us or 0
        return ScheduledRun(
            nth, job.worker or "", claimed_us, claimed_us + took_us[nth] if job.ended_us is None else job.ended_us
        )

    return Schedule(scenario, tuple(map(run, claimed)))


def _why(first: Difference, ours: Schedule, theirs: Schedule) -> WhyNotComparable:
    run = first.replayed or first.recorded
    assert run is not None, "a difference has one of them"
    schedule = theirs if first.replayed else ours
    chosen = advise.candidate_at(schedule, run.number, run.claimed_us, is_chosen=True)
    other = None
    if first.replayed and first.recorded:
        other = advise.candidate_at(theirs, first.recorded.number, run.claimed_us, is_chosen=False)
    replayed, its_recorded = (chosen, other) if first.replayed else (None, chosen)
    return WhyNotComparable(first.profile, first.nth, run.claimed_us / 1e6, run.worker, replayed, its_recorded)


@dataclass(frozen=True)
class WhatIf:
    """*gains*: of the jobs that both schedules have, who gains most first."""

    engine: str
    before: WaitReport
    after: WaitReport
    gains: Sequence[WaitGain]


def schedule_both(
    scenario: Scenario, changes: Changes, engine: Engine = "auto", progress: Iterable[object] | None = None
) -> tuple[Schedule, Schedule, str]:
    """Return the schedules of *scenario* without and with *changes*, both of one engine, and its name.

    *progress*: stepped for each job that arrives, in both. Raises UnknownRuleError.
    """
    steps, other = iter(progress or ()), apply_changes(scenario, changes)
    if engine == "auto":
        engine = "judge" if "judge" in (engine_of(scenario), engine_of(other)) else "twin"
    before, after = run_engine(scenario, engine, steps), run_engine(other, engine, steps)
    return before.schedule, after.schedule, after.engine


def compare_waits(before: Schedule, after: Schedule, engine: str) -> WhatIf:
    return WhatIf(engine, waits.report_waits(before), waits.report_waits(after), waits.gains_between(before, after))
