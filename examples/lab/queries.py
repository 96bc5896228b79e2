"""The calls to the lab: each function does the same as a command of `celery affinity lab`."""

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
    """A change of the fleet, as options of `lab whatif`."""

    #: Added slots, such as ``[pdf]:1``.
    add: tuple[str, ...] = ()
    #: Changed settings, such as ``limits=type:pdf=1``.
    settings: tuple[str, ...] = ()

    @property
    def options(self) -> str:
        return " ".join([*(f"--add '{slots}'" for slots in self.add), *(f"--set '{value}'" for value in self.settings)])


def replay(trace: Trace) -> replay_module.Replay:
    """`lab replay`: schedule the recorded jobs again."""
    return replay_module.replay(trace)


def what_if(trace: Trace, change: Change) -> tuple[Schedule, Schedule]:
    """`lab whatif`: return the schedules without and with the change."""
    scenario = scenario_of(trace)
    changes = read_changes(scenario, add=change.add, settings=change.settings)
    before, after, _ = replay_module.schedule_both(scenario, changes)
    return before, after


def recorded_schedule(trace: Trace) -> Schedule:
    """Return the schedule that the fleet had."""
    return replay_module.recorded_jobs(trace, scenario_of(trace))


def advice(trace: Trace, target: str) -> Advised:
    """`lab advise`: return the smallest changes of slots and settings that would have reached *target*."""
    scenario = scenario_of(trace)
    parsed = targets.parse_target(target, {job.type for job in scenario.arrivals})
    return advise(scenario, [parsed], lambda changed: run_engine(changed).schedule)


def change_of(advice: Advice) -> Change:
    """Return the advice as a change."""
    name, *values = shlex.split(advice.settings) or [""]
    added = tuple(f"[{','.join(profile)}]:{number}" for profile, number in advice.slots if number > 0)
    return Change(added, (f"{name}={' '.join(values)}",) if name else ())


def distance(trace: Trace) -> Optimum:
    """`lab optimum`: compare the schedule with the best one for a scheduler that knows all jobs in advance."""
    return optimum(trace, run_engine(scenario_of(trace)).schedule)


def work_s(trace: Trace) -> float:
    """Return the slot time of all jobs, in seconds."""
    return sum(job.took_us for job in scenario_of(trace).arrivals) / SECOND_US


def slowest_type(report: waits.WaitReport) -> str:
    """Return the type with the longest 95th percentile of waits."""
    return max(report.types, key=lambda name: report.types[name].p95_s or 0.0)
