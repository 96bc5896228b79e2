"""How far a schedule is from what a clairvoyant scheduler could reach: two bounds of the mean weighted wait.

*lower*: no schedule waits less, whoever makes it. The best of several bounds counts: prices of slots (`price_bound`), a
linear program (`lower_bound`), whose prices the first begins with, and one fast slot (`fast_slot_bound`), for all slots
or for a key. *upper*: a schedule that waits so long, made by one who knows what will come (`list_schedules`); or the
replayed one, if that is better. The best possible schedule is between the two.

All of them compare the same jobs: those that the record and the replay claimed. Weights are 1 for each job
(`weighing.equally`), unless the caller says otherwise.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat
from typing import NamedTuple

import numpy as np

from ..schema.keys import OF_TYPE
from ..settings.limits import typed_limits
from . import list_schedules, lower_bounds
from .list_schedules import OpenSlots, Weight, equal_weights, mean_wait_s, open_slots
from .lower_bounds import JobClass, Market, Numbers, RaisedPrices, classes_of, raise_prices
from .scenario import Arrival, Scenario, Schedule
from .trace import Trace

#: Bins of the finest prices, by default. The bound loses up to a bin's width of the wait of each job.
BINS = 8_192

#: Largest number of variables of the linear program, whose prices are where the ascent begins; and its longest time, s.
_MOST_VARIABLES, _WITHIN_S = 3_000, 20.0

#: Classes by length in the linear program, for each type and weight; and classes beyond which weights are rounded down.
_BY_LENGTH, _MOST_CLASSES = 4, 100

#: Bins of the first prices, factor from grid to grid, and steps uphill on each; on the last one, so many times as many.
_FIRST_BINS, _FINER, _STEPS, _LAST = 512, 4, 150, 2

#: Starts that the ascent compares at most, about: what it takes is known before, whatever the trace. About 15 s.
_LOOKS = 200_000_000

#: A grid is left out if there would be fewer steps on it.
_FEWEST_STEPS = 10

#: Part of a bound that is given away for errors of rounding.
_TOLERANCE = 1e-9

Starts = dict[int, int]


@dataclass(frozen=True)
class Optimum:
    """Mean weighted waits, s. *recorded*: None if the record has no claims. *bound*: which lower bound counts.

    *jobs*: how many count; *left_out*: those that some schedule did not claim. *lower_bounds_s*: all that were
    computed, by name; *bins*: those of the finest prices, each of *bin_s*.

    The replayed wait is between *replayed_at_least* and *replayed_at_most* times that of the best possible schedule.
    """

    jobs: int
    left_out: int
    recorded_s: float | None
    replayed_s: float
    upper_s: float
    lower_s: float
    bound: str
    lower_bounds_s: Mapping[str, float]
    bins: int
    bin_s: float

    @property
    def replayed_at_least(self) -> float | None:
        return self.replayed_s / self.upper_s if self.upper_s else None

    @property
    def replayed_at_most(self) -> float | None:
        return self.replayed_s / self.lower_s if self.lower_s else None


class Bounds(NamedTuple):
    """*lower*: bounds of the mean weighted wait, s, by name. *listed*: a clairvoyant schedule, the upper bound.

    *bins*, *bin_s*: of the finest prices.
    """

    lower: Mapping[str, float]
    listed: Schedule
    bins: int
    bin_s: float


def steps_in(jobs: int, bins: int = BINS) -> int:
    """Return how many steps `optimum` makes at most for so many *jobs*."""
    grids, now = 1, min(bins, _FIRST_BINS)
    while 2 * now <= bins:
        grids, now = grids + 1, now * min(_FINER, bins // now)
    return list_schedules.steps_of(jobs) + _STEPS * (grids + _LAST)


def optimum(
    trace: Trace,
    replayed: Schedule,
    weight: Weight = equal_weights,
    *,
    bins: int = BINS,
    progress: Iterable[object] | None = None,
) -> Optimum:
    """Return the bounds for the jobs of *trace*, which *replayed* schedules again.

    *bins*: of time, for the prices, at most: more give a better lower bound, and take longer. *progress*: stepped
    `steps_in` times at most. Raises ValueError if no job is claimed both in the record and in the replay.
    """
    recorded = starts_of_record(trace)
    again = starts_of(replayed)
    numbers = again.keys() & recorded.keys() if recorded else again.keys()
    if not numbers:
        raise ValueError("no job of the trace is claimed by a worker of it, so there is no wait to compare")
    scenario = only_jobs(replayed.scenario, numbers)
    lower, listed, bins, bin_s = bounds_of(scenario, weight, bins=bins, progress=progress)
    replayed_s = mean_wait_s(scenario.arrivals, again, weight)
    return Optimum(
        jobs=len(numbers),
        left_out=len(replayed.scenario.arrivals) - len(numbers),
        recorded_s=mean_wait_s(scenario.arrivals, recorded, weight) if recorded else None,
        replayed_s=replayed_s,
        upper_s=min(replayed_s, mean_wait_s(scenario.arrivals, starts_of(listed), weight)),
        lower_s=max(0.0, *lower.values()),
        bound=max(lower, key=lambda name: lower[name]),
        lower_bounds_s=lower,
        bins=bins,
        bin_s=bin_s,
    )


def starts_of_record(trace: Trace) -> Starts:
    """Return when the recorded jobs began: their start, or the claim if no start was recorded. By number of the job."""
    begun = (
        (number, job.claimed_us if job.started_us is None else job.started_us) for number, job in enumerate(trace.jobs)
    )
    return {number: begun_us for number, begun_us in begun if begun_us is not None}


def only_jobs(scenario: Scenario, numbers: Iterable[int]) -> Scenario:
    """Return *scenario* with the jobs of *numbers* alone."""
    wanted = set(numbers)
    return replace(scenario, arrivals=tuple(each for each in scenario.arrivals if each.number in wanted))


def starts_of(schedule: Schedule) -> Starts:
    """Return when the jobs of *schedule* were claimed, by number."""
    return {run.number: run.claimed_us for run in schedule.runs}


def bounds_of(
    scenario: Scenario, weight: Weight = equal_weights, *, bins: int = BINS, progress: Iterable[object] | None = None
) -> Bounds:
    """Return bounds of the mean weighted wait of all jobs of *scenario*.

    Every schedule that claims all of these jobs waits at least as long as the highest of the lower ones.
    """
    jobs = scenario.arrivals
    steps = repeat(None) if progress is None else chain(progress, repeat(None))
    slots, total = open_slots(scenario.workers, jobs), sum(map(weight, jobs))
    listed = list_schedules.best_schedule(scenario, weight, progress=steps)
    until_s = 1.02 * max((run.ended_us for run in listed.runs), default=0) / 1e6 + 1e-3
    good_s = total * mean_wait_s(jobs, starts_of(listed), weight)
    found = {"one fast slot": list_schedules.weighted_wait_us(jobs, slots, weight) / 1e6, "no wait": 0.0}
    if not _keys_have_limits(scenario):
        found["one fast slot for each key"] = list_schedules.keys_bound_us(jobs, weight) / 1e6
    solved, edges = _linear_program(jobs, slots, weight, until_s)
    if solved is not None:
        found["linear program"] = solved.bound_s
    market = Market(jobs, slots, weight, until_s, min(bins, _FIRST_BINS))
    begun = [market.prices_of({}, edges), *([] if solved is None else [market.prices_of(solved.prices, edges)])]
    market, raised = _by_prices(market, begun, good_s, bins, steps)
    found["prices"] = raised.value.bound_s - _TOLERANCE * abs(raised.value.bound_s)
    wished_s = {each.number: float(at_s) for each, at_s in zip(jobs, raised.starts_s, strict=True)}
    guided = list_schedules.guided_schedule(scenario, weight, wished_s)
    listed = min(listed, guided, key=lambda each: (-len(each.runs), mean_wait_s(jobs, starts_of(each), weight)))
    # What ran as the trace began started just before it: a schedule that starts all that 1 µs later is one from 0 on.
    early_s = 1e-6 if any(each.since_us < 0 for each in jobs) else 0.0
    lower = {name: sum_s / total - early_s for name, sum_s in found.items()}
    return Bounds(lower, listed, market.bins, market.width)


def _keys_have_limits(scenario: Scenario) -> bool:
    """Whether the settings have limits of keys, which count instead of those of jobs; a trace hides the keys."""
    limits = typed_limits(scenario.settings.get("limits", "")) or {}
    return any(not pattern.startswith(OF_TYPE) for pattern in limits)


def _linear_program(
    jobs: Sequence[Arrival], slots: Sequence[OpenSlots], weight: Weight, until_s: float
) -> tuple[lower_bounds.SolvedProgram | None, Numbers]:
    classes = _few_classes(jobs, weight)
    bins = max(8, _MOST_VARIABLES // max(1, lower_bounds.program_size(classes, slots, 1)))
    edges = np.linspace(0.0, until_s, bins + 1)
    return lower_bounds.solve_program(classes, slots, edges, within_s=_WITHIN_S), edges


def _few_classes(jobs: Sequence[Arrival], weight: Weight) -> list[JobClass]:
    classes = classes_of(jobs, weight, _BY_LENGTH)
    if len(classes) <= _MOST_CLASSES:
        return classes
    lowest: dict[str, float] = {}
    for job in jobs:
        lowest[job.type] = min(weight(job), lowest.get(job.type, weight(job)))
    return classes_of(jobs, lambda job: lowest[job.type], _BY_LENGTH)


def _by_prices(
    market: Market, begun: Sequence[Numbers], good_s: float, bins: int, steps: Iterator[object]
) -> tuple[Market, RaisedPrices]:
    """Return the best prices, uphill from those of *begun*, on finer and finer grids; and the market of the last."""
    tried: list[RaisedPrices] = []
    for prices in begun:
        own = islice(steps, _STEPS)
        tried.append(raise_prices(market, prices, good_s=good_s, steps=own, looks=_LOOKS // 4))
    raised, left = max(tried, key=lambda each: each.value.bound_s), _LOOKS - sum(each.looked_at for each in tried)
    while 2 * market.bins <= bins:
        factor = min(_FINER, bins // market.bins)
        if left < _FEWEST_STEPS * factor * raised.value.looked_at:
            break
        market, prices = market.finer(factor), np.repeat(raised.prices, factor, axis=1)
        is_last = 2 * market.bins > bins
        own, looks = islice(steps, _STEPS * (_LAST if is_last else 1)), left if is_last else left // 2
        raised = raise_prices(market, prices, good_s=good_s, steps=own, looks=looks)
        left -= raised.looked_at
    return market, raised
