"""What if: a trace is scheduled as it was recorded, and with changes; who waits less then, and who longer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from . import engines, gains, waits
from .changes import Changes, changed
from .engines import Engine, scheduled
from .gains import Gain
from .scenario import Scenario
from .schedule import Schedule
from .waits import WaitReport


@dataclass(frozen=True)
class WhatIf:
    """*gains*: of the jobs that both schedules have, who gains most first."""

    engine: str
    before: WaitReport
    after: WaitReport
    gains: Sequence[Gain]


def both(
    scenario: Scenario, changes: Changes, engine: Engine = "auto", progress: Iterable[object] | None = None
) -> tuple[Schedule, Schedule, str]:
    """Return the schedules of *scenario* without and with *changes*, both of one engine, and its name.

    *progress*: stepped for each job that arrives, in both. Raises UnknownRuleError.
    """
    steps, other = iter(progress or ()), changed(scenario, changes)
    if engine == "auto":
        engine = "judge" if "judge" in (engines.of(scenario), engines.of(other)) else "twin"
    before, after = scheduled(scenario, engine, steps), scheduled(other, engine, steps)
    return before.schedule, after.schedule, after.engine


def compared(before: Schedule, after: Schedule, engine: str) -> WhatIf:
    return WhatIf(engine, waits.report(before), waits.report(after), gains.between(before, after))
