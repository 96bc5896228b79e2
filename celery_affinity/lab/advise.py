"""Finds the smallest fleet, or the settings, that make the waits of a trace reach targets.

A search with a limited number of simulations tries only settings, slots of one profile, and slots of several profiles.
The slots of one profile are minimized by bisection. Slots of several profiles are added where they bring the waits
nearest to the targets, and removed again if they are not needed. The advice reaches the targets in its own simulation;
that no smaller fleet reaches them is not proven.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from ..clock import SECOND_US
from ..policy.score import MICRO, score
from ..schema.keys import OF_TYPE
from ..settings.limits import NONE_AT_RUN_TIME, Limit, encoded_limits, shown_limits, typed_limits
from ..settings.wire import complete_settings, weights_of
from .changes import Changes, apply_changes
from .fast_engine import limits_of_types
from .scenario import Arrival, Scenario, Schedule, ScheduledRun, WorkerProfile, types_of
from .targets import ReachedTarget, Target, distance_to_targets, reached_targets, unreachable_reasons
from .waits import summarize_waits, waits_by_job


@dataclass(frozen=True)
class Candidate:
    """A job at the time of a claim, with its score and the score's four terms in points."""

    number: int
    type: str
    on_demand: bool
    priority: int
    state: str  #: "chosen", "waiting", "not here yet", "claimed before" or "never claimed"
    waited_s: float
    score: float | None = None  #: None unless the job was chosen or waiting
    of_priority: float = 0.0
    of_age: float = 0.0
    of_rarity: float = 0.0
    of_on_demand: float = 0.0


def candidate_at(schedule: Schedule, number: int, now_us: int, *, is_chosen: bool) -> Candidate:
    """Return the job *number* in *schedule* at *now_us*, just before the claim at that time."""
    scenario = schedule.scenario
    job = next(arrival for arrival in scenario.arrivals if arrival.number == number)
    run = next((scheduled for scheduled in schedule.runs if scheduled.number == number), None)
    state = "chosen" if is_chosen else _state(job, run, now_us)
    waited_s = max(0, now_us - job.since_us) / SECOND_US
    if state not in ("chosen", "waiting"):
        return Candidate(number, job.type, job.on_demand, job.priority, state, waited_s)
    fit = _slots_that_fit(scenario, job.type, now_us)
    weights = weights_of(complete_settings(scenario.settings))
    points = score(job.priority, job.on_demand, now_us - job.enqueued_us, fit, weights)
    terms = (points.total, points.priority, points.age, points.rarity, points.on_demand)
    return Candidate(number, job.type, job.on_demand, job.priority, state, waited_s, *(term / MICRO for term in terms))


def _state(job: Arrival, run: ScheduledRun | None, now_us: int) -> str:
    if job.since_us > now_us:
        return "not here yet"
    return "claimed before" if run is not None and run.claimed_us <= now_us else "waiting"


def _slots_that_fit(scenario: Scenario, type_: str, now_us: int) -> int:
    """Return the slots of live workers that serve *type_*, at least 1. ``rarity=free`` scores with other slots."""
    live = (
        worker.slots
        for worker in scenario.workers
        if type_ in worker.types and worker.joined_us <= now_us and (worker.left_us is None or now_us < worker.left_us)
    )
    return max(1, sum(live))


#: Factors of `on_demand_weight`.
_ON_DEMAND_FACTORS = (4, 16)
#: Shares of a type's slots to which the type is limited, so that other types find free slots.
_LIMIT_SHARES = (0.75, 0.5)
#: Limits are tried for this number of types with the most jobs.
_MAX_LIMITED_TYPES = 3


@dataclass(frozen=True)
class TriedSetting:
    """A change of settings to try."""

    words: str  #: arguments of `affinity settings set`; "" for no change
    settings: Mapping[str, str] = field(hash=False, compare=False)  #: Redis name -> string


def settings_to_try(scenario: Scenario) -> list[TriedSetting]:
    """Return the changes of settings to try on *scenario*: the few that an operator would try manually."""
    return [*_on_demand_changes(scenario), *_limit_changes(scenario)]


def _on_demand_changes(scenario: Scenario) -> list[TriedSetting]:
    if not 0 < sum(arrival.on_demand for arrival in scenario.arrivals) < len(scenario.arrivals):
        return []
    weight = float(complete_settings(scenario.settings)["on_demand_weight"]) or 4096.0
    heavier = [f"{weight * times:g}" for times in _ON_DEMAND_FACTORS]
    return [TriedSetting(f"on_demand_weight {weight}", {"on_demand_weight": weight}) for weight in heavier]


def _limit_changes(scenario: Scenario) -> list[TriedSetting]:
    """Return changes that each remove a type's limit, or limit one of the types with the most jobs."""
    text = complete_settings(scenario.settings)["limits"]
    limits, changes = typed_limits(text) or {}, []
    numbers: dict[str, int] = {}
    for arrival in scenario.arrivals:
        numbers[arrival.type] = numbers.get(arrival.type, 0) + 1
    for type_ in limits_of_types(text):
        remaining = {pattern: limit for pattern, limit in limits.items() if pattern != OF_TYPE + type_}
        changes.append(_limit_change(remaining))
    for type_ in (
        sorted(numbers, key=lambda name: (-numbers[name], name))[:_MAX_LIMITED_TYPES] if len(numbers) > 1 else ()
    ):
        slots = sum(worker.slots for worker in scenario.workers if type_ in worker.types)
        for share in _LIMIT_SHARES:
            limit = max(1, round(share * slots))
            if OF_TYPE + type_ not in limits and limit < slots:
                changes.append(_limit_change({**limits, OF_TYPE + type_: limit}))
    return changes


def _limit_change(limits: Mapping[str, Limit]) -> TriedSetting:
    return TriedSetting(f"limits '{shown_limits(limits)}'", {"limits": encoded_limits(limits) or NONE_AT_RUN_TIME})


#: Number of blocks per day, and maximum distance of a block's replacement.
_BLOCKS, _MAX_DISTANCE = 24, 2


def resample_days(scenario: Scenario, seed: int) -> Scenario:
    """Return *scenario* with randomly drawn blocks of arrivals; the same blocks for the same *seed*.

    A nearby block replaces each block: the rhythm of the day stays; bursts move, repeat or disappear. Jobs that waited
    at the start stay unchanged.
    """
    jobs = scenario.arrivals
    rng = random.Random(seed)  # noqa: S311 - no secret
    width_us = max((job.since_us for job in jobs), default=0) // _BLOCKS + 1
    blocks: list[list[Arrival]] = [[] for _ in range(_BLOCKS)]
    arrivals = [job for job in jobs if job.since_us <= 0]
    for job in jobs:
        if job.since_us > 0:
            blocks[job.since_us // width_us].append(job)
    for block in range(_BLOCKS):
        other = rng.randint(max(0, block - _MAX_DISTANCE), min(_BLOCKS - 1, block + _MAX_DISTANCE))
        later_us = (block - other) * width_us
        arrivals += [
            replace(job, since_us=job.since_us + later_us, enqueued_us=job.enqueued_us + later_us)
            for job in blocks[other]
        ]
    arrivals.sort(key=lambda job: (job.since_us, job.number))
    return replace(scenario, arrivals=tuple(replace(job, number=number) for number, job in enumerate(arrivals)))


Engine = Callable[[Scenario], Schedule]
#: Default maximum number of simulations per search, and default number of resampled days.
MOST_SIMULATIONS, DAYS = 300, 10
#: Key of a simulation: change of slots by profile, and the settings' text.
_Key = tuple[tuple[tuple[WorkerProfile, int], ...], str]
#: Maximum number of `Advice` per search.
_MAX_ADVICE = 2
#: Maximum number of slots added to one profile.
_MAX_ADDED_SLOTS = 1_024


class _SimulationsUsedUpError(Exception):
    """The maximum number of simulations is reached."""


class _NotEnoughSlotsError(Exception):
    """No sufficient number of slots was found."""


@dataclass(frozen=True)
class Advice:
    """Slots and settings that reach the targets."""

    slots: Sequence[tuple[WorkerProfile, int]]  #: by profile, additional slots, or (negative) superfluous ones
    settings: str  #: changes of settings as text, "" if there are none
    targets: Sequence[ReachedTarget]  #: each with its wait now, with the advice, and on the resampled days
    days: int  #: number of resampled days
    days_reached: int  #: number of resampled days on which all targets are reached
    mean_now_s: float  #: mean wait of all jobs now
    mean_then_s: float  #: mean wait of all jobs with the advice, in which some jobs may wait longer than now


@dataclass(frozen=True)
class Advised:
    """The result of a search."""

    already: bool  #: True if the unchanged fleet reaches the targets; *advice* then lists superfluous slots
    now: Sequence[ReachedTarget]
    advice: Sequence[Advice]  #: sorted by slots, the fewest first
    unreached: Sequence[str]  #: a sentence per target that no fleet can reach
    simulations: int
    complete: bool  #: False if the search ended after `allowed` - `kept` simulations
    allowed: int
    kept: int  #: number of simulations reserved for resampled days


def advise(
    scenario: Scenario,
    targets: Sequence[Target],
    engine: Engine,
    *,
    most_simulations: int = MOST_SIMULATIONS,
    days: int = DAYS,
    seed: int = 1,
    progress: Iterable[object] | None = None,
) -> Advised:
    """Return the changes of *scenario* that reach *targets*. *progress*: stepped per simulation."""
    return _Search(scenario, targets, engine, most_simulations, days, seed, progress).run()


@dataclass
class _Search:
    scenario: Scenario
    targets: Sequence[Target]
    engine: Engine
    limit: int
    days: int
    seed: int
    progress: Iterable[object] | None
    made: int = 0
    simulated_waits: dict[_Key, tuple[float, ...]] = field(default_factory=dict)
    means: dict[_Key, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.steps: Iterator[object] = iter(self.progress or ())
        profiles: dict[WorkerProfile, None] = dict.fromkeys(types_of(worker) for worker in self.scenario.workers)
        wanted = {job.type for job in self.scenario.arrivals if any(target.counts(job) for target in self.targets)}
        profiles |= dict.fromkeys((type_,) for type_ in sorted(wanted))
        self.profiles = [profile for profile in profiles if wanted.intersection(profile)]
        self.solutions: list[tuple[dict[WorkerProfile, int], TriedSetting]] = []

    def run(self) -> Advised:
        as_it_is = TriedSetting("", {})
        now = self.waits({}, as_it_is)
        unreached = unreachable_reasons(self.scenario, self.targets, self.schedule)
        if unreached:
            return Advised(False, reached_targets(self.targets, now), (), unreached, self.made, True, self.limit, 0)
        complete = True
        already = distance_to_targets(self.targets, now) == 0
        try:
            for solution in self.fewer(as_it_is) if already else self.more(as_it_is):
                self.solutions.append(solution)  # a solution is used even if the search ends before the next
        except _SimulationsUsedUpError:
            complete = False
        self.solutions.sort(key=lambda solution: (sum(solution[0].values()), bool(solution[1].words)))
        kept = self.kept_for_days()
        advice = [self.with_days(slots, tried, now) for slots, tried in self.solutions[:_MAX_ADVICE]]
        return Advised(already, reached_targets(self.targets, now), advice, (), self.made, complete, self.limit, kept)

    def kept_for_days(self) -> int:
        """Return the number of simulations reserved for resampled days: for all solutions so far and the next one."""
        return self.days * min(_MAX_ADVICE, len(self.solutions) + 1)

    def fewer(self, tried: TriedSetting) -> Iterator[tuple[dict[WorkerProfile, int], TriedSetting]]:
        """Yield the superfluous slots, if there are any."""
        slots: dict[WorkerProfile, int] = {}
        present = {profile: self.slots_of(profile) for profile in self.profiles}
        for profile in sorted(present, key=lambda profile: (-present[profile], profile)):
            # Bisection finds the maximum: if the targets are missed, they are also missed with fewer slots.
            low, high = 0, present[profile]
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if self.distance({**slots, profile: -middle}, tried) == 0 else (low, middle)
            if low:
                slots[profile] = -low
        if slots:
            yield slots, tried

    def more(self, as_it_is: TriedSetting) -> Iterator[tuple[dict[WorkerProfile, int], TriedSetting]]:
        """Yield solutions: only settings; only slots; slots with the best settings."""
        variants = settings_to_try(self.scenario)
        distances = {tried: self.distance({}, tried) for tried in variants}
        sufficient = [tried for tried in variants if distances[tried] == 0]
        for tried in sufficient[:1]:
            yield {}, tried
        with suppress(_NotEnoughSlotsError):
            yield self.grown(as_it_is), as_it_is
        best = min(variants, key=lambda tried: distances[tried], default=None)
        if best is not None and not sufficient and distances[best] < self.distance({}, as_it_is):
            with suppress(_NotEnoughSlotsError):
                yield self.grown(best), best

    def grown(self, tried: TriedSetting) -> dict[WorkerProfile, int]:
        """Return the fewest slots that reach the targets: slots of one profile, or of several."""
        solutions: list[dict[WorkerProfile, int]] = []
        for profile in self.profiles:
            number = self.slots_of_one(profile, tried)
            solutions += [] if number is None else [{profile: number}]
        fewest = min((sum(slots.values()) for slots in solutions), default=_MAX_ADDED_SLOTS + 1)
        if fewest > 1 and (mixed := self.slots_of_several(tried, fewest - 1)) is not None:
            solutions.append(mixed)
        if not solutions:
            raise _NotEnoughSlotsError
        return min(solutions, key=lambda slots: (sum(slots.values()), sum(map(len, slots))))

    def slots_of_one(self, profile: WorkerProfile, tried: TriedSetting) -> int | None:
        """Return the number of slots of *profile* alone that reaches the targets; None if more slots do not help."""
        smallest, number, before = self.distance({}, tried), 1, 0
        while (distance := self.distance({profile: number}, tried)) > 0:
            if number >= 8 and distance >= smallest:
                return None
            smallest, before, number = min(smallest, distance), number, 2 * number
            if number > _MAX_ADDED_SLOTS:
                return None
        return self.halved(partial(_with, {}, profile), before, number, tried)

    def slots_of_several(self, tried: TriedSetting, max_slots: int) -> dict[WorkerProfile, int] | None:
        """Return up to *max_slots* slots that reach the targets, each added where it helps most, or None."""
        slots: dict[WorkerProfile, int] = {}
        step = 1
        while (distance := self.distance(slots, tried)) > 0:
            options = [{**slots, profile: slots.get(profile, 0) + step} for profile in self.profiles]
            slots = min(options, key=lambda option: (self.distance(option, tried), len(option)))
            if self.distance(slots, tried) > 0.9 * distance:
                step *= 2
            if sum(slots.values()) > 2 * max_slots:
                return None
        slots = self.pruned(slots, tried)
        return slots if sum(slots.values()) <= max_slots else None

    def pruned(self, slots: dict[WorkerProfile, int], tried: TriedSetting) -> dict[WorkerProfile, int]:
        """Return *slots* without superfluous ones. Bisection finds the number per profile."""
        for profile in sorted(slots, key=lambda profile: (-len(profile), profile)):
            slots[profile] = self.halved(partial(_with, slots, profile), -1, slots[profile], tried)
        return {profile: number for profile, number in slots.items() if number}

    def halved(
        self, slots_of: Callable[[int], dict[WorkerProfile, int]], low: int, high: int, tried: TriedSetting
    ) -> int:
        """Return the fewest sufficient slots, if more are never worse: *low* is too few, *high* is sufficient."""
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.distance(slots_of(middle), tried) == 0 else (middle, high)
        return high

    def slots_of(self, profile: WorkerProfile) -> int:
        return sum(worker.slots for worker in self.scenario.workers if types_of(worker) == profile)

    def distance(self, slots: Mapping[WorkerProfile, int], tried: TriedSetting) -> float:
        return distance_to_targets(self.targets, self.waits(slots, tried))

    def waits(self, slots: Mapping[WorkerProfile, int], tried: TriedSetting) -> tuple[float, ...]:
        """Return the wait of each target in seconds with more or fewer *slots*. Each case is simulated only once."""
        key = _key(slots, tried)
        if key not in self.simulated_waits:
            if self.made >= max(1, self.limit - self.kept_for_days()):
                raise _SimulationsUsedUpError
            schedule = self.schedule(with_slots(self.scenario, slots, tried.settings))
            self.simulated_waits[key] = tuple(target.wait_s(schedule) for target in self.targets)
            self.means[key] = summarize_waits(waits_by_job(schedule).values()).mean_s or 0.0
        return self.simulated_waits[key]

    def schedule(self, scenario: Scenario) -> Schedule:
        self.made += 1
        next(self.steps, None)
        return self.engine(scenario)

    def with_days(self, slots: Mapping[WorkerProfile, int], tried: TriedSetting, now: Sequence[float]) -> Advice:
        """Return the advice with the range of its waits on resampled days."""
        then = self.waits(slots, tried)
        fleet = with_slots(self.scenario, slots, tried.settings)
        over_days = []
        for day in range(self.days):
            schedule = self.schedule(resample_days(fleet, self.seed + day))
            over_days.append(tuple(target.wait_s(schedule) for target in self.targets))
        good = sum(distance_to_targets(self.targets, waits_s) == 0 for waits_s in over_days)
        return Advice(
            sorted(slots.items()),
            tried.words,
            reached_targets(self.targets, now, then, over_days),
            self.days,
            good,
            self.means[_key({}, TriedSetting("", {}))],
            self.means[_key(slots, tried)],
        )


def _key(slots: Mapping[WorkerProfile, int], tried: TriedSetting) -> _Key:
    return tuple(sorted((profile, number) for profile, number in slots.items() if number)), tried.words


def _with(slots: Mapping[WorkerProfile, int], profile: WorkerProfile, number: int) -> dict[WorkerProfile, int]:
    return {**slots, profile: number}


def with_slots(scenario: Scenario, slots: Mapping[WorkerProfile, int], settings: Mapping[str, str]) -> Scenario:
    """Return *scenario* with *settings*, and with more slots by profile, on additional workers, or fewer slots."""
    more = [(profile, number) for profile, number in slots.items() if number > 0]
    grown = apply_changes(scenario, Changes(settings=settings, add=more))
    removable = {profile: -number for profile, number in slots.items() if number < 0}
    workers = []
    for worker in reversed(grown.workers):
        removed = min(worker.slots, removable.get(types_of(worker), 0))
        if removed:
            removable[types_of(worker)] -= removed
        if worker.slots > removed:
            workers.append(replace(worker, slots=worker.slots - removed))
    return replace(grown, workers=tuple(reversed(workers)))
