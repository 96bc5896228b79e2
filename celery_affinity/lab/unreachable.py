"""Why no fleet reaches a target: what waits although each type has a free slot for each of its jobs."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..rules.addresses import ALL
from .known_rules import limits_of_types
from .scenario import Arrival, Scenario
from .schedule import Schedule
from .targets import Target, has_jobs
from .trace import TracedWorker
from .waits import waits_by_job


def why_not(scenario: Scenario, targets: Sequence[Target], schedule: Callable[[Scenario], Schedule]) -> list[str]:
    """Return a sentence for each target that not even a free slot for each job reaches."""
    nowhere = [f"{each.text}: the trace has no such job" for each in targets if not has_jobs(each, scenario)]
    if nowhere:
        return nowhere
    made = schedule(endless(scenario))
    found = []
    for target in targets:
        wait_s = target.wait_s(made)
        if wait_s >= target.below_s:
            wait = "so many of its jobs are never claimed" if wait_s == math.inf else f"its wait is {wait_s:.3g} s"
            found.append(
                f"{target.text}: no fleet reaches this. With a free slot for each job {wait}: {_reason(target, made)}"
            )
    return found


def endless(scenario: Scenario) -> Scenario:
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
