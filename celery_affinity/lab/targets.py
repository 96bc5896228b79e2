"""Targets of waits, as users type them: ``pdf:p95<5s``, ``on-demand:p99<1s``, ``all:p50<200ms``.

Computes the distance of waits to targets, and explains targets that no fleet can reach.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import OptionError
from ..schema.keys import ALL
from .fast_engine import limits_of_types
from .scenario import Arrival, Scenario, Schedule
from .trace import TracedWorker
from .waits import percentile, waits_by_job

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
        return percentile(ordered, self.percent / 100) / 1e6 if ordered else 0.0


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
    distance = 0.0
    for target, wait_s in zip(targets, waits_s, strict=True):
        if wait_s == math.inf:
            distance += 100.0
        elif wait_s >= target.below_s:
            distance += 1e-9 + math.log(max(wait_s, _MIN_COMPARED_S) / max(target.below_s, _MIN_COMPARED_S))
    return distance


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
        waits_s = now, then, min(over_days, default=None), max(over_days, default=None)
        shown_now, shown_then, low_s, high_s = (None if wait_s == math.inf else wait_s for wait_s in waits_s)
        is_reached = (now if then is None else then) < target.below_s
        reached.append(ReachedTarget(target.text, target.below_s, shown_now, shown_then, low_s, high_s, is_reached))
    return reached


def unreachable_reasons(
    scenario: Scenario, targets: Sequence[Target], schedule: Callable[[Scenario], Schedule]
) -> list[str]:
    """Return a sentence per target that not even a free slot for each job can reach."""
    without_jobs = [target.text for target in targets if not any(map(target.counts, scenario.arrivals))]
    if without_jobs:
        return [f"{text}: the trace has no such job" for text in without_jobs]
    numbers = Counter(arrival.type for arrival in scenario.arrivals)
    more = (TracedWorker(f"endless-{type_}@lab", (type_,), number) for type_, number in sorted(numbers.items()))
    made = schedule(replace(scenario, workers=(*scenario.workers, *more)))
    sentences = []
    for target in targets:
        wait_s = target.wait_s(made)
        if wait_s >= target.below_s:
            wait = "so many of its jobs are never claimed" if wait_s == math.inf else f"its wait is {wait_s:.3g} s"
            sentences.append(
                f"{target.text}: no fleet reaches this. With a free slot for each job {wait}: {_reason(target, made)}"
            )
    return sentences


def _reason(target: Target, schedule: Schedule) -> str:
    if target.below_s <= 0:
        return "no wait is below 0"
    waits_us, scenario = waits_by_job(schedule), schedule.scenario
    limits = limits_of_types(scenario.settings.get("limits", ""))
    rules: Counter[str] = Counter()
    for job in filter(target.counts, scenario.arrivals):
        wait_us = waits_us[job.number]
        if wait_us is None or wait_us >= target.below_s * 1e6:
            rules[_blocking_rule(job, scenario, limits)] += 1
    ((rule, number),) = rules.most_common(1)
    return f"{rule} ({number:,} of {rules.total():,} such jobs)"


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
