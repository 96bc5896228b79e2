"""Targets of waits, as people type them: ``pdf:p95<5s``, ``on-demand:p99<1s``, ``all:p50<200ms``.

How far waits are from their targets.

Why no fleet reaches a target: what waits although each type has a free slot for each of its jobs.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import OptionError
from ..schema.keys import ALL
from .fast_engine import limits_of_types
from .scenario import Arrival, Scenario, Schedule
from .trace import TracedWorker
from .waits import waits_by_job

#: What a target may be about, beside the types of a trace.
ALL_JOBS, ON_DEMAND, QUEUED = "all", "on-demand", "queued"

ACCEPTED = "TYPE, on-demand, queued or all, then a percentile and a time, such as 'pdf:p95<5s' or 'all:p50<200ms'"

_TARGET = re.compile(
    r"(?P<whose>.+):p(?P<percent>\d{1,2}(?:\.\d{1,9})?)<(?P<number>\d{1,9}(?:\.\d{1,9})?)(?P<unit>ms|s|m|h)"
)
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Target:
    """Of the jobs of *whose*, *percent* per cent are to wait less than *below_s*."""

    whose: str
    percent: float
    below_s: float
    text: str

    def counts(self, arrival: Arrival) -> bool:
        if self.whose in (ON_DEMAND, QUEUED):
            return arrival.on_demand == (self.whose == ON_DEMAND)
        return self.whose in (ALL_JOBS, arrival.type)

    def wait_s(self, schedule: Schedule) -> float:
        """Return the percentile of the waits: infinity if so many jobs were never claimed, 0 without such jobs."""
        waits_us = waits_by_job(schedule)
        found = [waits_us[each.number] for each in schedule.scenario.arrivals if self.counts(each)]
        ordered = sorted(math.inf if wait_us is None else wait_us for wait_us in found)
        return ordered[max(0, math.ceil(self.percent / 100 * len(ordered)) - 1)] / 1e6 if ordered else 0.0


def parse_target(text: str, types: Collection[str]) -> Target:
    """Return the target in *text*. Raises OptionError for another form, and for a type that is not one of *types*."""
    found = _TARGET.fullmatch(text.replace(" ", ""))
    if found is None or not 0 < float(found["percent"]) < 100:
        raise OptionError(f"--target takes {ACCEPTED}, got: {text!r}")
    whose = found["whose"]
    if whose not in (ALL_JOBS, ON_DEMAND, QUEUED, *types):
        known = ", ".join(sorted(types))
        raise OptionError(f"--target names {whose!r}, but the trace has jobs of {known}: {text!r}")
    below_s = float(found["number"]) * _UNITS_S[found["unit"]]
    return Target(whose, float(found["percent"]), below_s, text)


def has_matching_jobs(target: Target, scenario: Scenario) -> bool:
    return any(target.counts(each) for each in scenario.arrivals)


#: Wait, s, below which all waits count as equally long: a wait is compared by its logarithm.
_LEAST_S = 1e-3


@dataclass(frozen=True)
class ReachedTarget:
    """A target, its wait as the fleet is, s, with the advice, and the lowest and highest of the days drawn again.

    A wait of infinity is None: so many jobs were never claimed.
    """

    target: str
    below_s: float
    now_s: float | None
    then_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    is_reached: bool = False


def distance_to_targets(targets: Sequence[Target], waits_s: Sequence[float]) -> float:
    """Return how far the *waits_s* are from all *targets*, 0 if each is below its own: the sum of the logarithms."""
    return sum(_far(each, wait_s) for each, wait_s in zip(targets, waits_s, strict=True))


def _far(target: Target, wait_s: float) -> float:
    if wait_s < target.below_s:
        return 0.0
    if wait_s == math.inf:
        return 100.0
    return 1e-9 + math.log(max(wait_s, _LEAST_S) / max(target.below_s, _LEAST_S))


def reached_targets(
    targets: Sequence[Target],
    now_s: Sequence[float],
    then_s: Sequence[float] | None = None,
    days_s: Sequence[Sequence[float]] = (),
) -> list[ReachedTarget]:
    found = []
    for number, (target, now) in enumerate(zip(targets, now_s, strict=True)):
        then = None if then_s is None else then_s[number]
        over_days = [each[number] for each in days_s]
        found.append(
            ReachedTarget(
                target=target.text,
                below_s=target.below_s,
                now_s=_finite(now),
                then_s=None if then is None else _finite(then),
                low_s=_finite(min(over_days)) if over_days else None,
                high_s=_finite(max(over_days)) if over_days else None,
                is_reached=(now if then is None else then) < target.below_s,
            )
        )
    return found


def _finite(wait_s: float) -> float | None:
    return None if wait_s == math.inf else wait_s


def unreachable_reasons(
    scenario: Scenario, targets: Sequence[Target], schedule: Callable[[Scenario], Schedule]
) -> list[str]:
    """Return a sentence for each target that not even a free slot for each job reaches."""
    nowhere = [f"{each.text}: the trace has no such job" for each in targets if not has_matching_jobs(each, scenario)]
    if nowhere:
        return nowhere
    made = schedule(is_endless(scenario))
    found = []
    for target in targets:
        wait_s = target.wait_s(made)
        if wait_s >= target.below_s:
            wait = "so many of its jobs are never claimed" if wait_s == math.inf else f"its wait is {wait_s:.3g} s"
            found.append(
                f"{target.text}: no fleet reaches this. With a free slot for each job {wait}: {_reason(target, made)}"
            )
    return found


def is_endless(scenario: Scenario) -> Scenario:
    """Return *scenario* with as many further slots of each type as it has jobs."""
    numbers: dict[str, int] = {}
    for each in scenario.arrivals:
        numbers[each.type] = numbers.get(each.type, 0) + 1
    more = tuple(TracedWorker(f"endless-{type_}@lab", (type_,), number) for type_, number in sorted(numbers.items()))
    return replace(scenario, workers=(*scenario.workers, *more))


def _reason(target: Target, made: Schedule) -> str:
    if target.below_s <= 0:
        return "no wait is below 0"
    waits_us = waits_by_job(made)
    late = [
        each
        for each in made.scenario.arrivals
        if target.counts(each)
        and (waits_us[each.number] is None or (waits_us[each.number] or 0) >= target.below_s * 1e6)
    ]
    counts: dict[str, int] = {}
    limits = limits_of_types(made.scenario.settings.get("limits", ""))
    for each in late:
        counts[_kept_back(each, made.scenario, limits)] = counts.get(_kept_back(each, made.scenario, limits), 0) + 1
    reason = max(counts, key=lambda each: counts[each])
    return f"{reason} ({counts[reason]:,} of {len(late):,} such jobs)"


def _kept_back(job: Arrival, scenario: Scenario, limits: Mapping[str, int]) -> str:
    """Return what keeps *job* back, although there is a slot."""
    if job.type in scenario.paused or ALL in scenario.paused:
        return f"the type {job.type!r} was paused"
    if job.type in limits:
        return f"the setting limits lets {limits[job.type]} jobs of {job.type!r} run at a time"
    if job.exclusive is not None:
        return "jobs of an exclusive key wait for one another, so the length of the runs decides"
    if job.rate is not None:
        return "a rate of their key says how many may start"
    if job.merge is not None:
        return "merged calls wait for their batch"
    return "a rule keeps them back, such as a reserve or a quota of a tenant"
