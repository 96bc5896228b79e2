"""Two jobs that might have got one slot: what each of them was worth at that moment, in a schedule.

Changes of settings that `advise` tries: a few, each of which somebody would try by hand.

Days that could have been: a trace whose blocks of arrivals are drawn again, from nearby.

A block is replaced by one that lies at most two blocks away, so the rhythm of the day stays, and floods move, come
twice or stay away. What waited as the trace began stays.

The smallest fleet, and the settings, that reach targets of waits on a trace.

A search by simulations, whose number is bounded: settings alone; slots of one profile, as few as halving finds; slots
of several profiles, each added where it brings the targets nearest, and taken away again if it is not needed. What is
found reaches the targets in its own simulation. That nothing smaller does is not proven.
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
    """A job at a moment. *state*: "chosen", "waiting", "not here yet", "claimed before" or "never claimed".

    *score*: None unless it was chosen or waiting; its four terms follow, in points.
    """

    number: int
    type: str
    on_demand: bool
    priority: int
    state: str
    waited_s: float
    score: float | None = None
    of_priority: float = 0.0
    of_age: float = 0.0
    of_rarity: float = 0.0
    of_on_demand: float = 0.0


def candidate_at(schedule: Schedule, number: int, now_us: int, *, is_chosen: bool) -> Candidate:
    """Return the job *number* as it was in *schedule* at *now_us*, just before the claim of that moment."""
    scenario = schedule.scenario
    job = next(each for each in scenario.arrivals if each.number == number)
    run = next((each for each in schedule.runs if each.number == number), None)
    state = "chosen" if is_chosen else _state(job, run, now_us)
    waited_s = max(0, now_us - job.since_us) / SECOND_US
    if state not in ("chosen", "waiting"):
        return Candidate(number, job.type, job.on_demand, job.priority, state, waited_s)
    fit = _slots_that_fit(scenario, job.type, now_us)
    found = score(
        job.priority, job.on_demand, now_us - job.enqueued_us, fit, weights_of(complete_settings(scenario.settings))
    )
    terms = (found.total, found.priority, found.age, found.rarity, found.on_demand)
    return Candidate(
        number, job.type, job.on_demand, job.priority, state, waited_s, *(micro / MICRO for micro in terms)
    )


def _state(job: Arrival, run: ScheduledRun | None, now_us: int) -> str:
    if job.since_us > now_us:
        return "not here yet"
    return "claimed before" if run is not None and run.claimed_us <= now_us else "waiting"


def _slots_that_fit(scenario: Scenario, type_: str, now_us: int) -> int:
    """Return the slots of live workers that serve *type_*, at least 1. With ``rarity=free`` this is not what counts."""
    live = (
        each.slots
        for each in scenario.workers
        if type_ in each.types and each.joined_us <= now_us and (each.left_us is None or now_us < each.left_us)
    )
    return max(1, sum(live))


#: By how much the weight of users' calls is multiplied.
_ON_DEMAND_TIMES = (4, 16)

#: Shares of the slots of a type to which the type is limited, so that other types find free ones.
_LIMITED_TO = (0.75, 0.5)

#: Types with the most jobs, of which limits are tried.
_MOST_TYPES = 3


@dataclass(frozen=True)
class TriedSetting:
    """*words*: the change as `affinity settings set` takes it, "" for none. *settings*: by their name in Redis."""

    words: str
    settings: Mapping[str, str] = field(hash=False, compare=False)


def settings_to_try(scenario: Scenario) -> list[TriedSetting]:
    """Return the changes that are tried on *scenario*."""
    return [*_on_demand(scenario), *_limits(scenario)]


def _on_demand(scenario: Scenario) -> list[TriedSetting]:
    if not 0 < sum(each.on_demand for each in scenario.arrivals) < len(scenario.arrivals):
        return []
    weight = float(complete_settings(scenario.settings)["on_demand_weight"]) or 4096.0
    heavier = [f"{weight * times:g}" for times in _ON_DEMAND_TIMES]
    return [TriedSetting(f"on_demand_weight {each}", {"on_demand_weight": each}) for each in heavier]


def _limits(scenario: Scenario) -> list[TriedSetting]:
    """Return limits of types: those that there are, taken off; and one for each of the types with the most jobs."""
    text = complete_settings(scenario.settings)["limits"]
    words, found = typed_limits(text) or {}, []
    numbers: dict[str, int] = {}
    for each in scenario.arrivals:
        numbers[each.type] = numbers.get(each.type, 0) + 1
    for type_ in limits_of_types(text):
        less = {pattern: limit for pattern, limit in words.items() if pattern != OF_TYPE + type_}
        found.append(_limited(less))
    for type_ in sorted(numbers, key=lambda each: (-numbers[each], each))[:_MOST_TYPES] if len(numbers) > 1 else ():
        slots = sum(each.slots for each in scenario.workers if type_ in each.types)
        for share in _LIMITED_TO:
            limit = max(1, round(share * slots))
            if OF_TYPE + type_ not in words and limit < slots:
                found.append(_limited({**words, OF_TYPE + type_: limit}))
    return found


def _limited(limits: Mapping[str, Limit]) -> TriedSetting:
    return TriedSetting(f"limits '{shown_limits(limits)}'", {"limits": encoded_limits(limits) or NONE_AT_RUN_TIME})


_BLOCKS, _REACH = 24, 2


def resample_days(scenario: Scenario, seed: int) -> Scenario:
    """Return *scenario* with blocks of arrivals drawn at random; the same ones for the same *seed*."""
    jobs = scenario.arrivals
    drawn = random.Random(seed)  # noqa: S311 - no secret
    width_us = max((each.since_us for each in jobs), default=0) // _BLOCKS + 1
    blocks: list[list[Arrival]] = [[] for _ in range(_BLOCKS)]
    found = [each for each in jobs if each.since_us <= 0]
    for each in jobs:
        if each.since_us > 0:
            blocks[each.since_us // width_us].append(each)
    for place in range(_BLOCKS):
        other = drawn.randint(max(0, place - _REACH), min(_BLOCKS - 1, place + _REACH))
        later_us = (place - other) * width_us
        found += [
            replace(each, since_us=each.since_us + later_us, enqueued_us=each.enqueued_us + later_us)
            for each in blocks[other]
        ]
    found.sort(key=lambda each: (each.since_us, each.number))
    return replace(scenario, arrivals=tuple(replace(each, number=number) for number, each in enumerate(found)))


Engine = Callable[[Scenario], Schedule]

#: Simulations that a search makes at most, and days that are drawn again for the range.
MOST_SIMULATIONS, DAYS = 300, 10

#: What is simulated: more or fewer slots by profile, and the words of the settings.
_Key = tuple[tuple[tuple[WorkerProfile, int], ...], str]

#: Pieces of advice that are given at most.
_PIECES = 2

#: Most slots of one profile that are added.
_MOST_SLOTS = 1_024


class _TooManyError(Exception):
    """The simulations are used up."""


class _NothingError(Exception):
    """No number of slots was found that is enough."""


@dataclass(frozen=True)
class Advice:
    """*slots*: by profile, more (or, below 0, fewer) than the trace has. *settings*: changes in words, "" for none.

    *targets*: each with its wait now, then, and the range over the *days* drawn again, of which *days_reached* reach
    all targets. *mean_now_s*, *mean_then_s*: the mean wait of all jobs, of which some may pay for what others gain.
    """

    slots: Sequence[tuple[WorkerProfile, int]]
    settings: str
    targets: Sequence[ReachedTarget]
    days: int
    days_reached: int
    mean_now_s: float
    mean_then_s: float


@dataclass(frozen=True)
class Advised:
    """*already*: the targets are reached as it is; *advice* then says which slots could go.

    *advice*: what reaches the targets, the fewest slots first. *unreached*: a sentence for each target that no fleet
    reaches. *complete*: whether the search came to its end. If not, *allowed* simulations, less those that were *kept*
    for days drawn again, ended it.
    """

    already: bool
    now: Sequence[ReachedTarget]
    advice: Sequence[Advice]
    unreached: Sequence[str]
    simulations: int
    complete: bool
    allowed: int
    kept: int


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
    """Return what reaches *targets* on *scenario*. *progress*: stepped for each simulation."""
    return _Search(scenario, targets, engine, most_simulations, days, seed, progress).run()


@dataclass
class _Search:
    scenario: Scenario
    targets: Sequence[Target]
    engine: Engine
    most: int
    days: int
    seed: int
    progress: Iterable[object] | None
    made: int = 0
    known: dict[_Key, tuple[float, ...]] = field(default_factory=dict)
    means: dict[_Key, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.steps: Iterator[object] = iter(self.progress or ())
        profiles: dict[WorkerProfile, None] = dict.fromkeys(types_of(each) for each in self.scenario.workers)
        wanted = {each.type for each in self.scenario.arrivals if any(t.counts(each) for t in self.targets)}
        profiles |= dict.fromkeys((type_,) for type_ in sorted(wanted))
        self.profiles = [each for each in profiles if wanted.intersection(each)]
        self.found: list[tuple[dict[WorkerProfile, int], TriedSetting]] = []

    def run(self) -> Advised:
        as_it_is = TriedSetting("", {})
        now = self.waits({}, as_it_is)
        unreached = unreachable_reasons(self.scenario, self.targets, self.schedule)
        if unreached:
            return Advised(False, reached_targets(self.targets, now), (), unreached, self.made, True, self.most, 0)
        complete = True
        already = distance_to_targets(self.targets, now) == 0
        try:
            for each in self.fewer(as_it_is) if already else self.more(as_it_is):
                self.found.append(each)  # what is found counts even if the next one is not
        except _TooManyError:
            complete = False
        self.found.sort(key=lambda each: (sum(each[0].values()), bool(each[1].words)))
        kept = self.kept_for_days()
        advice = [self.with_days(slots, tried, now) for slots, tried in self.found[:_PIECES]]
        return Advised(already, reached_targets(self.targets, now), advice, (), self.made, complete, self.most, kept)

    def kept_for_days(self) -> int:
        """Return how many simulations the search may not use: the days of what is found, and of what comes next."""
        return self.days * min(_PIECES, len(self.found) + 1)

    # -- searching

    def fewer(self, tried: TriedSetting) -> Iterator[tuple[dict[WorkerProfile, int], TriedSetting]]:
        """Yield the slots that could go, if there are some."""
        slots: dict[WorkerProfile, int] = {}
        there = {each: self.slots_of(each) for each in self.profiles}
        for profile in sorted(there, key=lambda each: (-there[each], each)):
            # The most that may go is found by halving: with fewer slots a target is missed, and with fewer still, too.
            low, high = 0, there[profile]
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if self.reaches({**slots, profile: -middle}, tried) else (low, middle)
            if low:
                slots[profile] = -low
        if slots:
            yield slots, tried

    def more(self, as_it_is: TriedSetting) -> Iterator[tuple[dict[WorkerProfile, int], TriedSetting]]:
        """Yield what reaches the targets: settings alone; slots alone; slots with the best settings."""
        variants = settings_to_try(self.scenario)
        far = {each: distance_to_targets(self.targets, self.waits({}, each)) for each in variants}
        alone = [each for each in variants if far[each] == 0]
        for each in alone[:1]:
            yield {}, each
        with suppress(_NothingError):
            yield self.grown(as_it_is), as_it_is
        best = min(variants, key=lambda each: far[each], default=None)
        if best is not None and not alone and far[best] < distance_to_targets(self.targets, self.waits({}, as_it_is)):
            with suppress(_NothingError):
                yield self.grown(best), best

    def grown(self, tried: TriedSetting) -> dict[WorkerProfile, int]:
        """Return the fewest slots that are found to reach the targets: of one profile, or of several."""
        found: list[dict[WorkerProfile, int]] = []
        for each in self.profiles:
            number = self.slots_of_one(each, tried)
            found += [] if number is None else [{each: number}]
        fewest = min((sum(each.values()) for each in found), default=_MOST_SLOTS + 1)
        if fewest > 1 and (mixed := self.slots_of_several(tried, fewest - 1)) is not None:
            found.append(mixed)
        if not found:
            raise _NothingError
        return min(found, key=lambda each: (sum(each.values()), sum(map(len, each))))

    def slots_of_one(self, profile: WorkerProfile, tried: TriedSetting) -> int | None:
        """Return how many slots of *profile* alone reach the targets; None if more do not help any further."""
        now, number, before = distance_to_targets(self.targets, self.waits({}, tried)), 1, 0
        while (far := distance_to_targets(self.targets, self.waits({profile: number}, tried))) > 0:
            if number >= 8 and far >= now:
                return None
            now, before, number = min(now, far), number, 2 * number
            if number > _MOST_SLOTS:
                return None
        return self.halved(partial(_with, {}, profile), before, number, tried)

    def slots_of_several(self, tried: TriedSetting, most: int) -> dict[WorkerProfile, int] | None:
        """Return at most *most* slots that reach the targets, each added where it helps most; None without any."""
        slots: dict[WorkerProfile, int] = {}
        step = 1
        while (far := distance_to_targets(self.targets, self.waits(slots, tried))) > 0:
            further = [_plus(slots, each, step) for each in self.profiles]
            slots = min(
                further, key=lambda each: (distance_to_targets(self.targets, self.waits(each, tried)), len(each))
            )
            if distance_to_targets(self.targets, self.waits(slots, tried)) > 0.9 * far:
                step *= 2
            if sum(slots.values()) > 2 * most:
                return None
        slots = self.pruned(slots, tried)
        return slots if sum(slots.values()) <= most else None

    def pruned(self, slots: dict[WorkerProfile, int], tried: TriedSetting) -> dict[WorkerProfile, int]:
        """Return *slots* without those that are not needed: of each profile as many as halving finds."""
        for profile in sorted(slots, key=lambda each: (-len(each), each)):
            slots[profile] = self.halved(partial(_with, slots, profile), -1, slots[profile], tried)
        return {each: number for each, number in slots.items() if number}

    def halved(
        self, slots_of: Callable[[int], dict[WorkerProfile, int]], low: int, high: int, tried: TriedSetting
    ) -> int:
        """Return the fewest slots that are enough, if more are never worse: *low* are too few, *high* are enough."""
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.reaches(slots_of(middle), tried) else (middle, high)
        return high

    # -- simulating

    def slots_of(self, profile: WorkerProfile) -> int:
        return sum(each.slots for each in self.scenario.workers if types_of(each) == profile)

    def reaches(self, slots: Mapping[WorkerProfile, int], tried: TriedSetting) -> bool:
        return distance_to_targets(self.targets, self.waits(slots, tried)) == 0

    def waits(self, slots: Mapping[WorkerProfile, int], tried: TriedSetting) -> tuple[float, ...]:
        """Return the wait of each target, s, with more or fewer *slots*. What was simulated once is known."""
        key = _key(slots, tried)
        if key not in self.known:
            if self.made >= max(1, self.most - self.kept_for_days()):
                raise _TooManyError
            schedule = self.schedule(with_slots(self.scenario, slots, tried.settings))
            self.known[key] = tuple(each.wait_s(schedule) for each in self.targets)
            self.means[key] = summarize_waits(waits_by_job(schedule).values()).mean_s or 0.0
        return self.known[key]

    def schedule(self, scenario: Scenario) -> Schedule:
        self.made += 1
        next(self.steps, None)
        return self.engine(scenario)

    def with_days(self, slots: Mapping[WorkerProfile, int], tried: TriedSetting, now: Sequence[float]) -> Advice:
        """Return the advice, with the range of its waits over days drawn again."""
        then = self.waits(slots, tried)
        fleet = with_slots(self.scenario, slots, tried.settings)
        over_days = []
        for day in range(self.days):
            schedule = self.schedule(resample_days(fleet, self.seed + day))
            over_days.append(tuple(each.wait_s(schedule) for each in self.targets))
        good = sum(distance_to_targets(self.targets, each) == 0 for each in over_days)
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
    return tuple(sorted((each, number) for each, number in slots.items() if number)), tried.words


def _with(slots: Mapping[WorkerProfile, int], profile: WorkerProfile, number: int) -> dict[WorkerProfile, int]:
    return {**slots, profile: number}


def _plus(slots: Mapping[WorkerProfile, int], profile: WorkerProfile, number: int) -> dict[WorkerProfile, int]:
    return {**slots, profile: slots.get(profile, 0) + number}


def with_slots(scenario: Scenario, slots: Mapping[WorkerProfile, int], settings: Mapping[str, str]) -> Scenario:
    """Return *scenario* with more slots by profile, on workers of their own, or fewer, and with *settings*."""
    more = [(profile, number) for profile, number in slots.items() if number > 0]
    grown = apply_changes(scenario, Changes(settings=settings, add=more))
    left = {profile: -number for profile, number in slots.items() if number < 0}
    workers = []
    for each in reversed(grown.workers):
        gone = min(each.slots, left.get(types_of(each), 0))
        if gone:
            left[types_of(each)] -= gone
        if each.slots > gone:
            workers.append(replace(each, slots=each.slots - gone))
    return replace(grown, workers=tuple(reversed(workers)))
