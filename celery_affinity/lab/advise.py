"""Finds the smallest fleet, or the settings, that make the waits of a trace reach targets.

A search with a limited number of simulations tries only settings, slots of one profile, and slots of several profiles.
The slots of one profile are minimized by bisection. Slots of several profiles are added where they bring the waits
nearest to the targets, and removed again if they are not needed. The advice reaches the targets in its own simulation;
that no smaller fleet reaches them is not proven.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..clock import SECOND_US
from ..policy.score import MICRO, score
from ..schema.keys import OF_TYPE
from ..settings.limits import NONE_AT_RUN_TIME, encoded_limits, shown_limits, typed_limits
from ..settings.wire import complete_settings, weights_of
from .changes import Changes, apply_changes, move_arrival
from .fast_engine import limits_of_types
from .head_starts import rank_us
from .scenario import Arrival, Scenario, Schedule, WorkerProfile, types_of
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
    claimed_us = next((run.claimed_us for run in schedule.runs if run.number == number), now_us + 1)
    if is_chosen:
        state = "chosen"
    elif job.since_us > now_us:
        state = "not here yet"
    else:
        state = "claimed before" if claimed_us <= now_us else "waiting"
    facts = number, job.type, job.on_demand, job.priority, state, max(0, now_us - job.since_us) / SECOND_US
    if state not in ("chosen", "waiting"):
        return Candidate(*facts)
    # Slots of live workers that serve the type. ``rarity=free`` scores with other slots.
    fit = sum(
        worker.slots
        for worker in scenario.workers
        if job.type in worker.types
        and worker.joined_us <= now_us
        and (worker.left_us is None or now_us < worker.left_us)
    )
    weights = weights_of(scenario.settings)
    points = score(job.priority, job.on_demand, now_us - rank_us(job, schedule.head_starts), max(1, fit), weights)
    terms = (points.total, points.priority, points.age, points.rarity, points.on_demand)
    return Candidate(*facts, *(term / MICRO for term in terms))


#: Factors of `on_demand_weight`.
_ON_DEMAND_FACTORS = (4, 16)
#: Shares of a type's slots to which the type is limited, so that other types find free slots.
_LIMIT_SHARES = (0.75, 0.5)
#: Limits are tried for this number of types with the most jobs.
_MAX_LIMITED_TYPES = 3
#: Values of `stretch`, and factors of `target_wait`.
_STRETCHES, _TARGET_WAIT_FACTORS = (4, 16, 64), (1, 4, 16)


@dataclass(frozen=True)
class TriedSetting:
    words: str  #: arguments of `affinity settings set`; "" for no change
    settings: Mapping[str, str] = field(hash=False, compare=False)  #: Redis name -> string


def settings_to_try(scenario: Scenario) -> list[TriedSetting]:
    """Return the changes of settings to try on *scenario*: the few that an operator would try manually.

    Each multiplies the weight of on-demand jobs, sets stretch and target wait, removes a type's limit, or limits one of
    the types with the most jobs.
    """
    in_force, weights = complete_settings(scenario.settings), list[str]()
    if 0 < sum(arrival.on_demand for arrival in scenario.arrivals) < len(scenario.arrivals):
        weight = float(in_force["on_demand_weight"]) or 4096.0
        weights = [f"{weight * times:g}" for times in _ON_DEMAND_FACTORS]
    limits = typed_limits(in_force["limits"]) or {}
    tried = [
        {pattern: limit for pattern, limit in limits.items() if pattern != OF_TYPE + type_}
        for type_ in limits_of_types(in_force["limits"])
    ]
    numbers = Counter(arrival.type for arrival in scenario.arrivals)
    for type_ in sorted(numbers, key=lambda name: (-numbers[name], name))[:_MAX_LIMITED_TYPES]:
        slots = sum(worker.slots for worker in scenario.workers if type_ in worker.types)
        if len(numbers) > 1 and OF_TYPE + type_ not in limits:
            numbers_to_try = (max(1, round(share * slots)) for share in _LIMIT_SHARES)
            tried += [{**limits, OF_TYPE + type_: number} for number in numbers_to_try if number < slots]
    return [
        *(TriedSetting(f"on_demand_weight {weight}", {"on_demand_weight": weight}) for weight in weights),
        *head_starts_to_try(in_force),
        *(
            TriedSetting(f"limits '{shown_limits(changed)}'", {"limits": encoded_limits(changed) or NONE_AT_RUN_TIME})
            for changed in tried
        ),
    ]


def head_starts_to_try(in_force: Mapping[str, str]) -> Iterator[TriedSetting]:
    """Yield values of stretch and target wait. *in_force*: all settings in force."""
    for factor in _TARGET_WAIT_FACTORS:
        target_wait_us = factor * int(in_force["target_wait_us"])
        words = "" if factor == 1 else f" target_wait {target_wait_us / SECOND_US:g}"
        for stretch in _STRETCHES if target_wait_us else ():
            changed = {"stretch": str(stretch), "target_wait_us": str(target_wait_us)}
            yield TriedSetting(f"stretch {stretch}{words}", changed)


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
        arrivals += [move_arrival(job, later_us) for job in blocks[other]]
    arrivals.sort(key=lambda job: (job.since_us, job.number))
    return replace(scenario, arrivals=tuple(replace(job, number=number) for number, job in enumerate(arrivals)))


Engine = Callable[[Scenario], Schedule]
#: Default maximum number of simulations per search, and default number of resampled days.
MAX_SIMULATIONS, DAYS = 300, 10
#: Key of a simulation: change of slots by profile, and the settings' text.
_Key = tuple[tuple[tuple[WorkerProfile, int], ...], str]
#: Additional slots by profile; a negative number removes slots.
Slots = Mapping[WorkerProfile, int]
#: Slots and settings that reach the targets.
_Solution = tuple[Slots, TriedSetting]
_UNCHANGED = TriedSetting("", {})
#: Maximum number of `Advice` per search.
_MAX_ADVICE = 2
#: Maximum number of slots added to one profile.
_MAX_ADDED_SLOTS = 1_024


class _SimulationsUsedUpError(Exception):
    """The maximum number of simulations is reached."""


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
    max_simulations: int = MAX_SIMULATIONS,
    days: int = DAYS,
    seed: int = 1,
    progress: Iterable[object] | None = None,
) -> Advised:
    """Return the changes of *scenario* that reach *targets*. *progress*: stepped per simulation."""
    return _Search(scenario, targets, engine, max_simulations, days, seed, progress).run()


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
    simulated: dict[_Key, tuple[tuple[float, ...], float]] = field(default_factory=dict)  #: waits of targets, mean wait

    def __post_init__(self) -> None:
        self.steps: Iterator[object] = iter(self.progress or ())
        profiles: dict[WorkerProfile, None] = dict.fromkeys(types_of(worker) for worker in self.scenario.workers)
        wanted = {job.type for job in self.scenario.arrivals if any(target.counts(job) for target in self.targets)}
        profiles |= dict.fromkeys((type_,) for type_ in sorted(wanted))
        self.profiles = [profile for profile in profiles if wanted.intersection(profile)]
        self.solutions: list[_Solution] = []

    def run(self) -> Advised:
        now, _ = self.waits({}, _UNCHANGED)
        unreached = unreachable_reasons(self.scenario, self.targets, self.schedule)
        if unreached:
            return Advised(False, reached_targets(self.targets, now), (), unreached, self.made, True, self.limit, 0)
        complete = True
        already = distance_to_targets(self.targets, now) == 0
        try:
            for solution in self.fewer() if already else self.more():
                self.solutions.append(solution)  # a solution is used even if the search ends before the next
        except _SimulationsUsedUpError:
            complete = False
        self.solutions.sort(key=lambda solution: (sum(solution[0].values()), bool(solution[1].words)))
        kept = self.kept_for_days()
        advice = [self.with_days(slots, tried) for slots, tried in self.solutions[:_MAX_ADVICE]]
        return Advised(already, reached_targets(self.targets, now), advice, (), self.made, complete, self.limit, kept)

    def kept_for_days(self) -> int:
        """Return the number of simulations reserved for resampled days: for all solutions so far and the next one."""
        return self.days * min(_MAX_ADVICE, len(self.solutions) + 1)

    def fewer(self) -> Iterator[_Solution]:
        """Yield the superfluous slots, if there are any."""
        slots: dict[WorkerProfile, int] = {}
        present = dict.fromkeys(self.profiles, 0)
        for worker in self.scenario.workers:
            if types_of(worker) in present:
                present[types_of(worker)] += worker.slots
        for profile in sorted(present, key=lambda profile: (-present[profile], profile)):
            slots[profile] = self.fewest(slots, profile, -present[profile], 0, _UNCHANGED)
        if any(slots.values()):
            yield {profile: number for profile, number in slots.items() if number}, _UNCHANGED

    def more(self) -> Iterator[_Solution]:
        """Yield solutions: only settings; only slots; slots with the best settings."""
        variants = settings_to_try(self.scenario)
        distances = {tried: self.distance({}, tried) for tried in variants}
        # Of equally good ones, the settings with the lowest mean wait.
        best = min(variants, key=lambda tried: (distances[tried], self.waits({}, tried)[1]), default=_UNCHANGED)
        if distances.get(best) == 0:
            yield {}, best
        if slots := self.grown(_UNCHANGED):
            yield slots, _UNCHANGED
        if 0 < distances.get(best, 0) < self.distance({}, _UNCHANGED) and (slots := self.grown(best)):
            yield slots, best

    def grown(self, tried: TriedSetting) -> Slots | None:
        """Return the fewest slots that reach the targets: slots of one profile, or of several. None if none do."""
        numbers = {profile: self.slots_of_one(profile, tried) for profile in self.profiles}
        solutions: list[Slots] = [{profile: number} for profile, number in numbers.items() if number is not None]
        fewest = min((sum(slots.values()) for slots in solutions), default=_MAX_ADDED_SLOTS + 1)
        if fewest > 1 and (mixed := self.slots_of_several(tried, fewest - 1)) is not None:
            solutions.append(mixed)
        return min(solutions, key=lambda slots: (sum(slots.values()), sum(map(len, slots))), default=None)

    def slots_of_one(self, profile: WorkerProfile, tried: TriedSetting) -> int | None:
        """Return the number of slots of *profile* alone that reaches the targets; None if more slots do not help."""
        smallest, number, before = self.distance({}, tried), 1, 0
        while (distance := self.distance({profile: number}, tried)) > 0:
            if number >= 8 and distance >= smallest:
                return None
            smallest, before, number = min(smallest, distance), number, 2 * number
            if number > _MAX_ADDED_SLOTS:
                return None
        return self.fewest({}, profile, before, number, tried)

    def slots_of_several(self, tried: TriedSetting, max_slots: int) -> Slots | None:
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
        for profile in sorted(slots, key=lambda profile: (-len(profile), profile)):
            slots[profile] = self.fewest(slots, profile, -1, slots[profile], tried)
        slots = {profile: number for profile, number in slots.items() if number}
        return slots if sum(slots.values()) <= max_slots else None

    def fewest(self, slots: Slots, profile: WorkerProfile, low: int, high: int, tried: TriedSetting) -> int:
        """Return the fewest sufficient slots of *profile*, in addition to *slots*.

        *low* is too few, *high* is sufficient. Bisection finds the number, because more slots are never worse.
        """
        while high - low > 1:
            middle = int((low + high) / 2)  # rounded towards 0, also for superfluous slots
            low, high = (low, middle) if self.distance({**slots, profile: middle}, tried) == 0 else (middle, high)
        return high

    def distance(self, slots: Slots, tried: TriedSetting) -> float:
        return distance_to_targets(self.targets, self.waits(slots, tried)[0])

    def waits(self, slots: Slots, tried: TriedSetting) -> tuple[tuple[float, ...], float]:
        """Return the wait of each target, and the mean wait, in seconds with more or fewer *slots*.

        Each case is simulated only once.
        """
        key = tuple(sorted((profile, number) for profile, number in slots.items() if number)), tried.words
        if key not in self.simulated:
            if self.made >= max(1, self.limit - self.kept_for_days()):
                raise _SimulationsUsedUpError
            schedule = self.schedule(with_slots(self.scenario, slots, tried.settings))
            mean_s = summarize_waits(waits_by_job(schedule).values()).mean_s or 0.0
            self.simulated[key] = tuple(target.wait_s(schedule) for target in self.targets), mean_s
        return self.simulated[key]

    def schedule(self, scenario: Scenario) -> Schedule:
        self.made += 1
        next(self.steps, None)
        return self.engine(scenario)

    def with_days(self, slots: Slots, tried: TriedSetting) -> Advice:
        """Return the advice with the range of its waits on resampled days."""
        (now, mean_now_s), (then, mean_then_s) = self.waits({}, _UNCHANGED), self.waits(slots, tried)
        fleet = with_slots(self.scenario, slots, tried.settings)
        over_days = []
        for day in range(self.days):
            schedule = self.schedule(resample_days(fleet, self.seed + day))
            over_days.append(tuple(target.wait_s(schedule) for target in self.targets))
        good = sum(distance_to_targets(self.targets, waits_s) == 0 for waits_s in over_days)
        reached = reached_targets(self.targets, now, then, over_days)
        return Advice(sorted(slots.items()), tried.words, reached, self.days, good, mean_now_s, mean_then_s)


def with_slots(scenario: Scenario, slots: Slots, settings: Mapping[str, str]) -> Scenario:
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
