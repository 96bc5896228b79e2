"""The smallest fleet, and the settings, that reach targets of waits on a trace.

A search by simulations, whose number is bounded: settings alone; slots of one profile, as few as halving finds; slots
of several profiles, each added where it brings the targets nearest, and taken away again if it is not needed. What is
found reaches the targets in its own simulation. That nothing smaller does is not proven.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from .changes import Changes, changed
from .profiles import Profile, types_of
from .resampled import resampled
from .scenario import Scenario
from .schedule import Schedule
from .settings_to_try import Tried, to_try
from .shortfall import Reached, far_from, reached
from .targets import Target
from .unreachable import why_not
from .waits import summary, waits_by_job

Engine = Callable[[Scenario], Schedule]

#: Simulations that a search makes at most, and days that are drawn again for the range.
MOST_SIMULATIONS, DAYS = 300, 10

#: What is simulated: more or fewer slots by profile, and the words of the settings.
_Key = tuple[tuple[tuple[Profile, int], ...], str]

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

    slots: Sequence[tuple[Profile, int]]
    settings: str
    targets: Sequence[Reached]
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
    now: Sequence[Reached]
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
        profiles: dict[Profile, None] = dict.fromkeys(types_of(each) for each in self.scenario.workers)
        wanted = {each.type for each in self.scenario.arrivals if any(t.counts(each) for t in self.targets)}
        profiles |= dict.fromkeys((type_,) for type_ in sorted(wanted))
        self.profiles = [each for each in profiles if wanted.intersection(each)]
        self.found: list[tuple[dict[Profile, int], Tried]] = []

    def run(self) -> Advised:
        as_it_is = Tried("", {})
        now = self.waits({}, as_it_is)
        unreached = why_not(self.scenario, self.targets, self.schedule)
        if unreached:
            return Advised(False, reached(self.targets, now), (), unreached, self.made, True, self.most, 0)
        complete = True
        already = far_from(self.targets, now) == 0
        try:
            for each in self.fewer(as_it_is) if already else self.more(as_it_is):
                self.found.append(each)  # what is found counts even if the next one is not
        except _TooManyError:
            complete = False
        self.found.sort(key=lambda each: (sum(each[0].values()), bool(each[1].words)))
        kept = self.kept_for_days()
        advice = [self.with_days(slots, tried, now) for slots, tried in self.found[:_PIECES]]
        return Advised(already, reached(self.targets, now), advice, (), self.made, complete, self.most, kept)

    def kept_for_days(self) -> int:
        """Return how many simulations the search may not use: the days of what is found, and of what comes next."""
        return self.days * min(_PIECES, len(self.found) + 1)

    # -- searching

    def fewer(self, tried: Tried) -> Iterator[tuple[dict[Profile, int], Tried]]:
        """Yield the slots that could go, if there are some."""
        slots: dict[Profile, int] = {}
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

    def more(self, as_it_is: Tried) -> Iterator[tuple[dict[Profile, int], Tried]]:
        """Yield what reaches the targets: settings alone; slots alone; slots with the best settings."""
        variants = to_try(self.scenario)
        far = {each: far_from(self.targets, self.waits({}, each)) for each in variants}
        alone = [each for each in variants if far[each] == 0]
        for each in alone[:1]:
            yield {}, each
        with suppress(_NothingError):
            yield self.grown(as_it_is), as_it_is
        best = min(variants, key=lambda each: far[each], default=None)
        if best is not None and not alone and far[best] < far_from(self.targets, self.waits({}, as_it_is)):
            with suppress(_NothingError):
                yield self.grown(best), best

    def grown(self, tried: Tried) -> dict[Profile, int]:
        """Return the fewest slots that are found to reach the targets: of one profile, or of several."""
        found: list[dict[Profile, int]] = []
        for each in self.profiles:
            number = self.slots_of_one(each, tried)
            found += [] if number is None else [{each: number}]
        fewest = min((sum(each.values()) for each in found), default=_MOST_SLOTS + 1)
        if fewest > 1 and (mixed := self.slots_of_several(tried, fewest - 1)) is not None:
            found.append(mixed)
        if not found:
            raise _NothingError
        return min(found, key=lambda each: (sum(each.values()), sum(map(len, each))))

    def slots_of_one(self, profile: Profile, tried: Tried) -> int | None:
        """Return how many slots of *profile* alone reach the targets; None if more do not help any further."""
        now, number, before = far_from(self.targets, self.waits({}, tried)), 1, 0
        while (far := far_from(self.targets, self.waits({profile: number}, tried))) > 0:
            if number >= 8 and far >= now:
                return None
            now, before, number = min(now, far), number, 2 * number
            if number > _MOST_SLOTS:
                return None
        return self.halved(partial(_with, {}, profile), before, number, tried)

    def slots_of_several(self, tried: Tried, most: int) -> dict[Profile, int] | None:
        """Return at most *most* slots that reach the targets, each added where it helps most; None without any."""
        slots: dict[Profile, int] = {}
        step = 1
        while (far := far_from(self.targets, self.waits(slots, tried))) > 0:
            further = [_plus(slots, each, step) for each in self.profiles]
            slots = min(further, key=lambda each: (far_from(self.targets, self.waits(each, tried)), len(each)))
            if far_from(self.targets, self.waits(slots, tried)) > 0.9 * far:
                step *= 2
            if sum(slots.values()) > 2 * most:
                return None
        slots = self.pruned(slots, tried)
        return slots if sum(slots.values()) <= most else None

    def pruned(self, slots: dict[Profile, int], tried: Tried) -> dict[Profile, int]:
        """Return *slots* without those that are not needed: of each profile as many as halving finds."""
        for profile in sorted(slots, key=lambda each: (-len(each), each)):
            slots[profile] = self.halved(partial(_with, slots, profile), -1, slots[profile], tried)
        return {each: number for each, number in slots.items() if number}

    def halved(self, slots_of: Callable[[int], dict[Profile, int]], low: int, high: int, tried: Tried) -> int:
        """Return the fewest slots that are enough, if more are never worse: *low* are too few, *high* are enough."""
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.reaches(slots_of(middle), tried) else (middle, high)
        return high

    # -- simulating

    def slots_of(self, profile: Profile) -> int:
        return sum(each.slots for each in self.scenario.workers if types_of(each) == profile)

    def reaches(self, slots: Mapping[Profile, int], tried: Tried) -> bool:
        return far_from(self.targets, self.waits(slots, tried)) == 0

    def waits(self, slots: Mapping[Profile, int], tried: Tried) -> tuple[float, ...]:
        """Return the wait of each target, s, with more or fewer *slots*. What was simulated once is known."""
        key = _key(slots, tried)
        if key not in self.known:
            if self.made >= max(1, self.most - self.kept_for_days()):
                raise _TooManyError
            schedule = self.schedule(with_slots(self.scenario, slots, tried.settings))
            self.known[key] = tuple(each.wait_s(schedule) for each in self.targets)
            self.means[key] = summary(waits_by_job(schedule).values()).mean_s or 0.0
        return self.known[key]

    def schedule(self, scenario: Scenario) -> Schedule:
        self.made += 1
        next(self.steps, None)
        return self.engine(scenario)

    def with_days(self, slots: Mapping[Profile, int], tried: Tried, now: Sequence[float]) -> Advice:
        """Return the advice, with the range of its waits over days drawn again."""
        then = self.waits(slots, tried)
        fleet = with_slots(self.scenario, slots, tried.settings)
        over_days = []
        for day in range(self.days):
            schedule = self.schedule(resampled(fleet, self.seed + day))
            over_days.append(tuple(each.wait_s(schedule) for each in self.targets))
        good = sum(far_from(self.targets, each) == 0 for each in over_days)
        return Advice(
            sorted(slots.items()),
            tried.words,
            reached(self.targets, now, then, over_days),
            self.days,
            good,
            self.means[_key({}, Tried("", {}))],
            self.means[_key(slots, tried)],
        )


def _key(slots: Mapping[Profile, int], tried: Tried) -> _Key:
    return tuple(sorted((each, number) for each, number in slots.items() if number)), tried.words


def _with(slots: Mapping[Profile, int], profile: Profile, number: int) -> dict[Profile, int]:
    return {**slots, profile: number}


def _plus(slots: Mapping[Profile, int], profile: Profile, number: int) -> dict[Profile, int]:
    return {**slots, profile: slots.get(profile, 0) + number}


def with_slots(scenario: Scenario, slots: Mapping[Profile, int], settings: Mapping[str, str]) -> Scenario:
    """Return *scenario* with more slots by profile, on workers of their own, or fewer, and with *settings*."""
    more = [(profile, number) for profile, number in slots.items() if number > 0]
    grown = changed(scenario, Changes(settings=settings, add=more))
    left = {profile: -number for profile, number in slots.items() if number < 0}
    workers = []
    for each in reversed(grown.workers):
        gone = min(each.slots, left.get(types_of(each), 0))
        if gone:
            left[types_of(each)] -= gone
        if each.slots > gone:
            workers.append(replace(each, slots=each.slots - gone))
    return replace(grown, workers=tuple(reversed(workers)))
