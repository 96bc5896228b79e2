"""Report the run times that workers have learned, by task (`policy/run_times`)."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..clock import SECOND_US
from ..policy.run_times import RunTime
from ..scheduler.cohorts import CohortRow
from ..scheduler.reader import Reader
from ..schema.constants import MAX_TASKS_LEARNED
from ..schema.values import decode_part
from .render import Table, duration_text
from .report import Answer, Source, report


@dataclass(frozen=True)
class RunTimeRow(CohortRow):
    """The learned run time of a task. Times are in seconds.

    - *task*: the task's name.
    - *runs*: number of successful runs that were counted.
    - *expected_s*: expected run time for the mean size.
    - *typical_error*: mean error of the predictions, as a fraction of *expected_s*.
    - *mean_size*: mean of the sizes (option ``size``); 1 without sizes.
    - *per_size_s*: additional run time per unit of size; 0 if sizes do not predict it.
    """

    task: str
    runs: int
    expected_s: float
    typical_error: float
    mean_size: float
    per_size_s: float


def learned_run_times(reader: Reader) -> Mapping[str, RunTime]:
    """Return what is learned of each task, by name, without damaged values."""
    rows = list(reader.hash("run_times").items())[:MAX_TASKS_LEARNED]
    parsed = ((decode_part(name), RunTime.parse(value)) for name, value in rows)
    return {name: learned for name, learned in parsed if learned is not None}


def run_time_rows(reader: Reader) -> list[RunTimeRow]:
    """Return the learned run times, the longest first."""
    rows = [_row(name, learned) for name, learned in learned_run_times(reader).items()]
    return sorted(rows, key=lambda row: (-row.expected_s, row.task))


def _row(name: str, learned: RunTime) -> RunTimeRow:
    _, per_size_us = learned.line
    return RunTimeRow(
        task=name,
        runs=learned.runs,
        expected_s=learned.expected_us() / SECOND_US,
        typical_error=learned.typical_error,
        mean_size=learned.mean_size,
        per_size_s=per_size_us / SECOND_US,
    )


_RUN_TIMES = Table[RunTimeRow](
    {
        "task": "task",
        "runs": "runs",
        "expected": lambda row: duration_text(row.expected_s),
        "typical error": lambda row: f"{row.typical_error:.0%}",
        "mean size": lambda row: f"{row.mean_size:.4g}",
        "per size": lambda row: duration_text(row.per_size_s) if row.per_size_s else "-",
    },
    empty="no task has succeeded yet",
)


@report("run-times", "/api/run-times", "Learned run times of tasks, with their typical errors", text=_RUN_TIMES.text)
def run_times(source: Source) -> Answer[list[RunTimeRow]]:
    """Show by task the run time that is expected, learned from its successful runs (option size)."""
    return source.rows(lambda scheduler: run_time_rows(scheduler.reader))
