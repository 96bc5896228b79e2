"""Bounds of the mean weighted wait of a clairvoyant scheduler, to compare a schedule with the best possible one.

No schedule waits less than *lower*, the best of several bounds: prices of slots, the linear program whose prices the
former starts with, and one fast slot for all slots or for a key. *upper* is the wait of a schedule made with knowledge
of the future (`list_schedules`), or of the replay if that is better. The best possible schedule is in between.

All bounds compare the jobs that both the record and the replay claimed. The default weight of a job is 1.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat
from typing import NamedTuple

import numpy as np

from ..schema.keys import OF_TYPE
from ..settings.limits import typed_limits
from . import list_schedules
from .list_schedules import OpenSlots, Weight, equal_weights, mean_wait_s, open_slots
from .lower_bounds import Market, Numbers, Program, RaisedPrices, SolvedProgram, classes_of, pairs_of, raise_prices
from .scenario import Arrival, Scenario, Schedule
from .trace import Trace

#: Default number of bins for the finest prices. The bound loses up to one bin's width of each job's wait.
BINS = 8_192
#: Limits of the linear program, whose prices start the ascent: number of variables, and seconds.
_MAX_VARIABLES, _MAX_SOLVER_S = 3_000, 20.0
#: Length classes per type and weight in the linear program, and maximum number of classes with exact weights.
_LENGTH_CLASSES, _MAX_CLASSES = 4, 100
#: Bins of the first prices, factor between grids, steps uphill on each grid, and factor of the steps on the last grid.
_FIRST_BINS, _GRID_FACTOR, _STEPS_PER_GRID, _LAST_GRID_FACTOR = 512, 4, 150, 2
#: Approximate maximum number of starts that the ascent compares, regardless of the trace. About 15 s.
_LOOKS = 200_000_000
#: A grid with fewer steps than this is left out.
_MIN_STEPS = 10
#: Share of a bound that is given up for rounding errors.
_TOLERANCE = 1e-9

Starts = dict[int, int]


@dataclass(frozen=True)
class Optimum:
    """Mean weighted waits in seconds: *replayed_at_least* to *replayed_at_most* times the best possible wait."""

    jobs: int  #: number of compared jobs
    left_out: int  #: number of jobs that one of the schedules did not claim
    recorded_s: float | None  #: None if the record has no claims
    replayed_s: float
    upper_s: float
    lower_s: float
    bound: str  #: name of the highest lower bound
    lower_bounds_s: Mapping[str, float]  #: all computed lower bounds by name
    bins: int  #: number of bins for the finest prices
    bin_s: float  #: width of these bins

    @property
    def replayed_at_least(self) -> float | None:
        return self.replayed_s / self.upper_s if self.upper_s else None

    @property
    def replayed_at_most(self) -> float | None:
        return self.replayed_s / self.lower_s if self.lower_s else None


class Bounds(NamedTuple):
    lower: Mapping[str, float]  #: lower bounds in seconds by name
    listed: Schedule  #: a clairvoyant schedule, which is the upper bound
    bins: int  #: number of bins for the finest prices
    bin_s: float  #: width of these bins


def steps_in(jobs: int, bins: int = BINS) -> int:
    """Return the maximum number of steps in `optimum` for *jobs* jobs."""
    grids, current = 1, min(bins, _FIRST_BINS)
    while 2 * current <= bins:
        grids, current = grids + 1, current * min(_GRID_FACTOR, bins // current)
    return list_schedules.steps_of(jobs) + _STEPS_PER_GRID * (grids + _LAST_GRID_FACTOR)


def optimum(
    trace: Trace,
    replayed: Schedule,
    weight: Weight = equal_weights,
    *,
    bins: int = BINS,
    progress: Iterable[object] | None = None,
) -> Optimum:
    """Return the bounds for the jobs of *trace*, which *replayed* schedules again.

    *bins*: maximum number of time bins for the prices; more bins give a better lower bound and take longer.
    *progress*: stepped up to `steps_in` times. Raises ValueError if no job is claimed in both record and replay.
    """
    recorded: Starts = {}
    for number, job in enumerate(trace.jobs):
        begun_us = job.claimed_us if job.started_us is None else job.started_us
        if begun_us is not None:
            recorded[number] = begun_us
    replayed_starts = starts_of(replayed)
    common = replayed_starts.keys() & recorded.keys() if recorded else replayed_starts.keys()
    if not common:
        raise ValueError("no job of the trace is claimed by a worker of it, so there is no wait to compare")
    jobs = tuple(job for job in replayed.scenario.arrivals if job.number in common)
    bounds = bounds_of(replace(replayed.scenario, arrivals=jobs), weight, bins=bins, progress=progress)
    lower, replayed_s = bounds.lower, mean_wait_s(jobs, replayed_starts, weight)
    return Optimum(
        jobs=len(common),
        left_out=len(replayed.scenario.arrivals) - len(common),
        recorded_s=mean_wait_s(jobs, recorded, weight) if recorded else None,
        replayed_s=replayed_s,
        upper_s=min(replayed_s, mean_wait_s(jobs, starts_of(bounds.listed), weight)),
        lower_s=max(0.0, *lower.values()),
        bound=max(lower, key=lambda name: lower[name]),
        lower_bounds_s=lower,
        bins=bounds.bins,
        bin_s=bounds.bin_s,
    )


def starts_of(schedule: Schedule) -> Starts:
    return {run.number: run.claimed_us for run in schedule.runs}


def bounds_of(
    scenario: Scenario, weight: Weight = equal_weights, *, bins: int = BINS, progress: Iterable[object] | None = None
) -> Bounds:
    """Return bounds of the mean weighted wait in *scenario*. They hold for all schedules that claim all jobs."""
    jobs = scenario.arrivals
    steps = repeat(None) if progress is None else chain(progress, repeat(None))
    slots, total = open_slots(scenario.workers, jobs), sum(map(weight, jobs))
    listed = list_schedules.best_schedule(scenario, weight, progress=steps)
    until_s = 1.02 * max((run.ended_us for run in listed.runs), default=0) / 1e6 + 1e-3
    good_s = total * mean_wait_s(jobs, starts_of(listed), weight)
    bounds_s = {"one fast slot": list_schedules.weighted_wait_us(jobs, slots, weight) / 1e6, "no wait": 0.0}
    key_limits = typed_limits(scenario.settings.get("limits", "")) or {}
    if all(pattern.startswith(OF_TYPE) for pattern in key_limits):
        # Limits of keys in the settings replace the limits of jobs, and a trace hides the keys.
        bounds_s["one fast slot for each key"] = list_schedules.keys_bound_us(jobs, weight) / 1e6
    solved, edges = _linear_program(jobs, slots, weight, until_s)
    if solved is not None:
        bounds_s["linear program"] = solved.bound_s
    market = Market(jobs, slots, weight, until_s, min(bins, _FIRST_BINS))
    initial = [market.prices_of({}, edges), *([] if solved is None else [market.prices_of(solved.prices, edges)])]
    market, raised = _ascend(market, initial, good_s, bins, steps)
    bounds_s["prices"] = raised.value.bound_s - _TOLERANCE * abs(raised.value.bound_s)
    wished_s = {job.number: float(at_s) for job, at_s in zip(jobs, raised.starts_s, strict=True)}
    guided = list_schedules.guided_schedule(scenario, weight, wished_s)
    listed = min(listed, guided, key=lambda made: (-len(made.runs), mean_wait_s(jobs, starts_of(made), weight)))
    # Jobs that ran when the trace began started before it: their starts moved by 1 µs make a schedule from 0 on.
    early_s = 1e-6 if any(job.since_us < 0 for job in jobs) else 0.0
    lower = {name: sum_s / total - early_s for name, sum_s in bounds_s.items()}
    return Bounds(lower, listed, market.bins, market.width)


def _linear_program(
    jobs: Sequence[Arrival], slots: Sequence[OpenSlots], weight: Weight, until_s: float
) -> tuple[SolvedProgram | None, Numbers]:
    classes = classes_of(jobs, weight, _LENGTH_CLASSES)
    if len(classes) > _MAX_CLASSES:
        lowest: dict[str, float] = {}
        for job in jobs:
            lowest[job.type] = min(weight(job), lowest.get(job.type, weight(job)))
        classes = classes_of(jobs, lambda job: lowest[job.type], _LENGTH_CLASSES)
    variables_per_bin = 3 * len(classes) + len(pairs_of(classes, slots))
    edges = np.linspace(0.0, until_s, max(8, _MAX_VARIABLES // max(1, variables_per_bin)) + 1)
    return Program(classes, slots, edges).solve(_MAX_SOLVER_S), edges


def _ascend(
    market: Market, initial: Sequence[Numbers], good_s: float, bins: int, steps: Iterator[object]
) -> tuple[Market, RaisedPrices]:
    """Return the best prices, uphill from *initial* on finer and finer grids, and the market of the last grid."""
    tried: list[RaisedPrices] = []
    for prices in initial:
        some = islice(steps, _STEPS_PER_GRID)
        tried.append(raise_prices(market, prices, good_s=good_s, steps=some, looks=_LOOKS // 4))
    raised = max(tried, key=lambda result: result.value.bound_s)
    remaining = _LOOKS - sum(result.looked_at for result in tried)
    while 2 * market.bins <= bins:
        factor = min(_GRID_FACTOR, bins // market.bins)
        if remaining < _MIN_STEPS * factor * raised.value.looked_at:
            break
        market, prices = market.finer(factor), np.repeat(raised.prices, factor, axis=1)
        is_last = 2 * market.bins > bins
        some = islice(steps, _STEPS_PER_GRID * (_LAST_GRID_FACTOR if is_last else 1))
        looks = remaining if is_last else remaining // 2
        raised = raise_prices(market, prices, good_s=good_s, steps=some, looks=looks)
        remaining -= raised.looked_at
    return market, raised
