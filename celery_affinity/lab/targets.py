"""Targets of waits, as users type them: ``pdf:p95<5s``, ``on-demand:p99<1s``, ``all:p50<200ms``.

Computes the distance of waits to targets, and explains targets that no fleet can reach.
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

#: Subjects of a target, in addition to the types of a trace.
ALL_JOBS, ON_DEMAND, QUEUED = "all", "on-demand", "queued"

ACCEPTED = "TYPE, on-demand, queued or all, then a percentile and a time, such as 'pdf:p95<5s' or 'all:p50<200ms'"

_TARGET = re.compile(
    r"(?P<whose>.+):p(?P<percent>\d{1,2}(?:\.\d{1,9})?)<(?P<number>\d{1,9}(?:\.\d{1,9})?)(?P<unit>ms|s|m|h)"
)
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Target:
    """A target: *percent* per cent of the jobs of *whose* must wait less than *below_s*."""

    whose: str
    percent: float
    below_s: float
    text: str

    def counts(self, arrival: Arrival) -> bool:
        if self.whose in (ON_DEMAND, QUEUED):
            return arrival.on_demand == (self.whose == ON_DEMAND)
        return self.whose in (ALL_JOBS, arrival.type)

    def wait_s(self, schedule: Schedule) -> float:
        """Return the percentile of the waits: 0 without matching jobs, infinity if too many were never claimed."""
        waits_us = waits_by_job(schedule)
        matching_us = [waits_us[arrival.number] for arrival in schedule.scenario.arrivals if self.counts(arrival)]
        ordered = sorted(math.inf if wait_us is None else wait_us for wait_us in matching_us)
        return ordered[max(0, math.ceil(self.percent / 100 * len(ordered)) - 1)] / 1e6 if ordered else 0.0


def parse_target(text: str, types: Collection[str]) -> Target:
    """Return the target in *text*. Raises OptionError for an invalid format, and for types not in *types*."""
    match = _TARGET.fullmatch(text.replace(" ", ""))
    if match is None or not 0 < float(match["percent"]) < 100:
        raise OptionError(f"--target takes {ACCEPTED}, got: {text!r}")
    whose = match["whose"]
    if whose not in (ALL_JOBS, ON_DEMAND, QUEUED, *types):
        type_names = ", ".join(sorted(types))
        raise OptionError(f"--target names {whose!r}, but the trace has jobs of {type_names}: {text!r}")
    below_s = float(match["number"]) * _UNITS_S[match["unit"]]
    return Target(whose, float(match["percent"]), below_s, text)


def has_matching_jobs(target: Target, scenario: Scenario) -> bool:
    return any(target.counts(arrival) for arrival in scenario.arrivals)


#: Waits below this, in seconds, are treated as equal, because waits are compared by their logarithms.
_MIN_COMPARED_S = 1e-3


@dataclass(frozen=True)
class ReachedTarget:
    """A target with its wait; a wait is None if too many jobs were never claimed."""

    target: str
    below_s: float
    now_s: float | None  #: the wait in the unchanged fleet
    then_s: float | None = None  #: the wait with the advice
    low_s: float | None = None  #: lowest wait on the resampled days
    high_s: float | None = None  #: highest wait on the resampled days
    is_reached: bool = False


def distance_to_targets(targets: Sequence[Target], waits_s: Sequence[float]) -> float:
    """Return the distance of *waits_s* to *targets*: the sum of the log ratios above 0. It is 0 if all are reached."""
    return sum(_distance(target, wait_s) for target, wait_s in zip(targets, waits_s, strict=True))


def _distance(target: Target, wait_s: float) -> float:
    if wait_s < target.below_s:
        return 0.0
    if wait_s == math.inf:
        return 100.0
    return 1e-9 + math.log(max(wait_s, _MIN_COMPARED_S) / max(target.below_s, _MIN_COMPARED_S))


def reached_targets(
    targets: Sequence[Target],
    now_s: Sequence[float],
    then_s: Sequence[float] | None = None,
    days_s: Sequence[Sequence[float]] = (),
) -> list[ReachedTarget]:
    reached = []
    for index, (target, now) in enumerate(zip(targets, now_s, strict=True)):
        then = None if then_s is None else then_s[index]
        over_days = [waits_s[index] for waits_s in days_s]
        reached.append(
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
    return reached


def _finite(wait_s: float) -> float | None:
    return None if wait_s == math.inf else wait_s


def unreachable_reasons(
    scenario: Scenario, targets: Sequence[Target], schedule: Callable[[Scenario], Schedule]
) -> list[str]:
    """Return a sentence per target that not even a free slot for each job can reach."""
    without_jobs = [
        f"{target.text}: the trace has no such job" for target in targets if not has_matching_jobs(target, scenario)
    ]
    if without_jobs:
        return without_jobs
    made = schedule(is_endless(scenario))
    sentences = []
    for target in targets:
        wait_s = target.wait_s(made)
        if wait_s >= target.below_s:
            wait = "so many of its jobs are never claimed" if wait_s == math.inf else f"its wait is {wait_s:.3g} s"
            sentences.append(
                f"{target.text}: no fleet reaches this. With a free slot for each job {wait}: {_reason(target, made)}"
            )
    return sentences


def is_endless(scenario: Scenario) -> Scenario:
    """Return *scenario* with additional slots of each type, one per job."""
    numbers: dict[str, int] = {}
    for arrival in scenario.arrivals:
        numbers[arrival.type] = numbers.get(arrival.type, 0) + 1
    more = tuple(TracedWorker(f"endless-{type_}@lab", (type_,), number) for type_, number in sorted(numbers.items()))
    return replace(scenario, workers=(*scenario.workers, *more))


def _reason(target: Target, schedule: Schedule) -> str:
    if target.below_s <= 0:
        return "no wait is below 0"
    waits_us = waits_by_job(schedule)
    late = [
        arrival
        for arrival in schedule.scenario.arrivals
        if target.counts(arrival)
        and (waits_us[arrival.number] is None or (waits_us[arrival.number] or 0) >= target.below_s * 1e6)
    ]
    counts: dict[str, int] = {}
    limits = limits_of_types(schedule.scenario.settings.get("limits", ""))
    for arrival in late:
        counts[_blocking_rule(arrival, schedule.scenario, limits)] = (
            counts.get(_blocking_rule(arrival, schedule.scenario, limits), 0) + 1
        )
    reason = max(counts, key=lambda rule: counts[rule])
    return f"{reason} ({counts[reason]:,} of {len(late):,} such jobs)"


def _blocking_rule(job: Arrival, scenario: Scenario, limits: Mapping[str, int]) -> str:
    """Return the rule that blocks *job* despite a free slot."""
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
