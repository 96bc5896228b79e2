"""What the lab is asked about a trace: Python functions that do what commands of `celery affinity lab` do."""

import shlex
from dataclasses import dataclass

from celery_affinity.clock import SECOND_US
from celery_affinity.lab import replay as replay_module
from celery_affinity.lab import targets, waits
from celery_affinity.lab.advise import Advice, Advised, advise
from celery_affinity.lab.changes import read_changes
from celery_affinity.lab.optimum import Optimum, optimum
from celery_affinity.lab.replay import run_engine
from celery_affinity.lab.scenario import Schedule, scenario_of
from celery_affinity.lab.trace import Trace


@dataclass(frozen=True)
class Change:
    """A change in the words of `lab whatif`: *add*: ``[pdf]:1``; *settings*: ``limits=type:pdf=1``."""

    add: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        return " ".join([*(f"--add '{each}'" for each in self.add), *(f"--set '{each}'" for each in self.settings)])


def replay(trace: Trace) -> replay_module.Replay:
    """`lab replay`: what was recorded is scheduled again."""
    return replay_module.replay(trace)


def what_if(trace: Trace, change: Change) -> tuple[Schedule, Schedule]:
    """`lab whatif`: the schedules without and with the change."""
    scenario = scenario_of(trace)
    changes = read_changes(scenario, add=change.add, settings=change.settings)
    before, after, _ = replay_module.schedule_both(scenario, changes)
    return before, after


def measured(trace: Trace) -> Schedule:
    """Return what was recorded, as a schedule."""
    return replay_module.recorded_jobs(trace, scenario_of(trace))


def advice(trace: Trace, target: str) -> Advised:
    """`lab advise`: the fewest slots, and settings, with which *target* would have been reached."""
    scenario = scenario_of(trace)
    wanted = targets.parse_target(target, {each.type for each in scenario.arrivals})
    return advise(scenario, [wanted], lambda changed: run_engine(changed).schedule)


def change_of(advice: Advice) -> Change:
    """Return the advice in the words of `lab whatif`."""
    name, *values = shlex.split(advice.settings) or [""]
    added = tuple(f"[{','.join(profile)}]:{number}" for profile, number in advice.slots if number > 0)
    return Change(added, (f"{name}={' '.join(values)}",) if name else ())


def distance(trace: Trace) -> Optimum:
    """`lab optimum`: how much less a scheduler could wait that knew all jobs beforehand."""
    return optimum(trace, run_engine(scenario_of(trace)).schedule)


def work_s(trace: Trace) -> float:
    """Return how long all jobs had their slots, together, s."""
    return sum(each.took_us for each in scenario_of(trace).arrivals) / SECOND_US


def waits_longest(found: waits.WaitReport) -> str:
    """Return the type of which 5 % of the jobs wait longest."""
    return max(found.types, key=lambda each: found.types[each].p95_s or 0.0)
